"""Options of an import, and the choice of the source's keys that make each feature."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pac.config import suggest
from pac.data.array_checks import camera_name, is_image
from pac.data.spec import IMAGES, STATE
from pac.formats.checks import check
from pac.formats.choice import EpisodeRanges


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Facts that a user states about a source because the source does not hold them."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # PAC feature -> keys of the source
    instruction: str | None = None  # task text of every episode, instead of the source's
    fps: float | None = None  # control rate, instead of the source's
    split: str | None = None  # a named part: robomimic's filter keys, LeRobot's and RLDS's splits
    task: str | None = None  # TD-MPC2: one task of a multi-task chunk
    max_episode_steps: int | None = None  # D4RL files without timeouts
    reward: str | None = None  # a rule of `pac.data.relabel`, or a further reward of the source, as its reward
    last_step: Literal["auto", "observation", "transition"] = "auto"  # RLDS: meaning of the last step of an episode

    cameras: tuple[str, ...] | None = None  # cameras to keep, by name; empty: none; None: all
    episodes: str | None = None  # indices in the source, such as "0:80,100:120"; None: all
    missing: Literal["refuse", "skip-episodes", "skip-features"] = "refuse"  # parts of the source that are not there

    @property
    def ranges(self) -> EpisodeRanges:
        """The chosen episodes, as a container of indices."""
        return EpisodeRanges(self.episodes)

    @property
    def named_keys(self) -> set[str]:
        """All keys of the source that the user named."""
        return set().union(*self.keys.values())


def key_of(feature: str, default: str, options: ImportOptions) -> str:
    """Return the source's key of a feature that has exactly one."""
    keys = options.keys.get(feature, (default,))
    check(len(keys) == 1, f"--keys {feature}", "exactly one key", keys, "Name one key.")
    return keys[0]


def choose_keys(
    numbers: Iterable[str], images: Iterable[str], options: ImportOptions, where: object
) -> dict[str, tuple[str, ...]]:
    """Choose the keys that make the state and the cameras: those of --keys, by default all numbers and all images.

    A camera in --keys leaves out the others. "observation.state=" with no key leaves out the state.
    """
    numbers, images = list(numbers), list(images)
    chosen = {STATE: tuple(numbers)}
    cameras = {}
    for feature, keys in options.keys.items():
        if feature in ("action", "reward", "instruction"):
            continue
        names = f"{STATE}, {IMAGES}<camera>, action, reward or instruction"
        fix = "Write --keys FEATURE=KEY[,KEY...], with the source's keys on the right."
        check(feature == STATE or feature.startswith(IMAGES), f"--keys {feature}", names, repr(feature), fix)
        known, kind = (numbers, "numbers") if feature == STATE else (images, "images")
        for key in keys:
            near = suggest(key, known) if known and key not in known else ""
            expected = f"key {key!r} (from --keys {feature}), holding {kind}"
            check(key in known, where, expected, f"such keys: {', '.join(known) or 'none'}", f"Correct --keys.{near}")
        if feature == STATE:
            chosen[STATE] = keys
        else:
            fix = "Give each camera its own --keys."
            check(len(keys) == 1, f"--keys {feature}", "one key for a camera", keys, fix)
            cameras[feature] = keys
    cameras = cameras or {IMAGES + camera_name(key): (key,) for key in images}
    chosen |= _named_cameras(cameras, options, where)
    chosen = {name: keys for name, keys in chosen.items() if keys}
    check(chosen, where, "at least one observation", "none", f"Name its keys with --keys {STATE}=KEY.")
    return chosen


def _named_cameras(
    cameras: Mapping[str, tuple[str, ...]], options: ImportOptions, where: object
) -> dict[str, tuple[str, ...]]:
    """Return the cameras of --cameras, in its order. Without the option return all."""
    if options.cameras is None:
        return dict(cameras)
    names = [feature.removeprefix(IMAGES) for feature in cameras]
    requested = [name.removeprefix(IMAGES) for name in options.cameras]
    for name in requested:
        found, fix = f"cameras {', '.join(names) or 'none'}", "Correct --cameras."
        near = suggest(name, names) if names else ""
        check(name in names, where, f"camera {name!r} (from --cameras)", found, fix + near)
    return {IMAGES + name: cameras[IMAGES + name] for name in requested}


def choose_array_keys(arrays: Mapping[str, Any], options: ImportOptions, where: object) -> dict[str, tuple[str, ...]]:
    """Choose keys as `choose_keys` does. Arrays (steps, ...) with the shape and dtype of images are cameras."""
    images = {key for key, array in arrays.items() if is_image(array.shape[1:], array.dtype)}
    return choose_keys(sorted(arrays.keys() - images), sorted(images), options, where)


def used_keys(keys: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return each key of the source that a feature uses, once."""
    return list(dict.fromkeys(key for parts in keys.values() for key in parts))
