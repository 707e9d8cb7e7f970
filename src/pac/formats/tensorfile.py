"""Tensors out of a `torch.save` file without running it.

Such a file is a zip archive: a pickle that describes the tensors, and one entry of raw bytes for each storage. A
pickle is a program, so it is not run as one: its instructions and the names it may use are on the lists below, every
name stands for something inert of ours, and anything else is refused before the first instruction. Storages are
memory-mapped.
"""

import io
import pickle
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pac.files import ProblemError, problem

_MAX_PICKLE = 1 << 24  # bytes; a description of tensors is a few kilobytes
_OPCODES = (
    "PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL REDUCE BUILD NEWOBJ BINPERSID NONE NEWTRUE NEWFALSE EMPTY_DICT "
    "EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS APPEND APPENDS BINUNICODE SHORT_BINUNICODE "
    "BININT BININT1 BININT2 LONG1 BINFLOAT BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE POP POP_MARK"
)
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


@dataclass(frozen=True)
class _Kind:
    """A storage class by name: `torch.FloatStorage` and its like."""

    dtype: str


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: Any
    offset: Any
    size: Any
    stride: Any


class _Table(dict[str, Any]):
    """What a TensorDict becomes: its fields, and nothing that acts."""


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, size, stride)


def _table(_: Any, state: Any) -> _Table:
    return _Table(state)


_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple,
    ("torch", "device"): str,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("tensordict._reductions", "_make_td"): _table,
    ("tensordict._td", "TensorDict"): _Table,
    ("tensordict.tensordict", "TensorDict"): _Table,  # before 0.3, as the published chunks were saved
    ("tensordict.utils", "_StringOnlyDict"): _Table,
    ("builtins", "set"): list,
    ("__builtin__", "set"): list,
} | {("torch", name): _Kind(dtype) for name, dtype in _STORAGES.items()}


class _Reader(pickle._Unpickler):
    """The pickle machine of the standard library (its Python version, which can be narrowed), with our names only."""

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content))
        self._where = where

    stack: list[Any]

    def load_build(self) -> None:
        """BUILD sets the state of any object at hand; here, of a table only."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, _Table) or not isinstance(state, dict):
            raise _refusal(self._where, "instruction BUILD")
        target.update(state)

    dispatch: ClassVar[Any] = pickle._Unpickler.dispatch | {pickle.BUILD[0]: load_build}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise _refusal(self._where, f"{module}.{name}")
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _Kind(dtype), str(key), str(_), int(count)):
                return _Storage(dtype, key, count)
        raise _refusal(self._where, f"storage {pid!r}"[:200])


def _refusal(where: str, found: str) -> ProblemError:
    return problem(
        where,
        expected="a pickle that only describes tensors",
        found=f"{found}, which is not needed for that and could run code",
        fix="Do not load this file with torch.load either, unless you trust whoever made it.",
    )


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Name -> array of every tensor in the saved dictionary or TensorDict, memory-mapped."""
    if not zipfile.is_zipfile(path):
        raise problem(
            path, expected="a file of torch.save (a zip archive)", found="another file", fix="Download it again."
        )
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        described = [name for name in entries if name.endswith("data.pkl")]
        if len(described) != 1 or entries[described[0]].file_size > _MAX_PICKLE:
            raise problem(path, expected="one data.pkl", found=described, fix="Save it again with torch.save.")
        prefix, where = described[0].removesuffix("data.pkl"), f"{path}, {described[0]}"
        content = archive.read(described[0])
        _inspect(content, where)
        saved = _Reader(content, where).load()
        fields = saved.get("_tensordict", saved) if isinstance(saved, dict) else None
        if not isinstance(fields, dict):
            raise problem(where, expected="a TensorDict", found=type(saved).__name__, fix="Save a TensorDict.")
        if prefix + "byteorder" in entries and archive.read(prefix + "byteorder") != b"little":
            raise problem(path, expected="little-endian data", found="another order", fix="Save it again.")
        tensors = {str(key): value for key, value in fields.items() if isinstance(value, _Tensor)}
        return {
            name: _array(tensor, archive, prefix, entries, path, f"{where}, key {name!r}")
            for name, tensor in tensors.items()
        }


def _inspect(content: bytes, where: str) -> None:
    """Refuse what is not on the lists, and memo slots past the end, which would cost memory."""
    allowed = set(_OPCODES.split())
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in allowed:
            raise _refusal(where, f"instruction {opcode.name}")
        if opcode.name == "GLOBAL" and tuple(str(argument).split(" ", 1)) not in _NAMES:
            raise _refusal(where, str(argument).replace(" ", "."))
        if opcode.name == "LONG_BINPUT" and int(argument or 0) > len(content):
            raise _refusal(where, f"memo slot {argument}")


def _array(
    tensor: _Tensor, archive: zipfile.ZipFile, prefix: str, entries: dict[str, zipfile.ZipInfo], path: Path, where: str
) -> np.ndarray:
    """A view of the bytes of one storage, after checking that they are all there."""
    storage, numbers = tensor.storage, (tensor.offset, *tensor.size, *tensor.stride)
    whole = all(type(number) is int and 0 <= number < 2**48 for number in numbers)
    if not isinstance(storage, _Storage) or not whole or len(tensor.size) != len(tensor.stride) or not tensor.size:
        raise problem(where, expected="storage, offset, size and stride of a tensor", found=tensor, fix="Save again.")
    name = f"{prefix}data/{storage.key}"
    dtype = np.dtype(storage.dtype)
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.size, tensor.stride, strict=True))
    if name not in entries or entries[name].file_size // dtype.itemsize <= last or 0 in tensor.size:
        raise problem(
            where,
            expected=f"{last + 1} values in {name}, for shape {tensor.size}",
            found=entries[name].file_size // dtype.itemsize if name in entries else "no such entry",
            fix="The file is damaged or empty: download it again.",
        )
    if entries[name].compress_type != zipfile.ZIP_STORED:
        raise problem(where, expected="uncompressed data, as torch writes", found="compressed", fix="Save again.")
    with archive.open(entries[name]) as stream:  # reading to the end checks the CRC
        while stream.read(1 << 22):
            pass
    with path.open("rb") as file:
        file.seek(entries[name].header_offset + 26)
        start = entries[name].header_offset + 30 + sum(np.frombuffer(file.read(4), "<u2").tolist())
    values = np.memmap(path, dtype, "r", offset=start, shape=(entries[name].file_size // dtype.itemsize,))
    strides = tuple(step * dtype.itemsize for step in tensor.stride)
    return np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.size, strides, writeable=False)
