"""Meta-World: `metaworld/<name>`, the fifty tasks of a Sawyer arm, with goals drawn anew for each seed and visible."""

import numpy as np

from pac.envs.rendering import MujocoCameras, no_gl

with no_gl():
    import gymnasium
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from pac.envs.base import Environment, StepResult
from pac.envs.tasks import static_spec
from pac.types import TaskSpec

_NOW = ("hand.x", "hand.y", "hand.z", "gripper")
_OBJECTS = tuple(f"object{i}.{part}" for i in (1, 2) for part in ("x", "y", "z", "qx", "qy", "qz", "qw"))
_STATE = (*_NOW, *_OBJECTS)
STATE_NAMES = (*_STATE, *(f"previous.{name}" for name in _STATE), "goal.x", "goal.y", "goal.z")


class MetaWorldEnvironment(MujocoCameras, Environment):
    """A Meta-World task. It says success at every step and goes on: only the time limit ends an episode."""

    upside_down = ("corner", "corner2", "corner3", "corner4")

    def _build(self, task: str, cameras: tuple[str, ...], max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
        env = self.simulator = ALL_V3_ENVIRONMENTS[f"{task.removeprefix('metaworld/')}-v3"]()
        env._set_task_called = True  # goals come from our seeds, not from one of its benchmarks
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        _show_goal(env)
        self._model, self._data = env.model, env.data
        spec = static_spec(task, cameras, max_steps)
        env.max_path_length = spec.max_steps
        return spec, STATE_NAMES

    def _start(self, seed: int) -> np.ndarray:
        self.simulator.seed(seed)
        state, _ = self.simulator.reset()
        self._scene_changed()
        return state.astype(np.float32)

    def _advance(self, action: np.ndarray) -> StepResult:
        state, reward, _, _, info = self.simulator.step(action)
        return StepResult(state.astype(np.float32), reward, False, False, bool(info["success"]))


def _show_goal(env: "gymnasium.Env[np.ndarray, np.ndarray]") -> None:
    """Make the goal part of the observation. Meta-World clips observations to a space it computed when the goal was
    still hidden, which would turn the goal to zeros after the first step: widen that space as well.
    """
    env._partially_observable = False  # type: ignore[attr-defined]
    space = env.sawyer_observation_space  # type: ignore[attr-defined]
    low, high = space.low.copy(), space.high.copy()
    low[-3:], high[-3:] = -np.inf, np.inf
    env.sawyer_observation_space = gymnasium.spaces.Box(low, high, dtype=np.float64)  # type: ignore[attr-defined]
