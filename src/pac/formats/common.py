"""Shared by all formats: the options of an import, the `ForeignDataset` of a reader, and the border where foreign
arrays become an `Episode`: checked for shape, kind and finite values, with errors that name file and key.
"""

import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pac.config import suggest
from pac.files import ProblemError, problem
from pac.types import Episode

STATE = "observation.state"
IMAGES = "observation.images."
MAX_PIXELS = 4096 * 4096  # of one picture: a damaged header must not ask for gigabytes


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What a user may say about a source that the source does not say itself."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # PAC feature -> keys of the source
    instruction: str | None = None  # task text of every episode, instead of the source's
    fps: float | None = None  # control rate, where the source does not hold it
    split: str | None = None  # a named part: robomimic's filter keys, LeRobot's and RLDS's splits
    task: str | None = None  # TD-MPC2: one task of a multi-task chunk
    max_episode_steps: int | None = None  # D4RL files without timeouts
    last_step: Literal["auto", "observation", "transition"] = "auto"  # RLDS: what the last step of an episode is


@dataclass(frozen=True, kw_only=True)
class ForeignDataset:
    """An opened source. Episodes are read one at a time; `notes` grow while they are."""

    format: str
    path: Path
    keys: Mapping[str, tuple[str, ...]]  # PAC feature -> the keys it is made of
    episodes: Iterator[Episode]
    num_episodes: int | None = None  # None: not known before the last one is read
    fps: float | None = None
    action_low: np.ndarray | None = None  # None: the source has no bounds
    action_high: np.ndarray | None = None
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


@contextmanager
def reading(where: object, format: str = "") -> Iterator[None]:
    """Turn whatever a library says of damaged bytes into one kind of error that names the file; nothing is lost."""
    try:
        yield
    except ProblemError:
        raise
    except Exception as error:
        raise problem(
            where,
            expected=f"readable {format} data".replace("  ", " "),
            found=f"{type(error).__name__}: {str(error).strip().rstrip('.')}",
            fix="The file is damaged or of another format: restore it, or name its format with --format.",
        ) from error


def need(module: str, extra: str) -> Any:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise problem(
            f"Python package {module!r}",
            expected="it to be installed",
            found="no such package",
            fix=f"Run: pip install 'perceiver-actor-critic[{extra}]'",
        ) from error


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    with reading(path, "JSON"):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise problem(
            path, expected="a JSON object", found=f"a {type(content).__name__}", fix="Restore the file from its origin."
        )
    return content


def require(container: Mapping[str, Any], key: str, where: object) -> Any:
    """`container[key]`, or an error that names the key and the nearest one there is."""
    if key not in container:
        names = [str(name) for name in container]
        raise problem(
            where,
            expected=f"key {key!r}",
            found=f"keys {', '.join(sorted(names)[:20]) or 'none'}",
            fix=f"Map another key with --keys, or restore the file.{suggest(key, names) if names else ''}",
        )
    return container[key]


def is_image(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    """Whether one step of this shape is a picture: bytes with 1, 3 or 4 channels, last or first."""
    return dtype == np.uint8 and len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3)) and min(shape) > 0


def choose_keys(
    numbers: Iterable[str], pictures: Iterable[str], options: ImportOptions, where: object
) -> dict[str, tuple[str, ...]]:
    """Which keys make the state and which the cameras: what --keys says, or else all numbers and all pictures.

    Naming any camera in --keys leaves out the others; "observation.state=" (nothing) leaves out the state.
    """
    numbers, pictures = list(numbers), list(pictures)
    for feature in options.keys:
        if feature not in (STATE, "action", "reward", "instruction") and not feature.startswith(IMAGES):
            raise problem(
                f"--keys {feature}",
                expected=f"{STATE}, {IMAGES}<camera>, action, reward or instruction",
                found=repr(feature),
                fix="Write --keys FEATURE=KEY[,KEY...], with the source's keys on the right.",
            )
    given = {name: keys for name, keys in options.keys.items() if name == STATE or name.startswith(IMAGES)}
    for name, keys in given.items():
        known = numbers if name == STATE else pictures
        for key in keys:
            if key not in known:
                raise problem(
                    where,
                    expected=f"key {key!r} (from --keys {name}), holding {'numbers' if name == STATE else 'pictures'}",
                    found=f"such keys: {', '.join(known) or 'none'}",
                    fix=f"Correct --keys.{suggest(key, known) if known else ''}",
                )
        if name != STATE and len(keys) != 1:
            raise problem(
                f"--keys {name}", expected="one key for a camera", found=keys, fix="Give each camera its own --keys."
            )
    chosen = {STATE: tuple(given.get(STATE, tuple(numbers)))}
    cameras = {name: keys for name, keys in given.items() if name != STATE}
    chosen |= cameras or {IMAGES + camera_name(key): (key,) for key in pictures}
    chosen = {name: keys for name, keys in chosen.items() if keys}
    if not chosen:
        raise problem(
            where, expected="at least one observation", found="none", fix="Name its keys with --keys observation.state="
        )
    return chosen


def camera_name(key: str) -> str:
    """The last part of a key: "observation.images.wrist" and "obs/wrist" are both the camera "wrist"."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", key.rsplit("/", 1)[-1].removeprefix(IMAGES))


def key_of(feature: str, default: str, options: ImportOptions) -> str:
    """The source's key of a feature that has exactly one."""
    keys = options.keys.get(feature, (default,))
    if len(keys) != 1:
        raise problem(f"--keys {feature}", expected="exactly one key", found=keys, fix="Name one key.")
    return keys[0]


def as_numbers(values: Any, where: object) -> np.ndarray:
    """(steps, dimensions) float32; what is not a finite number is an error."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise problem(
            where, expected="numbers", found=f"dtype {array.dtype}", fix="Map a numeric key with --keys instead."
        )
    if array.ndim == 0:
        raise problem(where, expected="one row for each step", found="a scalar", fix="Map another key.")
    with np.errstate(over="ignore"):
        array = array.reshape(len(array), -1 if array.size else int(np.prod(array.shape[1:]))).astype(np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        step, dimension = np.argwhere(~finite)[0]
        raise problem(
            f"{where}, step {step}, dimension {dimension}",
            expected="a finite number",
            found=array[step, dimension],
            fix="Remove or repair the episode in the source, or leave the key out with --keys.",
        )
    return array


def as_vector(values: Any, where: object) -> np.ndarray:
    """(steps,) float32."""
    array = as_numbers(values, where)
    if len(array) and array.shape[1] != 1:
        raise problem(where, expected="one number a step", found=f"{array.shape[1]}", fix="Map another key.")
    return array.reshape(len(array))


def as_images(values: Any, where: object) -> np.ndarray:
    """(steps, height, width, 3) uint8, from arrays (channels last or first) or from encoded PNG or JPEG bytes."""
    if isinstance(values, list):
        frames = [decode_image(frame, f"{where}, step {step}") for step, frame in enumerate(values)]
        for step, frame in enumerate(frames):
            if frame.shape != frames[0].shape:
                raise problem(
                    f"{where}, step {step}",
                    expected=f"a picture of shape {frames[0].shape}, as in step 0",
                    found=frame.shape,
                    fix="Resize the pictures at the source to one size.",
                )
        array = np.stack(frames) if frames else np.zeros((0, 0, 0, 3), np.uint8)
    else:
        array = np.asarray(values)
    if array.ndim != 4 or not is_image(array.shape[1:], array.dtype):
        raise problem(
            where,
            expected="uint8 pictures (steps, height, width, 1, 3 or 4)",
            found=f"{array.dtype} {array.shape}",
            fix="Leave the key out with --keys, or convert it at the source.",
        )
    if array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, 1, -1)  # channels first
    if array.shape[-1] == 1:
        array = np.repeat(array, 3, axis=-1)
    return np.ascontiguousarray(array[..., :3])


def decode_image(content: Any, where: object) -> np.ndarray:
    """(height, width, 3) uint8 from PNG or JPEG bytes."""
    image_module = need("PIL.Image", "formats")
    if not isinstance(content, bytes | bytearray | np.ndarray):
        raise problem(
            where, expected="PNG or JPEG bytes", found=type(content).__name__, fix="Leave the camera out with --keys."
        )
    try:
        with image_module.open(io.BytesIO(bytes(content)), formats=("PNG", "JPEG")) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(f"{picture.width}x{picture.height} pixels")
            return np.asarray(picture.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # Pillow raises many kinds on damaged bytes
        raise problem(
            where,
            expected=f"a PNG or JPEG picture of at most {MAX_PIXELS} pixels",
            found=f"{len(content)} bytes that do not decode ({error})",
            fix="Restore the file from its origin.",
        ) from error


def build_episode(
    where: object,
    *,
    source: Path,
    keys: Mapping[str, tuple[str, ...]],
    raw: Mapping[str, Any],
    action: Any,
    reward: Any,
    terminated: bool,
    truncated: bool,
    instruction: str,
    success: bool | None = None,
    extra_rewards: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> Episode:
    """One checked episode from a source's arrays: `raw` holds T + 1 (or T) rows for each key named in `keys`."""
    actions = as_numbers(action, f"{where}, key 'action'")
    num_steps = len(actions)
    if num_steps == 0 or actions.shape[1] == 0:
        raise problem(
            where, expected="at least one step and one action", found=actions.shape, fix="Remove the episode."
        )
    rewards = as_vector(reward, f"{where}, key 'reward'")
    extras = {name: as_vector(x, f"{where}, key {name!r}") for name, x in (extra_rewards or {}).items()}
    for name, values in {"reward": rewards, **extras}.items():
        check_length(len(values), (num_steps,), f"{where}, key {name!r}")
    observation = {}
    allowed: tuple[int, ...] = (num_steps, num_steps + 1)
    for feature, parts in keys.items():
        convert = as_numbers if feature == STATE else as_images
        arrays = []
        for key in parts:
            array = convert(require(raw, key, where), f"{where}, key {key!r}")
            check_length(len(array), allowed, f"{where}, key {key!r}")
            allowed = (len(array),)
            arrays.append(array)
        observation[feature] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
    return Episode(
        observation=observation,
        action=actions,
        reward=rewards,
        terminated=bool(terminated),
        truncated=bool(truncated),
        instruction=instruction,
        success=success,
        extra_rewards=extras,
        source=str(source),
        seed=seed,
    )


def check_length(found: int, allowed: tuple[int, ...], where: object) -> None:
    if found not in allowed:
        raise problem(
            where,
            expected=f"{' or '.join(map(str, allowed))} rows, as many as the other keys of this episode",
            found=found,
            fix="Remove or repair the episode in the source, or leave the key out with --keys.",
        )
