"""What is to be evaluated: actors and tasks from the words of a command line, and the settings that shape a trial."""

import fnmatch
import hashlib
import importlib.metadata
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pac
from pac import behaviours, policy
from pac.envs import TASKS
from pac.envs.tasks import check_name
from pac.model.pretrained import CONFIG, WEIGHTS, load_config, pretrained_folder
from pac.rollout import Policy

SAMPLINGS = ("sample", "mode")
PACKAGES = ("mujoco", "dm_control", "metaworld", "gymnasium", "numpy", "torch")  # what a trial's numbers depend on
_LABELLED = re.compile(r"([^:+(/=]+)=(.+)")  # the = of a behaviour's option comes after a : or a (


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """An actor and its name in the tables."""

    label: str
    text: str  # spec of a behaviour, or folder of a checkpoint
    is_checkpoint: bool
    sampling: str | None = None  # of a checkpoint's policy
    best_of: int | None = None  # actions drawn, of which the critic picks one

    def load(self) -> str | Policy:
        """What `rollout` takes."""
        if not self.is_checkpoint:
            return self.text
        return policy.load(self.text, sampling=self.sampling, best_of=self.best_of, values=True)

    def discount(self) -> float | None:
        """Of a checkpoint's critic: its values are discounted returns."""
        return load_config(self.text).get("discount") if self.is_checkpoint else None

    def describe(self) -> dict[str, Any]:
        """What the results say of it; a checkpoint that was written anew is another one."""
        if not self.is_checkpoint:
            return {"behaviour": self.text}
        choices = {"sampling": self.sampling, "best_of": self.best_of}
        return {"checkpoint": self.text, "fingerprint": fingerprint(Path(self.text)), **choices}


def fingerprint(folder: Path) -> str:
    """Of a checkpoint's weights and configuration, as they are."""
    found = hashlib.sha256()
    for name in (WEIGHTS, CONFIG):
        with (pretrained_folder(folder) / name).open("rb") as file:
            while block := file.read(1 << 22):
                found.update(block)
    return found.hexdigest()[:12]


def parse_actors(
    texts: Sequence[str], *, samplings: Sequence[str] = ("sample",), best_of: Sequence[int] = (1,)
) -> list[Contestant]:
    """`random`, `runs/walker/last`, `ours=runs/walker/last`. A checkpoint comes once for each choice of sampling."""
    for name in samplings:
        if name not in SAMPLINGS:
            raise ValueError(f"--sampling: expected {' or '.join(SAMPLINGS)}, found {name!r}.")
    if min(best_of) < 1:
        raise ValueError(f"--best-of: expected numbers of 1 or more, found {min(best_of)}.")
    actors = [actor for text in texts for actor in _parse(text, samplings, best_of)]
    labels = [actor.label for actor in actors]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"Expected a label of its own for each actor, found {twice[0]!r} twice. Write LABEL=ACTOR.")
    return actors


def _parse(text: str, samplings: Sequence[str], best_of: Sequence[int]) -> list[Contestant]:
    named = None if Path(text).is_dir() else _LABELLED.fullmatch(text)
    label, spec = (named[1].strip(), named[2].strip()) if named else (text, text)
    if not Path(spec).is_dir():
        if "/" in spec or Path(spec).exists():
            raise ValueError(f"{spec}: expected the folder of a checkpoint or a behaviour, found no such folder.")
        behaviours.make(spec)
        return [Contestant(label=label, text=spec, is_checkpoint=False)]
    made = []
    for sampling, number in itertools.product(samplings, best_of):
        choice = [sampling] * (len(samplings) > 1) + [f"best of {number}"] * (len(best_of) > 1)
        name = f"{label} ({', '.join(choice)})" if choice else label
        made.append(Contestant(label=name, text=spec, is_checkpoint=True, sampling=sampling, best_of=number))
    return made


def expand_tasks(patterns: Sequence[str]) -> list[str]:
    """Names, suites ("control", "metaworld") and globs ("metaworld/*open*"), each task once, in the order given."""
    tasks: dict[str, None] = {}
    suites = {task.partition("/")[0] for task in TASKS}
    for pattern in patterns:
        whole = f"{pattern.rstrip('/')}/*" if pattern.rstrip("/") in suites else pattern
        if any(mark in whole for mark in "*?["):
            found = [task for task in TASKS if fnmatch.fnmatchcase(task, whole)]
            if not found:
                raise ValueError(f"--tasks: expected a pattern that fits a task, found {pattern!r}, which fits none.")
        else:
            check_name(pattern)
            found = [pattern]
        tasks |= dict.fromkeys(found)
    return list(tasks)


def versions() -> dict[str, str | None]:
    """Of everything a trial's numbers depend on; None: not installed."""
    found: dict[str, str | None] = {"pac": pac.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
