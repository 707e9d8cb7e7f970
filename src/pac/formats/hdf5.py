"""HDF5 for the formats built on it (Minari, D4RL, robomimic): opening, and reading arrays without trusting the file.

A damaged header may claim sizes no file could hold, and a hostile one may point at other files: both are refused.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats.common import need, reading, require

MAGIC = b"\x89HDF\r\n\x1a\n"
_MAX_RATIO = 2000  # deflate shrinks at most 1032-fold: more than this cannot be in the file


def is_hdf5(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_hdf5(path: Path) -> Any:
    """An h5py.File open for reading."""
    if not path.is_file():
        raise problem(path, expected="an HDF5 file", found="no such file", fix="Check the path.")
    if not is_hdf5(path):
        with path.open("rb") as file:
            found = file.read(len(MAGIC))
        raise problem(
            path,
            expected=f"an HDF5 file, which starts with {MAGIC!r}",
            found=repr(found),
            fix="Download it again, or name its format with --format.",
        )
    h5py = need("h5py", "formats")
    with reading(path, "HDF5"):
        return h5py.File(path, "r")


def member(group: Any, key: str, path: Path) -> Any:
    """A group or dataset inside `group`, never one in another file."""
    h5py = need("h5py", "formats")
    where = f"{path}, {group.name}"
    with reading(f"{where}, key {key!r}", "HDF5"):
        for part in key.split("/"):
            require(group, part, where)
            if isinstance(group.get(part, getlink=True), h5py.ExternalLink):
                raise problem(
                    where, expected=f"key {part!r} in this file", found="a link to another file", fix="Copy the data."
                )
            group = group[part]
    return group


def dataset(group: Any, key: str, path: Path) -> Any:
    """An h5py.Dataset inside `group`, of a size the file can hold; slice it to read."""
    found = member(group, key, path)
    where = f"{path}, {group.name}, key {key!r}"
    if not isinstance(found, need("h5py", "formats").Dataset):
        raise problem(where, expected="a dataset", found=f"a {type(found).__name__}", fix="Map another key.")
    if found.external or found.is_virtual:
        raise problem(where, expected="data in this file", found="a view of another file", fix="Copy the data in.")
    if found.size and found.size * found.dtype.itemsize > _MAX_RATIO * path.stat().st_size:
        raise problem(
            where, expected="less data than that", found=f"shape {found.shape}", fix="Restore the file from its origin."
        )
    return found


def array(group: Any, key: str, path: Path) -> np.ndarray:
    """A whole dataset."""
    with reading(f"{path}, {group.name}, key {key!r}", "HDF5"):
        return np.asarray(dataset(group, key, path)[()])


class Rows:
    """Rows of a dataset, read forward in blocks: chunked files are then decompressed once, not once an episode."""

    def __init__(self, source: Any, block_bytes: int = 1 << 26) -> None:
        row_bytes = source.dtype.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
        self._source, self._block_rows = source, max(1, block_bytes // max(1, row_bytes))
        self._start, self._block = 0, np.asarray(source[:0])

    def __getitem__(self, rows: slice) -> np.ndarray:
        if rows.start < self._start or rows.stop > self._start + len(self._block):
            self._start = rows.start
            self._block = np.asarray(self._source[rows.start : max(rows.stop, rows.start + self._block_rows)])
        return self._block[rows.start - self._start : rows.stop - self._start]
