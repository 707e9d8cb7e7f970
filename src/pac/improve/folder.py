"""The folder of an improvement. A kill at any moment loses nothing that is finished and counts nothing twice.

config.json                 the resolved recipe, written first
improve.json                the finished rounds, written after each of them
collected/                  data that the recipe's [collect] made
inbox/                      datasets that people put there; never changed
start/evaluation.json       evaluation of the checkpoint given with --start
rounds/000/round.json       start and data of the round, written before they are used
rounds/000/data/TASK/       episodes that the round collected; collect.json and round.json name their policy
rounds/000/train/           an ordinary run folder
rounds/000/evaluation.json  as `pac evaluate --json` writes it
promoted                    link to the checkpoint of the last promoted round: the folder can be loaded like a run
"""

import dataclasses
import json
import os
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pac.data.store import read_committed, verify
from pac.files import problem, write_json
from pac.old_names import rename_recipe
from pac.training.run import differences
from pac.training.run_dir import COLLECTED, CONFIG, LOCK, lock_folder

IMPROVE, INBOX, ROUNDS, START, PROMOTED = "improve.json", "inbox", "rounds", "start", "promoted"
# Settings that may change on resume. Others would make rounds that do not compare.
CHANGEABLE = ("improve.rounds", "improve.mastery", "improve.workers", "improve.envs_per_worker", "improve.ray")
CHANGEABLE_SECTIONS = ("machine", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class CollectedData:
    """A dataset that is new in a round."""

    path: str  # relative to the improvement's folder
    task: str | None = None  # None: a dataset from the inbox
    made_by: str  # a checkpoint, a behaviour, or "inbox"
    episodes: int
    rows: int
    crc32: int  # over the checksums of its files

    @property
    def name(self) -> str:
        return self.path if self.task is None else self.task

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round in round.json. Fields that are None are decided later in the round."""

    round: int
    start: str | None  # checkpoint that training starts from; None: a fresh model
    collector: str | None  # checkpoint or behaviour that collects; None: only people do
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase; time in a killed process is not counted
    data: tuple[CollectedData, ...] | None = None
    reward_scale: float | None = None
    checkpoint: str | None = None
    steps: int | None = None  # updates of this round

    def to_json(self) -> dict[str, Any]:
        table = dataclasses.asdict(self)
        table["data"] = None if self.data is None else [entry.to_json() for entry in self.data]
        return {name: value for name, value in table.items() if value is not None or name in ("start", "collector")}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Round":
        data = {"data": tuple(CollectedData(**entry) for entry in table["data"])} if "data" in table else {}
        return cls(**{**table, **data})

    def with_seconds(self, phase: str, seconds: float) -> "Round":
        total = self.seconds.get(phase, 0.0) + seconds
        return dataclasses.replace(self, seconds={**self.seconds, phase: total})


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """A task's mean over the evaluation episodes of a round, with its 95% interval."""

    mean: float
    low: float | None  # None: too few episodes for an interval
    high: float | None
    unit: str  # "success" or "return"

    def __str__(self) -> str:
        scale, digits, sign = (100, 1, "%") if self.unit == "success" else (1, 0, "")
        low, high = ("?" if end is None else f"{scale * end:.{digits}f}" for end in (self.low, self.high))
        return f"{scale * self.mean:.{digits}f}{sign} [{low}, {high}]"


@dataclass(frozen=True, kw_only=True)
class FinishedRound:
    """A round in improve.json."""

    round: int
    checkpoint: str
    start: str
    episodes: Mapping[str, int]  # collected per task, or handed in per dataset
    steps: int  # updates of all rounds so far
    promoted: bool
    reason: str
    evaluation: str  # file of its evaluation
    summary: Mapping[str, TaskResult]
    seconds: Mapping[str, float]

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "FinishedRound":
        return cls(**{**table, "summary": {task: TaskResult(**row) for task, row in table["summary"].items()}})


class ImproveFolder:
    """The folder of one improvement. One process at a time may use it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.rounds: list[FinishedRound] = []
        self._description: dict[str, Any] = {}

    def open(self, description: dict[str, Any], *, resume: bool, overwrite: bool) -> list[str]:
        """Make the folder, or continue in it. Return what to print about changed settings."""
        if resume and overwrite:
            raise ValueError("Expected --resume or --overwrite, found both.")
        if resume and not self.path.is_dir():
            raise problem(self.path, expected="an improvement to resume", found="none", fix="Leave out --resume.")
        self.path.mkdir(parents=True, exist_ok=True)
        before = self._read(CONFIG)
        unused = (LOCK, COLLECTED, INBOX, f".{CONFIG}.writing")
        if any(path.name not in unused for path in self.path.iterdir()):
            fix = "Continue with --resume, begin again with --overwrite, or choose another --out."
            if before is None or not {"improve", "recipe"} <= before.keys():
                raise problem(self.path, expected="an improvement or a new folder", found="other files", fix=fix)
            if not (resume or overwrite):
                raise problem(self.path, expected="a new folder", found="one that is in use", fix=fix)
        lock_folder(self.path, self)
        if overwrite:  # the inbox stays
            for name in (ROUNDS, START, COLLECTED):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for name in (IMPROVE, PROMOTED, CONFIG):
                (self.path / name).unlink(missing_ok=True)
            before = None
        self.inbox.mkdir(exist_ok=True)
        notes = [] if before is None else list(self._compare(before, description))
        write_json(self.path / CONFIG, description)
        found = self._read(IMPROVE) or {"rounds": []}
        self.rounds = [FinishedRound.from_json(entry) for entry in found["rounds"]]
        self._description = description
        return notes

    def _compare(self, before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
        """Yield a note per setting that changed. Raise if it may not change."""
        renamed = rename_recipe({**before["recipe"], "improve": before["improve"]}, warn=False)
        before = {"improve": renamed.pop("improve"), "recipe": renamed}
        plain = json.loads(json.dumps(now, default=str))
        for name, old, new in differences(before, plain):
            text = f"{name}: {json.dumps(old)} before, {json.dumps(new)} now"
            section = name.removeprefix("recipe.").split(".")[0]
            if not name.startswith(CHANGEABLE) and section not in CHANGEABLE_SECTIONS:
                fix = "Resume with the same recipe and overrides, or start another improvement with --start."
                raise problem(self.path, expected="the settings of its start", found=text, fix=fix)
            yield f"Changed: {text}."

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise problem(self.path / name, expected="JSON", found=error, fix="Restore it from a copy.") from error
        return content

    # -------------------------------------------------------------------------------------------------------- rounds

    @property
    def promoted(self) -> FinishedRound | None:
        """The last round that was promoted."""
        return next((entry for entry in reversed(self.rounds) if entry.promoted), None)

    @property
    def inbox(self) -> Path:
        return self.path / INBOX

    def place(self, checkpoint: str) -> Path:
        """Return a checkpoint's path. Those of rounds are relative to the folder, others absolute."""
        return self.path / checkpoint

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.path))

    def round_path(self, number: int) -> Path:
        return self.path / ROUNDS / f"{number:03d}"

    def read_round(self, number: int) -> Round | None:
        content = self._read(f"{ROUNDS}/{number:03d}/round.json")
        return None if content is None else Round.from_json(content)

    def write_round(self, entry: Round) -> None:
        write_json(self.round_path(entry.round) / "round.json", entry.to_json())

    def earlier_data(self, number: int) -> list[CollectedData]:
        """Return all data of the rounds before `number`."""
        rounds = [self.read_round(earlier) for earlier in range(number)]
        return [entry for found in rounds if found is not None for entry in found.data or ()]

    def save(self, status: str) -> None:
        """Write the finished rounds, and point the link at the promoted checkpoint."""
        improve = self._description["improve"]
        document = {"tasks": improve["tasks"], "others": improve["others"], "config": self._description}
        document |= {"rounds": [dataclasses.asdict(entry) for entry in self.rounds], "status": status}
        write_json(self.path / IMPROVE, document)
        if self.promoted is not None:
            link = self.path / f".{PROMOTED}"
            link.unlink(missing_ok=True)
            link.symlink_to(self.promoted.checkpoint)
            os.replace(link, self.path / PROMOTED)

    # ---------------------------------------------------------------------------------------------------------- data

    def describe_data(self, path: Path, *, made_by: str, task: str | None = None) -> CollectedData:
        """Return the entry of a dataset, with its sizes and checksum."""
        committed, seal = read_committed(path), path / "committed.json"
        return CollectedData(
            path=self.relative(path),
            task=task,
            made_by=made_by,
            episodes=committed["episodes"],
            rows=committed["rows"],
            crc32=zlib.crc32(seal.read_bytes()) if seal.exists() else 0,
        )

    def check_unchanged(self, entries: Sequence[CollectedData]) -> None:
        """Raise if data of an earlier round has changed or is gone. Every round trains on all earlier data."""
        for entry in entries:
            path, found = self.path / entry.path, None
            if path.is_dir():
                found = self.describe_data(path, made_by=entry.made_by, task=entry.task)
            if found != entry:
                expected = f"the data that an earlier round trained on, {entry.to_json()}"
                fix = "Restore it, and put new episodes into a folder of their own in the inbox."
                raise problem(path, expected=expected, found="none" if found is None else found.to_json(), fix=fix)

    def read_inbox(self, known: Collection[str]) -> list[CollectedData]:
        """Return the datasets of the inbox that no round has used yet. Raise if one is damaged or empty."""
        found = []
        for path in sorted(self.inbox.glob("*")):
            if path.name.startswith(".") or not path.is_dir() or self.relative(path) in known:
                continue
            if problems := verify(path):
                fix = "Finish copying it, or take it out of the inbox. Then continue with --resume."
                raise problem(path, expected="a whole dataset", found=problems[0].rstrip("."), fix=fix)
            entry = self.describe_data(path, made_by="inbox")
            if not entry.episodes:
                raise problem(path, expected="episodes", found="none", fix="Take it out of the inbox.")
            found.append(entry)
        return found
