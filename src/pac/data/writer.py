"""Writing the episode store: whole episodes, checked at the border, each readable once `append` has returned.

An episode's bytes go behind what is committed; then committed.json is replaced, atomically, and only then do they
exist. The layout is described in `pac.data.store`.
"""

import dataclasses
import fcntl
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pac.data.store import (
    ACTION,
    GOALS,
    INDEX,
    INDEX_FILE,
    NO_SEED,
    REWARD,
    STATE,
    STRING_FILES,
    TERMINATED,
    TRUNCATED,
    Dataset,
    DatasetSpec,
    npy_header,
    read_committed,
    seal,
    store_error,
)
from pac.types import Episode

SYNC_BYTES = 64 << 20  # written between two calls of fsync: what a power cut, not a kill, may cost
BOUND_SLACK = 1e-4  # of the range: actions this far outside are rounding, and are clipped on reading


class DatasetWriter:
    """Appends whole episodes to a new or an existing dataset.

    with DatasetWriter(path, DatasetSpec.of(first, action_low=..., action_high=...)) as writer:
        writer.append(episode)

    Each `append` that returned is readable, whatever happens later. With `atomic` it is all or nothing: what was
    appended exists once the `with` ends well; an error or a kill inside leaves the dataset as it was before.
    """

    def __init__(self, path: str | Path, spec: DatasetSpec, *, atomic: bool = False) -> None:
        self.path, self.spec, self.atomic = Path(path), spec, atomic
        self._is_new = not self.path.exists() or (self.path.is_dir() and set(os.listdir(path)) <= {"spec.json.new"})
        self._files: dict[str, _File] = {}
        self._lock = -1
        self._unsynced = 0
        self._appended = False
        try:
            self._open()
        except BaseException as error:
            self._release()
            if self._is_new:
                shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise store_error(
                    self.path, expected="a folder to write to", found=error, fix="Free some space or name another."
                ) from error
            raise

    @property
    def num_episodes(self) -> int:
        return int(self._committed["episodes"])

    def append(self, episode: Episode) -> None:
        """Add one episode; on an error the dataset is as it was before."""
        where = f"{self.path}, episode {self.num_episodes}" + (f" (from {episode.source})" if episode.source else "")
        steps = _check_episode(episode, self.spec, where)
        try:
            strings = (self._intern(0, episode.instruction), self._intern(1, episode.source))
            for name, array in steps.items():
                self._files[f"{name}.npy"].write(array)
            for name, picture in episode.goal_images.items():
                self._files[f"{GOALS}{name}.npy"].write(picture)
            self._files[INDEX_FILE].write(self._record(episode, strings))
            self._committed = self._count(episode, len(steps[ACTION]))
            if not self.atomic:
                self._commit()
            for file in self._files.values():
                file.accept()
            self._appended = True
        except BaseException as error:
            self._restore(self._committed if self.atomic else read_committed(self.path))
            if isinstance(error, OSError):
                raise store_error(
                    where,
                    expected="to write the episode",
                    found=error,
                    fix="Free some space; the dataset holds all episodes before this one.",
                ) from error
            raise

    def flush(self) -> None:
        """Hand everything to the disk itself, so that it survives a power cut."""
        for file in self._files.values():
            file.sync()
        _sync(*(path for path in (self.path / "committed.json", self.path) if path.exists()))
        self._unsynced = 0

    def close(self) -> None:
        if self._lock >= 0:
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
            self._take_back()
            return
        try:
            self.close()
        except BaseException as error:
            if self.atomic:
                self._take_back()
            if isinstance(error, OSError):
                raise store_error(
                    self.path, expected="to finish writing", found=error, fix="Free some space and try again."
                ) from error
            raise

    def _take_back(self) -> None:
        """Leave the dataset as it was when the writer was opened."""
        if not self._is_new:
            self._restore(read_committed(self.path))
        self._release()
        if self._is_new:
            shutil.rmtree(self.path)

    def _open(self) -> None:
        """Make the folder, or check that what it holds is of the same kind; cut what a killed writer left."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._is_new:
            write_atomically(self.path / "spec.json", json.dumps(self.spec.to_json(), indent=2).encode())
        elif (found := DatasetSpec.from_json(self.path / "spec.json")) != self.spec:
            raise store_error(
                self.path,
                expected="episodes like those already there",
                found=_differences(found, self.spec),
                fix="Write to another folder, and mix the two in a mixture file.",
            )
        self._lock = _lock(self.path / "spec.json")
        self._committed = read_committed(self.path)
        for name, (dtype, shape) in {**self.spec.step_features, **self.spec.goal_features}.items():
            self._files[f"{name}.npy"] = _File(self.path / f"{name}.npy", dtype, shape)
        self._files[INDEX_FILE] = _File(self.path / INDEX_FILE, INDEX, ())
        for file in STRING_FILES:
            self._files[file] = _File(self.path / file, None, ())
        self._restore(self._committed)

    def _record(self, episode: Episode, strings: tuple[int, int]) -> np.ndarray:
        instruction, source = strings
        record = np.zeros(1, INDEX)
        record["row"], record["length"] = self._committed["rows"], len(episode.action)
        record["return"] = episode.reward.sum(dtype=np.float64)
        record["goal"] = self._committed["goals"] if episode.goal_images else -1
        record["seed"] = NO_SEED if episode.seed is None else episode.seed
        record["instruction"], record["source"] = instruction, source
        record["success"] = -1 if episode.success is None else episode.success
        record["terminated"], record["truncated"] = episode.terminated, episode.truncated
        record["last_known"] = _num_observations(episode) > len(episode.action)
        return record

    def _intern(self, table: int, text: str) -> int:
        """The line of `text` in a table of strings, added if it is new."""
        lines = self._strings[table]
        if text not in lines:
            self._files[STRING_FILES[table]].write_bytes(json.dumps(text).encode() + b"\n")
            lines[text] = len(lines)
        return lines[text]

    def _count(self, episode: Episode, rows: int) -> dict[str, Any]:
        """What is to be committed once the episode is written."""
        before = self._committed["statistics"]
        known = episode.observation.get(STATE)
        values = {ACTION: episode.action, REWARD: episode.reward[:, None]} | ({} if known is None else {STATE: known})
        return {
            "episodes": self._committed["episodes"] + 1,
            "rows": self._committed["rows"] + rows,
            "goals": self._committed["goals"] + bool(episode.goal_images),
            "files": {name: file.entry() for name, file in self._files.items()},
            "statistics": {name: _merge_statistics(before.get(name), array) for name, array in values.items()},
        }

    def _commit(self) -> None:
        """From here on it exists. The headers follow, for whoever opens a file with numpy alone."""
        self._unsynced += sum(file.pending for file in self._files.values())
        if self._unsynced > SYNC_BYTES:
            self.flush()
        write_atomically(self.path / "committed.json", seal(self._committed))
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

    def _release(self) -> None:
        for file in self._files.values():
            file.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _File:
    """A file that grows, with the checksum of its data, and a header where it is an array."""

    def __init__(self, path: Path, dtype: np.dtype[Any] | None, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.offset = 0 if dtype is None else len(npy_header(dtype, shape, 0))
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.bytes = self.crc = self.pending = 0
        self.dirty = False  # written to since the last sync

    def write(self, array: np.ndarray) -> None:
        self.write_bytes(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def write_bytes(self, data: bytes | memoryview) -> None:
        self.crc = zlib.crc32(data, self.crc)
        place, left = self.offset + self.bytes + self.pending, memoryview(data)
        while left:  # a write may be partial
            written = os.pwrite(self.descriptor, left, place)
            place, left = place + written, left[written:]
        self.pending += len(data)
        self.dirty = True

    def entry(self) -> dict[str, int]:
        return {"offset": self.offset, "bytes": self.bytes + self.pending, "crc32": self.crc}

    def accept(self) -> None:
        self.bytes, self.pending = self.bytes + self.pending, 0

    def write_header(self) -> None:
        if self.dtype is not None:
            rows = (self.bytes + self.pending) // (self.dtype.itemsize * math.prod(self.shape))
            os.pwrite(self.descriptor, npy_header(self.dtype, self.shape, rows), 0)

    def restore(self, entry: dict[str, int] | None) -> None:
        self.bytes, self.crc, self.pending = (entry["bytes"], entry["crc32"], 0) if entry else (0, 0, 0)
        if os.fstat(self.descriptor).st_size < self.offset + self.bytes and self.bytes:
            raise store_error(
                self.path, expected=f"{self.offset + self.bytes} bytes", found="fewer", fix="Restore it from a copy."
            )
        os.ftruncate(self.descriptor, self.offset + self.bytes)
        self.write_header()

    def sync(self) -> None:
        if self.dirty:
            os.fsync(self.descriptor)
            self.dirty = False

    def close(self) -> None:
        os.close(self.descriptor)


def add_column(dataset: Dataset, name: str, rewards: Iterable[np.ndarray]) -> None:
    """Add the extra reward `name` to a dataset on disk, from one array (T,) an episode, in order."""
    if name in dataset.spec.extra_rewards:
        raise store_error(dataset.path, expected="a new reward", found=f"{name!r} twice", fix="Choose another name.")
    spec = dataclasses.replace(dataset.spec, extra_rewards=(*dataset.spec.extra_rewards, name))
    file = f"{REWARD}.{name}.npy"
    lock = _lock(dataset.path / "spec.json")
    column = _File(dataset.path / file, *spec.step_features[f"{REWARD}.{name}"])
    try:
        column.restore(None)
        for i, values in enumerate(rewards):
            length = int(dataset.index["length"][i])
            _check_array(values, np.dtype("<f4"), (length,), f"{dataset.path}, episode {i}, key {name!r}")
            column.write(_pad(values.astype("<f4"), length + 1, repeat=False))
        column.write_header()
        column.sync()
        committed = read_committed(dataset.path)
        committed["files"][file] = column.entry()
        write_atomically(dataset.path / "committed.json", seal(committed))  # names a file more than the spec: no harm
    except BaseException:
        (dataset.path / file).unlink()
        raise
    finally:
        column.close()
        os.close(lock)
    write_atomically(dataset.path / "spec.json", json.dumps(spec.to_json(), indent=2).encode())


def _check_episode(episode: Episode, spec: DatasetSpec, where: str) -> dict[str, np.ndarray]:
    """The rows of an episode, feature by feature, once everything about it is as the spec says."""
    length = len(episode.action)
    if length == 0:
        raise store_error(where, expected="at least one step", found="none", fix="Leave the episode out.")
    rows = _num_observations(episode)
    if rows not in (length, length + 1):
        raise store_error(
            where,
            expected=f"{length + 1} observations for {length} actions, or {length} where the last is not known",
            found=rows,
            fix="Check which observation belongs to which action.",
        )
    given = dict(episode.observation)
    given |= {ACTION: episode.action, REWARD: episode.reward}
    given |= {f"{REWARD}.{name}": values for name, values in episode.extra_rewards.items()}
    ends = np.zeros((2, length), bool)
    ends[:, -1] = episode.terminated, episode.truncated
    given |= {TERMINATED: ends[0], TRUNCATED: ends[1]}
    _check_names(given, spec.step_features, where)
    if episode.goal_images:
        goals = {GOALS + name: picture for name, picture in episode.goal_images.items()}
        _check_names(goals, spec.goal_features, where)
        for name, (dtype, shape) in spec.goal_features.items():
            _check_array(goals[name], dtype, shape, f"{where}, key {name!r}")
    steps = {}
    for name, (dtype, shape) in spec.step_features.items():
        is_observation = name.startswith("observation.")
        _check_array(given[name], dtype, (rows if is_observation else length, *shape), f"{where}, key {name!r}")
        steps[name] = _pad(given[name].astype(dtype, copy=False), length + 1, repeat=is_observation)
    _check_bounds(episode.action, spec, where)
    return steps


def _num_observations(episode: Episode) -> int:
    return max((len(array) for array in episode.observation.values()), default=0)


def _pad(array: np.ndarray, rows: int, *, repeat: bool) -> np.ndarray:
    """`array` with the last row repeated, or zeros, up to `rows`."""
    if len(array) == rows:
        return array
    return np.concatenate([array, array[-1:] if repeat else np.zeros_like(array[-1:])])


def _check_names(found: dict[str, np.ndarray], expected: dict[str, Any], where: str) -> None:
    if found.keys() != expected.keys():
        missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        raise store_error(
            where,
            expected=f"the features of the dataset: {', '.join(expected)}",
            found=f"missing {missing}, not in the dataset {unknown}",
            fix="Import what differs into a dataset of its own, and mix the two; they need not agree.",
        )


def _check_array(array: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> None:
    kinds = "fiu" if dtype.kind == "f" else dtype.kind
    if array.dtype.kind not in kinds or (dtype.kind == "u" and array.dtype != dtype):
        raise store_error(where, expected=f"{dtype.name} values", found=array.dtype, fix="Convert them first.")
    if array.shape != shape:
        raise store_error(where, expected=f"shape {shape}", found=array.shape, fix="Check the episode's arrays.")
    if dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise store_error(
            f"{where}, step {place[0]}" + (f", dimension {place[1]}" if len(place) > 1 else ""),
            expected="a finite number",
            found=array[place],
            fix="Remove or repair the episode at its source.",
        )


def _check_bounds(action: np.ndarray, spec: DatasetSpec, where: str) -> None:
    if spec.action_low is None or spec.action_high is None:
        return
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    slack = BOUND_SLACK * np.maximum(high - low, 1e-3)
    outside = (action < low - slack) | (action > high + slack)
    if outside.any():
        step, dimension = np.argwhere(outside)[0]
        raise store_error(
            f"{where}, key 'action', step {step}, dimension {dimension}",
            expected=f"a value in [{low[dimension]:g}, {high[dimension]:g}], the bounds of the dataset",
            found=f"{action[step, dimension]:g}",
            fix="Correct the bounds, or pass none to have them measured.",
        )


def _merge_statistics(before: dict[str, Any] | None, values: np.ndarray) -> dict[str, Any]:
    """Statistics of everything so far and `values` (steps, dims) together: Chan et al.'s parallel update, in double."""
    low, high, count = values.min(0), values.max(0), len(values)
    mean = values.mean(0, dtype=np.float64)
    centred = values - mean
    variance = np.einsum("td,td->d", centred, centred) / count
    if before is not None:
        total = before["count"] + count
        share, shift = count / total, mean - np.array(before["mean"])
        variance = (1 - share) * np.array(before["variance"]) + share * variance + share * (1 - share) * shift**2
        mean = np.array(before["mean"]) + share * shift
        low, high, count = np.minimum(low, before["min"]), np.maximum(high, before["max"]), total
    table = {"mean": mean, "variance": variance, "min": low, "max": high}
    return {"count": count} | {name: array.tolist() for name, array in table.items()}


def _differences(found: DatasetSpec, wanted: DatasetSpec) -> str:
    names = [name for name in found.__dataclass_fields__ if getattr(found, name) != getattr(wanted, name)]
    return "; ".join(f"{name} {getattr(wanted, name)!r} where it has {getattr(found, name)!r}" for name in names)


def _lock(path: Path) -> int:
    """Hold `path` against a second writer; the lock goes with the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise store_error(
            path.parent, expected="to be its only writer", found="another one at work", fix="Wait for it to end."
        ) from error
    return descriptor


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new one and nothing between."""
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
