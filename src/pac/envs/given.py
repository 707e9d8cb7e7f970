"""Environments that exist in this process only, so that no worker process can make them.

A user hands over an instance of Gymnasium's `Env`, or a function that makes one. Each gets a Gymnasium id, so that all
other code knows it by a task name. The name is that of its module and class, such as `gym/given-robot/Reach-v0`. It is
the same in every process. So the same call continues with a new object. The newest object of a name takes the place of
the older one. An id that the user's script registers is in this process only, too.
"""

import functools
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from pac.envs.tasks import check_name
from pac.files import problem

EnvLike = gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]]
GIVEN = "given"
_known: dict[str, object] = {}  # Gymnasium id -> the object that was given, which stays alive


def task_of(given: str | EnvLike) -> str:
    """Return the task name of an environment, a function that makes one, a task, or a plain Gymnasium id."""
    return tasks_of([given])[0]


def tasks_of(many: Sequence[str | EnvLike]) -> list[str]:
    """Return the task name of each. Different environments of one class are numbered in their order."""
    used: dict[str, object] = {}
    names = []
    for given in many:
        if isinstance(given, str):
            known = given in gymnasium.registry or (":" in given and not given.startswith("gym/"))
            names.append(f"gym/{given}" if known else given)
            check_name(names[-1])
            continue
        namespace, own, example = _identity(given)
        tries = (f"{namespace}{f'-{number}' if number > 1 else ''}/{own}" for number in itertools.count(1))
        name = next(name for name in tries if used.get(name, given) is given)
        used[name] = given
        _register(name, given, example)
        if example is not given:
            example.close()
        names.append(f"gym/{name}")
    return names


def _identity(given: Any) -> tuple[str, str, "gymnasium.Env[Any, Any]"]:
    """Return the namespace and the name of an environment's id, and the environment."""
    if not callable(given) and not isinstance(given, gymnasium.Env):
        expected = "a task, a Gymnasium id, an environment, or a function that returns one"
        raise problem("Task", expected=expected, found=type(given).__name__, fix="`pac tasks` lists the tasks.")
    example: Any = given if isinstance(given, gymnasium.Env) else given()
    if not isinstance(example, gymnasium.Env):
        expected, found = "a function that returns a gymnasium.Env", f"one that returns {type(example).__name__}"
        raise problem("Task", expected=expected, found=found, fix="Wrap the environment in Gymnasium's interface.")
    kind = type(example.unwrapped)
    place, name = kind.__module__.strip("_"), kind.__name__
    if example.spec is not None:
        place, _, name = example.spec.id.rpartition("/")
        place = place.removeprefix(f"{GIVEN}-")
    namespace = f"{GIVEN}-{re.sub(r'[^a-zA-Z0-9_]', '-', place)}" if place else GIVEN
    return namespace, name if re.search(r"-v\d+$", name) else f"{name}-v0", example


def _register(name: str, given: EnvLike, example: "gymnasium.Env[Any, Any]") -> None:
    if _known.get(name) is given and name in gymnasium.registry:
        return
    creator = _Shared(given) if isinstance(given, gymnasium.Env) else _Made(given)
    gymnasium.registry.pop(name, None)
    gymnasium.register(name, entry_point=creator, max_episode_steps=_limit(example))
    _known[name] = given


def is_given(task: str) -> bool:
    """Return whether the environment exists in this process only."""
    spec = gymnasium.registry.get(task.removeprefix("gym/")) if task.startswith("gym/") else None
    if spec is None:  # a task of another family, or an id that its own module registers wherever it is made
        return False
    return isinstance(spec.entry_point, _Shared | _Made) or describe(spec) not in _known_to_workers()


def describe(spec: Any) -> str:
    """Return an id and all that its environment depends on, as one line of text."""
    entry = spec.entry_point
    entry = f"{entry.__module__}:{entry.__qualname__}" if hasattr(entry, "__qualname__") else entry
    return repr((spec.id, entry, spec.max_episode_steps, spec.kwargs, spec.additional_wrappers))


@functools.cache
def _known_to_workers() -> frozenset[str]:
    """Return the ids that a fresh interpreter knows: those of Gymnasium and of its plugins."""
    code = "import gymnasium, pac.envs.given as g; print(*map(g.describe, gymnasium.registry.values()), sep='\\n')"
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=paths, stdout=subprocess.PIPE, text=True, check=True)
    return frozenset(done.stdout.splitlines())


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
