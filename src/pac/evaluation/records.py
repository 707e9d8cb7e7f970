"""One line a trial: what is kept of it, on disk and in memory.

While an evaluation runs, each finished trial is appended to `FILE.partial.jsonl`; when all are done `FILE` takes its
place. So an interrupted evaluation is readable, and the same command goes on where it stopped.
"""

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np

from pac.types import Episode

FORMAT = 1
Key = tuple[str, str, int, int]  # actor, task, seed, index


@runtime_checkable
class HasEpisode(Protocol):
    """What a rollout gives, as far as it is counted here."""

    @property
    def task(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def episode(self) -> Episode: ...


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """A trial without its observations."""

    actor: str  # label in the tables
    task: str
    seed: int  # of the evaluation; with task and index it gives the episode's own
    index: int
    state: str  # short hash of the first observation: the same initial state has the same one
    length: int
    total: float  # undiscounted return; "return" in files
    success: bool | None  # at any step; None: the world does not say
    # Of a checkpoint with a critic: what it expected of the first action, and the discounted return that followed.
    predicted: float | None = dataclasses.field(default=None, compare=False)
    achieved: float | None = dataclasses.field(default=None, compare=False)

    @property
    def key(self) -> Key:
        return self.actor, self.task, self.seed, self.index

    @property
    def start(self) -> tuple[str, int, int]:
        """What pairs it with other actors' trials: the same initial state."""
        return self.task, self.seed, self.index

    def as_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        left_out = [name for name in ("predicted", "achieved") if values[name] is None]
        return {"return" if k == "total" else k: value for k, value in values.items() if k not in left_out}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EpisodeRecord":
        return cls(**{"total" if name == "return" else name: value for name, value in values.items()})


def record(trial: HasEpisode, actor: str = "", discount: float | None = None) -> EpisodeRecord:
    """With the discount of the critic that acted, at this task, also what it expected and what followed."""
    episode, values = trial.episode, getattr(trial, "values", None)
    total = float(np.sum(episode.reward, dtype=np.float64))
    if not math.isfinite(total):
        raise ValueError(
            f"{trial.task}, seed {trial.seed}, trial {trial.index}: expected a finite return, found {total}. The world "
            "gave a reward that is no number: no mean can be taken over it. Mend the world, or leave the task out."
        )
    return EpisodeRecord(
        actor=actor,
        task=trial.task,
        seed=trial.seed,
        index=trial.index,
        state=state_id(episode),
        length=len(episode.action),
        total=total,
        success=episode.success,
        **({} if discount is None or values is None or not len(values) else _foreseen(values, episode, discount)),
    )


def _foreseen(values: np.ndarray, episode: Episode, discount: float) -> dict[str, float]:
    rewards = np.asarray(episode.reward, np.float64)
    return {"predicted": float(values[0]), "achieved": float(rewards @ discount ** np.arange(len(rewards)))}


def state_id(episode: Episode) -> str:
    """Twelve digits of a hash of the first state. Pictures are left out: they differ between renderers."""
    first = np.ascontiguousarray(episode.observation["observation.state"][0], dtype="<f4")
    return hashlib.sha256(first.tobytes()).hexdigest()[:12]


def write_json(path: Path, document: Any) -> None:
    """Numbers that JSON does not know (an interval without ends) become null."""
    write_text(path, json.dumps(finite(document), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def finite(value: Any) -> Any:
    """The same without infinities and NaN, which are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial.jsonl")


def read(path: str | Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    """Settings and trials of an evaluation's JSON, finished or interrupted (also while more trials were added)."""
    path = Path(path)
    parts = [_read_whole(path)] if path.is_file() else []
    parts += [_read_partial(partial_path(path))] if partial_path(path).is_file() else []
    if not parts:
        raise ValueError(f"{path}: expected the JSON of an evaluation, found no such file, nor {partial_path(path)}.")
    records = {entry.key: entry for settings, part in parts if settings == parts[0][0] for entry in part}
    return parts[0][0], list(records.values())


def _read_whole(path: Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    try:
        document = json.loads(path.read_text())
        return document["settings"], [EpisodeRecord.from_json(trial) for trial in document["trials"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected the JSON of an evaluation, found something else ({error}). Name another file."
        ) from error


def _read_partial(path: Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    """Only whole lines count: the last one may have been cut off."""
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        values = [json.loads(line) for line in lines]
        return (values[0]["settings"] if values else {}), [EpisodeRecord.from_json(value) for value in values[1:]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected one trial a line, found something else ({error}). Delete the file to start over."
        ) from error


class Journal:
    """The trials of one evaluation, kept while they come. Without a path they are kept in memory only."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.records: dict[Key, EpisodeRecord] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "Journal":
        if self.path is None:
            return self
        partial = partial_path(self.path)
        if self.path.is_file() or partial.is_file():
            before, records = read(self.path)
            if before:  # else it was stopped before it wrote a line
                self._check(before)
            self.records = {record.key: record for record in records}
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite(partial)
            self._file = partial.open("ab")
        except OSError as error:
            raise ValueError(f"{self.path}: expected a file to write to, found {error}. Name another.") from error
        return self

    def _check(self, before: Mapping[str, Any]) -> None:
        names = sorted(set(before) | set(self.settings))
        changed = [name for name in names if before.get(name) != self.settings.get(name)]
        if changed:
            found = "; ".join(f"{name} {before.get(name)!r}" for name in changed)
            wanted = "; ".join(f"{name} {self.settings.get(name)!r}" for name in changed)
            raise ValueError(
                f"{self.path} was begun with other settings, and their trials do not mix: expected {wanted}; found "
                f"{found}. Repeat the command it was begun with, or name another --json file."
            )

    def _rewrite(self, partial: Path) -> None:
        """Start from whole lines, whatever was there."""
        lines = [{"format": FORMAT, "settings": self.settings}, *(r.as_json() for r in self.records.values())]
        temporary = partial.with_name(f".{partial.name}.{os.getpid()}")
        temporary.write_text("".join(f"{json.dumps(finite(line))}\n" for line in lines))
        os.replace(temporary, partial)

    def append(self, record: EpisodeRecord) -> None:
        """Once this returns, the trial survives a kill."""
        if self._file is not None:
            self._file.write(f"{json.dumps(finite(record.as_json()))}\n".encode())
            self._file.flush()
        self.records[record.key] = record

    def finish(self, document: Mapping[str, Any]) -> None:
        """Write the whole result in place of the partial one."""
        if self.path is not None:
            write_json(self.path, document)
            partial_path(self.path).unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


def by_actor(records: Iterable[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """In order of appearance."""
    groups: dict[str, list[EpisodeRecord]] = {}
    for entry in records:
        groups.setdefault(entry.actor, []).append(entry)
    return groups
