"""Spec of a dataset: the names, shapes and bounds that all its episodes share. It is stored in spec.json."""

import dataclasses
import json
import math
import operator
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import pac
from pac.files import ProblemError, problem
from pac.types import Episode

STATE, IMAGES, GOALS = "observation.state", "observation.images.", "goal.images."
ACTION, REWARD, TERMINATED, TRUNCATED = "action", "next.reward", "next.terminated", "next.truncated"

Feature = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and shape of one row


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Properties that all episodes of a dataset share."""

    state_dim: int  # 0: images only
    action_dim: int
    cameras: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> height, width
    goal_cameras: dict[str, tuple[int, int]] = field(default_factory=dict)
    extra_rewards: tuple[str, ...] = ()
    action_low: tuple[float, ...] | None = None  # None: measured while writing
    action_high: tuple[float, ...] | None = None
    control_rate: float | None = None  # Hz
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    robot: str = ""

    def __post_init__(self) -> None:
        for name in (*self.cameras, *self.goal_cameras, *self.extra_rewards):
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
                expected = "camera and reward names of letters, digits, '_', '-' and '.'"
                raise problem("DatasetSpec", expected=expected, found=repr(name), fix="Names become file names.")
        if self.action_dim < 1 or self.state_dim < 0 or (not self.state_dim and not self.cameras):
            expected = "at least one action and one observation"
            found = f"{self.action_dim} actions, {self.state_dim} state dimensions, {len(self.cameras)} cameras"
            raise problem("DatasetSpec", expected=expected, found=found, fix="Give the missing one.")
        if (self.action_low is None) != (self.action_high is None):
            raise problem("DatasetSpec", expected="both action bounds or none", found="one", fix="Give both.")
        low, high = self.action_low or (), self.action_high or ()
        bounded = {self.action_dim} == {len(low), len(high)} and all(
            math.isfinite(a) and math.isfinite(b) and a <= b for a, b in zip(low, high, strict=True)
        )
        if self.action_low is not None and not bounded:
            expected = f"{self.action_dim} finite action bounds with low <= high"
            found = f"low {self.action_low}, high {self.action_high}"
            raise problem("DatasetSpec", expected=expected, found=found, fix="Pass None for both to measure them.")

    @classmethod
    def of(cls, episode: Episode, **known: Any) -> "DatasetSpec":
        """Return the spec that fits `episode`. Bounds, rate and names come from `known`."""
        images = {name: array for name, array in episode.observation.items() if name.startswith(IMAGES)}
        for bound in {"action_low", "action_high"} & {name for name, value in known.items() if value is not None}:
            known[bound] = tuple(float(value) for value in known[bound])
        return cls(
            state_dim=episode.observation[STATE].shape[-1] if STATE in episode.observation else 0,
            action_dim=episode.action.shape[-1],
            cameras={name.removeprefix(IMAGES): array.shape[1:3] for name, array in images.items()},
            goal_cameras={name: array.shape[:2] for name, array in episode.goal_images.items()},
            extra_rewards=tuple(sorted(episode.extra_rewards)),
            **known,
        )

    @cached_property
    def step_features(self) -> dict[str, Feature]:
        """Arrays with one row per observation, by name."""
        number, byte, flag = np.dtype("<f4"), np.dtype("u1"), np.dtype("?")
        state = {STATE: (number, (self.state_dim,))} if self.state_dim else {}
        cameras = {IMAGES + name: (byte, (*size, 3)) for name, size in self.cameras.items()}
        extras = {f"{REWARD}.{name}": (number, ()) for name in self.extra_rewards}
        steps = {ACTION: (number, (self.action_dim,)), REWARD: (number, ())}
        return {**state, **cameras, **steps, TERMINATED: (flag, ()), TRUNCATED: (flag, ()), **extras}

    @cached_property
    def goal_features(self) -> dict[str, Feature]:
        """Arrays with one row per goal image, by name."""
        return {GOALS + name: (np.dtype("u1"), (*size, 3)) for name, size in self.goal_cameras.items()}

    def differences(self, other: "DatasetSpec") -> list[str]:
        """Return the names of the fields that differ. Names of dimensions fit a spec that has none."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)}
        named = ("state_names", "action_names")
        return [name for name, (a, b) in pairs.items() if a != b and (name not in named or (a and b))]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and a table of features for readers without this code."""
        tables = {**self.step_features, **self.goal_features}
        features = {name: {"dtype": dtype.name, "shape": list(shape)} for name, (dtype, shape) in tables.items()}
        versions = {"pac": pac.__version__, "numpy": np.__version__}
        return {"format": "pac-episodes", "version": 1} | dataclasses.asdict(self) | {"features": features} | versions

    @classmethod
    def from_json(cls, path: Path) -> "DatasetSpec":
        """Read a spec from a file."""
        if not path.is_file():
            raise _no_dataset(path)
        try:
            table = json.loads(path.read_text())
            if table["format"] != "pac-episodes" or table["version"] != 1:
                raise ValueError(f"format {table['format']!r}, version {table['version']!r}")
            fields = {f.name: table[f.name] for f in dataclasses.fields(cls)}
            for name, value in fields.items():
                if isinstance(value, list):
                    fields[name] = tuple(value)
                elif isinstance(value, dict):
                    fields[name] = {str(key): (int(height), int(width)) for key, (height, width) in value.items()}
            for name in ("state_dim", "action_dim"):
                fields[name] = operator.index(table[name])
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            expected, found = "the spec of a dataset (pac-episodes, version 1)", f"{type(error).__name__}: {error}"
            fix = "Name a folder made by `pac import` or `pac collect`, or restore the file."
            raise problem(path, expected=expected, found=found, fix=fix) from error


def _no_dataset(path: Path) -> ProblemError:
    """Return the error about a place that has no spec."""
    folder = path.parent
    found, fix = "nothing there", "Check the path."
    first = "Data of other formats is imported first: pac import SOURCE --out FOLDER."
    if folder.is_file():
        found, fix = "a file", f"Name a dataset's folder. {first}"
    elif (folder / "committed.json").is_file():
        found, fix = f"a dataset that has lost its {path.name}", "Restore the file from a copy."
    elif folder.is_dir():
        found, fix = "a folder without one", f"Name a dataset's folder. {first}"
    expected = f"a dataset of `pac import` or `pac collect` (a folder with {path.name})"
    return problem(folder, expected=expected, found=found, fix=fix)
