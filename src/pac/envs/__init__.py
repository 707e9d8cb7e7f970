"""Worlds to act in, behind one interface (Gymnasium's): the Control Suite, Meta-World, and any Gymnasium id.

Importing this package loads no simulator; making a world does.
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
    """A world for one task: `cameras` are rendered into every observation at `image_size` (height, width); with
    `render_mode="rgb_array"`, `render()` gives a larger frame for videos. Nothing is rendered unless asked for.
    """
    family, cameras = check_name(task), check_cameras(task, cameras)
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"make({task!r}): expected render_mode None or 'rgb_array', found {render_mode!r}.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"make({task!r}): expected max_steps of at least 1, found {max_steps}.")
    if min(image_size) < 1:
        raise ValueError(f"make({task!r}): expected image_size (height, width) of at least 1, found {image_size}.")
    from pac.envs.base import load

    return load(family)(task, cameras, image_size, max_steps, render_mode)


def spec(task: str, *, cameras: Sequence[str] = (), max_steps: int | None = None) -> TaskSpec:
    """What `make` would give as `.task`. Nothing is rendered, and only a Gymnasium id has to be loaded to know it."""
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
    """The seed of episode `index` of a task in a run with `seed`: 63 bits of a hash, the same on every machine, so that
    an episode's start does not depend on who runs it or what ran before.
    """
    digest = hashlib.sha256(f"{task}\0{int(seed)}\0{int(index)}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
