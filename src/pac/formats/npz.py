"""Arrays of an .npz file, read forward a few rows at a time, so that memory does not grow with the file."""

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pac.formats.checks import check, require

SAVE_AGAIN = "Save numeric arrays in C order, and a dictionary as one array per key, such as 'observations/state'."


class Column:
    """One array of an npz file. It is sliced forward only: no row before the last ones that were read."""

    def __init__(self, stream: Any, entry: zipfile.ZipInfo, where: str) -> None:
        self.where, self._stream = where, stream
        npy: Any = np.lib.format
        version = npy.read_magic(stream)
        check(version in ((1, 0), (2, 0)), where, "npy version 1 or 2", version, "Save it with numpy.savez.")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape: tuple[int, ...]
        self.dtype: np.dtype[Any]
        self.shape, fortran, self.dtype = read_header(stream)
        good = not self.dtype.hasobject and (not fortran or len(self.shape) < 2)
        found = f"dtype {self.dtype}, shape {self.shape}{', Fortran order' if fortran else ''}"
        check(good, where, "rows of numbers in C order", found, SAVE_AGAIN)
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=object))
        self._first_byte, self._next = stream.tell(), 0
        claimed = (self.shape[0] if self.shape else 1) * self._row_bytes + self._first_byte
        fits = claimed == entry.file_size and claimed <= 2000 * (entry.compress_size + 1)
        check(fits, where, f"{claimed} bytes", entry.file_size)

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        assert start >= self._next, "rows are read forward"
        if start > self._next:
            self._stream.seek(self._first_byte + start * self._row_bytes)
        self._next = max(start, stop)
        return self._read(self._next - start).reshape(self._next - start, *self.shape[1:])

    def value(self) -> np.ndarray:
        """Read the whole array."""
        return self._read(self.shape[0] if self.shape else 1).reshape(self.shape)

    def _read(self, count: int) -> np.ndarray:
        content = self._stream.read(count * self._row_bytes)
        check(len(content) == count * self._row_bytes, self.where, f"{count} more rows", "the end")
        return np.frombuffer(content, self.dtype)


def names_of(path: Path) -> list[str]:
    """Return the names of the arrays in a file, in its order. There are none if the file is no npz file."""
    if path.suffix != ".npz" or not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextmanager
def open_columns(path: Path, names: Iterable[str]) -> Iterator[dict[str, Column]]:
    """Open some arrays of a file, each at its first row."""
    check(zipfile.is_zipfile(path), path, "an npz (zip) file", "another file", "Check the path or --format.")
    with zipfile.ZipFile(path) as archive, ExitStack() as streams:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        columns = {}
        for name in sorted(names):
            entry = require(entries, name, path)
            columns[name] = Column(streams.enter_context(archive.open(entry)), entry, f"{path}, key {name!r}")
        yield columns
