"""The episode store: a folder of flat .npy arrays, one a feature, that `np.load(..., mmap_mode="r")` opens.

All step arrays have the same rows. An episode of T steps takes T + 1 of them, one for each observation: row t holds
`observation[t]`, `action[t]` and the `next.*` of that action; in the last row the action and what follows are zero and
mean nothing. Where a source lacks the last observation, that row repeats the one before (`last_known` is False).

    spec.json           names, shapes, action bounds, control rate, versions; written once
    committed.json      rows, bytes and checksum of every file, statistics; replaced, atomically, after each episode
    episodes.npy        one record an episode (INDEX below); strings live in instructions.jsonl and sources.jsonl
    observation.state.npy, observation.images.<camera>.npy, action.npy, next.reward.npy, next.reward.<name>.npy,
    next.terminated.npy, next.truncated.npy; goal.images.<camera>.npy has one row a given goal

Only what committed.json names exists: bytes that a killed writer left behind it are never read, and the next writer
cuts them off. `pac.data.writer` writes.
"""

import dataclasses
import io
import json
import math
import operator
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

import pac
from pac.types import Episode

STATE, IMAGES, GOALS = "observation.state", "observation.images.", "goal.images."
ACTION, REWARD, TERMINATED, TRUNCATED = "action", "next.reward", "next.terminated", "next.truncated"
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
        ("success", "i1"),  # -1: the source does not say
        ("terminated", "?"),
        ("truncated", "?"),
        ("last_known", "?"),  # the observation after the last action was recorded
    ]
)
NO_SEED = np.iinfo(np.int64).min

# Standardising divides by at least this, absolute and relative to the mean: a joint that never moved in the data must
# not turn a millimetre of movement into thousands.
SCALE_FLOOR = 1e-3


def store_error(where: object, *, expected: str, found: object, fix: str) -> ValueError:
    return ValueError(f"{where}: expected {expected}, found {found}. {fix}")


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """What every episode of a dataset has in common."""

    state_dim: int  # 0: pictures only
    action_dim: int
    cameras: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> height, width
    goal_cameras: dict[str, tuple[int, int]] = field(default_factory=dict)
    extra_rewards: tuple[str, ...] = ()
    action_low: tuple[float, ...] | None = None  # None: measured while writing
    action_high: tuple[float, ...] | None = None
    control_rate: float | None = None  # Hz
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    robot: str = ""

    def __post_init__(self) -> None:
        for name in (*self.cameras, *self.goal_cameras, *self.extra_rewards):
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
                raise store_error(
                    "DatasetSpec",
                    expected="camera and reward names of letters, digits, '_', '-' and '.'",
                    found=repr(name),
                    fix="Rename it: names become file names.",
                )
        if self.action_dim < 1 or self.state_dim < 0 or (not self.state_dim and not self.cameras):
            raise store_error(
                "DatasetSpec",
                expected="at least one action and one observation",
                found=f"{self.action_dim} actions, {self.state_dim} state dimensions, {len(self.cameras)} cameras",
                fix="Give the missing one.",
            )
        if (self.action_low is None) != (self.action_high is None):
            raise store_error("DatasetSpec", expected="both action bounds or none", found="one", fix="Give both.")
        low, high = self.action_low or (), self.action_high or ()
        bounded = {self.action_dim} == {len(low), len(high)} and all(
            math.isfinite(a) and math.isfinite(b) and a <= b for a, b in zip(low, high, strict=True)
        )
        if self.action_low is not None and not bounded:
            raise store_error(
                "DatasetSpec",
                expected=f"{self.action_dim} finite action bounds with low <= high",
                found=f"low {self.action_low}, high {self.action_high}",
                fix="Pass None for both to measure them.",
            )

    @classmethod
    def of(cls, episode: Episode, **known: Any) -> "DatasetSpec":
        """The spec that `episode` fits; bounds, rate and names as given."""
        pictures = {name: array for name, array in episode.observation.items() if name.startswith(IMAGES)}
        for bound in {"action_low", "action_high"} & {name for name, value in known.items() if value is not None}:
            known[bound] = tuple(float(value) for value in known[bound])
        return cls(
            state_dim=episode.observation[STATE].shape[-1] if STATE in episode.observation else 0,
            action_dim=episode.action.shape[-1],
            cameras={name.removeprefix(IMAGES): array.shape[1:3] for name, array in pictures.items()},
            goal_cameras={name: array.shape[:2] for name, array in episode.goal_images.items()},
            extra_rewards=tuple(sorted(episode.extra_rewards)),
            **known,
        )

    @cached_property
    def step_features(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Arrays with a row for every observation: name -> dtype and shape of one row."""
        number, byte, flag = np.dtype("<f4"), np.dtype("u1"), np.dtype("?")
        state = {STATE: (number, (self.state_dim,))} if self.state_dim else {}
        cameras = {IMAGES + name: (byte, (*size, 3)) for name, size in self.cameras.items()}
        extras = {f"{REWARD}.{name}": (number, ()) for name in self.extra_rewards}
        steps = {
            ACTION: (number, (self.action_dim,)),
            REWARD: (number, ()),
            TERMINATED: (flag, ()),
            TRUNCATED: (flag, ()),
        }
        return {**state, **cameras, **steps, **extras}

    @cached_property
    def goal_features(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {GOALS + name: (np.dtype("u1"), (*size, 3)) for name, size in self.goal_cameras.items()}

    def to_json(self) -> dict[str, Any]:
        """The fields, and a table of features for whoever opens the folder without this file."""
        tables = {**self.step_features, **self.goal_features}
        features = {name: {"dtype": dtype.name, "shape": list(shape)} for name, (dtype, shape) in tables.items()}
        versions = {"pac": pac.__version__, "numpy": np.__version__}
        return {"format": "pac-episodes", "version": 1} | dataclasses.asdict(self) | {"features": features} | versions

    @classmethod
    def from_json(cls, path: Path) -> "DatasetSpec":
        try:
            table = json.loads(path.read_text())
            if table["format"] != "pac-episodes" or table["version"] != 1:
                raise ValueError(f"format {table['format']!r}, version {table['version']!r}")
            fields = {f.name: table[f.name] for f in dataclasses.fields(cls)}
            for name, value in fields.items():
                if isinstance(value, list):
                    fields[name] = tuple(value)
                elif isinstance(value, dict):
                    fields[name] = {str(key): (int(height), int(width)) for key, (height, width) in value.items()}
            fields["state_dim"], fields["action_dim"] = (
                operator.index(table["state_dim"]),
                operator.index(table["action_dim"]),
            )
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise store_error(
                path,
                expected="the spec of a dataset (pac-episodes, version 1)",
                found=f"{type(error).__name__}: {error}",
                fix="Name a folder made by `pac import` or `pac collect`, or restore the file.",
            ) from error


class Dataset:
    """A dataset opened for reading: memory-mapped, so that its size does not matter."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec = DatasetSpec.from_json(self.path / "spec.json")
        self._committed = read_committed(self.path)
        self.num_episodes: int = self._committed["episodes"]
        self.num_rows: int = self._committed["rows"]
        self.index: np.ndarray = self._open(INDEX_FILE, INDEX, (), self.num_episodes)
        self.arrays: dict[str, np.ndarray] = {
            name: self._open(f"{name}.npy", *feature, self.num_rows)
            for name, feature in self.spec.step_features.items()
        }
        self.goals: dict[str, np.ndarray] = {
            name: self._open(f"{name}.npy", *feature, self._committed["goals"])
            for name, feature in self.spec.goal_features.items()
        }

    @property
    def num_steps(self) -> int:
        return self.num_rows - self.num_episodes

    @cached_property
    def instructions(self) -> list[str]:
        return self._strings(STRING_FILES[0])

    @cached_property
    def sources(self) -> list[str]:
        return self._strings(STRING_FILES[1])

    @property
    def bounds_are_measured(self) -> bool:
        return self.spec.action_low is None

    @cached_property
    def action_low(self) -> Float32[np.ndarray, " action"]:
        return np.array(self.spec.action_low or self._statistics(ACTION)["min"], np.float32)

    @cached_property
    def action_high(self) -> Float32[np.ndarray, " action"]:
        return np.array(self.spec.action_high or self._statistics(ACTION)["max"], np.float32)

    @cached_property
    def proprio_centre(self) -> Float32[np.ndarray, " proprio"]:
        """Mean of each state dimension over the dataset."""
        return np.array(self._statistics(STATE)["mean"], np.float32)

    @cached_property
    def proprio_scale(self) -> Float32[np.ndarray, " proprio"]:
        """Standard deviation of each state dimension, with a floor for what hardly moves."""
        return scale_of(self._statistics(STATE))

    def __len__(self) -> int:
        return self.num_episodes

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def episode(self, i: int) -> Episode:
        """Episode `i` as it was written: actions raw, the last observation where it is known."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"{self.path}: expected an episode below {len(self)}, found {i}.")
        record = self.index[i]
        self.check_index(np.array([record]))
        row, length, goal = int(record["row"]), int(record["length"]), int(record["goal"])
        observations = slice(row, row + length + bool(record["last_known"]))
        steps = slice(row, row + length)
        names = [name for name in self.arrays if name.startswith("observation.")]
        return Episode(
            observation={name: np.array(self.arrays[name][observations]) for name in names},
            action=np.array(self.arrays[ACTION][steps]),
            reward=np.array(self.arrays[REWARD][steps]),
            terminated=bool(record["terminated"]),
            truncated=bool(record["truncated"]),
            instruction=self.instructions[record["instruction"]],
            success=None if record["success"] < 0 else bool(record["success"]),
            goal_images={n.removeprefix(GOALS): np.array(a[goal]) for n, a in self.goals.items() if goal >= 0},
            extra_rewards={n: np.array(self.arrays[f"{REWARD}.{n}"][steps]) for n in self.spec.extra_rewards},
            source=self._source(int(record["source"])),
            seed=None if record["seed"] == NO_SEED else int(record["seed"]),
        )

    def check_index(self, records: np.ndarray | None = None) -> None:
        """Raise if records (all unless given) point outside the dataset, so that damage is found before it is used."""
        records = self.index if records is None else records
        limits = {"row": (0, self.num_rows), "length": (1, self.num_rows)}
        limits |= {"goal": (-1, self._committed["goals"]), "instruction": (0, len(self.instructions))}
        inside = records["row"] + records["length"] < self.num_rows
        for name, (low, high) in limits.items():
            inside &= (records[name] >= low) & (records[name] < high)
        if not inside.all():
            raise store_error(
                self.path / INDEX_FILE,
                expected="episodes inside the dataset",
                found=f"one outside, {records[~inside][0]}",
                fix="Run `pac inspect --verify`, and restore the file from a copy.",
            )

    def statistics(self, name: str) -> dict[str, Any]:
        """count, and per-dimension mean, variance, min and max of "observation.state", "action" or "next.reward"."""
        return dict(self._statistics(name))

    def _source(self, line: int) -> str:
        if not 0 <= line < len(self.sources):
            raise store_error(
                self.path / INDEX_FILE,
                expected=f"a source below {len(self.sources)}",
                found=line,
                fix="Run `pac inspect --verify`, and restore the file from a copy.",
            )
        return self.sources[line]

    def _statistics(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._committed["statistics"].get(name, no_statistics(0))
        return found

    def _open(self, file: str, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int) -> np.ndarray:
        if rows == 0:
            return np.zeros((0, *shape), dtype)
        path = self.path / file
        offset = len(npy_header(dtype, shape, rows))
        needed = offset + rows * dtype.itemsize * math.prod(shape)
        try:
            with path.open("rb") as stream:
                header, size = stream.read(offset), os.fstat(stream.fileno()).st_size
        except OSError as error:
            raise store_error(path, expected="a file", found=error, fix="Restore the dataset from a copy.") from error
        _check_header(path, header, dtype, shape)
        if size < needed:
            raise store_error(
                path, expected=f"{needed} bytes", found=f"{size}: the file is cut short", fix="Restore it from a copy."
            )
        return np.memmap(path, dtype, "r", offset, (rows, *shape))

    def _strings(self, file: str) -> list[str]:
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
            raise store_error(
                path, expected="one JSON string a line", found=error, fix="Restore it from a copy."
            ) from error


def verify(path: str | Path) -> list[str]:
    """What is wrong with the files of a dataset, by their checksums; empty when all is well."""
    path = Path(path)
    try:
        DatasetSpec.from_json(path / "spec.json")
        committed = read_committed(path)
        Dataset(path)
    except ValueError as error:
        return [str(error)]
    problems = []
    for file, entry in committed["files"].items():
        crc, size = _checksum(path / file, entry["offset"], entry["bytes"])
        if size < entry["bytes"]:
            problems.append(f"{path / file}: expected {entry['bytes']} bytes of data, found {size}: cut short.")
        elif crc != entry["crc32"]:
            problems.append(f"{path / file}: expected checksum {entry['crc32']:08x}, found {crc:08x}: damaged.")
    return problems


def normalise_action(
    action: Float32[np.ndarray, "*shape action"],
    low: Float32[np.ndarray, " action"],
    high: Float32[np.ndarray, " action"],
) -> Float32[np.ndarray, "*shape action"]:
    """From [low, high] to [-1, 1]; a dimension whose bounds are equal becomes 0."""
    half = (high - low) / 2
    normalised: np.ndarray = np.clip((action - (low + high) / 2) / np.where(half > 0, half, 1), -1, 1)
    return normalised.astype(np.float32, copy=False)


def denormalise_action(
    action: Float32[np.ndarray, "*shape action"],
    low: Float32[np.ndarray, " action"],
    high: Float32[np.ndarray, " action"],
) -> Float32[np.ndarray, "*shape action"]:
    """From [-1, 1] back to [low, high]."""
    raw: np.ndarray = np.clip((low + high) / 2 + action * ((high - low) / 2), low, high)
    return raw.astype(np.float32, copy=False)


def scale_of(statistics: dict[str, Any]) -> Float32[np.ndarray, " proprio"]:
    """Standard deviations, with a floor for what hardly moves."""
    floor = SCALE_FLOOR * np.maximum(1, np.abs(statistics["mean"]))
    scale: np.ndarray = np.maximum(np.sqrt(np.array(statistics["variance"])), floor)
    return scale.astype(np.float32)


def no_statistics(dims: int) -> dict[str, Any]:
    return {"count": 0} | {key: [0.0] * dims for key in ("mean", "variance", "min", "max")}


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], rows: int) -> bytes:
    """The header of a .npy file; numpy leaves room in it, so that its length does not depend on the rows."""
    stream = io.BytesIO()
    table = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}  # type: ignore[no-untyped-call]
    np.lib.format.write_array_header_1_0(stream, table)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def read_committed(path: Path) -> dict[str, Any]:
    """What a dataset holds, by its committed.json; nothing yet where the first episode was never finished."""
    file = path / "committed.json"
    if not file.exists():
        return {"episodes": 0, "rows": 0, "goals": 0, "files": {}, "statistics": {}}
    try:
        sealed = json.loads(file.read_text())
        committed: dict[str, Any] = sealed["committed"]
        if sealed["crc32"] != zlib.crc32(json.dumps(committed).encode()):
            raise ValueError("a checksum that does not match: the file was damaged or edited")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise store_error(
            file, expected="the record of what was committed", found=error, fix="Restore it from a copy."
        ) from error
    return committed


def seal(committed: dict[str, Any]) -> bytes:
    """`committed` as JSON, with its own checksum."""
    body = json.dumps(committed)
    return f'{{"crc32": {zlib.crc32(body.encode())}, "committed": {body}}}'.encode()


def _check_header(path: Path, found: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    expected = f"a .npy array of {dtype.name} rows of shape {shape}"
    fix = "Restore it from a copy."
    stream = io.BytesIO(found)
    try:
        np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
        found_shape, _, found_dtype = np.lib.format.read_array_header_1_0(stream)  # type: ignore[no-untyped-call]
    except Exception as error:  # numpy parses the header as Python, and damage may raise almost anything
        raise store_error(path, expected=expected, found=f"no such header ({error})", fix=fix) from error
    if found_dtype != dtype or found_shape[1:] != shape:
        raise store_error(path, expected=expected, found=f"{found_dtype} of shape {found_shape[1:]}", fix=fix)


def _checksum(path: Path, offset: int, size: int) -> tuple[int, int]:
    """CRC-32 of up to `size` bytes from `offset`, and how many there were."""
    crc = done = 0
    with path.open("rb") as stream:
        stream.seek(offset)
        while done < size and (block := stream.read(min(1 << 22, size - done))):
            crc, done = zlib.crc32(block, crc), done + len(block)
    return crc, done
