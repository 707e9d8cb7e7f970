import numpy as np
import pytest
from behaviour_envs import play, still_env

from pac import envs
from pac.behaviours import make
from pac.behaviours.scripted import Scripted, experts


def success_ever(spec: str, task: str, steps: int, seed: int = 0) -> bool:
    env, behaviour = envs.make(task), make(spec)
    observation, _ = env.reset(seed=seed)
    behaviour.begin(env, np.random.default_rng(seed))
    for _ in range(steps):
        observation, _, _, _, info = env.step(behaviour.act(observation))
        if info["success"]:
            return True
    return False


@pytest.mark.parametrize("task", ["reach", "drawer-open", "push", "door-close"])
def test_scripts_succeed_and_a_script_that_stops_at_once_does_not(task: str) -> None:
    assert success_ever("scripted", f"metaworld/{task}", 150)
    assert not success_ever("scripted+stop-short:after=0-0", f"metaworld/{task}", 30)


@pytest.mark.parametrize("task", sorted(experts()))
def test_every_script_reads_the_position_that_a_wrong_goal_moves(task: str) -> None:
    """Moving a position that the script does not read would be no fault."""
    random, script = np.random.default_rng(0), Scripted()
    script.begin(still_env(4, f"metaworld/{task}"), random)
    states = random.uniform((-0.3, 0.4, 0.0) * 13, (0.3, 0.9, 0.4) * 13, (1000, 39))
    states[:, 4:7] = states[:, :3] + random.normal(0, 0.02, (1000, 3))  # near the hand, where scripts turn to the goal
    differs = []
    for axis in range(2):
        script.offset = np.zeros(3)
        before = np.array([script.act({"observation.state": state}) for state in states])
        script.offset = np.eye(3)[axis] * 0.15
        after = np.array([script.act({"observation.state": state}) for state in states])
        differs.append(np.abs(after - before).max() > 1e-3)
    assert all(differs)


def test_a_script_leaves_the_observation_alone() -> None:
    state = np.linspace(0, 1, 39).astype(np.float64)
    for task in sorted(experts()):
        script = Scripted()
        script.begin(still_env(4, f"metaworld/{task}"), np.random.default_rng(0))
        seen = state.copy()
        action = script.act({"observation.state": seen})
        np.testing.assert_array_equal(seen, state)
        assert action.dtype == np.float32
        assert action.shape == (4,)
        assert np.isfinite(action).all()


def test_scripts_are_for_meta_world() -> None:
    with pytest.raises(ValueError, match="use 'planner'"):
        play(make("scripted"), 1, env=still_env(2, "control/walker.walk"))
    with pytest.raises(ValueError, match="Did you mean 'drawer-open'"):
        play(make("scripted"), 1, env=still_env(4, "metaworld/drawr-open"))
