"""Mixtures: which datasets a run learns from, how often each is drawn, and how long one epoch is.

A mixture is a TOML file: groups with a weight, datasets in each. A group is drawn by its weight and then one of its
datasets uniformly (the paper's section on data mixtures), so P_eff = lambda / sum(lambda) / datasets in the group.
A dataset that is not on disk may declare its counts, so that a mixture can be planned before the data exists.
`pac.data.sampler` draws the batches.
"""

import dataclasses
import glob
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pac.config import LARGEST_DISCOUNT, check_types, suggest
from pac.data.concat import open_dataset
from pac.data.relabel import select_episodes
from pac.old_names import rename_counts

# The paper's token count of one step: numbers as 8 tokens each, 100 tokens an image, language always as 50.
TOKENS_PER_NUMBER = 8
TOKENS_PER_IMAGE = 100
TOKENS_OF_TEXT = 50


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The size of a dataset, measured on disk or declared in the mixture."""

    windows: int  # windows that hold every step once
    proprio: int = 0  # N^P
    images: int = 0  # cameras and goal images in sight at a step; the paper's N^V / 6400
    actions: int = 0  # N^A
    episodes: int | None = None
    success: float | None = None  # share of the episodes whose source says

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("windows", "proprio", "images", "actions", "episodes"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"Counts.{name}: expected 0 or more, found {getattr(self, name)}.")
        if self.success is not None and not 0 <= self.success <= 1:
            raise ValueError(f"Counts.success: expected a share in [0, 1], found {self.success}.")

    def tokens(self, window: int) -> int:
        """All tokens of all windows, counted as the paper does: inputs unpadded, text padded."""
        numbers = TOKENS_PER_NUMBER * (self.proprio + self.actions)
        return self.windows * window * (numbers + TOKENS_OF_TEXT + TOKENS_PER_IMAGE * self.images)


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """One dataset of a mixture, and how its samples are used."""

    name: str
    path: str | None = None  # folder of the episode store, relative to the mixture file
    more_paths: tuple[str, ...] = ()  # folders of the same kind, read as one with the first: every transition alike
    counts: Counts | None = None  # declared, for a dataset that is not on disk

    imitation_weight: float = 0.75  # alpha: 1 is pure cloning, 0 pure RL
    critic_weight: float | None = None  # beta: weight of the critic's loss; None: its number of action dimensions, as
    # the paper's 38 is of its largest action
    discount: float | None = None  # gamma of its returns; None: the objective's. Robots differ in rate and horizon
    reward: str | None = None  # a stored extra reward column, in place of `next.reward`
    reward_scale: float = 1.0
    instruction: str | None = None  # in place of the stored ones
    success_only: bool = False
    return_quantile: float = 0.0  # keep episodes whose return reaches this quantile of their task's
    goals: Literal["stored", "success", "hindsight", "none"] = (
        "stored"  # "success": last frame of a success at the task
    )
    keep_goal: float = 1.0  # p_tau^V: probability that the goal image is shown
    keep_text: float = 1.0  # p_tau^L: probability that the instruction is shown
    cameras: tuple[str, ...] | None = None  # None: all there are
    goal_cameras: tuple[str, ...] | None = None  # whose frames serve as goals; None: those of `cameras`
    # What inputs are standardised with; None: the dataset's own. Data of one robot in several entries must share them,
    # or the model sees one state in several guises.
    proprio_centre: tuple[float, ...] | None = None
    proprio_scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("imitation_weight", "return_quantile", "keep_goal", "keep_text"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Dataset {self.name!r}: expected {name} in [0, 1], found {getattr(self, name)}.")
        if (self.proprio_centre is None) != (self.proprio_scale is None) or min(self.proprio_scale or (1.0,)) <= 0:
            raise ValueError(
                f"Dataset {self.name!r}: expected proprio_centre and proprio_scale together, and positive scales, "
                f"found {self.proprio_centre} and {self.proprio_scale}."
            )
        if self.critic_weight is not None and self.critic_weight < 0:
            raise ValueError(f"Dataset {self.name!r}: expected critic_weight >= 0, found {self.critic_weight}.")
        if self.discount is not None and not 0 <= self.discount <= LARGEST_DISCOUNT:
            raise ValueError(
                f"Dataset {self.name!r}: expected a discount in [0, 1), found {self.discount}. Leave it out for the "
                "objective's."
            )

    def applied_discount(self, otherwise: float) -> float:
        """Its own, or else the objective's."""
        return otherwise if self.discount is None else self.discount


@dataclass(frozen=True, kw_only=True)
class Group:
    """Datasets that share a weight."""

    name: str
    weight: float  # lambda
    datasets: tuple[DatasetConfig, ...]
    episodes: int | None = None  # declared, where only the group's total is known
    success: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.weight < 0:
            raise ValueError(f"Group {self.name!r}: expected a weight of 0 or more, found {self.weight}.")
        if not self.datasets:
            raise ValueError(
                f"Group {self.name!r}: expected at least one dataset, found none. Add one or drop the group."
            )


@dataclass(frozen=True, kw_only=True)
class Mixture:
    groups: tuple[Group, ...]
    batch_size: int = 512  # windows in an update, over all ranks
    window: int = 5  # observations in a window
    image_size: tuple[int, int] | None = None  # height, width to which pictures are resized; None: they must agree

    def __post_init__(self) -> None:
        check_types(self)
        if self.batch_size < 1 or self.window < 2:
            raise ValueError(
                f"Mixture: expected batch_size >= 1 and window >= 2 (one transition needs two observations), found "
                f"{self.batch_size} and {self.window}."
            )
        if self.image_size is not None and (len(self.image_size) != 2 or min(self.image_size) < 1):
            raise ValueError(f"Mixture.image_size: expected height and width, found {self.image_size}.")
        if not sum(group.weight for group in self.groups) > 0:
            raise ValueError(
                "Mixture: expected at least one group with a positive weight, found "
                f"{[group.weight for group in self.groups]}: nothing would be drawn. Raise a weight."
            )
        names = [dataset.name for dataset in self.datasets]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"Mixture: expected each dataset name once, found {repeated} more often. Rename them.")

    @property
    def datasets(self) -> tuple[DatasetConfig, ...]:
        return tuple(dataset for group in self.groups for dataset in group.datasets)

    @property
    def probabilities(self) -> dict[str, Fraction]:
        """P_eff of every dataset; they sum to 1 exactly."""
        total = sum(_exact(group.weight) for group in self.groups)
        return {
            dataset.name: _exact(group.weight) / total / len(group.datasets)
            for group in self.groups
            for dataset in group.datasets
        }


@dataclass(frozen=True, kw_only=True)
class PlannedDataset:
    name: str
    group: str
    counts: Counts
    tokens: int
    p_eff: Fraction
    epoch_steps: float  # updates until every one of its windows was drawn once, in expectation; inf at weight 0


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """What a mixture will really draw."""

    mixture: Mixture
    datasets: tuple[PlannedDataset, ...]

    @property
    def epoch_steps(self) -> int:
        """Updates until the slowest dataset has been seen once; the others loop (docs/paper.md)."""
        return math.ceil(max(row.epoch_steps for row in self.datasets if row.p_eff))

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"name": row.name, "group": row.group}
            | dataclasses.asdict(row.counts)
            | {"tokens": row.tokens, "p_eff": float(row.p_eff), "p_eff_exact": str(row.p_eff)}
            for row in self.datasets
        ]
        groups = [
            {"name": group.name, "weight": group.weight, "episodes": group.episodes, "success": group.success}
            for group in self.mixture.groups
        ]
        return {
            "datasets": rows,
            "groups": groups,
            "windows": sum(row.counts.windows for row in self.datasets),
            "tokens": sum(row.tokens for row in self.datasets),
            "batch_size": self.mixture.batch_size,
            "window": self.mixture.window,
            "epoch_steps": self.epoch_steps,
        }


def load_mixture(path: str | Path) -> Mixture:
    """Read a mixture file. `[defaults]`, then a group, then a dataset may set any of a dataset's fields."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"Expected a mixture in TOML, found none that can be read at {path}: {error}.") from error
    try:
        return parse_mixture(table, root=path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_mixture(table: Mapping[str, Any], root: Path = Path()) -> Mixture:
    shared = {field.name for field in dataclasses.fields(DatasetConfig)} - {"name", "path", "more_paths", "counts"}
    defaults = table.get("defaults", {})
    general = {"batch_size", "window", "image_size"}
    _check_keys(table, general | {"defaults", "groups"}, "the mixture")
    _check_keys(defaults, shared, "[defaults]")
    groups = []
    for group in _tables(table, "groups", "the mixture"):
        where = f"group {group.get('name')!r}"
        own = {"name", "weight", "episodes", "success"}
        _check_keys(group, own | shared | {"datasets"}, where, required=("name", "weight"))
        inherited = dict(defaults) | {key: value for key, value in group.items() if key in shared}
        datasets = tuple(_parse_dataset(entry, inherited, root) for entry in _tables(group, "datasets", where))
        groups.append(Group(datasets=datasets, **_as_floats(Group, {key: group[key] for key in own & group.keys()})))
    settings: dict[str, Any] = {key: table[key] for key in general & table.keys()}
    if isinstance(settings.get("image_size"), list):
        settings["image_size"] = tuple(settings["image_size"])
    return Mixture(groups=tuple(groups), **settings)


def plan(mixture: Mixture) -> MixturePlan:
    """Counts, tokens, P_eff and epoch of every dataset, read from disk or as declared."""
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


def count(config: DatasetConfig, window: int) -> Counts:
    """The counts of a dataset: what its filters keep on disk, or as declared."""
    if config.path is None and config.counts is None:
        raise ValueError(
            f"Dataset {config.name!r}: expected a `path` to episodes on disk or declared `counts`, found neither. Add "
            "counts = { windows = ..., proprio = ..., actions = ... } to plan before the data exists."
        )
    if config.path is None or (config.counts is not None and not Path(config.path).exists()):
        assert config.counts is not None
        return config.counts
    dataset = open_dataset(config.path, config.more_paths)
    kept = select_episodes(
        dataset, success_only=config.success_only, return_quantile=config.return_quantile, reward=config.reward
    )
    index = dataset.index if kept is None else dataset.index[kept]
    known = index["success"][index["success"] >= 0]
    cameras = dataset.spec.cameras if config.cameras is None else config.cameras
    chosen = cameras if config.goal_cameras is None else config.goal_cameras
    goals = {"stored": dataset.spec.goal_cameras, "none": ()}.get(config.goals, chosen)
    return Counts(
        windows=int((-(-index["length"] // window)).sum()),
        proprio=dataset.spec.state_dim,
        images=len(cameras) + len(goals),
        actions=dataset.spec.action_dim,
        episodes=len(index),
        success=float(known.mean()) if len(known) else None,
    )


def _parse_dataset(entry: Mapping[str, Any], inherited: Mapping[str, Any], root: Path) -> DatasetConfig:
    where = f"dataset {entry.get('name')!r}"
    _check_keys(entry, {field.name for field in dataclasses.fields(DatasetConfig)}, where, required=("name",))
    fields = dict(inherited) | dict(entry)
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    for key in ("proprio_centre", "proprio_scale"):
        if isinstance(fields.get(key), tuple):
            fields[key] = tuple(float(x) if type(x) is int else x for x in fields[key])
    if isinstance(more := fields.get("more_paths"), tuple):
        if not all(isinstance(path, str) for path in more):
            raise ValueError(f"more_paths of {where}: expected folders, found {list(more)}.")
        paths = (str(root / Path(path).expanduser()) for path in more)
        fields["more_paths"] = tuple(folder for path in paths for folder in _match(path, where))
    if isinstance(fields.get("path"), str):
        fields["path"], *matched = _match(str(root / Path(fields["path"]).expanduser()), where)
        if matched:
            fields["more_paths"] = (*matched, *fields.get("more_paths", ()))
    if "counts" in fields:
        fields["counts"] = rename_counts(fields["counts"])
        _check_keys(fields["counts"], {field.name for field in dataclasses.fields(Counts)}, f"counts of {where}")
        fields["counts"] = Counts(**_as_floats(Counts, fields["counts"]))
    return DatasetConfig(**_as_floats(DatasetConfig, fields))


def _match(path: str, where: str) -> list[str]:
    """The folders that a path with wildcards means, in order; a plain one is left alone, there or not."""
    if glob.escape(path) == path or Path(path).exists():
        return [path]
    if found := sorted(glob.glob(path)):
        return found
    raise ValueError(f"{path}: expected folders for {where}, found none that match. Make the data, or mend the path.")


def _as_floats(config: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Whole numbers as floats where the config has floats: TOML's 2 and 2.0 mean the same."""
    hints = typing.get_type_hints(config)
    wanted = {key for key, hint in hints.items() if float in (hint, *typing.get_args(hint))}
    return {key: float(value) if key in wanted and type(value) is int else value for key, value in table.items()}


def _tables(table: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    found = table.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"Expected {key!r} in {where} to be a list of tables, found {found!r}. Add [[{key}]] entries.")
    return found


def _check_keys(table: Any, known: Iterable[str], where: str, required: tuple[str, ...] = ()) -> None:
    if not isinstance(table, Mapping):
        raise ValueError(f"Expected a table for {where}, found {table!r}.")
    for key in table:
        if key not in known:
            raise ValueError(f"Unknown key {key!r} in {where}.{suggest(key, known)}")
    for key in required:
        if key not in table:
            raise ValueError(f"Expected {key!r} in {where}, found {sorted(table)}. Add it.")


def _exact(weight: float) -> Fraction:
    return Fraction(str(weight))  # 0.1 means a tenth, not the nearest double
