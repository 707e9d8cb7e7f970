"""Any Gymnasium id whose actions are a Box and whose observations are numbers: `gym/<id>`.

Images in a Dict of observations are cameras, besides `render`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict

from pac.envs.base import Environment, StepResult
from pac.envs.rendering import find_gl, no_gl
from pac.envs.tasks import check_cameras, instruction
from pac.files import problem
from pac.types import TaskSpec

RENDER = "render"  # the camera whose image the environment renders
_SUCCESS = ("is_success", "success")  # names in `info` that other libraries use


class GymEnvironment(Environment):
    """A Gymnasium environment as it was registered, with its own TimeLimit."""

    def _build(self, task: str, cameras: tuple[str, ...], max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
        self._renders = RENDER in cameras or (self.render_mode is not None and not cameras)
        env = self.simulator = _make(task, self._renders, max_steps)
        self._pictures = _pictures(task, env.observation_space)
        self.all_cameras = (RENDER, *self._pictures)
        check_cameras(task, cameras, self.all_cameras)
        limit = max_steps or (env.spec.max_episode_steps if env.spec else None)
        if limit is None:
            raise ValueError(f"{task}: expected a time limit, found none. Pass max_steps.")
        names = tuple(_names(task, env.observation_space))
        if not names:
            raise _no_numbers(task, env.observation_space)
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
        self._latest = observation
        return _flat(self.simulator.observation_space, observation)

    def _advance(self, action: np.ndarray) -> StepResult:
        space = self.simulator.action_space
        observation, reward, terminated, truncated, info = self.simulator.step(
            action.astype(space.dtype).reshape(space.shape)
        )
        success = bool(max(info.get(name, 0) for name in _SUCCESS)) if self.task.has_success else None
        self._latest = observation
        state = _flat(self.simulator.observation_space, observation)
        return StepResult(state, float(reward), bool(terminated), bool(truncated), success)

    def _open_cameras(self, with_frames: bool) -> None:
        if not self._renders:
            return
        try:
            self.simulator.reset(seed=0)
            self.simulator.render()
        except Exception as error:  # each environment has its own way to render
            message = f"{self.task.name}: expected it to render, found {error}. Repair that, or use no cameras."
            raise ValueError(message) from error

    def _image(self, camera: str, size: tuple[int, int] | None = None) -> np.ndarray:
        """Return an image of the observation, or the environment's own rendering, resized by averaging."""
        image, size = self._picture(camera), size or self._size(camera)
        if image.shape[:2] == size:
            return image.copy()
        frame = torch.from_numpy(image).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(frame, size, mode="area")
        return small[0].permute(1, 2, 0).round().to(torch.uint8).contiguous().numpy()

    def _picture(self, camera: str) -> np.ndarray:
        found = self.simulator.render() if camera == RENDER else self._latest
        for key in self._pictures.get(camera, ((), ()))[0]:
            found = found[key]
        return np.ascontiguousarray(found)

    def _size(self, camera: str) -> tuple[int, int]:
        _, own = self._pictures.get(camera, ((), self._image_size))
        return own if self._own_sizes else self._image_size

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
            options = {"render_mode": mode} if renders else {}  # an own class may not take the argument
            return gymnasium.make(name, max_episode_steps=max_steps, disable_env_checker=True, **options)
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


def _is_image(space: "gymnasium.Space[Any]") -> bool:
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _images(space: "gymnasium.Space[Any]", path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Box]]:
    """Yield the keys that lead to each image of a Dict of observations, and its space."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from _images(part, (*path, key))
    elif path and _is_image(space):
        yield path, cast(Box, space)


def _pictures(task: str, space: "gymnasium.Space[Any]") -> dict[str, tuple[tuple[str, ...], tuple[int, int]]]:
    """Return the keys and the size of each camera among the observations.

    The keys "wrist", "images.wrist" and "observation.images.wrist" are the camera "wrist".
    """
    found: dict[str, tuple[tuple[str, ...], tuple[int, int]]] = {}
    for path, box in _images(space):
        name = ".".join(path).removeprefix("observation.").removeprefix("images.")
        height, width, depth = box.shape
        if depth != 3:
            fix = "Wrap the environment."
            raise problem(f"{task}, {name!r}", expected="images (height, width, 3)", found=box.shape, fix=fix)
        if name in found or name == RENDER:
            fix = "Rename one of them."
            raise problem(task, expected="a different name for each camera", found=f"{name!r} twice", fix=fix)
        found[name] = (path, (height, width))
    return found


def _names(task: str, space: "gymnasium.Space[Any]", prefix: str = "state") -> Iterator[str]:
    """Yield one name per number, in the order of `_flat`. Images in a Dict have none."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            if not _is_image(part):
                yield from _names(task, part, key if prefix == "state" else f"{prefix}.{key}")
    elif isinstance(space, Box) and not _is_image(space):
        yield from (f"{prefix}.{i}" for i in range(int(np.prod(space.shape))))
    else:
        raise _no_numbers(task, f"{space} at {prefix!r}")


def _no_numbers(task: str, found: object) -> ValueError:
    expected = "observations of numbers (a Box, or a Dict of them that may have images, too)"
    return problem(task, expected=expected, found=found, fix="Wrap the environment.")


def _flat(space: "gymnasium.Space[Any]", observation: Any) -> np.ndarray:
    """Return all numbers in the order of the space. The observation's own dict may have another order."""
    if isinstance(space, Dict):
        parts = [_flat(part, observation[key]) for key, part in space.spaces.items() if not _is_image(part)]
        return np.concatenate([np.zeros(0, np.float32), *parts])
    return np.ravel(observation).astype(np.float32)
