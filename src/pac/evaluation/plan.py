"""Actors, tasks and versions: what an evaluation is made of."""

import fnmatch
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import pac
from pac import behaviours, files, policy
from pac.envs import TASKS
from pac.envs.tasks import check_name
from pac.model.pretrained import CONFIG, WEIGHTS, load_config, pretrained_folder
from pac.rollout import PolicyProtocol
from pac.types import Sampling

SAMPLINGS = get_args(Sampling)
SHOWS = ("text+goal", "goal", "text", "none")  # the paper's Vision+Lang, Vision, Lang, No Goal
PACKAGES = ("mujoco", "dm_control", "metaworld", "gymnasium", "numpy", "torch")


@dataclass(frozen=True, kw_only=True)
class Actor:
    """A behaviour, a checkpoint or a loaded policy, with its name in the tables.

    A checkpoint may come with a `policy`, which then acts in its place: the caller has loaded it already. If `policy`
    is a function, it is called when the first episode is played, and never if no episode is missing.
    """

    label: str
    behaviour: str | None = None  # its spec
    checkpoint: str | None = None  # its folder
    policy: PolicyProtocol | Callable[[], PolicyProtocol] | None = None
    # How a checkpoint acts.
    sampling: str = "sample"
    best_of: int = 1  # the critic picks one of this many sampled actions
    show: str | None = None  # one of SHOWS; None: the instruction, as the only choice
    goals: tuple[str, ...] = ()  # datasets whose goal images it is shown
    instruction: str | None = None  # shown in place of that of every task
    about: Mapping[str, Any] = field(default_factory=dict)  # replaces entries of `describe`

    def __post_init__(self) -> None:
        if self.behaviour is None and self.checkpoint is None and self.policy is None:
            raise ValueError(f"Actor {self.label!r}: expected a behaviour, a checkpoint or a policy, found none.")

    def load(self) -> str | PolicyProtocol:
        """Return the policy, or the spec of the behaviour."""
        if self.policy is not None:
            return self.policy if isinstance(self.policy, PolicyProtocol) else self.policy()
        if self.checkpoint is None:
            return cast(str, self.behaviour)
        options: dict[str, Any] = {"sampling": self.sampling, "best_of": self.best_of, "values": True}
        options |= {} if self.instruction is None else {"instruction": self.instruction}
        if self.show is not None:
            goals = policy.read_goals(self.goals) if "goal" in self.show else {}
            options |= {"text": "text" in self.show, "goals": goals}
        return policy.load(self.checkpoint, **options)

    def describe(self) -> dict[str, Any]:
        """Return the actor's entry in the document. Episodes of an actor with another entry do not mix with these."""
        if self.behaviour is not None:
            return {"behaviour": self.behaviour, **self.about}
        if self.checkpoint is None:
            return {"policy": getattr(self.policy, "name", self.label), **self.about}
        choices: dict[str, Any] = {"sampling": self.sampling, "best_of": self.best_of}
        choices |= {} if self.instruction is None else {"instruction": self.instruction}
        if self.show is not None:
            choices |= {"show": self.show}
            files = {path: (Path(path) / "committed.json").read_bytes() for path in self.goals if "goal" in self.show}
            hashes = {path: hashlib.sha256(content).hexdigest()[:12] for path, content in files.items()}
            choices |= {"goals": hashes} if "goal" in self.show else {}
        fixed = {"checkpoint": self.checkpoint, "fingerprint": fingerprint(Path(self.checkpoint))}
        return fixed | choices | dict(self.about)

    def notes(self) -> list[str]:
        """Return warnings about the choices made for this actor."""
        content = load_config(self.checkpoint) if self.checkpoint and self.show is None else {}
        if self.policy is not None or not any(x.get("goal_cameras") for x in content.get("embodiments", [])):
            return []
        return [f"{self.label} saw goal images in training and sees none here. Give it some with --goals DATASET."]


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


def fingerprint(folder: Path) -> str:
    """Return a hash of a checkpoint's weights and configuration."""
    found = hashlib.sha256()
    for name in (WEIGHTS, CONFIG):
        with (pretrained_folder(folder) / name).open("rb") as file:
            while block := file.read(1 << 22):
                found.update(block)
    return found.hexdigest()[:12]


def expand_tasks(patterns: Sequence[str]) -> list[str]:
    """Return the tasks of names, suites ("control", "metaworld") and globs ("metaworld/*open*"), each task once."""
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
    """Return the version of everything that an episode's numbers depend on; None where it is not installed."""
    return {"pac": pac.__version__, **files.versions(PACKAGES)}
