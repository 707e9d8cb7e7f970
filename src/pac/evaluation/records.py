"""Records: one line per finished episode, in memory and on disk.

While an evaluation runs, each finished episode is appended to `FILE.partial.jsonl`. When all are finished, `FILE` takes
its place. So an interrupted evaluation can be read, and the same call goes on where it stopped.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np

from pac.files import finite, problem, write_json
from pac.old_names import EVALUATION_KEYS, rename_keys
from pac.types import Episode

FORMAT = 2  # of the document and the journal; 1 had the keys of old_names.EVALUATION_KEYS
Key = tuple[str, str, int, int]  # actor, task, seed, index


@runtime_checkable
class HasEpisode(Protocol):
    """An episode and its place in an evaluation, such as `rollout.EpisodeResult`."""

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
    """An evaluation episode without its observations."""

    actor: str  # label in the tables
    task: str
    seed: int  # of the evaluation; task, seed and index give the episode's own seed
    index: int
    state: str  # short hash of the first observation, equal for equal initial states
    length: int
    total: float  # undiscounted return; "return" in files
    success: bool | None  # at any step; None: the task does not define it
    # Of a policy with a critic: the value it predicted at the first step, and the discounted return that followed.
    predicted: float | None = dataclasses.field(default=None, compare=False)
    achieved: float | None = dataclasses.field(default=None, compare=False)

    @property
    def key(self) -> Key:
        return self.actor, self.task, self.seed, self.index

    @property
    def start(self) -> tuple[str, int, int]:
        """The initial state: it pairs this episode with those of other actors."""
        return self.task, self.seed, self.index

    def as_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        left_out = [name for name in ("predicted", "achieved") if values[name] is None]
        return {"return" if k == "total" else k: value for k, value in values.items() if k not in left_out}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EpisodeRecord":
        return cls(**{"total" if name == "return" else name: value for name, value in values.items()})


def record(played: HasEpisode, actor: str = "", discount: float | None = None) -> EpisodeRecord:
    """Return the record of an episode. With the critic's discount it has the predicted and the discounted return."""
    episode, values = played.episode, getattr(played, "values", None)
    total = float(np.sum(episode.reward, dtype=np.float64))
    if not math.isfinite(total):
        raise problem(
            f"{played.task}, seed {played.seed}, episode {played.index}",
            expected="a finite return",
            found=total,
            fix="The environment gave a reward that is not finite. Mend the environment, or leave the task out.",
        )
    critic: dict[str, float] = {}
    if discount is not None and values is not None and len(values):
        rewards = np.asarray(episode.reward, np.float64)
        critic = {"predicted": float(values[0]), "achieved": float(rewards @ discount ** np.arange(len(rewards)))}
    return EpisodeRecord(
        actor=actor,
        task=played.task,
        seed=played.seed,
        index=played.index,
        state=state_id(episode),
        length=len(episode.action),
        total=total,
        success=episode.success,
        **critic,
    )


def state_id(episode: Episode) -> str:
    """Return a 12-digit hash of the initial state. Images are left out because renderers differ."""
    first = np.ascontiguousarray(episode.observation["observation.state"][0], dtype="<f4")
    return hashlib.sha256(first.tobytes()).hexdigest()[:12]


def by_actor(records: Iterable[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Return the records of each actor, in order of appearance."""
    groups: dict[str, list[EpisodeRecord]] = {}
    for entry in records:
        groups.setdefault(entry.actor, []).append(entry)
    return groups


def partial_path(path: Path) -> Path:
    """Return the file that holds the episodes while `path` is not finished."""
    return path.with_name(f"{path.name}.partial.jsonl")


def read_document(path: str | Path) -> dict[str, Any]:
    """Return the JSON document of a finished evaluation."""
    path = Path(path)
    try:
        document = rename_keys(json.loads(path.read_text()), EVALUATION_KEYS)
        _ = document["episodes"]
    except (ValueError, KeyError, AttributeError) as error:
        raise _not_an_evaluation(path, error) from error
    return document


def read_evaluation(path: str | Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    """Return the settings and episodes of an evaluation. It may be finished, interrupted, or one that is added to."""
    path = Path(path)
    parts = [_read_whole(path)] if path.is_file() else []
    parts += [_read_partial(partial_path(path))] if partial_path(path).is_file() else []
    if not parts:
        raise ValueError(f"{path}: expected the JSON of an evaluation, found no such file, nor {partial_path(path)}.")
    records = {entry.key: entry for settings, part in parts if settings == parts[0][0] for entry in part}
    return parts[0][0], list(records.values())


def _read_whole(path: Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    document = read_document(path)
    try:
        return document["settings"], [EpisodeRecord.from_json(values) for values in document["episodes"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_an_evaluation(path, error) from error


def _not_an_evaluation(path: Path, error: Exception) -> ValueError:
    found = f"something else ({error})"
    return problem(path, expected="the JSON of an evaluation", found=found, fix="Name another file.")


def _read_partial(path: Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    """Return the whole lines of a journal. The last line may be cut off."""
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        values = [json.loads(line) for line in lines]
        return (values[0]["settings"] if values else {}), [EpisodeRecord.from_json(value) for value in values[1:]]
    except (ValueError, KeyError, TypeError) as error:
        found = f"something else ({error})"
        raise problem(
            path, expected="one episode per line", found=found, fix="Delete the file to start over."
        ) from error


class Journal:
    """Episodes of one evaluation, written to disk one by one. Without a path they are in memory only."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.records: dict[Key, EpisodeRecord] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "Journal":
        if self.path is None:
            return self
        partial = partial_path(self.path)
        if self.path.is_file() or partial.is_file():
            before, records = read_evaluation(self.path)
            if before:  # empty: it was stopped before it wrote a line
                self._check(before)
            self.records = {record.key: record for record in records}
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite(partial)
            self._file = partial.open("ab")
        except OSError as error:
            raise problem(self.path, expected="a file to write to", found=error, fix="Name another.") from error
        return self

    def _check(self, before: Mapping[str, Any]) -> None:
        """Raise if the file was begun with other settings."""
        names = sorted(set(before) | set(self.settings))
        changed = [name for name in names if before.get(name) != self.settings.get(name)]
        if changed:
            old = "; ".join(f"{name} {before.get(name)!r}" for name in changed)
            new = "; ".join(f"{name} {self.settings.get(name)!r}" for name in changed)
            raise ValueError(
                f"{self.path} was begun with other settings, and their episodes do not mix: expected {new}; found "
                f"{old}. Repeat the command that began it, or name another file."
            )

    def _rewrite(self, partial: Path) -> None:
        """Start the journal from whole lines: the last one may have been cut off."""
        lines = [{"format": FORMAT, "settings": self.settings}, *(r.as_json() for r in self.records.values())]
        temporary = partial.with_name(f".{partial.name}.{os.getpid()}")
        temporary.write_text("".join(f"{json.dumps(finite(line))}\n" for line in lines))
        os.replace(temporary, partial)

    def append(self, record: EpisodeRecord) -> None:
        """Write an episode. Once this returns, the episode survives a kill."""
        if self._file is not None:
            self._file.write(f"{json.dumps(finite(record.as_json()))}\n".encode())
            self._file.flush()
        self.records[record.key] = record

    def finish(self, document: Mapping[str, Any]) -> None:
        """Write the whole document in place of the journal."""
        if self.path is not None:
            write_json(self.path, document, indent=1)
            partial_path(self.path).unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
