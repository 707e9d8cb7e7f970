import numpy as np
import pytest
from behaviour_envs import Ones, play, still_env

from pac.behaviours import FAULT_MODES, make
from pac.behaviours.base import Uniform
from pac.behaviours.faults import SCRIPT_SHARES, Faults, fill_shares
from pac.behaviours.scripted import Scripted

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
