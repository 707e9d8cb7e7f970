"""What is to be evaluated: actors and tasks from the words of a command line, and the settings that shape a trial."""

import fnmatch
import hashlib
import importlib.metadata
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import pac
from pac import behaviours, policy
from pac.envs import TASKS
from pac.envs.tasks import check_name
from pac.model.pretrained import CONFIG, WEIGHTS, load_config, pretrained_folder
from pac.rollout import PolicyProtocol
from pac.types import Sampling

SAMPLINGS = get_args(Sampling)
SHOWS = ("text+goal", "goal", "text", "none")  # the paper's Vision+Lang, Vision, Lang, No Goal
PACKAGES = ("mujoco", "dm_control", "metaworld", "gymnasium", "numpy", "torch")  # what a trial's numbers depend on
_LABELLED = re.compile(r"([^:+(/=]+)=(.+)")  # the = of a behaviour's option comes after a : or a (


@dataclass(frozen=True, kw_only=True)
class Actor:
    """An actor and its name in the tables: a behaviour, a checkpoint, or a policy that is loaded already.

    A checkpoint may come with a `policy` too, for callers that load it their own way. A function loads it when the
    first episode is played, or never if none is missing.
    """

    label: str
    behaviour: str | None = None  # its spec
    checkpoint: str | None = None  # folder
    policy: PolicyProtocol | Callable[[], PolicyProtocol] | None = None
    sampling: str = "sample"  # of a checkpoint's policy
    best_of: int = 1  # actions that are sampled, of which the critic picks one
    show: str | None = None  # how the task is given, one of SHOWS; None: by the instruction, with no choice made
    goals: tuple[str, ...] = ()  # datasets whose goal images it is shown
    about: Mapping[str, Any] = field(default_factory=dict)  # entries for the document, in place of those made here

    def __post_init__(self) -> None:
        if self.behaviour is None and self.checkpoint is None and self.policy is None:
            raise ValueError(f"Actor {self.label!r}: expected a behaviour, a checkpoint or a policy, found none.")

    def load(self) -> str | PolicyProtocol:
        """Return what `rollout` takes."""
        if self.policy is not None:
            return self.policy if isinstance(self.policy, PolicyProtocol) else self.policy()
        if self.checkpoint is None:
            return cast(str, self.behaviour)
        options: dict[str, Any] = {"sampling": self.sampling, "best_of": self.best_of, "values": True}
        if self.show is not None:
            goals = policy.read_goals(self.goals) if "goal" in self.show else {}
            options |= {"text": "text" in self.show, "goals": goals}
        return policy.load(self.checkpoint, **options)

    def describe(self) -> dict[str, Any]:
        """Return what the document says of the actor. A checkpoint that was written anew is another actor."""
        if self.behaviour is not None:
            return {"behaviour": self.behaviour, **self.about}
        if self.checkpoint is None:
            return {"policy": getattr(self.policy, "name", self.label), **self.about}
        choices: dict[str, Any] = {"sampling": self.sampling, "best_of": self.best_of}
        if self.show is not None:
            choices |= {"show": self.show}
            choices |= {"goals": {path: _version(path) for path in self.goals}} if "goal" in self.show else {}
        fixed = {"checkpoint": self.checkpoint, "fingerprint": fingerprint(Path(self.checkpoint))}
        return fixed | choices | dict(self.about)

    def notes(self) -> list[str]:
        """Return what its results should not be read without."""
        robots = load_config(self.checkpoint).get("robots", []) if self.checkpoint and self.show is None else []
        if self.policy is not None or not any(robot.get("goal_cameras") for robot in robots):
            return []
        return [f"{self.label} was shown goal images in training and none here: --goals DATASET shows it some."]


def make_actors(actors: Mapping[str, str | Path | PolicyProtocol]) -> list[Actor]:
    """Return the actors of a mapping from labels to behaviours, folders of checkpoints, or policies."""
    made = []
    for label, given in actors.items():
        if not isinstance(given, str | Path):
            made.append(Actor(label=label, policy=given))
        elif Path(given).is_dir():
            made.append(Actor(label=label, checkpoint=str(given)))
        else:
            behaviours.make(str(given))  # raises if there is none of that name
            made.append(Actor(label=label, behaviour=str(given)))
    return made


def _version(dataset: str) -> str:
    """Of a dataset, as it is: its list of files with their checksums."""
    return hashlib.sha256((Path(dataset) / "committed.json").read_bytes()).hexdigest()[:12]


def fingerprint(folder: Path) -> str:
    """Of a checkpoint's weights and configuration, as they are."""
    found = hashlib.sha256()
    for name in (WEIGHTS, CONFIG):
        with (pretrained_folder(folder) / name).open("rb") as file:
            while block := file.read(1 << 22):
                found.update(block)
    return found.hexdigest()[:12]


def parse_actors(
    texts: Sequence[str],
    *,
    samplings: Sequence[str] = ("sample",),
    best_of: Sequence[int] = (1,),
    shows: Sequence[str] = (),
    goals: Sequence[str] = (),
) -> list[Actor]:
    """`random`, `runs/walker`, `ours=runs/walker`. A checkpoint comes once for each choice of sampling, of
    how many actions the critic picks from, and of what is shown.
    """
    for name in samplings:
        if name not in SAMPLINGS:
            raise ValueError(f"--sampling: expected {', '.join(SAMPLINGS)}, found {name!r}.")
    if min(best_of) < 1:
        raise ValueError(f"--best-of: expected numbers of 1 or more, found {min(best_of)}.")
    for name in shows:
        if name not in SHOWS:
            raise ValueError(f"--show: expected {', '.join(SHOWS)}, found {name!r}.")
        if "goal" in name and not goals:
            raise ValueError(f"--show {name}: expected --goals with a dataset that has goal pictures, found none.")
    chosen: dict[str, Sequence[Any]] = {
        "sampling": samplings,
        "best_of": best_of,
        "show": shows or (["text+goal"] if goals else [None]),
    }
    actors = [actor for text in texts for actor in _parse(text, chosen, tuple(goals))]
    labels = [actor.label for actor in actors]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"Expected a label of its own for each actor, found {twice[0]!r} twice. Write LABEL=ACTOR.")
    return actors


def _parse(text: str, chosen: Mapping[str, Sequence[Any]], goals: tuple[str, ...]) -> list[Actor]:
    named = None if Path(text).is_dir() else _LABELLED.fullmatch(text)
    label, spec = (named[1].strip(), named[2].strip()) if named else (text, text)
    if not Path(spec).is_dir():
        if "/" in re.split(r"[:(]", spec)[0] or Path(spec).exists():  # the / of an option's folder comes after a :
            raise ValueError(f"{spec}: expected the folder of a checkpoint or a behaviour, found no such folder.")
        behaviours.make(spec)
        return [Actor(label=label, behaviour=spec)]
    made = []
    for values in itertools.product(*chosen.values()):
        choice = dict(zip(chosen, values, strict=True))
        words = {"sampling": choice["sampling"], "best_of": f"best of {choice['best_of']}", "show": choice["show"]}
        told = [words[name] for name in chosen if len(chosen[name]) > 1]  # what tells this one from the others
        name = f"{label} ({', '.join(told)})" if told else label
        made.append(Actor(label=name, checkpoint=spec, goals=goals, **choice))
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
