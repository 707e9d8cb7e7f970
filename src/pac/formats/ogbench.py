"""OGBench npz: flat arrays of states, the last state of each episode included.

Time alignment: an episode of T actions has T + 1 rows. Row t holds the state and the action taken in it. The action of
the last row has no result and is dropped. `rewards[t]`, where a file has rewards, belongs to `actions[t]`. Published
files have none, since their tasks are goals. Rewards are then 0, for `relabel` to fill.

Ends: `terminals` marks the last row of an episode and nothing more. So every end is a time limit, unless the file holds
`masks` (OGBench's bootstrap mask). A mask of 0 at the last transition is a true termination.

The arrays are streamed out of the zip file, so memory does not grow with it.
"""

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pac.formats.checks import check, check_length, require
from pac.formats.common import NO_REWARDS, ForeignDataset, as_vector, build_episode, split_ends
from pac.formats.options import ImportOptions, choose_array_keys, key_of, used_keys
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
        version = npy.read_magic(stream)
        check(version in ((1, 0), (2, 0)), where, "npy version 1 or 2", version, "Save it with numpy.savez.")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, fortran, self.dtype = read_header(stream)
        good = not self.dtype.hasobject and not fortran and self.shape
        found = f"dtype {self.dtype}, shape {self.shape}{', Fortran order' if fortran else ''}"
        fix = "Save it again from a numeric, C-contiguous array."
        check(good, where, "rows of numbers in C order", found, fix)
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=object))
        claimed = self.shape[0] * self._row_bytes + stream.tell()
        fits = claimed == entry.file_size and claimed <= 2000 * (entry.compress_size + 1)
        check(fits, where, f"{claimed} bytes", entry.file_size)

    def read_rows(self, count: int) -> np.ndarray:
        """Read the next `count` rows."""
        content = self._stream.read(count * self._row_bytes)
        check(len(content) == count * self._row_bytes, self.where, f"{count} more rows", "the end")
        return np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])


@contextmanager
def _open_columns(path: Path) -> Iterator[dict[str, Column]]:
    """Open the arrays of a file, each at its first row."""
    with zipfile.ZipFile(path) as archive, ExitStack() as streams:
        columns = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            columns[name] = Column(streams.enter_context(archive.open(entry)), entry, f"{path}, key {name!r}")
        yield columns


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    check(zipfile.is_zipfile(path), path, "an npz (zip) file", "another file", "Check the path or --format.")
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    with _open_columns(path) as columns:
        terminals = require(columns, "terminals", path)
        num_rows = terminals.shape[0]
        names = columns.keys() & ({"observations"} | options.named_keys)
        keys = choose_array_keys({name: columns[name] for name in names}, options, path)
        used = {*used_keys(keys), action_key} | ({reward_key, "masks"} & columns.keys())
        for name in sorted(used):
            check_length(require(columns, name, path).shape[0], (num_rows,), f"{path}, key {name!r}")
        flags = as_vector(terminals.read_rows(num_rows), f"{path}, key 'terminals'")
    notes = [] if "masks" in used else ["OGBench's terminals are ends of episodes: all count as time limits."]
    notes += [] if reward_key in used else [NO_REWARDS]
    ends = split_ends(flags, notes)
    check(num_rows > len(ends), path, "at least one transition", f"{num_rows} rows", "Check the file.")

    def episodes() -> Iterator[Episode]:
        with _open_columns(path) as columns:
            for index, count in enumerate(np.diff(np.append(0, ends)).tolist()):
                raw = {name: columns[name].read_rows(count) for name in used}
                if count < 2:
                    notes.append(f"Episode {index} has one state and no transition: left out.")
                    continue
                yield build_episode(
                    f"{path}, episode {index}",
                    keys=keys,
                    raw=raw,
                    action=raw[action_key][:-1],
                    reward=raw[reward_key][:-1] if reward_key in raw else None,
                    terminated="masks" in raw and not as_vector(raw["masks"], f"{path}, key 'masks'")[-2],
                )

    return ForeignDataset(keys=keys, episodes=episodes(), num_episodes=len(ends), notes=notes)
