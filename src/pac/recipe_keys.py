"""Short names of a recipe's keys: `discount` is `objective.discount`, `steps` is `length`.

`pac train key=value` and the keywords of `pac.train` both go through `expand_key`. A name that one section alone has
is short for that section's key. `CHOSEN` decides between sections where several have the name.
"""

import dataclasses
import difflib
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pac.config import (
    CheckpointConfig,
    CollectConfig,
    EvaluationConfig,
    MachineConfig,
    ObjectiveConfig,
    OptimiserConfig,
    Schedules,
)
from pac.data.mixture import DatasetConfig, Mixture
from pac.model.config import ModelConfig

# The keys of a recipe outside its sections.
TOP = ("seed", "length", "start", "proprio_noise")
SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "objective": ObjectiveConfig,
    "optimiser": OptimiserConfig,
    "schedules": Schedules,
    "checkpoint": CheckpointConfig,
    "evaluation": EvaluationConfig,
    "collect": CollectConfig,
    "machine": MachineConfig,
    "mixture": Mixture,
    "mixture.defaults": DatasetConfig,
}
CHOSEN = {
    "steps": "length",
    "method": "objective.method",
    "size": "model.size",
    "discount": "objective.discount",
    "temperature": "objective.temperature",
    "imitation_weight": "mixture.defaults.imitation_weight",
    "critic_weight": "mixture.defaults.critic_weight",
    "tasks": "evaluation.tasks",
}
NOT_SHORT = {"name", "path", "more_paths", "counts", "groups", "data"}  # `data` is the dataset itself in `pac.train`
# Words of the paper and of other libraries.
MEANT = {"alpha": "imitation_weight", "beta": "critic_weight", "eta": "temperature", "gamma": "discount"}
MEANT |= {"lr": "peak_rate", "updates": "steps", "epochs": "steps"}
UNCLEAR = {"learning_rate": ("optimiser.peak_rate", "schedules.learning_rate")}  # people may mean either


@cache
def short_names() -> dict[str, str]:
    """Return every short name with the dotted key that it stands for."""
    found: dict[str, list[str]] = {}
    for section, kind in SECTIONS.items():
        for name in (field.name for field in dataclasses.fields(kind)):
            if name not in {*NOT_SHORT, *UNCLEAR, *TOP}:
                found.setdefault(name, []).append(f"{section}.{name}")
    return {name: keys[0] for name, keys in found.items() if len(keys) == 1} | CHOSEN


def expand_key(name: str) -> str:
    """Return the dotted key of a short name. Other keys are returned as they are; the recipe checks them.

    Raise if the name belongs to several sections, or to none.
    """
    names = short_names()
    if "." in name or name in TOP or name in SECTIONS:
        return name
    if name in names:
        return names[name]
    several = [f"{section}.{name}" for section, kind in SECTIONS.items() if name in _fields(kind) - NOT_SHORT]
    if several := list(UNCLEAR.get(name, several)):
        raise ValueError(f"Setting {name!r}: expected the name of one key, found {len(several)}: {', '.join(several)}.")
    near = difflib.get_close_matches(name, [*names, *TOP, *_dotted()], n=1)
    near = [MEANT[name]] if name in MEANT else near
    fix = f"Did you mean {near[0]!r}?" if near else "docs/training.md lists all keys."
    raise ValueError(f"Unknown setting {name!r}. {fix}")


def expand_setting(name: str, value: Any) -> tuple[str, Any]:
    """Return the dotted key and the value of a setting. One text becomes a list if the key needs one.

    A number of steps, such as 2000 or "2k", becomes a duration.
    """
    key = expand_key(name)
    if name == "steps" and type(value) in (int, float):
        return key, f"{value} steps"
    if name == "steps" and isinstance(value, str) and re.fullmatch(r"[0-9.]+\s*[kM]?", value.strip()):
        return key, f"{value.strip()} steps"
    section, _, field = key.rpartition(".")
    if isinstance(value, str) and section in SECTIONS:
        hint = typing.get_type_hints(SECTIONS[section]).get(field)
        if tuple[str, ...] in (hint, *typing.get_args(hint)):
            return key, (value,)
    return key, value


def as_override(name: str, value: Any) -> str:
    """Return a setting as `pac train` takes it: `discount=0.97`, `tasks=["metaworld/push"]`."""
    if isinstance(value, str):
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value  # a bare word
        return f"{name}={value if parsed == value else _toml(value)}"
    return f"{name}={_toml(value)}"


def _toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{quoted}"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Iterable):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(
        f"A setting: expected a number, a text, a list or a table, found {type(value).__name__} {value!r}."
    )


def _fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _dotted() -> set[str]:
    return {f"{section}.{name}" for section, kind in SECTIONS.items() for name in _fields(kind) - NOT_SHORT}
