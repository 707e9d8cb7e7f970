"""Environments with Gymnasium's interface: the Control Suite, Meta-World, and any Gymnasium id.

Importing this package loads no simulator. `make` does.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pac.envs.tasks import TASKS, check_cameras, check_name, static_spec
from pac.types import TaskSpec

if TYPE_CHECKING:
    from pac.envs.base import Environment

__all__ = ["TASKS", "episode_seed", "make", "spec"]


def make(
    task: str,
    *,
    cameras: Sequence[str] = (),
    image_size: tuple[int, int] = (80, 80),
    max_steps: int | None = None,
    render_mode: str | None = None,
) -> "Environment":
    """Return an environment for one task. Each observation has an image of `image_size` (height, width) per camera.

    With `render_mode="rgb_array"` `render()` returns a larger frame for videos. Else nothing is rendered.
    """
    family, cameras = check_name(task), check_cameras(task, cameras)
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"{task}: expected render_mode None or 'rgb_array', found {render_mode!r}. Use one of them.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"{task}: expected max_steps of at least 1, found {max_steps}. Raise it.")
    if min(image_size) < 1:
        raise ValueError(f"{task}: expected image_size (height, width) of at least 1, found {image_size}. Raise it.")
    from pac.envs.base import load

    return load(family)(task, cameras, image_size, max_steps, render_mode)


def spec(task: str, *, cameras: Sequence[str] = (), max_steps: int | None = None) -> TaskSpec:
    """Return the `.task` of an environment without making it. Only a Gymnasium id has to be made."""
    family, cameras = check_name(task), check_cameras(task, cameras)
    if family == "gym":
        return dataclasses.replace(_gym_spec(task, max_steps), cameras=cameras)
    return static_spec(task, cameras, max_steps)


@functools.cache
def _gym_spec(task: str, max_steps: int | None) -> TaskSpec:
    env = make(task, max_steps=max_steps)
    env.close()
    return env.task


def episode_seed(task: str, seed: int, index: int) -> int:
    """Return the seed of episode `index` of a task under `seed`: 63 bits of a hash, the same on every machine.

    So the initial state does not depend on the process or on earlier episodes.
    """
    digest = hashlib.sha256(f"{task}\0{int(seed)}\0{int(index)}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
