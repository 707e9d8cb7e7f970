"""HDF5 for the formats built on it (Minari, D4RL, robomimic): opening a file and reading its arrays safely.

A damaged header may claim sizes that no file could hold. A hostile one may point at other files. Both are refused.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pac.formats.checks import CHOOSE_KEYS, check, need, reading, require

MAGIC = b"\x89HDF\r\n\x1a\n"
CACHE_BYTES = 1 << 26  # per dataset: reading forward decompresses a chunk once, not once per episode
_MAX_RATIO = 2000  # deflate shrinks at most 1032-fold: a file cannot hold more than this


def is_hdf5(path: Path) -> bool:
    """Return whether a file starts as HDF5 does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_hdf5(path: Path) -> Any:
    """Open an h5py.File for reading."""
    found = "another file" if path.is_file() else "no such file"
    check(is_hdf5(path), path, "an HDF5 file", found, "Download it again, or name its format with --format.")
    with reading(path, "HDF5"):
        return need("h5py", "formats").File(path, "r", rdcc_nbytes=CACHE_BYTES)


def member(group: Any, key: str, path: Path) -> Any:
    """Return a group or dataset inside `group`, never one in another file."""
    h5py = need("h5py", "formats")
    where = f"{path}, {group.name}"
    with reading(f"{where}, key {key!r}", "HDF5"):
        for part in key.split("/"):
            require(group, part, where)
            outside = isinstance(group.get(part, getlink=True), h5py.ExternalLink)
            check(not outside, where, f"key {part!r} in this file", "a link to another file", "Copy the data.")
            group = group[part]
    return group


def dataset(group: Any, key: str, path: Path) -> Any:
    """Return an h5py.Dataset inside `group`, of a size that the file can hold. Slice it to read rows."""
    found = member(group, key, path)
    where = f"{path}, {group.name}, key {key!r}"
    is_dataset = isinstance(found, need("h5py", "formats").Dataset)
    check(is_dataset, where, "a dataset", f"a {type(found).__name__}", CHOOSE_KEYS)
    outside = found.external or found.is_virtual
    check(not outside, where, "data in this file", "a view of another file", "Copy the data in.")
    fits = not found.size or found.size * found.dtype.itemsize <= _MAX_RATIO * path.stat().st_size
    check(fits, where, "less data than that", f"shape {found.shape}")
    return found


def array(group: Any, key: str, path: Path) -> np.ndarray:
    """Read a whole dataset."""
    with reading(f"{path}, {group.name}, key {key!r}", "HDF5"):
        return np.asarray(dataset(group, key, path)[()])
