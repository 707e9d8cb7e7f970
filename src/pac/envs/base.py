"""The base class of environments: names of observations, checks of actions, time limit, images and seeded resets."""

import dataclasses
import importlib
from typing import Any, NamedTuple

import numpy as np

from pac.envs.rendering import FRAME
from pac.envs.tasks import known_cameras
from pac.types import TaskSpec

_EXTRA = "pip install 'perceiver-actor-critic[sim]'"
_MODULES = {
    "control": ("dm_control", "ControlEnvironment"),
    "metaworld": ("metaworld", "MetaWorldEnvironment"),
    "gym": ("", "GymEnvironment"),
}
IMAGE_SIZE = (80, 80)
TOLERANCE = 1e-4  # of an action outside its bounds: more than the rounding of float32

try:
    import gymnasium
except ImportError as error:  # pragma: no cover
    raise ValueError(f"Environments: expected the package gymnasium, found none ({error}). Do: {_EXTRA}") from error


class StepResult(NamedTuple):
    """State, reward and end of one simulator step."""

    state: np.ndarray  # (dims,) float32
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None


def load(family: str) -> type["Environment"]:
    """Import a simulator and return the class of its environments."""
    package, name = _MODULES[family]
    try:
        return getattr(importlib.import_module(f"pac.envs.{family}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pac."):
            raise
        raise ValueError(
            f"Tasks {family}/...: expected the package {package or family}, found no {error.name}. Do: {_EXTRA}"
        ) from error


def registered(task: str) -> Any:
    """Return what Gymnasium knows of the id `gym/<id>`, or None where a module registers it later."""
    return gymnasium.registry.get(task.removeprefix("gym/"))


class Environment(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """An environment for one task. Observations are dicts with the names of an Episode.

    `reset(seed=s)` starts from a state that depends on the task and s alone. Planners and scripts use `simulator`.
    """

    task: TaskSpec
    state_names: tuple[str, ...]  # one per state dimension
    all_cameras: tuple[str, ...]  # that the task has
    simulator: Any
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        cameras: tuple[str, ...],
        image_size: tuple[int, int] | None,
        max_steps: int | None,
        render_mode: str | None,
    ) -> None:
        self.render_mode = render_mode
        self._image_size, self._own_sizes = image_size or IMAGE_SIZE, image_size is None
        self._steps: int | None = None  # None: no episode has started
        self._succeeded = False
        self.all_cameras = known_cameras(task)
        spec, self.state_names = self._build(task, cameras, max_steps)
        self.task = dataclasses.replace(spec, state_names=self.state_names)
        if cameras or render_mode:
            self._open_cameras(with_frames=render_mode is not None)
        self._low = np.array(self.task.action_low, np.float32)
        self._high = np.array(self.task.action_high, np.float32)
        box = gymnasium.spaces.Box
        self.action_space = box(self._low, self._high, dtype=np.float32)
        spaces: dict[str, gymnasium.Space[Any]] = {
            "observation.state": box(-np.inf, np.inf, (self.task.state_dim,), np.float32)
        }
        for camera in cameras:
            spaces[f"observation.images.{camera}"] = box(0, 255, (*self._size(camera), 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(spaces)  # type: ignore[assignment]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode. Without `seed` one is drawn from the environment's own generator."""
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**63)) if seed is None else int(seed)
        self._steps, self._succeeded = 0, False
        return self._observe(self._start(seed)), {"seed": seed}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        if self._steps is None:
            raise ValueError(f"{self.task.name}: expected a started episode, found none. Call reset before step.")
        state, reward, terminated, truncated, success = self._advance(self._checked(action))
        self._steps += 1
        truncated = not terminated and (truncated or self._steps >= self.task.max_steps)
        info: dict[str, Any] = {}
        if success is not None:
            info = {"success": success, "sparse_reward": float(success and not self._succeeded)}
            self._succeeded |= success
        if terminated or truncated:
            self._steps = None
        return self._observe(state), float(reward), terminated, truncated, info

    def render(self) -> Any:
        """Return a frame for videos, (240, 320, 3) uint8, from the first of `cameras`, else the task's first."""
        if self.render_mode is None:
            raise ValueError(f"{self.task.name}: expected render_mode='rgb_array', found None. Pass it to `make`.")
        return self._image((self.task.cameras or self.all_cameras)[0], FRAME)

    def close(self) -> None:
        self._close_cameras()

    def _observe(self, state: np.ndarray) -> dict[str, np.ndarray]:
        observation = {"observation.state": state}
        for camera in self.task.cameras:
            observation[f"observation.images.{camera}"] = self._image(camera)
        return observation

    def _checked(self, action: Any) -> np.ndarray:
        """Return the action as float32 within its bounds. Raise if it has another shape or lies outside."""
        values = np.asarray(action, np.float32)
        if values.shape != self._low.shape:
            raise ValueError(
                f"{self.task.name}: expected an action of shape {self._low.shape}, found {values.shape}. Pass one raw "
                "number per action dimension, within task.action_low and task.action_high."
            )
        clipped = np.minimum(np.maximum(values, self._low), self._high)  # several times faster than np.clip
        near = np.abs(values - clipped) <= TOLERANCE  # False for NaN
        if not near.all():
            i = int(np.argmin(near))
            raise ValueError(
                f"{self.task.name}: expected action[{i}] within [{self._low[i]:g}, {self._high[i]:g}], found "
                f"{values[i]:g} at step {self._steps}. Scale a policy's output to the task's bounds."
            )
        return clipped

    def _build(self, task: str, cameras: tuple[str, ...], max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
        """Load the simulator. Return its spec and the names of its state dimensions."""
        raise NotImplementedError

    def _start(self, seed: int) -> np.ndarray:
        raise NotImplementedError

    def _advance(self, action: np.ndarray) -> StepResult:
        raise NotImplementedError

    def _open_cameras(self, with_frames: bool) -> None:
        """Prepare rendering. Raise if it is not possible."""
        raise NotImplementedError

    def _image(self, camera: str, size: tuple[int, int] | None = None) -> np.ndarray:
        raise NotImplementedError

    def _size(self, camera: str) -> tuple[int, int]:
        """Return the height and width of a camera's images."""
        return self._image_size

    def _close_cameras(self) -> None:
        raise NotImplementedError
