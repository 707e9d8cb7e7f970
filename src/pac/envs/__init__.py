"""Environments with Gymnasium's interface: the Control Suite, Meta-World, and any Gymnasium id.

Importing this package loads no simulator. `make` does.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pac.envs.tasks import TASKS, check_cameras, check_name, known_cameras, static_spec
from pac.types import TaskSpec

if TYPE_CHECKING:
    from pac.envs.base import Environment

__all__ = ["TASKS", "all_cameras", "episode_seed", "make", "spec"]


def make(
    task: str,
    *,
    cameras: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
    max_steps: int | None = None,
    render_mode: str | None = None,
) -> "Environment":
    """Return an environment for one task. Each observation has an image of `image_size` (height, width) per camera.

    By default an image has 80x80 pixels. One among the observations of a Gymnasium environment keeps its size. With
    `render_mode="rgb_array"` `render()` returns a larger frame for videos. Else nothing is rendered.
    """
    family = check_name(task)
    known = cameras if family == "gym" else known_cameras(task)  # those of a Gymnasium id are checked once it is made
    cameras = check_cameras(task, cameras, known)
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"{task}: expected render_mode None or 'rgb_array', found {render_mode!r}. Use one of them.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"{task}: expected max_steps of at least 1, found {max_steps}. Raise it.")
    if image_size is not None and min(image_size) < 1:
        raise ValueError(f"{task}: expected image_size (height, width) of at least 1, found {image_size}. Raise it.")
    from pac.envs.base import load

    return load(family)(task, cameras, image_size, max_steps, render_mode)


def spec(task: str, *, cameras: Sequence[str] = (), max_steps: int | None = None) -> TaskSpec:
    """Return the `.task` of an environment without making it. Only a Gymnasium id has to be made."""
    if check_name(task) != "gym":
        return static_spec(task, check_cameras(task, cameras, known_cameras(task)), max_steps)
    found, known = _inspect(task, max_steps)
    return dataclasses.replace(found, cameras=check_cameras(task, cameras, known))


def all_cameras(task: str) -> tuple[str, ...]:
    """Return the cameras that a task has. A Gymnasium id has to be made for that."""
    return _inspect(task, None)[1] if check_name(task) == "gym" else known_cameras(task)


_inspected: dict[tuple[str, int | None], tuple[object, TaskSpec, tuple[str, ...]]] = {}


def _inspect(task: str, max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
    """Return the spec and the cameras of a Gymnasium id. It is made once, and again if it was registered again."""
    from pac.envs.base import registered

    entry = registered(task)
    before = _inspected.get((task, max_steps))
    if before is None or before[0] is not entry:
        env = make(task, max_steps=max_steps)
        env.close()
        before = _inspected[task, max_steps] = (registered(task), env.task, env.all_cameras)
    return before[1:]


def episode_seed(task: str, seed: int, index: int) -> int:
    """Return the seed of episode `index` of a task under `seed`: 63 bits of a hash, the same on every machine.

    So the initial state does not depend on the process or on earlier episodes.
    """
    digest = hashlib.sha256(f"{task}\0{int(seed)}\0{int(index)}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
