"""Writer of the episode store. It checks whole episodes, and each is readable once `append` has returned.

An episode's bytes go behind the committed ones. Then committed.json is replaced atomically. Only then does the episode
exist. `pac.data.store` describes the layout.
"""

import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pac.data.checks import episode_rows, num_observations
from pac.data.spec import ACTION, GOALS, REWARD, STATE, DatasetSpec, Feature
from pac.data.statistics import merge_statistics, statistics_of
from pac.data.store import (
    COMMITTED,
    INDEX,
    INDEX_FILE,
    NO_SEED,
    RESTORE,
    SPEC,
    STRING_FILES,
    npy_header,
    read_committed,
    seal,
)
from pac.files import UNFINISHED, lock, problem, sync, write_atomically
from pac.types import Episode

SYNC_BYTES = 64 << 20  # written between two calls of fsync: the most that a power cut, not a kill, may cost


class DatasetWriter:
    """Writer that appends whole episodes to a new or an existing dataset.

    Each episode is readable once its `append` returned, whatever happens later. With `atomic` all episodes appear
    together when the `with` block ends well. An error or a kill inside the block leaves the dataset as it was before.
    """

    def __init__(self, path: str | Path, spec: DatasetSpec, *, atomic: bool = False) -> None:
        self.path, self.spec, self.atomic = Path(path), spec, atomic
        self._is_new = _is_new(self.path)
        self._files: dict[str, _File] = {}
        self._unlock: Callable[[], object] | None = None
        self._appended = False
        with _os_errors(self.path, expected="a folder to write to", fix="Free some space or name another."):
            try:
                self._open()
            except BaseException:
                self._release(remove=self._is_new)
                raise

    @property
    def num_episodes(self) -> int:
        return int(self._committed["episodes"])

    def append(self, episode: Episode) -> None:
        """Add one episode. An error leaves the dataset as it was before."""
        where = f"{self.path}, episode {self.num_episodes}" + (f" (from {episode.source})" if episode.source else "")
        rows = episode_rows(episode, self.spec, where)
        fix = "Free some space; the dataset holds all episodes before this one."
        with _os_errors(where, expected="to write the episode", fix=fix):
            try:
                self._append(episode, rows)
            except BaseException:
                self._restore(self._committed if self.atomic else read_committed(self.path))
                raise

    def _append(self, episode: Episode, rows: dict[str, np.ndarray]) -> None:
        lines = (self._line_of(0, episode.instruction), self._line_of(1, episode.source))
        for name, array in rows.items():
            self._files[f"{name}.npy"].write(array)
        for name, image in episode.goal_images.items():
            self._files[f"{GOALS}{name}.npy"].write(image)
        self._files[INDEX_FILE].write(self._record(episode, lines))
        self._committed = self._count(episode, len(rows[ACTION]))
        if not self.atomic:
            self._commit()
        self._appended = True

    def flush(self) -> None:
        """Write everything to the disk itself, so that it survives a power cut."""
        for file in self._files.values():
            file.sync()
        for path in (self.path / COMMITTED, self.path):
            if path.exists():
                sync(path)

    def close(self) -> None:
        """Flush and release the dataset. An atomic writer commits its episodes here."""
        if self._unlock is None:
            return
        if self._appended:
            self.flush()
            if self.atomic:
                self._commit()
                self.flush()
        self._release()

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.atomic and kind is not None:
            self._roll_back()
            return
        with _os_errors(self.path, expected="to finish writing", fix="Free some space and try again."):
            try:
                self.close()
            except BaseException:
                if self.atomic:
                    self._roll_back()
                raise

    def _roll_back(self) -> None:
        """Leave the dataset as it was when the writer was opened."""
        if not self._is_new:
            self._restore(read_committed(self.path))
        self._release(remove=self._is_new)

    def _open(self) -> None:
        """Make the folder, or check that it holds the same kind of data. Cut off what a killed writer left."""
        self.path.mkdir(parents=True, exist_ok=True)
        spec_file = self.path / SPEC
        if self._is_new:
            write_atomically(spec_file, json.dumps(self.spec.to_json(), indent=2))
        else:
            self._check_spec()
        self._unlock = lock_dataset(self.path, self)
        if not self._is_new:
            self._check_spec()  # again: `add_reward` may have replaced it until now
        self._committed = read_committed(self.path)
        features: dict[str, Feature | None] = {f"{name}.npy": x for name, x in self.spec.step_features.items()}
        features |= {f"{name}.npy": x for name, x in self.spec.goal_features.items()}
        features |= {INDEX_FILE: (INDEX, ()), **dict.fromkeys(STRING_FILES)}
        for name, feature in features.items():
            self._files[name] = _File(self.path / name, feature)
        self._restore(self._committed)

    def _check_spec(self) -> None:
        """Raise if the folder holds episodes of another kind."""
        present = DatasetSpec.from_json(self.path / SPEC)
        if names := self.spec.differences(present):
            differences = [f"{n} {getattr(self.spec, n)!r} where it has {getattr(present, n)!r}" for n in names]
            expected, fix = "episodes like those already there", "Write to another folder, and mix the two."
            raise problem(self.path, expected=expected, found="; ".join(differences), fix=fix)

    def _record(self, episode: Episode, lines: tuple[int, int]) -> np.ndarray:
        """Return the row of the index for an episode."""
        record = np.zeros(1, INDEX)
        record["row"], record["length"] = self._committed["rows"], len(episode.action)
        record["return"] = episode.reward.sum(dtype=np.float64)
        record["goal"] = self._committed["goals"] if episode.goal_images else -1
        record["seed"] = NO_SEED if episode.seed is None else episode.seed
        record["instruction"], record["source"] = lines
        record["success"] = -1 if episode.success is None else episode.success
        record["terminated"], record["truncated"] = episode.terminated, episode.truncated
        record["last_known"] = num_observations(episode) > len(episode.action)
        return record

    def _line_of(self, table: int, text: str) -> int:
        """Return the line of `text` in a table of strings. Add new texts."""
        lines = self._strings[table]
        if text not in lines:
            self._files[STRING_FILES[table]].write_bytes(json.dumps(text).encode() + b"\n")
            lines[text] = len(lines)
        return lines[text]

    def _count(self, episode: Episode, rows: int) -> dict[str, Any]:
        """Return the content of committed.json with this episode."""
        before = self._committed["statistics"]
        values = {ACTION: episode.action, REWARD: episode.reward[:, None]}
        if STATE in episode.observation:
            values[STATE] = episode.observation[STATE]
        new = {name: statistics_of(array) for name, array in values.items()}
        return {
            "episodes": self._committed["episodes"] + 1,
            "rows": self._committed["rows"] + rows,
            "goals": self._committed["goals"] + bool(episode.goal_images),
            "files": {name: file.entry() for name, file in self._files.items()},
            "statistics": {n: merge_statistics(before[n], table) if n in before else table for n, table in new.items()},
        }

    def _commit(self) -> None:
        """Make the episode exist. The headers follow; only readers that use numpy alone need them."""
        if sum(file.unsynced for file in self._files.values()) > SYNC_BYTES:
            self.flush()
        write_atomically(self.path / COMMITTED, seal(self._committed), durable=False)
        for file in self._files.values():
            file.write_header()

    def _restore(self, committed: dict[str, Any]) -> None:
        """Cut every file back to what is committed."""
        for name, file in self._files.items():
            file.restore(committed["files"].get(name))
        self._committed = committed
        self._strings = tuple(
            {json.loads(line): i for i, line in enumerate((self.path / file).read_bytes().splitlines())}
            for file in STRING_FILES
        )

    def _release(self, *, remove: bool = False) -> None:
        """Close the files, and `remove` the folder."""
        for file in self._files.values():
            file.close()
        self._files = {}
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._unlock is not None:
            self._unlock()
            self._unlock = None


class _File:
    """File that grows, with the checksum of its data. Arrays also have a .npy header."""

    def __init__(self, path: Path, feature: Feature | None) -> None:
        self.path, self.feature = path, feature
        self.offset = 0 if feature is None else len(npy_header(*feature, 0))
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.bytes = self.crc = self.unsynced = 0

    def write(self, array: np.ndarray) -> None:
        self.write_bytes(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def write_bytes(self, data: bytes | memoryview) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self.unsynced += len(data)
        left = memoryview(data)
        while left:  # a write may be partial
            written = os.pwrite(self.descriptor, left, self.offset + self.bytes)
            self.bytes, left = self.bytes + written, left[written:]

    def entry(self) -> dict[str, int]:
        return {"offset": self.offset, "bytes": self.bytes, "crc32": self.crc}

    def write_header(self) -> None:
        if self.feature is not None:
            dtype, shape = self.feature
            rows = self.bytes // (dtype.itemsize * math.prod(shape))
            os.pwrite(self.descriptor, npy_header(dtype, shape, rows), 0)

    def restore(self, entry: dict[str, int] | None) -> None:
        """Cut the file back to a committed entry, or empty it."""
        self.bytes, self.crc = (entry["bytes"], entry["crc32"]) if entry else (0, 0)
        if os.fstat(self.descriptor).st_size < self.offset + self.bytes and self.bytes:
            raise problem(self.path, expected=f"{self.offset + self.bytes} bytes", found="fewer", fix=RESTORE)
        os.ftruncate(self.descriptor, self.offset + self.bytes)
        self.write_header()

    def sync(self) -> None:
        if self.unsynced:
            os.fsync(self.descriptor)
            self.unsynced = 0

    def close(self) -> None:
        os.close(self.descriptor)


def lock_dataset(path: Path, owner: object) -> Callable[[], object]:
    """Lock a dataset for its only writer, and return the function that releases it. Remove what a killed one left."""
    expected, found, fix = "to be its only writer", "another one at work", "Wait for it to end."
    unlock = lock(path / SPEC, owner, expected=expected, found=found, fix=fix, within_process=True)
    for leftover in path.glob(f".*{UNFINISHED}"):
        leftover.unlink()
    return unlock


def _is_new(path: Path) -> bool:
    """Return whether there is no dataset, at most the beginnings that a killed writer left."""
    return not path.exists() or (path.is_dir() and all(name.endswith(UNFINISHED) for name in os.listdir(path)))


@contextmanager
def _os_errors(where: object, *, expected: str, fix: str) -> Iterator[None]:
    """Say what was tried, and where, when the disk fails."""
    try:
        yield
    except OSError as error:
        raise problem(where, expected=expected, found=error, fix=fix) from error
