"""Records: one line per finished episode, in memory and on disk.

While an evaluation runs, each finished episode is appended to `FILE.partial.jsonl`. When all are finished, `FILE` takes
its place. So an interrupted evaluation can be read, and the same call continues it.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from pac.files import finite, problem, write_atomically, write_json
from pac.old_names import EVALUATION_KEYS, rename_keys
from pac.rollout import EpisodeResult
from pac.types import Episode

FORMAT = 2  # of the document and the journal; 1 had the keys of old_names.EVALUATION_KEYS
Key = tuple[str, str, int, int]  # actor, task, seed, index
CRITIC = ("predicted", "achieved")  # fields of policies with a critic


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
        shown = {name: value for name, value in values.items() if value is not None or name not in CRITIC}
        return {"return" if name == "total" else name: value for name, value in shown.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EpisodeRecord":
        return cls(**{"total" if name == "return" else name: value for name, value in values.items()})


def record(played: EpisodeResult, actor: str = "", discount: float | None = None) -> EpisodeRecord:
    """Return the record of an episode. With the critic's discount it has the predicted and the discounted return."""
    episode = played.episode
    if not math.isfinite(played.total_return):
        raise problem(
            played.job,
            expected="a finite return",
            found=played.total_return,
            fix="The environment gave a reward that is not finite. Mend the environment, or leave the task out.",
        )
    critic: dict[str, float] = {}
    if discount is not None and played.values is not None and len(played.values):
        rewards = np.asarray(episode.reward, np.float64)
        achieved = float(rewards @ discount ** np.arange(len(rewards)))
        critic = {"predicted": float(played.values[0]), "achieved": achieved}
    return EpisodeRecord(
        actor=actor,
        task=played.task,
        seed=played.seed,
        index=played.index,
        state=state_id(episode),
        length=played.length,
        total=played.total_return,
        success=played.success,
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


def read_evaluation(path: str | Path) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    """Return the settings and episodes of an evaluation. It may be finished, interrupted, or one that is added to."""
    path, parts = Path(path), list[tuple[dict[str, Any], list[EpisodeRecord]]]()
    if path.is_file():
        with _expecting("the JSON of an evaluation", path, fix="Name another file."):
            document = rename_keys(json.loads(path.read_text()), EVALUATION_KEYS)
            parts.append((document["settings"], [EpisodeRecord.from_json(values) for values in document["episodes"]]))
    if (partial := partial_path(path)).is_file():
        with _expecting("one episode per line", partial, fix="Delete the file to start over."):
            lines = [json.loads(line) for line in partial.read_bytes().split(b"\n")[:-1]]  # the last may be cut off
            settings = lines[0]["settings"] if lines else {}
            parts.append((settings, [EpisodeRecord.from_json(values) for values in lines[1:]]))
    if not parts:
        raise ValueError(f"{path}: expected the JSON of an evaluation, found no such file, nor {partial}.")
    records = {entry.key: entry for settings, part in parts if settings == parts[0][0] for entry in part}
    return parts[0][0], list(records.values())


@contextlib.contextmanager
def _expecting(content: str, path: Path, *, fix: str) -> Iterator[None]:
    """Raise an error that names the file, unless it has this content."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise problem(path, expected=content, found=f"something else ({error})", fix=fix) from error


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
            self.records = {entry.key: entry for entry in records}
        lines = [{"format": FORMAT, "settings": self.settings}, *(e.as_json() for e in self.records.values())]
        try:
            write_atomically(partial, "".join(map(_line, lines)), durable=False)  # without a line that was cut off
            self._file = partial.open("ab")
        except OSError as error:
            raise problem(self.path, expected="a file to write to", found=error, fix="Name another.") from error
        return self

    def _check(self, before: Mapping[str, Any]) -> None:
        """Raise if the file was begun with other settings."""
        names = sorted(set(before) | set(self.settings))
        changed = [name for name in names if before.get(name) != self.settings.get(name)]
        if changed:
            old, new = ("; ".join(f"{name} {one.get(name)!r}" for name in changed) for one in (before, self.settings))
            raise ValueError(
                f"{self.path} was begun with other settings, and their episodes do not mix: expected {new}; found "
                f"{old}. Repeat the command that began it, or name another file."
            )

    def append(self, entry: EpisodeRecord) -> None:
        """Write an episode. Once this returns, the episode survives a kill."""
        if self._file is not None:
            self._file.write(_line(entry.as_json()).encode())
            self._file.flush()
        self.records[entry.key] = entry

    def finish(self, document: Mapping[str, Any]) -> None:
        """Write the whole document in place of the journal."""
        if self.path is not None:
            write_json(self.path, document, indent=1)
            partial_path(self.path).unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if self._file is None or self.path is None:
            return
        self._file.close()
        failed = kind is not None and issubclass(kind, Exception)  # Ctrl-C is none
        if failed and not self.records:
            partial_path(self.path).unlink(missing_ok=True)


def _line(values: Mapping[str, Any]) -> str:
    return f"{json.dumps(finite(values))}\n"
