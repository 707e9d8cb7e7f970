"""The check of raw observations and actions. Every policy calls it, so that bad input never becomes an action.

`read_observation` takes a user's array or dict. `stack_states` and `stack_images` take the queries of a batch. Each
mistake has an error of its own, which names the feature, the dimension, what was expected and what was found.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from pac.config import suggest
from pac.data.images import resize_images
from pac.data.spec import ACTION, IMAGES, STATE
from pac.embodiments import EmbodimentStats, listed
from pac.files import ProblemError, problem
from pac.types import Query

NUMBERS = "biuf"  # kinds of numpy's dtypes that become float32
SLACK = 1e-4  # of a dimension's range: how far outside its bounds rounding may put an action
STATE_FIX = "Observe as the training data did."
IMAGE_FIX = "Pass (height, width, 3) uint8: RGB from 0 to 255."
CHANNELS = {  # number -> its name, and what to do
    1: ("1 channel (grey)", "Repeat it: image.repeat(3, axis=-1)."),
    4: ("4 channels (RGBA)", "Drop the fourth: image[..., :3]."),
}

Place = Callable[[int], str]  # row -> the beginning of an error


# ------------------------------------------------------------------------------------------------ a user's observation


def read_observation(observation: object, cameras: Sequence[str]) -> tuple[dict[str, np.ndarray], bool]:
    """Return the features of an observation with a leading axis, under Episode's names, and whether it was a batch."""
    given = observation if isinstance(observation, Mapping) else {STATE: observation}
    if not given:
        raise problem("Observation", expected=f"{STATE} or images", found="an empty dict", fix=STATE_FIX)
    features: dict[str, np.ndarray] = {}
    for key, value in given.items():
        name = _full_name(key, cameras)
        if name in features:
            raise problem(name, expected="one value", found=f"two, one of them as {key!r}", fix="Leave one out.")
        features[name] = _as_array(name, value)
    batched = _is_batch(features)
    whole = {name: array if batched else array[None] for name, array in features.items()}
    sizes = {name: len(array) for name, array in whole.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise problem("Observation", expected="one batch size", found=found, fix="Pass as many rows of each feature.")
    if 0 in sizes.values():
        raise problem(next(iter(sizes)), expected="at least one row", found="an empty batch", fix=STATE_FIX)
    return whole, batched


def _full_name(key: object, cameras: Sequence[str]) -> str:
    """Return Episode's name of a feature. "state" and the names of cameras are short names."""
    if not isinstance(key, str):
        raise problem("Observation", expected="names of features as keys", found=repr(key), fix=f"Use {STATE!r}.")
    if key in (STATE, "state"):
        return STATE
    short = key.removeprefix(IMAGES)
    if short in cameras:
        return IMAGES + short
    if key.startswith(IMAGES):
        fix = suggest(short, cameras).strip() if cameras else "The policy uses no camera. Leave it out."
        raise problem("Observation", expected="a camera that the policy uses", found=repr(key), fix=fix)
    fix = suggest(key, ["state", STATE, *cameras]).strip()
    raise problem("Observation", expected="a feature that the policy uses", found=repr(key), fix=fix)


def _as_array(name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value)
    except Exception as error:  # a ragged list, a tensor on a GPU, an object whose conversion fails
        found = f"{type(value).__name__}, which numpy cannot convert ({error})"
        raise problem(name, expected="an array", found=found, fix="Convert it with np.asarray.") from error


def _is_batch(features: Mapping[str, np.ndarray]) -> bool:
    """Return whether features have a batch axis. Raise if a rank is impossible, or if they disagree."""
    found: dict[str, bool] = {}
    for name, array in features.items():
        rank = 1 if name == STATE else 3
        if array.ndim not in (rank, rank + 1):
            if name != STATE:
                raise image_problem(name, "", array)
            expected = "shape (dimensions,), or (rows, dimensions) for a batch"
            raise problem(name, expected=expected, found=_describe(array), fix=STATE_FIX)
        found[name] = array.ndim == rank + 1
    if len(set(found.values())) > 1:
        texts = ", ".join(f"{name} {features[name].shape}" for name in found)
        fix = "Give every feature the batch axis, or none."
        raise problem("Observation", expected="all features of one step or of one batch", found=texts, fix=fix)
    return all(found.values())


def check_rows(features: Mapping[str, np.ndarray], embodiment: EmbodimentStats, place: Place) -> None:
    """Raise unless all rows of an observation are a valid input for a policy."""
    check_names(set(features), embodiment, place(0))
    if STATE in features:
        check_states(features[STATE], embodiment, place)
    for camera in embodiment.cameras:
        image = features[IMAGES + camera]
        if not _is_image(image[0]):
            raise image_problem(IMAGES + camera, place(0), image[0])


# ----------------------------------------------------------------------------------------------------- rows of a batch


def stack_states(queries: Sequence[Query], embodiment: EmbodimentStats) -> Float32[np.ndarray, "row dim"]:
    """Return the states of queries. Raise if one of them is no row of finite numbers of the right size."""
    shape = (len(embodiment.proprio_centre),)
    states = [query.observation.get(STATE, NO_STATE) for query in queries]
    for query, state in zip(queries, states, strict=True):
        if not isinstance(state, np.ndarray) or state.shape != shape or state.dtype.kind not in NUMBERS:
            raise state_problem(state, embodiment, _place_of(query))
    rows = np.stack(states)
    if rows.dtype != np.float32:
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32)
    if not np.isfinite(rows).all():
        check_states(np.stack(states), embodiment, lambda row: _place_of(queries[row]))
    return rows


def stack_images(queries: Sequence[Query], cameras: Sequence[str], size: tuple[int, int]) -> np.ndarray:
    """Return the images of queries, (rows, cameras, height, width, 3). Raise if one is no RGB image of bytes.

    Images of several sizes are resized to `size` here, so that they fit in one array.
    """
    images = [[query.observation[IMAGES + camera] for camera in cameras] for query in queries]
    for query, row in zip(queries, images, strict=True):
        for camera, image in zip(cameras, row, strict=True):
            if not _is_image(image):
                raise image_problem(IMAGES + camera, _place_of(query), image)
    if len({image.shape for row in images for image in row}) == 1:
        return np.stack(images)
    return np.stack([[_resize(image, size) for image in row] for row in images])


def check_queries(queries: Sequence[Query], embodiment: EmbodimentStats) -> None:
    """Raise unless every query has the features that the embodiment needs, and no others."""
    needed = _needed(embodiment)
    for query in queries:
        if query.observation.keys() != needed:
            others = [IMAGES + camera for camera in query.task.cameras]  # an environment may render more than is used
            check_names(set(query.observation), embodiment, _place_of(query), others)


def check_names(found: set[str], embodiment: EmbodimentStats, place: str, others: Sequence[str] = ()) -> None:
    """Raise if a feature is missing, or if one is not used by the policy."""
    needed = _needed(embodiment)
    if missing := sorted(needed - found, reverse=True):  # the state first
        if missing[0] == STATE:
            expected = f"{len(embodiment.proprio_centre)} numbers{listed(embodiment.state_names)}"
            raise problem(f"{place}{STATE}", expected=expected, found="none", fix="Add the robot's state.")
        cameras = " ".join(embodiment.cameras)
        fix = f"Add it. In an environment: --cameras {cameras}."
        raise problem(f"{place}{missing[0]}", expected=f"images of {cameras}", found="none of this camera", fix=fix)
    for name in sorted(found - needed - set(others) - {STATE}):
        fix = suggest(name.removeprefix(IMAGES), embodiment.cameras).strip() if embodiment.cameras else "Leave it out."
        raise problem(f"{place}{name}", expected="a feature that the policy uses", found="another", fix=fix)


def _needed(embodiment: EmbodimentStats) -> set[str]:
    """Return the names of the features that an embodiment has."""
    state = {STATE} if embodiment.proprio_centre else set()
    return state | {IMAGES + camera for camera in embodiment.cameras}


def check_states(rows: np.ndarray, embodiment: EmbodimentStats, place: Place) -> None:
    """Raise unless all rows are finite numbers of the embodiment's size. The error names the first bad number."""
    if rows.shape[1:] != (len(embodiment.proprio_centre),) or rows.dtype.kind not in NUMBERS:
        raise state_problem(rows[0], embodiment, place(0))
    if found := _first_bad(rows):
        row, dim = found
        where = f"{place(row)}{STATE}, {_dimension(dim, embodiment.state_names)}"
        raise problem(where, expected="a finite number", found=rows[row, dim], fix="Repair the sensor or leave it out.")


def check_actions(
    actions: object, queries: Sequence[Query], embodiments: Sequence[EmbodimentStats]
) -> Float32[np.ndarray, "row dim"]:
    """Return raw actions, one per query, within the bounds of their embodiments. Raise if one of them is no action."""
    array, names = _as_array(ACTION, actions), embodiments[0].action_names if embodiments else ()
    sizes = sorted({len(one.action_low) for one in embodiments})
    if array.dtype.kind not in NUMBERS:
        raise problem(ACTION, expected="numbers", found=f"dtype {array.dtype}", fix="Pass float32.")
    if len(sizes) != 1 or array.shape != (len(queries), sizes[0]):
        expected = f"shape ({len(queries)}, {' or '.join(map(str, sizes))}), one action per observation"
        raise problem(ACTION, expected=f"{expected}{listed(names)}", found=array.shape, fix="Pass raw numbers.")
    if found := _first_bad(array):
        row, dim = found
        where, fix = f"Row {row}, {ACTION}, {_dimension(dim, names)}", "Pass raw numbers."
        raise problem(where, expected="a finite number", found=array[row, dim], fix=fix)
    low, high = (np.array([getattr(one, name) for one in embodiments]) for name in ("action_low", "action_high"))
    slack = SLACK * (high - low)
    outside = (array < low - slack) | (array > high + slack)
    if outside.any():
        row, dim = (int(i) for i in np.argwhere(outside)[0])
        expected = f"a number within [{low[row, dim]:g}, {high[row, dim]:g}]"
        where, fix = f"Row {row}, {ACTION}, {_dimension(dim, names)}", "Pass raw actions, within the data's bounds."
        raise problem(where, expected=expected, found=f"{array[row, dim]:g}", fix=fix)
    return np.clip(array, low, high).astype(np.float32)


def model_problem(rows: np.ndarray, queries: Sequence[Query], name: str, output: str) -> ProblemError:
    """Return the error about a model whose output is not finite."""
    row = int(np.argmin(np.isfinite(rows).all(1)))
    where = f"{_place_of(queries[row])}policy {name}" if row < len(queries) else f"Policy {name}"
    found = rows[row][~np.isfinite(rows[row])][0]
    fix = "Its weights hold NaN, or the observation is far from the data. Check both, or use an earlier checkpoint."
    return problem(where, expected=f"a finite {output}", found=found, fix=fix)


# ------------------------------------------------------------------------------------------------------------- details

NO_STATE = np.zeros(0, np.float32)


def state_problem(state: Any, embodiment: EmbodimentStats, place: str) -> ProblemError:
    """Return the error about a state of another type, rank or size."""
    size, where = len(embodiment.proprio_centre), f"{place}{STATE}"
    if not isinstance(state, np.ndarray):
        return problem(where, expected="a numpy array", found=type(state).__name__, fix="Convert it with np.asarray.")
    if state.dtype.kind not in NUMBERS:
        return problem(where, expected="real numbers", found=f"dtype {state.dtype}", fix="Convert it to float32.")
    expected = f"{size} numbers, shape ({size},){listed(embodiment.state_names)}"
    return problem(where, expected=expected, found=f"shape {state.shape}", fix=STATE_FIX)


def image_problem(name: str, place: str, image: Any) -> ProblemError:
    """Return the error about an array that is no image of one step."""
    where = f"{place}{name}"
    if not isinstance(image, np.ndarray):
        return problem(where, expected="a numpy array", found=type(image).__name__, fix="Convert it with np.asarray.")
    shape = image.shape
    if image.ndim not in (3, 4):
        expected = "shape (height, width, 3)" if place else "shape (height, width, 3), or one more axis for a batch"
        return problem(where, expected=expected, found=_describe(image), fix=IMAGE_FIX)
    if image.dtype != np.uint8:
        fix = IMAGE_FIX
        if image.dtype.kind == "f" and not (image > 1).any():
            fix = "Values from 0 to 1 become bytes by (255 * image).round().astype(np.uint8)."
        return problem(where, expected="uint8", found=f"dtype {image.dtype}", fix=fix)
    if shape[-1] != 3 and shape[-3] in (1, 3, 4):
        fix = "Move the channels last: image.transpose(1, 2, 0)."
        return problem(where, expected="shape (height, width, 3)", found=f"channels first, shape {shape}", fix=fix)
    if shape[-1] != 3:
        kind, fix = CHANNELS.get(shape[-1], (f"{shape[-1]} channels", IMAGE_FIX))
        return problem(where, expected="3 channels (RGB)", found=f"{kind}, shape {shape}", fix=fix)
    return problem(where, expected="shape (height, width, 3), not empty", found=_describe(image), fix=IMAGE_FIX)


def _is_image(image: Any) -> bool:
    is_bytes = isinstance(image, np.ndarray) and image.dtype == np.uint8
    return is_bytes and image.ndim == 3 and image.shape[2] == 3 and image.size > 0


def _resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image at another size, resized as in training."""
    if image.shape[:2] == size:
        return image
    return resize_images(torch.from_numpy(np.array(image))[None], size)[0].numpy()


def _first_bad(rows: np.ndarray) -> tuple[int, int] | None:
    """Return row and dimension of the first number that is not finite as float32."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(rows.astype(np.float32))
    if finite.all():
        return None
    row, dim = np.argwhere(~finite)[0]
    return int(row), int(dim)


def _place_of(query: Query) -> str:
    return f"Task {query.task.name!r}, step {query.step}, "


def _dimension(dim: int, names: Sequence[str]) -> str:
    return f"dimension {dim} ({names[dim]})" if dim < len(names) else f"dimension {dim}"


def _describe(array: np.ndarray) -> Any:
    return f"shape {array.shape}" if array.dtype.kind != "O" else f"{array.dtype} of shape {array.shape}"
