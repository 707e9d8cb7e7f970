"""Episode store: a folder of flat .npy arrays, one per feature, that `np.load(..., mmap_mode="r")` opens.

All step arrays have the same rows. An episode of T steps takes T + 1 rows, one per observation. Row t holds
`observation[t]`, `action[t]` and the `next.*` of that action. In the last row the action and `next.*` are zero and mean
nothing. Where a source lacks the last observation, that row repeats the one before (`last_known` is False).

    spec.json           names, shapes, action bounds, control rate, versions; replaced if a reward is added later
    committed.json      rows, bytes and checksum of every file, statistics; replaced atomically after each episode
    episodes.npy        one record per episode (INDEX below); strings are in instructions.jsonl and sources.jsonl
    observation.state.npy, observation.images.<camera>.npy, action.npy, next.reward.npy, next.reward.<name>.npy,
    next.terminated.npy, next.truncated.npy; goal.images.<camera>.npy has one row per goal image

Only rows that committed.json counts exist. A killed writer may leave bytes behind them. Readers ignore those bytes and
the next writer cuts them off. `pac.data.writer` writes datasets.
"""

import io
import json
import math
import os
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from pac.data.spec import ACTION, GOALS, IMAGES, REWARD, STATE, TERMINATED, TRUNCATED, DatasetSpec, Feature
from pac.data.statistics import no_statistics, scale_of
from pac.files import checksum, problem
from pac.types import Episode

__all__ = ["ACTION", "GOALS", "IMAGES", "INDEX", "REWARD", "STATE", "TERMINATED", "TRUNCATED"]
__all__ += ["Dataset", "DatasetSpec", "read_committed", "verify"]

COMMITTED, SPEC = "committed.json", "spec.json"
INDEX_FILE, STRING_FILES = "episodes.npy", ("instructions.jsonl", "sources.jsonl")

INDEX = np.dtype(
    [
        ("row", "<i8"),  # first of length + 1
        ("length", "<i8"),  # T: actions
        ("return", "<f8"),
        ("goal", "<i8"),  # row of its goal images; -1: none
        ("seed", "<i8"),  # NO_SEED: unknown
        ("instruction", "<i4"),  # line of instructions.jsonl
        ("source", "<i4"),  # line of sources.jsonl
        ("success", "i1"),  # -1: unknown
        ("terminated", "?"),
        ("truncated", "?"),
        ("last_known", "?"),  # the observation after the last action was recorded
    ]
)
NO_SEED = np.iinfo(np.int64).min

RESTORE = "Restore it from a copy."
INSPECT = "Run `pac inspect --verify`, and restore the file from a copy."


class Dataset:
    """Dataset opened for reading. Its arrays are memory-mapped, so its size does not matter."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec = DatasetSpec.from_json(self.path / SPEC)
        self._committed = read_committed(self.path)
        self.num_episodes: int = self._committed["episodes"]
        self.num_rows: int = self._committed["rows"]
        self.index: np.ndarray = self._open(INDEX_FILE, (INDEX, ()), self.num_episodes)
        self.arrays: dict[str, np.ndarray] = {
            name: self._open(f"{name}.npy", feature, self.num_rows) for name, feature in self.spec.step_features.items()
        }
        self.goals: dict[str, np.ndarray] = {
            name: self._open(f"{name}.npy", feature, self.num_goals)
            for name, feature in self.spec.goal_features.items()
        }

    @property
    def num_steps(self) -> int:
        return self.num_rows - self.num_episodes

    @property
    def num_goals(self) -> int:
        return int(self._committed["goals"])

    @cached_property
    def instructions(self) -> list[str]:
        return self._read_strings(STRING_FILES[0])

    @cached_property
    def sources(self) -> list[str]:
        return self._read_strings(STRING_FILES[1])

    @property
    def bounds_are_measured(self) -> bool:
        return self.spec.action_low is None

    @cached_property
    def action_low(self) -> Float32[np.ndarray, " action"]:
        return np.array(self.spec.action_low or self.statistics(ACTION)["min"], np.float32)

    @cached_property
    def action_high(self) -> Float32[np.ndarray, " action"]:
        return np.array(self.spec.action_high or self.statistics(ACTION)["max"], np.float32)

    @cached_property
    def proprio_centre(self) -> Float32[np.ndarray, " proprio"]:
        """Mean of each state dimension over the dataset."""
        return np.array(self.statistics(STATE)["mean"], np.float32)

    @cached_property
    def proprio_scale(self) -> Float32[np.ndarray, " proprio"]:
        """Standard deviation of each state dimension, with a floor for dimensions that hardly move."""
        return scale_of(self.statistics(STATE))

    def __len__(self) -> int:
        return self.num_episodes

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def episode(self, i: int, *, copy: bool = True) -> Episode:
        """Return episode `i` as it was written, with raw actions and the last observation where it is known.

        Without `copy` its arrays are views of the files, which are read where they are used.
        """
        if not -len(self) <= i < len(self):
            raise IndexError(f"{self.path}: expected an episode below {len(self)}, found {i}.")
        record = self.index[i]
        self.check_index(np.array([record]))
        row, length, goal = int(record["row"]), int(record["length"]), int(record["goal"])
        observations = slice(row, row + length + bool(record["last_known"]))
        steps = slice(row, row + length)
        names = [name for name in self.arrays if name.startswith("observation.")]
        take = np.array if copy else np.asarray
        return Episode(
            observation={name: take(self.arrays[name][observations]) for name in names},
            action=take(self.arrays[ACTION][steps]),
            reward=take(self.arrays[REWARD][steps]),
            terminated=bool(record["terminated"]),
            truncated=bool(record["truncated"]),
            instruction=self.instructions[record["instruction"]],
            success=None if record["success"] < 0 else bool(record["success"]),
            goal_images={n.removeprefix(GOALS): take(a[goal]) for n, a in self.goals.items() if goal >= 0},
            extra_rewards={n: take(self.arrays[f"{REWARD}.{n}"][steps]) for n in self.spec.extra_rewards},
            source=self._source(int(record["source"])),
            seed=None if record["seed"] == NO_SEED else int(record["seed"]),
        )

    def check_index(self, records: np.ndarray | None = None) -> None:
        """Raise if records point outside the dataset. The default checks all records."""
        records = self.index if records is None else records
        limits = {"row": (0, self.num_rows), "length": (1, self.num_rows)}
        limits |= {"goal": (-1, self.num_goals), "instruction": (0, len(self.instructions))}
        inside = records["row"] + records["length"] < self.num_rows
        for name, (low, high) in limits.items():
            inside &= (records[name] >= low) & (records[name] < high)
        if not inside.all():
            found = f"one outside, {records[~inside][0]}"
            raise problem(self.path / INDEX_FILE, expected="episodes inside the dataset", found=found, fix=INSPECT)

    def statistics(self, name: str) -> dict[str, Any]:
        """Return count, and mean, variance, min and max per dimension, of the state, the action or the reward."""
        found: dict[str, Any] = self._committed["statistics"].get(name, no_statistics(0))
        return found

    def _source(self, line: int) -> str:
        if not 0 <= line < len(self.sources):
            expected = f"a source below {len(self.sources)}"
            raise problem(self.path / INDEX_FILE, expected=expected, found=line, fix=INSPECT)
        return self.sources[line]

    def _open(self, file: str, feature: Feature, rows: int) -> np.ndarray:
        dtype, shape = feature
        if rows == 0:
            return np.zeros((0, *shape), dtype)
        path = self.path / file
        offset = len(npy_header(dtype, shape, rows))
        needed = offset + rows * dtype.itemsize * math.prod(shape)
        try:
            with path.open("rb") as stream:
                header, size = stream.read(offset), os.fstat(stream.fileno()).st_size
        except OSError as error:
            raise problem(path, expected="a file", found=error, fix="Restore the dataset from a copy.") from error
        _check_header(path, header, dtype, shape)
        if size < needed:
            raise problem(path, expected=f"{needed} bytes", found=f"{size}: the file is cut short", fix=RESTORE)
        return np.memmap(path, dtype, "r", offset, (rows, *shape))

    def _read_strings(self, file: str) -> list[str]:
        if not len(self):
            return []
        path, entry = self.path / file, self._committed["files"][file]
        try:
            with path.open("rb") as stream:
                data = stream.read(entry["bytes"])
            if zlib.crc32(data) != entry["crc32"]:
                raise ValueError("a checksum that does not match")
            return [json.loads(line) for line in data.splitlines()]
        except (OSError, ValueError) as error:
            raise problem(path, expected="one JSON string per line", found=error, fix=RESTORE) from error


def verify(path: str | Path) -> list[str]:
    """Return the problems that checksums find in a dataset's files. The list is empty if there are none."""
    path = Path(path)
    try:
        DatasetSpec.from_json(path / SPEC)
        committed = read_committed(path)
        Dataset(path)
    except ValueError as error:
        return [str(error)]
    problems = []
    for file, entry in committed["files"].items():
        crc, size = checksum(path / file, entry["offset"], entry["bytes"])
        if size < entry["bytes"]:
            problems.append(f"{path / file}: expected {entry['bytes']} bytes of data, found {size}: cut short.")
        elif crc != entry["crc32"]:
            problems.append(f"{path / file}: expected checksum {entry['crc32']:08x}, found {crc:08x}: damaged.")
    return problems


def read_committed(path: Path) -> dict[str, Any]:
    """Read committed.json. It is missing until the first episode is complete."""
    file = path / COMMITTED
    if not file.exists():
        return {"episodes": 0, "rows": 0, "goals": 0, "files": {}, "statistics": {}}
    try:
        sealed = json.loads(file.read_text())
        committed: dict[str, Any] = sealed["committed"]
        if sealed["crc32"] != zlib.crc32(json.dumps(committed).encode()):
            raise ValueError("a checksum that does not match: the file was damaged or edited")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise problem(file, expected="the record of committed episodes", found=error, fix=RESTORE) from error
    return committed


def seal(committed: dict[str, Any]) -> bytes:
    """Return the content of committed.json: JSON with its own checksum."""
    body = json.dumps(committed)
    return f'{{"crc32": {zlib.crc32(body.encode())}, "committed": {body}}}'.encode()


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], rows: int) -> bytes:
    """Return the header of a .npy file. numpy pads it, so its length does not depend on the rows."""
    stream = io.BytesIO()
    table = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}  # type: ignore[no-untyped-call]
    np.lib.format.write_array_header_1_0(stream, table)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def _check_header(path: Path, found: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    expected = f"a .npy array of {dtype.name} rows of shape {shape}"
    stream = io.BytesIO(found)
    try:
        np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
        found_shape, _, found_dtype = np.lib.format.read_array_header_1_0(stream)  # type: ignore[no-untyped-call]
    except Exception as error:  # numpy parses the header as Python, and damage may raise almost anything
        raise problem(path, expected=expected, found=f"no such header ({error})", fix=RESTORE) from error
    if found_dtype != dtype or found_shape[1:] != shape:
        raise problem(path, expected=expected, found=f"{found_dtype} of shape {found_shape[1:]}", fix=RESTORE)
