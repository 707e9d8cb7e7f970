"""Environments that a user hands over: an instance of Gymnasium's `Env`, or a function that makes one.

Each gets a Gymnasium id of this process, so that all other code knows it by a task name such as `gym/given-0/Reach-v0`.
"""

import itertools
import re
from collections.abc import Callable
from typing import Any

import gymnasium

from pac.envs.tasks import check_name
from pac.files import problem

EnvLike = gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]]
GIVEN = "given"
_numbers = itertools.count()
_known: dict[int, tuple[object, str]] = {}  # id of the object -> the object, which stays alive, and its task


def task_of(given: str | EnvLike) -> str:
    """Return the task name of an environment, a function that makes one, a task, or a plain Gymnasium id."""
    if isinstance(given, str):
        known = given in gymnasium.registry or (":" in given and not given.startswith("gym/"))
        task = f"gym/{given}" if known else given
        check_name(task)
        return task
    if id(given) in _known:
        return _known[id(given)][1]
    wrong: Any = given
    if not callable(wrong) and not isinstance(wrong, gymnasium.Env):
        expected = "a task, a Gymnasium id, an environment, or a function that returns one"
        raise problem("Task", expected=expected, found=type(wrong).__name__, fix="`pac tasks` lists the tasks.")
    creator = _Shared(given) if isinstance(given, gymnasium.Env) else _Made(given)
    example: Any = given if isinstance(given, gymnasium.Env) else given()
    if not isinstance(example, gymnasium.Env):
        expected, found = "a function that returns a gymnasium.Env", f"one that returns {type(example).__name__}"
        raise problem("Task", expected=expected, found=found, fix="Wrap the environment in Gymnasium's interface.")
    own = type(example.unwrapped).__name__ if example.spec is None else example.spec.id.rpartition("/")[2]
    name = f"{GIVEN}-{next(_numbers)}/{own}" if re.search(r"-v\d+$", own) else f"{GIVEN}-{next(_numbers)}/{own}-v0"
    gymnasium.register(name, entry_point=creator, max_episode_steps=_limit(example))
    if example is not given:
        example.close()
    _known[id(given)] = (given, f"gym/{name}")
    return f"gym/{name}"


def is_given(task: str) -> bool:
    """Return whether the environment exists in this process only."""
    return task.startswith(f"gym/{GIVEN}-")


def one_at_a_time(task: str) -> bool:
    """Return whether the task is a single environment, which plays one episode at a time."""
    return is_given(task) and isinstance(gymnasium.spec(task.removeprefix("gym/")).entry_point, _Shared)


class _Shared:
    """An entry point that returns one environment again and again. Closing it is left to its owner."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env

    def __call__(self, **_: Any) -> gymnasium.Env[Any, Any]:
        return _KeptOpen(self.env)


class _Made:
    """An entry point that calls a user's function, which takes no arguments."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        self.make = make

    def __call__(self, **_: Any) -> gymnasium.Env[Any, Any]:
        return self.make()


class _KeptOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    def close(self) -> None:
        pass


def _limit(env: Any) -> int | None:
    """Return the time limit that an environment has already, or None."""
    while env is not None:
        if (steps := getattr(env, "_max_episode_steps", None)) is not None:
            return int(steps)
        if (spec := getattr(env, "spec", None)) is not None and spec.max_episode_steps is not None:
            return int(spec.max_episode_steps)
        env = getattr(env, "env", None)
    return None
