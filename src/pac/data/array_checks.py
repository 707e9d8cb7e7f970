"""Checks of arrays that a user brings: types, shapes, lengths, flags and finite values.

`pac.data.arrays` makes episodes of arrays that pass. Errors name the array, the row and the dimension.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pac.data.spec import IMAGES, STATE
from pac.files import problem

STATE_NAMES = ("state", STATE)  # keys of a dictionary of observations that always mean the state
ROWS_FIX = (
    "Row t is the observation, the action taken in it and its reward. "
    "The observation after the last action of an episode goes into next_observations."
)


@runtime_checkable
class Rows(Protocol):
    """An array with one row per step, or anything that is sliced like one: a memory map, or a column of a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


def is_image(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Return whether one step of this shape is an image: bytes with 1, 3 or 4 channels, last or first."""
    return dtype == np.uint8 and len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3)) and min(shape) > 0


def to_rgb(images: np.ndarray) -> np.ndarray:
    """Convert images with 1, 3 or 4 channels, last or first, to uint8 (steps, height, width, 3)."""
    if images.shape[-1] not in (1, 3, 4):
        images = np.moveaxis(images, 1, -1)  # channels first
    if images.shape[-1] == 1:
        images = np.repeat(images, 3, axis=-1)
    return np.ascontiguousarray(images[..., :3])


def camera_name(key: str) -> str:
    """Return the camera of a key: "wrist" of "observation.images.wrist", "images.wrist" and "obs/wrist"."""
    name = key.rsplit("/", 1)[-1].removeprefix(IMAGES).removeprefix("images.")
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def dimension(index: int, names: Sequence[str] = ()) -> str:
    """Return how an error speaks of a dimension: by its number, and by its name where there is one."""
    return f"dimension {index}" + (f" ({names[index]})" if index < len(names) else "")


def dimension_names(widths: Mapping[str, int]) -> tuple[str, ...]:
    """Return a name for each dimension of a vector that is made of several keys: "gripper", "joints_0", "joints_1"."""
    if len(widths) < 2:
        return ()
    return tuple(key if width == 1 else f"{key}_{i}" for key, width in widths.items() for i in range(width))


def as_rows(values: Any, where: str) -> Rows:
    """Return `values` as they are if they are sliced like an array. Convert lists and tensors."""
    if isinstance(values, np.ma.MaskedArray) and np.any(values.mask):
        raise problem(where, expected="no masked values", found="some", fix="Fill them, or remove their episodes.")
    is_array = isinstance(getattr(values, "dtype", None), np.dtype) and hasattr(values, "__getitem__")
    try:
        rows: Rows = values if is_array else np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors on a GPU
        expected, fix = "an array of numbers", "Convert it to one numpy array first."
        raise problem(
            where, expected=expected, found=f"{type(values).__name__}: {str(error).rstrip('.')}", fix=fix
        ) from error
    if rows.dtype.kind not in "fiub":
        fix = "Convert it to an array of numbers, such as float32, or of uint8 images."
        raise problem(where, expected="numbers", found=f"dtype {rows.dtype}", fix=fix)
    if not rows.shape:
        raise problem(where, expected="one row per step", found="a single value", fix=ROWS_FIX)
    return rows


def split_kinds(arrays: Mapping[str, Rows], where: str) -> tuple[list[str], list[str]]:
    """Return the keys of numbers, those named "state" first, and the keys of images. Raise at anything else."""
    numbers, images = [], []
    for key, rows in arrays.items():
        place, found, is_camera = f"{where}, key {key!r}", f"{rows.dtype} {tuple(rows.shape)}", "images." in key
        if is_image(rows.shape[1:], rows.dtype):
            images.append(key)
            continue
        if is_camera or len(rows.shape) > 3 or (rows.dtype == np.uint8 and len(rows.shape) == 3):
            fix = "Add the axis of channels." if len(rows.shape) == 3 else "Keep one frame per row, with RGB channels."
            if rows.dtype != np.uint8:
                fix = "Convert to bytes: (255 * images).round().astype(np.uint8) for values from 0 to 1."
            raise problem(place, expected="uint8 images (rows, height, width, 1, 3 or 4)", found=found, fix=fix)
        if len(rows.shape) > 2:
            fix = "Join the episodes along the first axis, or flatten the other axes."
            raise problem(place, expected="numbers of shape (rows, dimensions)", found=found, fix=fix)
        numbers.append(key)
    numbers.sort(key=lambda key: key.rsplit("/", 1)[-1] not in STATE_NAMES)
    return numbers, images


def continuous(actions: Rows, where: str) -> Rows:
    """Return the actions. Raise unless they are numbers with a fraction."""
    found = f"{actions.dtype} {tuple(actions.shape)}"
    if actions.dtype.kind != "f":
        fix = "Discrete actions are not supported. Continuous ones stored as integers: actions.astype(np.float32)."
        raise problem(where, expected="continuous actions of a float type", found=found, fix=fix)
    if len(actions.shape) > 2 or 0 in actions.shape[1:]:
        fix = "Join the episodes along the first axis."
        raise problem(where, expected="actions of shape (rows, dimensions)", found=found, fix=fix)
    return actions


def check_rows(found: int, expected: int, where: str, like: str) -> None:
    """Raise unless an array has as many rows as the one that is called `like`."""
    if found != expected:
        raise problem(where, expected=f"{expected} rows, as many as {like}", found=found, fix=ROWS_FIX)


def column(values: Any, num_rows: int, where: str, like: str) -> Rows:
    """Return an array with one number per row: shape (rows,) or (rows, 1)."""
    rows = as_rows(values, where)
    check_rows(rows.shape[0], num_rows, where, like)
    if rows.shape[1:] not in ((), (1,)):
        fix = "Give an array of shape (rows,)."
        raise problem(where, expected="one number per row", found=f"shape {tuple(rows.shape)}", fix=fix)
    return rows


def flags(values: Any, num_rows: int, where: str, like: str) -> np.ndarray:
    """Return flags as an array of bool. Raise unless all are 0 or 1."""
    array = np.asarray(column(values, num_rows, where, like)[0:num_rows]).reshape(num_rows)
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if len(wrong):
        found = f"{array[wrong[0]]} in row {wrong[0]}"
        raise problem(where, expected="flags 0 or 1", found=found, fix="Convert it to an array of bool.")
    return np.asarray(array, bool)


def numbers(
    values: Any, where: str, at: Callable[[int], str] = "step {}".format, names: Sequence[str] = ()
) -> np.ndarray:
    """Convert rows to float32 (rows, dimensions). Raise at a NaN or an infinity. `at` says how to name a row."""
    given = np.asarray(values).reshape(len(values), -1)
    with np.errstate(over="ignore"):
        array = given.astype(np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        row, place = (int(i) for i in np.argwhere(~finite)[0])
        where = f"{where}, {at(row)}" + (f", {dimension(place, names)}" if given.shape[1] > 1 else "")
        fix = "Repair the value, or leave the episode out."
        raise problem(where, expected="a finite number (float32)", found=given[row, place], fix=fix)
    return array
