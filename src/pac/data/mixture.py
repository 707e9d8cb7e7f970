"""Mixtures: the datasets of a run, their shares and the length of one epoch.

A mixture is a TOML file with groups of datasets. Each group has a weight lambda. A group is drawn by weight, then one
of its datasets uniformly (the paper's section on data mixtures). So P_eff = lambda / sum(lambda) / datasets in the
group. A dataset that is not on disk may declare its counts: a mixture can be planned before the data exists.
"""

import dataclasses
import glob
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from pac.config import LARGEST_DISCOUNT, check_keys, check_least, check_types, read_toml
from pac.data.concat import open_dataset
from pac.data.relabel import RULES, select_episodes
from pac.data.store import Dataset
from pac.old_names import rename_counts

# The paper's count of tokens in one step: 8 per number, 100 per image, always 50 for language.
TOKENS_PER_NUMBER = 8
TOKENS_PER_IMAGE = 100
TOKENS_OF_TEXT = 50


@dataclass(frozen=True, kw_only=True)
class DatasetCounts:
    """The size of a dataset, measured on disk or declared in the mixture."""

    windows: int  # windows that hold every step once
    proprio: int = 0  # N^P
    images: int = 0  # cameras and goal images at a step; the paper's N^V / 6400
    actions: int = 0  # N^A
    episodes: int | None = None
    success: float | None = None  # share of the episodes that say whether they succeeded

    def __post_init__(self) -> None:
        check_types(self, "counts")
        check_least(self, "counts", windows=0, proprio=0, images=0, actions=0, episodes=0)
        if self.success is not None and not 0 <= self.success <= 1:
            raise ValueError(f"counts.success: expected a share in [0, 1], found {self.success}.")

    def tokens(self, window: int) -> int:
        """Return the tokens of all windows, counted as in the paper: inputs unpadded, text padded."""
        numbers = TOKENS_PER_NUMBER * (self.proprio + self.actions)
        return self.windows * window * (numbers + TOKENS_OF_TEXT + TOKENS_PER_IMAGE * self.images)


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """One dataset of a mixture and how its windows are used."""

    name: str
    path: str | None = None  # folder of the episode store, relative to the mixture file
    more_paths: tuple[str, ...] = ()  # folders of the same kind, read as one with the first
    counts: DatasetCounts | None = None  # declared, for a dataset that is not on disk

    imitation_weight: float = 0.75  # alpha: 1 is pure cloning, 0 pure RL
    critic_weight: float | None = None  # beta; None: its number of action dimensions, as the paper's 38 is
    discount: float | None = None  # gamma; None: the objective's. Robots differ in control rate
    # In place of `next.reward`: a stored extra reward column, or the rule "sparse-success" or "time-to-go"
    reward: str | None = None
    reward_scale: float = 1.0
    instruction: str | None = None  # in place of the stored ones
    success_only: bool = False
    return_quantile: float = 0.0  # keep episodes whose return reaches this quantile of their task
    # "success": the last frame of a success at the task; "hindsight": a later frame of the same episode
    goals: Literal["stored", "success", "hindsight", "none"] = "stored"
    keep_goal: float = 1.0  # p_tau^V: probability that the goal image is shown
    keep_text: float = 1.0  # p_tau^L: probability that the instruction is shown
    cameras: tuple[str, ...] | None = None  # None: all there are
    goal_cameras: tuple[str, ...] | None = None  # their frames serve as goals; None: those of `cameras`
    # For standardising inputs; None: the dataset's own. Entries of one robot must share them, or the model gets
    # different inputs for one state.
    proprio_centre: tuple[float, ...] | None = None
    proprio_scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        where = f"Dataset {self.name!r}"
        check_types(self, where)
        for name in ("imitation_weight", "return_quantile", "keep_goal", "keep_text"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{where}: expected {name} in [0, 1], found {getattr(self, name)}.")
        if (self.proprio_centre is None) != (self.proprio_scale is None) or min(self.proprio_scale or (1.0,)) <= 0:
            expected = "proprio_centre and proprio_scale together, and positive scales"
            found = f"{self.proprio_centre} and {self.proprio_scale}"
            raise ValueError(f"{where}: expected {expected}, found {found}.")
        check_least(self, where, critic_weight=0)
        if self.goals == "hindsight" and self.reward in RULES:
            fix = 'Leave `reward` out, or set goals to "none".'
            raise ValueError(f"{where}: expected no rule for goals = 'hindsight', found {self.reward!r}. {fix}")
        if self.discount is not None and not 0 <= self.discount <= LARGEST_DISCOUNT:
            fix = "Leave it out for the objective's."
            raise ValueError(f"{where}: expected a discount in [0, 1), found {self.discount}. {fix}")

    def applied_discount(self, default: float) -> float:
        return default if self.discount is None else self.discount

    def kept_episodes(self, dataset: Dataset) -> Int64[np.ndarray, " episode"] | None:
        """Return the episodes that pass the filters, or None if there is no filter."""
        quantile, reward = self.return_quantile, self.reward
        return select_episodes(dataset, success_only=self.success_only, return_quantile=quantile, reward=reward)


@dataclass(frozen=True, kw_only=True)
class DatasetGroup:
    """Datasets that share a weight."""

    name: str
    weight: float  # lambda
    datasets: tuple[DatasetConfig, ...]
    episodes: int | None = None  # declared, if only the group's total is known
    success: float | None = None

    def __post_init__(self) -> None:
        check_types(self, f"Group {self.name!r}")
        check_least(self, f"Group {self.name!r}", weight=0)
        if not self.datasets:
            raise ValueError(f"Group {self.name!r}: expected a dataset, found none. Add one or drop the group.")


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Groups of datasets, and the shape of the batches drawn from them."""

    groups: tuple[DatasetGroup, ...]
    batch_size: int = 512  # windows in an update, over all ranks
    window: int = 5  # observations in a window
    image_size: tuple[int, int] | None = None  # height, width to resize images to; None: they must agree

    def __post_init__(self) -> None:
        check_types(self, "mixture")
        check_least(self, "mixture", batch_size=1, window=2)  # one transition needs two observations
        if self.image_size is not None and (len(self.image_size) != 2 or min(self.image_size) < 1):
            raise ValueError(f"mixture.image_size: expected height and width, found {self.image_size}.")
        if not sum(group.weight for group in self.groups) > 0:
            weights = [group.weight for group in self.groups]
            raise ValueError(f"mixture: expected a group with a positive weight, found {weights}. Raise a weight.")
        names = [dataset.name for dataset in self.datasets]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"mixture: expected each dataset name once, found {repeated} more often. Rename them.")

    @property
    def datasets(self) -> tuple[DatasetConfig, ...]:
        return tuple(dataset for group in self.groups for dataset in group.datasets)

    @property
    def probabilities(self) -> dict[str, Fraction]:
        """Return P_eff of every dataset. They sum to 1 exactly."""
        weights = [Fraction(str(group.weight)) for group in self.groups]  # 0.1 is a tenth, not the nearest double
        return {
            dataset.name: weight / sum(weights) / len(group.datasets)
            for group, weight in zip(self.groups, weights, strict=True)
            for dataset in group.datasets
        }


@dataclass(frozen=True, kw_only=True)
class PlannedDataset:
    """One dataset as a mixture will draw it."""

    name: str
    group: str
    counts: DatasetCounts
    tokens: int
    p_eff: Fraction
    epoch_steps: float  # updates until every one of its windows was drawn once, in expectation; inf at weight 0


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """The datasets of a mixture with their counts and shares."""

    mixture: Mixture
    datasets: tuple[PlannedDataset, ...]

    @property
    def epoch_steps(self) -> int:
        """Return the updates until the slowest dataset was seen once. The others repeat (docs/paper.md)."""
        return math.ceil(max(row.epoch_steps for row in self.datasets if row.p_eff))

    def as_json(self) -> dict[str, Any]:
        datasets = [
            {"name": row.name, "group": row.group}
            | dataclasses.asdict(row.counts)
            | {"tokens": row.tokens, "p_eff": float(row.p_eff), "p_eff_exact": str(row.p_eff)}
            for row in self.datasets
        ]
        keys = ("name", "weight", "episodes", "success")
        return {
            "datasets": datasets,
            "groups": [{key: getattr(group, key) for key in keys} for group in self.mixture.groups],
            "windows": sum(row.counts.windows for row in self.datasets),
            "tokens": sum(row.tokens for row in self.datasets),
            "batch_size": self.mixture.batch_size,
            "window": self.mixture.window,
            "epoch_steps": self.epoch_steps,
        }


def load_mixture(path: str | Path) -> Mixture:
    """Read a mixture file. `[defaults]`, then a group, then a dataset may set any of a dataset's fields."""
    path = Path(path)
    table = read_toml(path, "a mixture")
    try:
        return parse_mixture(table, root=path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_mixture(table: Mapping[str, Any], root: Path = Path()) -> Mixture:
    """Return a mixture from nested tables. Paths in it are relative to `root`."""
    shared, own = _keys(DatasetConfig) - {"name", "path", "more_paths", "counts"}, _keys(DatasetGroup) - {"datasets"}
    general, defaults = _keys(Mixture) - {"groups"}, table.get("defaults", {})
    check_keys(table, general | {"defaults", "groups"}, "the mixture")
    check_keys(defaults, shared, "[defaults]")
    groups = []
    for group in _tables(table, "groups", "the mixture"):
        where = f"group {group.get('name')!r}"
        check_keys(group, own | shared | {"datasets"}, where, required=("name", "weight"))
        inherited = dict(defaults) | {key: group[key] for key in shared & group.keys()}
        datasets = tuple(_parse_dataset(inherited | dict(entry), root) for entry in _tables(group, "datasets", where))
        groups.append(DatasetGroup(datasets=datasets, **_convert(DatasetGroup, group, own)))
    return Mixture(groups=tuple(groups), **_convert(Mixture, table, general))


def plan(mixture: Mixture) -> MixturePlan:
    """Return counts, tokens, P_eff and epoch of every dataset, from disk or as declared."""
    rows = []
    for group in mixture.groups:
        for dataset in group.datasets:
            counts, p_eff = count(dataset, mixture.window), mixture.probabilities[dataset.name]
            draws = float(p_eff * mixture.batch_size)
            rows.append(
                PlannedDataset(
                    name=dataset.name,
                    group=group.name,
                    counts=counts,
                    tokens=counts.tokens(mixture.window),
                    p_eff=p_eff,
                    epoch_steps=counts.windows / draws if draws else math.inf,
                )
            )
    return MixturePlan(mixture=mixture, datasets=tuple(rows))


def count(config: DatasetConfig, window: int) -> DatasetCounts:
    """Return the counts of the episodes that the filters keep, or the declared counts."""
    if config.path is None and config.counts is None:
        raise ValueError(
            f"Dataset {config.name!r}: expected a `path` to episodes on disk or declared `counts`, found neither. Add "
            "counts = { windows = ..., proprio = ..., actions = ... } to plan before the data exists."
        )
    if config.path is None or (config.counts is not None and not Path(config.path).exists()):
        assert config.counts is not None
        return config.counts
    dataset = open_dataset(config.path, config.more_paths)
    kept = config.kept_episodes(dataset)
    index = dataset.index if kept is None else dataset.index[kept]
    known = index["success"][index["success"] >= 0]
    cameras = dataset.spec.cameras if config.cameras is None else config.cameras
    goal_cameras = cameras if config.goal_cameras is None else config.goal_cameras
    goals = {"stored": dataset.spec.goal_cameras, "none": ()}.get(config.goals, goal_cameras)
    return DatasetCounts(
        windows=int((-(-index["length"] // window)).sum()),
        proprio=dataset.spec.state_dim,
        images=len(cameras) + len(goals),
        actions=dataset.spec.action_dim,
        episodes=len(index),
        success=float(known.mean()) if len(known) else None,
    )


def _parse_dataset(entry: Mapping[str, Any], root: Path) -> DatasetConfig:
    where = f"dataset {entry.get('name')!r}"
    check_keys(entry, _keys(DatasetConfig), where, required=("name",))
    fields = _convert(DatasetConfig, entry, _keys(DatasetConfig))
    if isinstance(more := fields.get("more_paths"), tuple):
        if not all(isinstance(path, str) for path in more):
            raise ValueError(f"more_paths of {where}: expected folders, found {list(more)}.")
        fields["more_paths"] = tuple(folder for path in more for folder in _match(path, root, where))
    if isinstance(fields.get("path"), str):
        fields["path"], *matched = _match(fields["path"], root, where)
        fields["more_paths"] = (*matched, *fields.get("more_paths", ()))
    if "counts" in fields:
        counts = rename_counts(fields["counts"])
        check_keys(counts, _keys(DatasetCounts), f"counts of {where}")
        fields["counts"] = DatasetCounts(**_convert(DatasetCounts, counts, _keys(DatasetCounts)))
    return DatasetConfig(**fields)


def _match(name: str, root: Path, where: str) -> list[str]:
    """Return the folders that a path with wildcards matches, in order. A path without wildcards need not exist."""
    path = str(root / Path(name).expanduser())
    if glob.escape(path) == path or Path(path).exists():
        return [path]
    if found := sorted(glob.glob(path)):
        return found
    raise ValueError(f"{path}: expected folders for {where}, found none that match. Make the data, or mend the path.")


def _keys(config: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def _convert(config: type, table: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    """Return TOML values as a config has them: lists become tuples, and 2 becomes 2.0 where a float is expected."""
    hints, converted = typing.get_type_hints(config), {}
    for key in keys & table.keys():
        value = table[key]
        kinds = (hints[key], *typing.get_args(hints[key]))
        if isinstance(value, list):
            value = tuple(float(x) if tuple[float, ...] in kinds and type(x) is int else x for x in value)
        converted[key] = float(value) if float in kinds and type(value) is int else value
    return converted


def _tables(table: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    found = table.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"Expected {key!r} in {where} to be a list of tables, found {found!r}. Add [[{key}]] entries.")
    return found
