"""Tensors of a `torch.save` file, without running the program in it.

Such a file is a zip archive: a pickle that describes the tensors, and one entry of raw bytes per storage. A pickle is a
program. `torch.load(weights_only=True)` runs only the instructions that rebuild tensors. Stand-ins replace the classes
of TensorDict, so that library is not needed. Storages are memory-mapped.
"""

import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pac.files import problem
from pac.formats.checks import check, reading


class _Record:
    """Stand-in for a pickled object: it holds the object's state and does nothing."""


def _state_of(kind: Any, state: Any) -> Any:
    """Stand-in for a function that builds an object of a class from its state."""
    return state


_STAND_INS: list[Any] = [
    (_state_of, "tensordict._reductions._make_td"),
    (_Record, "tensordict._td.TensorDict"),
    (_Record, "tensordict.tensordict.TensorDict"),  # before 0.3, which saved the published chunks
    (OrderedDict, "tensordict.utils._StringOnlyDict"),
]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return every tensor in the saved dictionary or TensorDict by name, memory-mapped."""
    with reading(path, "torch.save"):
        check(zipfile.is_zipfile(path), path, "a file of torch.save (a zip archive)", "another file")
        sizes = _check_archive(path)
        saved = _load(path)
        fields: Any = vars(saved) if isinstance(saved, _Record) else saved
        expected = "a TensorDict or a dictionary"
        check(isinstance(fields, dict), path, expected, type(fields).__name__, "Save a TensorDict.")
        fields = fields.get("_tensordict", fields)
        arrays = {}
        for name, tensor in fields.items():
            if isinstance(tensor, torch.Tensor):
                num_bytes = tensor.untyped_storage().nbytes()
                whole = num_bytes in sizes and tensor.numel()  # so the tensor stays inside the file
                found = f"{num_bytes} bytes, for shape {tuple(tensor.shape)}"
                check(whole, f"{path}, key {name!r}", "a storage of the file, with values", found)
                arrays[str(name)] = tensor.detach().numpy()
        return arrays


def _check_archive(path: Path) -> set[int]:
    """Check the checksums of all entries, since torch does not. Return the sizes of the storages in bytes."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        check(stored, path, "uncompressed data, as torch writes", "compressed data")
        damaged = archive.testzip()
        check(not damaged, f"{path}, {damaged}", "data with the right checksum", "another one")
    return {entry.file_size for entry in entries if "/data/" in entry.filename}


def _load(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_STAND_INS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle's protocol; an error follows
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        found = name[1] if name else "another instruction"
        raise problem(
            path,
            expected="a pickle that only describes tensors",
            found=f"{found}, which is not needed for that and could run code",
            fix="Do not load this file in another way, unless you trust its author.",
        ) from error
