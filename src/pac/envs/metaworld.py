"""Meta-World: `metaworld/<name>`, fifty tasks of a Sawyer arm. Each seed has another goal, which is visible."""

import numpy as np

from pac.envs.rendering import MujocoCameras, no_gl

with no_gl():
    import gymnasium
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from pac.envs.base import Environment, StepResult
from pac.envs.tasks import static_spec
from pac.types import TaskSpec

_HAND = ("hand.x", "hand.y", "hand.z", "gripper")
_OBJECTS = tuple(f"object{i}.{part}" for i in (1, 2) for part in ("x", "y", "z", "qx", "qy", "qz", "qw"))
_STATE = (*_HAND, *_OBJECTS)
STATE_NAMES = (*_STATE, *(f"previous.{name}" for name in _STATE), "goal.x", "goal.y", "goal.z")


class MetaWorldEnvironment(MujocoCameras, Environment):
    """A task of Meta-World. It reports success at every step. Only the time limit ends an episode."""

    upside_down = ("corner", "corner2", "corner3", "corner4")

    def _build(self, task: str, cameras: tuple[str, ...], max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
        env = self.simulator = ALL_V3_ENVIRONMENTS[f"{task.removeprefix('metaworld/')}-v3"]()
        env._set_task_called = True  # goals come from our seeds, not from a benchmark of Meta-World
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
    """Make the goal part of the observation, and widen the space that Meta-World clips observations to.

    Meta-World computed the space while the goal was hidden. It would clip the goal to 0 after the first step.
    """
    env._partially_observable = False  # type: ignore[attr-defined]
    space = env.sawyer_observation_space  # type: ignore[attr-defined]
    low, high = space.low.copy(), space.high.copy()
    low[-3:], high[-3:] = -np.inf, np.inf
    env.sawyer_observation_space = gymnasium.spaces.Box(low, high, dtype=np.float64)  # type: ignore[attr-defined]
