import hashlib

import numpy as np
import pytest
from behaviour_envs import Ones, play, still_env

from pac.behaviours import FAULT_MODES, make
from pac.behaviours.base import CLEAN, Uniform
from pac.behaviours.faults import SCRIPT_SHARES, Faults, fill_shares
from pac.behaviours.scripted import Scripted
from pac.behaviours.spec import WRAPPERS, build

PUSH = still_env(4, "metaworld/push")


def test_a_robot_that_stops_short_is_clean_until_it_stops() -> None:
    actions, modes = play(Faults(Ones(), stop_short=1.0, after=(3, 9)), 30)
    stop = int(np.argmax(modes))
    assert 3 <= stop <= 9
    np.testing.assert_array_equal(modes, [0] * stop + [FAULT_MODES.index("stop-short")] * (30 - stop))
    np.testing.assert_array_equal(actions, [[1, 1]] * stop + [[0, 0]] * (30 - stop))


def test_hesitation_is_labelled_where_the_robot_stands_still() -> None:
    actions, modes = play(Faults(Ones(), hesitate=1.0, act_for=(2, 4), wait_for=(5, 6)), 200)
    still = (actions == 0).all(1)
    np.testing.assert_array_equal(still, modes == FAULT_MODES.index("hesitate"))
    edges = np.flatnonzero(np.diff(still.astype(int)))
    lengths = np.diff(edges)
    assert not still[0]
    assert set(lengths[0::2]) <= {5, 6}
    assert set(lengths[1::2]) <= {2, 3, 4}


def test_slow_takes_a_share_of_each_action() -> None:
    actions, modes = play(Faults(Ones(), slow=1.0, speed=(0.25, 0.25)), 5)
    np.testing.assert_allclose(actions, 0.25)
    assert (modes == FAULT_MODES.index("slow")).all()


def test_backwards_mirrors_actions_and_is_never_a_default() -> None:
    env = still_env()
    env.task.action_low = (0.5, -1.0)
    actions, modes = play(Faults(Ones(), backwards=1.0), 3, env=env)
    high = env.task.action_high
    np.testing.assert_allclose(actions, [[0.5 + high[0] - 1, -1.0 + high[1] - 1]] * 3)
    assert (modes == FAULT_MODES.index("backwards")).all()
    assert "backwards" not in fill_shares({}, True) | fill_shares({}, False)
    assert fill_shares({"clean": 0.4, "backwards": 0.4}, False)["slow"] == pytest.approx(0.2 * 0.25)


def test_standing_still_respects_bounds_that_exclude_zero() -> None:
    env = still_env()
    env.task.action_low = (0.5, -1.0)
    actions, _ = play(Faults(Ones(), stop_short=1.0, after=(0, 0)), 3, env=env)
    np.testing.assert_array_equal(actions, [[0.5, 0]] * 3)


def test_fault_modes_are_drawn_by_share_and_last_an_episode() -> None:
    behaviour, found = make("scripted+faults:after=0-0"), []
    for seed in range(600):
        _, modes = play(behaviour, 3, seed, PUSH)
        assert len(set(modes)) == 1
        found.append(int(modes[0]))
    for name, share in SCRIPT_SHARES.items():
        assert abs(np.mean(np.array(found) == FAULT_MODES.index(name)) - share) < 0.06


def test_switching_draws_a_new_fault_mode_within_the_episode() -> None:
    _, modes = play(make("scripted+faults:switch=15-50"), 4000, env=PUSH)
    changes = np.diff(np.flatnonzero(np.diff(modes)))
    assert changes.min() >= 15
    assert len(set(modes)) == 4
    assert 0.1 < np.mean(modes == 0) < 0.3


def test_a_script_is_clean_again_after_its_fault_mode() -> None:
    behaviour = make("scripted+faults:wrong-goal=0.5,other-skill=0.5")
    clean = play(make("scripted"), 1, env=PUSH)[0]
    assert isinstance(behaviour, Faults)
    assert behaviour.script is not None
    play(behaviour, 2, env=PUSH)
    behaviour.inner.begin(PUSH, np.random.default_rng(0))
    np.testing.assert_array_equal(behaviour.inner.act({"observation.state": np.zeros(39)})[None], clean)


def test_a_wrong_goal_has_the_chosen_distance_and_height() -> None:
    behaviour = make("scripted+wrong-goal:offset=0.1-0.2")
    assert isinstance(behaviour, Faults)
    assert behaviour.script is not None
    for seed in range(20):
        behaviour.begin(PUSH, np.random.default_rng(seed))
        assert 0.1 <= np.linalg.norm(behaviour.script.offset[:2]) <= 0.2
        assert behaviour.script.offset[2] == 0


def test_another_skill_is_never_the_task_itself() -> None:
    behaviour = make("scripted+uniform:p=0+other-skill")
    assert isinstance(behaviour, Faults)
    assert isinstance(behaviour.script, Scripted)
    skills = set()
    for seed in range(100):
        behaviour.begin(PUSH, np.random.default_rng(seed))
        skills.add(behaviour.script.skill)
    assert "push" not in skills
    assert len(skills) > 25


def test_an_inner_fault_shows_through_a_clean_outer_wrapper() -> None:
    _, modes = play(Uniform(Faults(Ones(), slow=1.0), p=0.0), 3)
    assert (modes == FAULT_MODES.index("slow")).all()


def test_given_shares_stay_and_the_others_keep_their_proportions() -> None:
    shares = fill_shares({"clean": 0.6}, has_script=True)
    assert shares["clean"] == pytest.approx(0.6)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["wrong-goal"] / shares["other-skill"] == pytest.approx(0.4 / 0.15)
    assert fill_shares({}, has_script=True) == pytest.approx(SCRIPT_SHARES)


def test_impossible_shares_and_faults_are_refused() -> None:
    for given in ({"clean": 0.7, "slow": 0.7}, {"clean": -0.1}, {**SCRIPT_SHARES, "clean": 0.1}):
        with pytest.raises(ValueError, match="sum to 1"):
            fill_shares(given, has_script=True)
    for name in ("wrong-goal", "other-skill"):
        with pytest.raises(ValueError, match="expected a scripted behaviour"):
            make(f"random+{name}")


# Hashes of actions and fault modes before the faults below were added. Episodes of old behaviours must not change.
OLD_EPISODES = {
    "scripted+faults:clean=0.4,backwards=0.4,switch=5-15": "335f0c473548",
    "scripted+faults": "594389f306c0",
    "scripted+faults:clean=0.3,wrong-goal=0.3,other-skill=0.2,hesitate=0.2,switch=5-15": "898982a70099",
    "random+faults:switch=15-50": "7b819bd3d30b",
    "random+backwards+slow": "1216640b897c",
    "random+stop-short:after=5-9": "3a50b7a4b53f",
    "scripted+faults:switch=15-50+noise:sigma=0.1": "e9f14d98ed4b",
}


@pytest.mark.parametrize(("spec", "expected"), OLD_EPISODES.items())
def test_episodes_of_older_faults_stay_the_same_to_the_bit(spec: str, expected: str) -> None:
    behaviour, observations, found = make(spec), np.random.default_rng(8), hashlib.sha256()
    behaviour.begin(PUSH, np.random.default_rng(7))
    for _ in range(200):
        state = observations.normal(size=39).astype(np.float32)
        found.update(behaviour.act({"observation.state": state}).tobytes())
        found.update(bytes([int(behaviour.labels["fault_mode"])]))
    assert found.hexdigest()[:12] == expected


class Steps:
    """A behaviour whose actions are the number of the step, and the number in its observation."""

    def __init__(self) -> None:
        self.labels = dict(CLEAN)

    def begin(self, env: object, random: np.random.Generator) -> None:
        self.step = 0

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        self.step += 1
        return np.array([self.step, observation["observation.state"][0]], np.float32)


def play_steps(spec: str, steps: int, num_actions: int = 2) -> np.ndarray:
    """Return the actions of an episode whose observation holds the number of the step. It changes in place."""
    env, actions, state = still_env(num_actions), list[np.ndarray](), np.zeros(1, np.float32)
    env.task.action_low, env.task.action_high = (-1000.0,) * num_actions, (1000.0,) * num_actions
    behaviour = build(spec, WRAPPERS, spec, Steps())
    behaviour.begin(env, np.random.default_rng(0))
    for _ in range(steps):
        state += 1
        actions.append(behaviour.act({"observation.state": state}))
    return np.array(actions)


def test_a_delayed_action_is_the_one_of_some_steps_ago() -> None:
    actions = play_steps("delay:delay-by=3", 8)
    np.testing.assert_array_equal(actions[:, 0], [1, 1, 1, 1, 2, 3, 4, 5])


def test_a_delay_begins_with_the_actions_before_the_switch() -> None:
    actions = play_steps("faults:clean=0.5,delay=0.5,delay-by=4,switch=20", 2000)[:, 0]
    lags = np.arange(1, 2001) - actions
    assert set(lags[4:]) == {0, 4}
    assert (lags[4:] == 4).mean() == pytest.approx(0.5, abs=0.15)


def test_a_stale_observation_is_renewed_every_few_steps() -> None:
    actions = play_steps("stale:renew=3", 8)
    np.testing.assert_array_equal(actions[:, 1], [1, 1, 1, 4, 4, 4, 7, 7])
    np.testing.assert_array_equal(actions[:, 0], np.arange(1, 9), "the behaviour itself goes on")


def switched(spec: str, steps: int = 3000) -> np.ndarray:
    """Return the actions, 4 at a step, of a behaviour whose own actions are all 1 within bounds of -1 and 3."""
    return play(build(spec, WRAPPERS, spec, Ones(4)), steps, env=still_env(4))[0]


def test_some_dims_changes_some_dimensions_and_never_all() -> None:
    env = still_env(4)
    env.task.action_low, env.task.action_high = (-1.0,) * 4, (2.0,) * 4  # the mirror of 1 is 0
    actions = play(build("some-dims:switch=1", WRAPPERS, "", Ones(4)), 3000, env=env)[0]
    changed = actions != 1
    assert set(changed.sum(1)) == {1, 2, 3}
    assert changed.mean(0) == pytest.approx([0.5] * 4, abs=0.05)
    mirrored = (actions == 0) & changed
    assert mirrored.sum() / changed.sum() == pytest.approx(0.5, abs=0.05)
    held = actions[changed & ~mirrored]
    assert held.min() < -0.9
    assert held.max() > 1.9


def test_a_fault_keeps_its_parameters_until_the_switch() -> None:
    for fault in ("some-dims", "scaled", "biased"):
        actions = switched(f"{fault}:switch=10")
        stretches = actions.reshape(-1, 10, 4)
        assert (stretches == stretches[:, :1]).all()
        assert len(np.unique(stretches[:, 0], axis=0)) > 15


def test_scaled_and_biased_change_the_action_within_its_bounds() -> None:
    scaled = switched("scaled:switch=1,factor=0.5-4")
    assert scaled.min() == pytest.approx(0.5, abs=0.05)
    assert scaled.max() == 3
    assert (scaled == scaled[:, :1]).all(), "one factor for all dimensions"
    biased = switched("biased:switch=1,bias=0.25-1.5")
    assert (biased.min(), biased.max()) == (-1, 3)
    assert (np.abs(biased - 1) >= 0.5 - 1e-6).all(), "half the range is 2"
    assert abs(np.corrcoef(biased.T)[0, 1]) < 0.1, "each dimension has an offset of its own"


def test_the_newer_faults_are_labelled_and_never_a_default() -> None:
    for name in ("some-dims", "delay", "scaled", "biased", "stale"):
        _, modes = play(make(f"random+{name}"), 5)
        assert (modes == FAULT_MODES.index(name)).all()
        assert name not in fill_shares({}, True) | fill_shares({}, False)


def test_one_action_dimension_alone_may_be_changed() -> None:
    actions, _ = play(build("some-dims:switch=1", WRAPPERS, "", Ones(1)), 50, env=still_env(1))
    assert actions.shape == (50, 1)
