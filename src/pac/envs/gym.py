"""Any Gymnasium id whose actions are a Box and whose observations are numbers: `gym/<id>`."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict

from pac.envs.base import Environment, StepResult
from pac.envs.rendering import find_gl, no_gl
from pac.envs.tasks import instruction
from pac.types import TaskSpec

_SUCCESS = ("is_success", "success")  # names in `info` that other libraries use


class GymEnvironment(Environment):
    """A Gymnasium environment as it was registered, with its own TimeLimit."""

    def _build(self, task: str, cameras: tuple[str, ...], max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
        env = self.simulator = _make(task, bool(cameras or self.render_mode), max_steps)
        limit = max_steps or (env.spec.max_episode_steps if env.spec else None)
        if limit is None:
            raise ValueError(f"{task}: expected a time limit, found none. Pass max_steps.")
        names = tuple(_names(task, env.observation_space))
        low, high = _bounds(task, env.action_space)
        period = getattr(env.unwrapped, "dt", None)  # seconds, in MuJoCo and classic tasks
        spec = TaskSpec(
            name=task,
            instruction=instruction(task),
            state_dim=len(names),
            action_low=tuple(low.tolist()),
            action_high=tuple(high.tolist()),
            max_steps=limit,
            has_success=self._reports_success(low, high),
            cameras=cameras,
            control_rate=1 / float(period) if period else None,
        )
        return spec, names

    def _reports_success(self, low: np.ndarray, high: np.ndarray) -> bool:
        """Return whether `info` reports success. Only a step shows it."""
        _, info = self.simulator.reset(seed=0)
        action = ((low + high) / 2).astype(self.simulator.action_space.dtype).reshape(self.simulator.action_space.shape)
        info |= self.simulator.step(action)[4]
        return any(name in info for name in _SUCCESS)

    def _start(self, seed: int) -> np.ndarray:
        observation, _ = self.simulator.reset(seed=seed)
        return _flat(self.simulator.observation_space, observation)

    def _advance(self, action: np.ndarray) -> StepResult:
        space = self.simulator.action_space
        observation, reward, terminated, truncated, info = self.simulator.step(
            action.astype(space.dtype).reshape(space.shape)
        )
        success = bool(max(info.get(name, 0) for name in _SUCCESS)) if self.task.has_success else None
        state = _flat(self.simulator.observation_space, observation)
        return StepResult(state, float(reward), bool(terminated), bool(truncated), success)

    def _open_cameras(self, with_frames: bool) -> None:
        try:
            self.simulator.reset(seed=0)
            self.simulator.render()
        except Exception as error:  # each environment has its own way to render
            message = f"{self.task.name}: expected it to render, found {error}. Repair that, or use no cameras."
            raise ValueError(message) from error

    def _image(self, camera: str, size: tuple[int, int] | None = None) -> np.ndarray:
        """Return the environment's own rendering, reduced to `size` by averaging."""
        frame = torch.from_numpy(np.ascontiguousarray(self.simulator.render())).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(frame, size or self._image_size, mode="area")
        return small[0].permute(1, 2, 0).round().to(torch.uint8).contiguous().numpy()

    def _close_cameras(self) -> None:
        self.simulator.close()


def _make(task: str, renders: bool, max_steps: int | None) -> "gymnasium.Env[Any, Any]":
    name, mode = task.removeprefix("gym/"), None
    if renders:
        mode = "rgb_array"
        with contextlib.suppress(ValueError):  # MuJoCo environments need it at their first rendering, others do not
            os.environ.setdefault("MUJOCO_GL", find_gl())
    try:
        with no_gl():
            return gymnasium.make(name, render_mode=mode, max_episode_steps=max_steps, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{task}: expected another package to be installed: {error}") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(
            f"{task}: expected an id of Gymnasium, found {error} An id from another package is gym/<module>:<id>."
        ) from error


def _bounds(task: str, space: "gymnasium.Space[Any]") -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(space, Box):
        raise ValueError(
            f"{task}: expected continuous actions (a Box), found {space}. Choose a continuous variant of the task, if "
            "there is one."
        )
    low, high = np.ravel(space.low).astype(np.float64), np.ravel(space.high).astype(np.float64)
    if not np.isfinite([low, high]).all():
        raise ValueError(f"{task}: expected finite action bounds, found {space}. Wrap it in RescaleAction or clip it.")
    return low, high


def _names(task: str, space: "gymnasium.Space[Any]", prefix: str = "state") -> Iterator[str]:
    """Yield one name per number, in the order of `_flat`."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from _names(task, part, key if prefix == "state" else f"{prefix}.{key}")
    elif isinstance(space, Box) and not (space.dtype == np.uint8 and len(space.shape) == 3):
        yield from (f"{prefix}.{i}" for i in range(int(np.prod(space.shape))))
    else:
        expected = "expected observations of numbers (a Box, or a Dict of them)"
        raise ValueError(f"{task}: {expected}, found {space} at {prefix!r}. Wrap the environment.")


def _flat(space: "gymnasium.Space[Any]", observation: Any) -> np.ndarray:
    """Return all numbers in the order of the space. The observation's own dict may have another order."""
    if isinstance(space, Dict):
        return np.concatenate([_flat(part, observation[key]) for key, part in space.spaces.items()])
    return np.ravel(observation).astype(np.float32)
