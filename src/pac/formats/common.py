"""From foreign arrays to an `Episode`, for all formats. Arrays are checked for length, dtype and finite values."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.array_checks import dimension, is_image, to_rgb
from pac.data.array_table import NO_REWARDS as NO_REWARDS
from pac.data.spec import STATE
from pac.files import problem
from pac.formats.checks import CHOOSE_KEYS, DAMAGED, check, check_length, need, require
from pac.types import Episode

MAX_PIXELS = 4096 * 4096  # of one image: a damaged header must not ask for gigabytes


@dataclass(frozen=True, kw_only=True)
class ForeignDataset:
    """Opened source. Its episodes are read one at a time, and `notes` grow meanwhile."""

    keys: Mapping[str, tuple[str, ...]]  # PAC feature -> the keys it is made of
    episodes: Iterator[Episode]
    num_episodes: int | None = None  # None: unknown until the last one is read
    num_steps: int | None = None
    fps: float | None = None
    action_low: np.ndarray | None = None  # None: the source has no bounds
    action_high: np.ndarray | None = None
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    format: str = ""  # `open_source` fills in the format and the path
    path: Path = Path()


def build_episode(
    where: object,
    *,
    keys: Mapping[str, tuple[str, ...]],
    raw: Mapping[str, Any],
    action: Any,
    reward: Any = None,
    terminated: bool,
    truncated: bool = False,
    instruction: str = "",
    success: bool | None = None,
    extra_rewards: Mapping[str, Any] | None = None,
    source: str = "",
    seed: int | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Episode:
    """Check a source's arrays and build an episode. `raw` holds T + 1 (or T) rows per key in `keys`.

    Rewards are 0 where the source has none. An end that is not a termination is a time limit. `names` holds names of
    dimensions by key, for errors.
    """
    names = names or {}
    actions = as_numbers(action, f"{where}, key 'action'", names.get("action", ()))
    num_steps = len(actions)
    check(actions.size, where, "at least one step and one action", actions.shape, "Remove the episode.")
    rewards = as_vector(np.zeros(num_steps) if reward is None else reward, f"{where}, key 'reward'")
    extras = {name: as_vector(values, f"{where}, key {name!r}") for name, values in (extra_rewards or {}).items()}
    for name, values in {"reward": rewards, **extras}.items():
        check_length(len(values), (num_steps,), f"{where}, key {name!r}")
    observation = {}
    allowed: tuple[int, ...] = (num_steps, num_steps + 1)
    for feature, parts in keys.items():
        arrays = []
        for key in parts:
            values, place = require(raw, key, where), f"{where}, key {key!r}"
            array = as_numbers(values, place, names.get(key, ())) if feature == STATE else as_images(values, place)
            check_length(len(array), allowed, f"{where}, key {key!r}")
            allowed = (len(array),)
            arrays.append(array)
        observation[feature] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
    return Episode(
        observation=observation,
        action=actions,
        reward=rewards,
        terminated=terminated,
        truncated=truncated or not terminated,
        instruction=instruction,
        success=success,
        extra_rewards=extras,
        source=source,
        seed=seed,
    )


def split_ends(flags: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return the row after the end of each episode of a flat table. Rows after the last flag make one more episode."""
    ends = np.flatnonzero(flags) + 1
    last = int(ends[-1]) if len(ends) else 0
    if last < len(flags):
        notes.append(f"The last {len(flags) - last} rows have no end: kept as truncated.")
        ends = np.append(ends, len(flags))
    return ends


def as_numbers(values: Any, where: object, names: Sequence[str] = ()) -> np.ndarray:
    """Convert to float32 (steps, dimensions). Raise unless all values are finite numbers."""
    array = np.asarray(values)
    check(array.dtype.kind in "fiub", where, "numbers", f"dtype {array.dtype}", CHOOSE_KEYS)
    check(array.ndim, where, "one row per step", "a scalar", CHOOSE_KEYS)
    with np.errstate(over="ignore"):
        array = array.reshape(len(array), -1 if array.size else int(np.prod(array.shape[1:]))).astype(np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        step, place = (int(i) for i in np.argwhere(~finite)[0])
        raise problem(
            f"{where}, step {step}, {dimension(place, names)}",
            expected="a finite number",
            found=array[step, place],
            fix="Remove or repair the episode in the source, or leave the key out with --keys.",
        )
    return array


def as_vector(values: Any, where: object) -> np.ndarray:
    """Convert to float32 (steps,)."""
    array = as_numbers(values, where)
    check(not len(array) or array.shape[1] == 1, where, "one number per step", array.shape[-1], CHOOSE_KEYS)
    return array.reshape(len(array))


def as_images(values: Any, where: object) -> np.ndarray:
    """Convert to uint8 (steps, height, width, 3), from arrays (channels last or first) or from PNG or JPEG bytes."""
    if isinstance(values, list):
        frames = [decode_image(frame, f"{where}, step {step}") for step, frame in enumerate(values)]
        for step, frame in enumerate(frames):
            same, expected = frame.shape == frames[0].shape, f"an image of shape {frames[0].shape}, as in step 0"
            check(same, f"{where}, step {step}", expected, frame.shape, "Resize the images at the source to one size.")
        array = np.stack(frames) if frames else np.zeros((0, 0, 0, 3), np.uint8)
    else:
        array = np.asarray(values)
    good = array.ndim == 4 and is_image(array.shape[1:], array.dtype)
    expected = "uint8 images (steps, height, width, 1, 3 or 4)"
    check(good, where, expected, f"{array.dtype} {array.shape}", CHOOSE_KEYS)
    return to_rgb(array)


def decode_image(content: Any, where: object) -> np.ndarray:
    """Decode PNG or JPEG bytes to uint8 (height, width, 3)."""
    image_module = need("PIL.Image", "formats")
    is_bytes = isinstance(content, bytes | bytearray | np.ndarray)
    check(is_bytes, where, "PNG or JPEG bytes", type(content).__name__, CHOOSE_KEYS)
    try:
        with image_module.open(io.BytesIO(bytes(content)), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels")
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # Pillow raises many kinds on damaged bytes
        raise problem(
            where,
            expected=f"a PNG or JPEG image of at most {MAX_PIXELS} pixels",
            found=f"{len(content)} bytes that do not decode ({error})",
            fix=DAMAGED,
        ) from error
