"""Content of an episode, played in this process."""

import numpy as np
import pytest
from rollout.actors import Swaying, assert_same
from rollout.environments import BROKEN, POINT

from pac import envs
from pac.rollout import ActorMix, Job, make_jobs, rollout
from pac.types import Query, Reply


def test_results_have_the_order_and_initial_states_of_their_jobs() -> None:
    jobs = [Job(POINT, 6, i) for i in (5, 0, 9, 2, 2, 7)]
    results = list(rollout("random", jobs, workers=0))
    assert [result.job for result in results] == jobs
    env = envs.make(POINT)
    for result in results:
        first, _ = env.reset(seed=envs.episode_seed(POINT, 6, result.index))
        np.testing.assert_array_equal(result.episode.observation["observation.state"][0], first["observation.state"])
    assert len({result.length for result in results}) > 2  # so order and starts did not depend on when episodes end
    assert_same(results[3:4], results[4:5])


def test_the_batch_size_does_not_change_an_episode() -> None:
    jobs = make_jobs([POINT], 9)
    alone = [result for job in jobs for result in rollout(Swaying(), [job], workers=0)]
    for size in (1, 2, 3, 8):
        actor = Swaying()
        assert_same(list(rollout(actor, jobs, workers=0, envs_per_worker=size)), alone)
        assert max(actor.batches) == size


def test_an_episode_records_observations_actions_and_rewards() -> None:
    (result,) = rollout(Swaying(), [Job(POINT, 0, 4)], workers=0)
    episode, states = result.episode, result.episode.observation["observation.state"]
    assert states.shape == (result.length + 1, 3)
    assert states.dtype == episode.action.dtype == episode.reward.dtype == np.float32
    np.testing.assert_allclose(states[1:, 1:], states[:-1, 1:] + episode.action, atol=1e-5)
    np.testing.assert_allclose(episode.reward, states[1:, 2], atol=1e-6)
    assert result.total_return == float(episode.reward.sum(dtype=np.float64))
    assert result.values is not None
    np.testing.assert_allclose(result.values, np.tanh(states[:-1].sum(1)), atol=1e-5)
    assert episode.seed == envs.episode_seed(POINT, 0, 4)
    assert episode.source.startswith(f"swaying in {POINT}, seed 0, episode 4")
    assert rollout("random", [Job(POINT, 0, 4)], workers=0).__next__().labels["fault_mode"].shape == (result.length,)


def test_termination_and_truncation_differ() -> None:
    for result in rollout("random", make_jobs([POINT], 12), workers=0):
        key = result.episode.observation["observation.state"][0, 0]
        natural = 3 + int(20 * key)
        assert result.length == min(12, natural)
        assert (result.episode.terminated, result.episode.truncated) == (natural <= 12, natural > 12)
    for result in rollout("random", make_jobs([POINT], 6), workers=0, max_steps=3):
        assert result.length == 3


def test_success_at_any_step_counts_and_may_end_the_episode() -> None:
    jobs = make_jobs([POINT], 30)
    whole = list(rollout("random", jobs, workers=0))
    stopped = list(rollout("random", jobs, workers=0, stop_at_success=True))
    assert {result.success for result in whole} == {True, False}
    for full, short in zip(whole, stopped, strict=True):
        far = np.abs(full.episode.observation["observation.state"][1:, 1]) > 2
        reward = full.episode.extra_rewards["success"]
        assert full.success == short.success == far.any()
        assert reward.sum() == far.any()
        if full.success:
            first = int(far.argmax())
            assert reward[first] == 1
            assert short.length == first + 1
            assert (short.episode.terminated, short.episode.truncated) == (True, False)
            assert short.episode.extra_rewards["success"][-1] == 1


def test_a_mix_samples_actors_by_weight_and_seed() -> None:
    swaying = Swaying()
    mix = ActorMix(("random", swaying), (3.0, 1.0))
    picked = [mix.pick(envs.episode_seed(POINT, 0, i)) for i in range(2000)]
    assert 0.21 < sum(actor is swaying for actor in picked) / 2000 < 0.29
    results = list(rollout(mix, make_jobs([POINT], 12), workers=0))
    assert [result.actor for result in results] == [
        "random" if actor == "random" else "swaying" for actor in picked[:12]
    ]
    for result in results:
        assert_same([result], list(rollout("random" if result.actor == "random" else swaying, [result.job], workers=0)))
    with pytest.raises(ValueError, match="one weight"):
        ActorMix(("random",), (1.0, 2.0))
    with pytest.raises(ValueError, match="not all 0"):
        ActorMix(("random", "random"), (0.0, 0.0))


class Wrong:
    """A policy with fixed actions."""

    name = "wrong"

    def __init__(self, *actions: list[float]) -> None:
        self.actions = actions

    def act(self, queries: list[Query]) -> list[Reply]:
        return [Reply(action=np.array(action, np.float32)) for action in self.actions]


def test_errors_name_the_task_the_episode_and_the_step() -> None:
    jobs = [Job(POINT, 1, 6)]
    with pytest.raises(ValueError, match=r"wrong, gym/.*step 0: expected an action of shape \(2,\), found \(3,\)"):
        list(rollout(Wrong([0, 0, 0]), jobs, workers=0))
    with pytest.raises(ValueError, match=r"action\[1\].*found nan.*Point-v0, seed 1, episode 6, step 0"):
        list(rollout(Wrong([0, np.nan]), jobs, workers=0))
    with pytest.raises(ValueError, match=r"expected 1 replies, found 2"):
        list(rollout(Wrong([0, 0], [0, 0]), jobs, workers=0))
    with pytest.raises(LookupError, match=r"the gripper fell off.*episode 6, step 2"):
        list(rollout("random", [Job(BROKEN, 1, 6)], workers=0))
    with pytest.raises(ValueError, match=r"Did you mean 'control/walker\.walk'"):
        rollout("random", [Job("control/walker.wlak", 0, 0)])
    with pytest.raises(ValueError, match="found 'randm'"):
        rollout("randm", jobs)
    with pytest.raises(ValueError, match="Unknown camera 'nose'"):
        rollout("random", [Job("metaworld/reach", 0, 0)], cameras=["nose"])
    with pytest.raises(ValueError, match=r"gym/NoSuch-v0.*NoSuch-v0, seed 0, episode 0, at its start"):
        list(rollout("random", [Job("gym/NoSuch-v0", 0, 0)], workers=0))
    for wrong in ({"workers": -1}, {"envs_per_worker": 0}, {"max_steps": 0}, {"timeout": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            rollout("random", jobs, **wrong)
    assert list(rollout("random", [])) == []
