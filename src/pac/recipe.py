"""Recipes: a TOML file and dotted overrides give a `RunConfig`, which is checked before anything is built.

    seed = 0
    length = "20k steps"                  # or "3 epochs", or "1e17 flops"
    mixture = "mixture.toml"              # or the same keys inline, under [mixture]
    [model]
    size = "micro"                        # and any field of ModelConfig; what the data decides is read from the data
    [objective]
    method = "pac"                        # bc, filtered-bc, bc+q, pac, pac+v; and any field of ObjectiveConfig
    [optimiser]                           # the other sections are in pac.config
    [schedules]
    imitation_weight = [[0, 1.0], [5000, 1.0], [10000, 0.3]]   # straight lines between (step, value)

`pac train recipe.toml --out runs/a seed=3 discount=0.97 mixture.groups.poor.imitation_weight=0.5`
"""

import copy
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pac.config import (
    CheckpointConfig,
    CollectConfig,
    EvaluationConfig,
    MachineConfig,
    ObjectiveConfig,
    OptimiserConfig,
    Schedules,
    check_duration,
    check_keys,
    parse_overrides,
    read_toml,
    suggest,
)
from pac.data.mixture import Mixture, parse_mixture
from pac.files import problem
from pac.model.config import model_config
from pac.model.pretrained import TRAIN_CONFIG, pretrained_folder
from pac.old_names import MEANING_BEFORE, rename_override, rename_recipe, rename_run_config
from pac.recipe_keys import expand_setting
from pac.resources import find_recipe

T = TypeVar("T")

# The methods of the paper's comparison. Each decides keys of the objective, and defaults of the mixture.
# A method that does not improve clones: alpha is 1 for every dataset, whatever the mixture says.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bc": ({"critic": "none", "improve": False}, {}),
    "filtered-bc": ({"critic": "none", "improve": False}, {"success_only": True}),
    "bc+q": ({"critic": "q", "improve": False}, {}),
    "pac": ({"critic": "q", "improve": True}, {}),
    "pac+v": ({"critic": "v", "improve": True}, {"imitation_weight": 0.0}),
}
WEIGHT = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?")  # in "data/a@3"
COLLECTED = "{collected}"  # in a dataset's path: the folder of [collect]
BATCH_SIZES = {"nano": 64, "micro": 128}  # of runs without a recipe: these sizes train on a CPU. Others: 512


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run, except its folder."""

    mixture: Mixture
    method: str = "pac"
    seed: int = 0
    length: str = "20k steps"
    start: str | None = None  # a checkpoint to fine-tune from
    # Gaussian noise on proprioception, in units of each dimension's spread, the same through a window (S4RL, Sinha et
    # al., 2021). Without it a policy infers the fault mode from the last centimetre, and stays in it (docs/log).
    proprio_noise: float = 0.1
    model: dict[str, Any] = field(default_factory=dict)  # size, and fields of ModelConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedules: Schedules = field(default_factory=Schedules)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    collect: CollectConfig | None = None
    machine: MachineConfig = field(default_factory=MachineConfig)
    stated: frozenset[str] = field(default=frozenset(), compare=False)  # dotted keys that the user gave

    @property
    def size(self) -> str:
        return str(self.model.get("size", "micro"))

    @property
    def model_fields(self) -> dict[str, Any]:
        """Return the fields of ModelConfig that the recipe sets."""
        return {k: tuple(v) if isinstance(v, list) else v for k, v in self.model.items() if k != "size"}

    def as_json(self) -> dict[str, Any]:
        table = dataclasses.asdict(self)
        del table["stated"]
        return table


SECTIONS: dict[str, type] = {
    "optimiser": OptimiserConfig,
    "checkpoint": CheckpointConfig,
    "evaluation": EvaluationConfig,
    "collect": CollectConfig,
    "machine": MachineConfig,
}


def load_recipe(
    name: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    data: Sequence[str] = (),
    collected: Path | None = None,
) -> RunConfig:
    """Read a recipe and apply overrides. `data` and `overrides` are those of `read_recipe`.

    `collected` is the folder for the data of [collect].
    """
    table, root = read_recipe(name, overrides, data=data)
    try:
        return parse_recipe(table, root, collected=collected)
    except ValueError as error:
        raise ValueError(f"{recipe_place(name)}: {error}" if name else str(error)) from error


def read_recipe(
    name: str | Path | None, overrides: Sequence[str] = (), *, data: Sequence[str] = ()
) -> tuple[dict[str, Any], Path]:
    """Return the unchecked tables of a recipe after overrides, and the folder that the mixture's paths start from.

    Overrides are `section.key=value`, or short names such as `discount=0.97`. `data` names datasets, each with its
    weight, such as "data/a@3". They replace the datasets of the recipe, or stand in for a recipe. The folder of a run
    is a recipe, too: its settings and its data.
    """
    table, root = _open_recipe(name)
    changes = parse_overrides(list(overrides))
    mixture = changes.pop("mixture", table.get("mixture"))
    if isinstance(mixture, str):
        found = find_recipe(root / mixture if (root / mixture).is_file() else mixture)
        mixture, root = read_toml(found, "a mixture"), found.parent
    if data:
        mixture = (mixture if isinstance(mixture, dict) else {}) | {"groups": data_groups(data)}
    if mixture is not None:
        table["mixture"] = mixture
    table = rename_recipe(table)
    for key, value in changes.items():
        _assign(table, *rename_override(*expand_setting(key, value)))
    if name is None and isinstance(table.get("mixture"), dict):
        table["mixture"].setdefault("batch_size", BATCH_SIZES.get(table.get("model", {}).get("size", "micro"), 512))
    return table, root


def _open_recipe(name: str | Path | None) -> tuple[dict[str, Any], Path]:
    """Return the tables of a recipe, and the folder that its paths start from."""
    if name is None:
        return {}, Path()
    path = recipe_place(name)
    return (run_table(path), Path()) if path.is_dir() else (read_toml(path, "a recipe"), path.parent)


def recipe_place(name: str | Path) -> Path:
    """Return the folder of a run, or the file of a recipe."""
    return Path(name) if Path(name).is_dir() else find_recipe(name)


def run_table(path: Path) -> dict[str, Any]:
    """Return the recipe of a run or a checkpoint: the settings that it was trained with, and the paths of its data."""
    file = pretrained_folder(path) / TRAIN_CONFIG
    try:
        saved = rename_run_config(json.loads(file.read_text()))["config"]
        method, mixture = saved.pop("method"), saved["mixture"]
        decided = METHODS[method][0]
        groups = [group | {"datasets": list(map(_without_none, group["datasets"]))} for group in mixture["groups"]]
        if not decided["improve"]:  # alpha is 1 there because of the method, which may be replaced
            for dataset in (dataset for group in groups for dataset in group["datasets"]):
                del dataset["imitation_weight"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected, fix = "the settings of a run of `pac train`", "Name a run, or a recipe in TOML."
        raise problem(file, expected=expected, found=f"{type(error).__name__}: {error}", fix=fix) from error
    table = {name: _without_none(value) for name, value in saved.items() if value is not None and name != "collect"}
    table["objective"] = {k: v for k, v in table["objective"].items() if k not in decided} | {"method": method}
    return table | {"mixture": _without_none(mixture) | {"groups": list(map(_without_none, groups))}}


def _without_none(value: Any) -> Any:
    """Return a table without keys that are None. Other values are returned as they are."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def data_groups(data: Sequence[str]) -> list[dict[str, Any]]:
    """Return a group for each dataset in texts such as "data/a" and "data/a@3", whose weight is 3.

    A group and its dataset have the name of the folder.
    """
    groups: list[dict[str, Any]] = []
    for text in data:
        path, share = Path(text), 1.0
        place, _, weight = text.rpartition("@")
        if not (path.expanduser() / "spec.json").is_file() and place and WEIGHT.fullmatch(weight):
            path, share = Path(place), float(weight)  # the name of a folder may have an @, too
        path = path.expanduser().absolute()
        if not (path / "spec.json").is_file():
            fix = "Bring data of other formats in with `pac import` first."
            raise problem(path, expected="the folder of a dataset", found="none", fix=fix)
        name = path.name
        same = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", group["name"]) is not None for group in groups)
        name = f"{name}-{same + 1}" if same else name
        groups.append({"name": name, "weight": share, "datasets": [{"name": name, "path": str(path)}]})
    return groups


def parse_recipe(table: Mapping[str, Any], root: Path = Path(), *, collected: Path | None = None) -> RunConfig:
    """Return the RunConfig of a recipe in nested tables. Relative paths of the mixture start from `root`."""
    known = {f.name for f in dataclasses.fields(RunConfig)} - {"method"}
    for key in table:
        if key in ("improve", "study"):
            raise ValueError(f"Expected a recipe for training, found one with [{key}]. Run it with `pac {key}`.")
        if key not in known:
            raise ValueError(f"Unknown key {key!r} in the recipe.{suggest(key, known)}")
    if "mixture" not in table:
        raise ValueError('Expected a mixture in the recipe, found none. Add mixture = "FILE" or a [mixture] table.')
    if isinstance(table["mixture"], Mapping) and "groups" not in table["mixture"]:
        raise ValueError("Expected data in the recipe, found none. Name it with --data DIR, or add [[mixture.groups]].")
    for name in known - {"seed", "length", "start", "proprio_noise"}:
        if not isinstance(table.get(name, {}), Mapping):
            raise ValueError(f"Expected a table [{name}], found {table[name]!r}.")
    method, objective, defaults = _method(table.get("objective", {}))
    mixture = copy.deepcopy(dict(table["mixture"]))
    if isinstance(own := mixture.get("defaults", {}), Mapping):
        mixture["defaults"] = defaults | dict(own)
    _place_collected(mixture, table, collected)
    config = RunConfig(
        mixture=parse_mixture(mixture, root) if objective.improve else _cloned(parse_mixture(mixture, root)),
        method=method,
        objective=objective,
        schedules=parse_section(Schedules, _pairs(table.get("schedules", {})), "schedules"),
        **{name: parse_section(kind, table[name], name) for name, kind in SECTIONS.items() if name in table},
        **{name: table[name] for name in ("seed", "length", "start", "proprio_noise", "model") if name in table},
        stated=frozenset(_stated(table)),
    )
    _check_run(config)
    return config


def _stated(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys that a recipe's tables set. Those of a dataset are `mixture.NAME.KEY`."""
    for key, value in table.items():
        if key != "mixture":
            yield from (f"{key}.{name}" for name in value) if isinstance(value, Mapping) else (key,)
    mixture = table["mixture"]
    yield from (f"mixture.{key}" for key in mixture)
    for group in mixture.get("groups", ()):
        for dataset in group.get("datasets", ()):
            keys = {*mixture.get("defaults", {}), *group, *dataset}
            yield from (f"mixture.{dataset.get('name')}.{key}" for key in keys)


def continued(config: RunConfig, before: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a resumed run: those that the user states now, and otherwise those that it began with.

    So a default that changed since has no effect on an older run. `before` is the run's config as JSON. A key that it
    lacks is newer than the run; `MEANING_BEFORE` says what such runs did.
    """
    changes: dict[str, Any] = {}
    for section in ("objective", "optimiser", "schedules"):
        changes[section] = _kept(getattr(config, section), before.get(section, {}), section, config.stated)
    if "proprio_noise" not in config.stated:
        changes["proprio_noise"] = before.get("proprio_noise", config.proprio_noise)
    old = {entry["name"]: entry for group in before["mixture"]["groups"] for entry in group["datasets"]}
    groups = []
    for group in config.mixture.groups:
        pairs = [(dataset, old.get(dataset.name, {})) for dataset in group.datasets]
        datasets = tuple(_kept(x, entry, f"mixture.{x.name}", config.stated) for x, entry in pairs)
        groups.append(replace(group, datasets=datasets))
    mixture = _kept(config.mixture, before["mixture"], "mixture", config.stated | {"mixture.groups"})
    return replace(config, mixture=replace(mixture, groups=tuple(groups)), **changes)


def _kept(section: T, before: Mapping[str, Any], name: str, stated: frozenset[str]) -> T:
    """Return a section with the values of before for the keys that are not stated."""
    values = {}
    for option in dataclasses.fields(section):  # type: ignore[arg-type]
        key = f"{name}.{option.name}"
        if key in stated or option.name in ("path", "more_paths", "counts"):
            continue
        if option.name in before:
            values[option.name] = _as_tuples(before[option.name])
        elif before and (known := f"{name.partition('.')[0]}.{option.name}") in MEANING_BEFORE:
            values[option.name] = MEANING_BEFORE[known]
    return replace(section, **values)  # type: ignore[type-var]


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _method(table: Mapping[str, Any]) -> tuple[str, ObjectiveConfig, dict[str, Any]]:
    """Return the name of the method, its objective, and its defaults for the mixture."""
    keys = dict(table)
    method = keys.pop("method", "pac")
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r} in [objective].{suggest(str(method), METHODS)}")
    decided, defaults = METHODS[method]
    for name, value in decided.items():
        if keys.get(name, value) != value:
            raise ValueError(
                f"objective.{name}: expected {value!r}, as method {method!r} has it, found {keys[name]!r}. Leave it "
                "out, or choose another method."
            )
    return method, parse_section(ObjectiveConfig, decided | keys, "objective"), defaults


def _cloned(mixture: Mixture) -> Mixture:
    """Return the mixture with an alpha of 1 everywhere."""
    groups = (
        replace(group, datasets=tuple(replace(dataset, imitation_weight=1.0) for dataset in group.datasets))
        for group in mixture.groups
    )
    return replace(mixture, groups=tuple(groups))


def _place_collected(mixture: dict[str, Any], table: Mapping[str, Any], collected: Path | None) -> None:
    """Replace `{collected}` in paths of datasets by the folder of the collected data."""
    groups = mixture.get("groups")
    for group in groups if isinstance(groups, list) else []:
        datasets = group.get("datasets") if isinstance(group, dict) else None
        for dataset in datasets if isinstance(datasets, list) else []:
            path = dataset.get("path") if isinstance(dataset, dict) else None
            if not isinstance(path, str) or COLLECTED not in path:
                continue
            if "collect" not in table:
                raise ValueError(f"Dataset path {path!r}: expected a [collect] section, found none. Add one.")
            dataset["path"] = path.replace(COLLECTED, str(COLLECTED if collected is None else collected.resolve()))


def _check_run(config: RunConfig) -> None:
    """Raise if the top level is wrong, or if sections do not fit together."""
    if type(config.seed) is not int or not 0 <= config.seed < 2**63:
        raise ValueError(f"seed: expected a whole number of 0 or more, found {config.seed!r}.")
    if config.start is not None and not isinstance(config.start, str):
        raise ValueError(f"start: expected the folder of a run or a checkpoint, found {config.start!r}.")
    model_config(config.size, **config.model_fields)  # raises on an unknown size or field, or an impossible value
    noise = config.proprio_noise
    if type(noise) not in (int, float) or not 0 <= noise < math.inf:
        raise ValueError(f"proprio_noise: expected a number of 0 or more, found {noise!r}.")
    check_duration(config.length, "length")
    if config.machine.accumulate > config.mixture.batch_size:
        raise ValueError(
            f"machine.accumulate: expected at most mixture.batch_size, {config.mixture.batch_size}, found "
            f"{config.machine.accumulate}."
        )
    unused = {"imitation_weight", "temperature"} if not config.objective.improve else set()
    unused |= {"critic_weight"} if config.objective.critic == "none" else set()
    for name in sorted(unused):
        if getattr(config.schedules, name) is not None:
            raise ValueError(
                f"schedules.{name}: expected none with method {config.method!r}, which does not use it, found one. "
                "Leave it out, or choose pac."
            )


def parse_section(kind: type[T], table: Any, name: str) -> T:
    """Return the dataclass of a section. The error about an unknown key suggests the nearest one."""
    options = dataclasses.fields(kind)  # type: ignore[arg-type]
    required = [option.name for option in options if option.default is dataclasses.MISSING]
    check_keys(table, [option.name for option in options], f"[{name}]", required)
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})


def _pairs(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedules with tuples of numbers in place of lists."""
    pairs = {}
    for key, points in table.items():
        fits = isinstance(points, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in points)
        if not fits or not all(type(number) in (int, float) for point in points for number in point):
            raise ValueError(f"schedules.{key}: expected a list of [step, value], found {points!r}.")
        pairs[key] = tuple((float(step), float(value)) for step, value in points)
    return pairs


def _assign(table: Any, dotted: str, value: Any) -> None:
    """Set `section.key`. An entry of a list of tables is found by its name, which may contain dots."""
    place, path = table, dotted
    while True:
        if isinstance(place, list):
            names = sorted((str(entry.get("name")) for entry in place if isinstance(entry, dict)), key=len)
            section = next((name for name in reversed(names) if path.startswith(f"{name}.")), None)
            if section is None:
                choices = ", ".join(sorted(names))
                raise ValueError(f"Override {dotted!r}: expected a name ({choices}) and a key at {path!r}.")
            place, path = next(x for x in place if x.get("name") == section), path.removeprefix(f"{section}.")
            continue
        section, dot, key = path.partition(".")
        if not dot:
            place[section] = value
            return
        place, path = place.setdefault(section, {}), key
        if not isinstance(place, dict | list):
            raise ValueError(f"Override {dotted!r}: expected {section!r} to be a section, found {place!r}.")
