"""OGBench npz: flat arrays of states, the last state of each trajectory included.

Time alignment: a trajectory of T actions has T + 1 rows. Row t holds the state and the action taken in it; the action
of the last row leads nowhere and is dropped. `rewards[t]`, where a file was saved with rewards, belongs to
`actions[t]`; published files have none (the tasks are goals): rewards are then 0, for `relabel` to fill.

Ends: `terminals` marks the last row of a trajectory and nothing more: every end is a time limit, unless the file holds
`masks` (OGBench's bootstrap mask), whose 0 at the last transition is a true termination.

The arrays are streamed out of the zip file, so that memory does not grow with it.
"""

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats.common import (
    ForeignDataset,
    ImportOptions,
    as_vector,
    build_episode,
    check_length,
    choose_keys,
    is_image,
    key_of,
    require,
)
from pac.types import Episode


def detect(path: Path) -> bool:
    if path.suffix != ".npz" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return {"observations.npy", "actions.npy", "terminals.npy"} <= set(archive.namelist())


class Column:
    """One array of an npz file, read forward, a few rows at a time."""

    def __init__(self, stream: Any, entry: zipfile.ZipInfo, where: str) -> None:
        self.where, self._stream = where, stream
        npy: Any = np.lib.format
        version = npy.read_magic(self._stream)
        if version not in ((1, 0), (2, 0)):
            raise problem(self.where, expected="npy version 1 or 2", found=version, fix="Save it with numpy.savez.")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, fortran, self.dtype = read_header(self._stream)
        if self.dtype.hasobject or fortran or not self.shape:
            raise problem(
                self.where,
                expected="rows of numbers in C order",
                found=f"dtype {self.dtype}, shape {self.shape}{', Fortran order' if fortran else ''}",
                fix="Save it again from a numeric, C-contiguous array.",
            )
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=object))
        claimed = self.shape[0] * self._row_bytes + self._stream.tell()
        if claimed != entry.file_size or claimed > 2000 * (entry.compress_size + 1):
            raise problem(
                self.where, expected=f"{claimed} bytes", found=entry.file_size, fix="Restore the file from its origin."
            )

    def rows(self, count: int) -> np.ndarray:
        """The next `count` rows."""
        content = self._stream.read(count * self._row_bytes)
        if len(content) != count * self._row_bytes:
            raise problem(self.where, expected=f"{count} more rows", found="the end", fix="Download it again.")
        return np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])


@contextmanager
def _columns(path: Path, wanted: set[str] | None = None) -> Iterator[dict[str, Column]]:
    """The arrays of a file, each at its first row, until the block ends."""
    with zipfile.ZipFile(path) as archive, ExitStack() as streams:
        columns = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if wanted is None or name in wanted:
                stream = streams.enter_context(archive.open(entry))
                columns[name] = Column(stream, entry, f"{path}, key {name!r}")
        yield columns


def read(path: Path, options: ImportOptions) -> ForeignDataset:
    if not zipfile.is_zipfile(path):
        raise problem(path, expected="an npz (zip) file", found="another file", fix="Check the path or --format.")
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    with _columns(path) as columns:
        terminals = require(columns, "terminals", path)
        num_rows = terminals.shape[0]
        named = {key for keys in options.keys.values() for key in keys}
        usable = {name: column for name, column in columns.items() if name == "observations" or name in named}
        pictures = {name for name, column in usable.items() if is_image(column.shape[1:], column.dtype)}
        keys = choose_keys(sorted(usable.keys() - pictures), sorted(pictures), options, path)
        needed = {key for parts in keys.values() for key in parts} | {action_key}
        used = needed | ({reward_key, "masks"} & columns.keys())
        for name in sorted(used):
            check_length(require(columns, name, path).shape[0], (num_rows,), f"{path}, key {name!r}")
        ends = np.flatnonzero(as_vector(terminals.rows(num_rows), f"{path}, key 'terminals'")) + 1
    notes = [] if "masks" in used else ["OGBench's terminals are ends of trajectories: all count as time limits."]
    if reward_key not in used:
        notes.append("No rewards: they are 0. Give the dataset rewards with a relabelling.")
    if not len(ends) or ends[-1] != num_rows:
        notes.append(f"The last {num_rows - (ends[-1] if len(ends) else 0)} rows have no end: kept as truncated.")
        ends = np.append(ends, num_rows)
    if num_rows <= len(ends):
        raise problem(path, expected="at least one transition", found=f"{num_rows} rows", fix="Check the file.")

    def episodes() -> Iterator[Episode]:
        with _columns(path, used) as columns:
            for index, count in enumerate(np.diff(np.append(0, ends)).tolist()):
                part = {name: column.rows(count) for name, column in columns.items()}
                if count < 2:
                    notes.append(f"Trajectory {index} has one state and no transition: left out.")
                    continue
                over = bool("masks" in part and as_vector(part["masks"], f"{path}, key 'masks'")[-2] == 0)
                yield build_episode(
                    f"{path}, trajectory {index}",
                    source=path,
                    keys=keys,
                    raw=part,
                    action=part[action_key][:-1],
                    reward=part[reward_key][:-1] if reward_key in part else np.zeros(count - 1, np.float32),
                    terminated=over,
                    truncated=not over,
                    instruction=options.instruction or "",
                )

    return ForeignDataset(
        format="ogbench",
        path=path,
        keys=keys,
        episodes=episodes(),
        num_episodes=len(ends),
        fps=options.fps,
        notes=notes,
    )
