"""The training run of a round: the recipe's data, and everything that was collected or handed in so far.

Datasets with the same sizes, cameras, bounds and instructions are joined to one dataset of the group "collected". So
each task of the group is sampled equally often, and so is each transition of a task, whatever its round.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.concat import open_part
from pac.data.mixture import DatasetConfig, Mixture
from pac.data.relabel import label
from pac.data.statistics import pool_statistics, scale_of
from pac.data.store import STATE, Dataset
from pac.improve.folder import ImproveFolder, Round
from pac.improve.settings import MOST_ROUNDS, Recipe
from pac.model.pretrained import load_config
from pac.policy import EmbodimentStats, PolicyMetadata
from pac.recipe import RunConfig
from pac.training.trainer import Trainer

GROUP = "collected"


def round_config(recipe: Recipe, folder: ImproveFolder, entry: Round) -> RunConfig:
    """Return the training run of a round, with one reward scale for all rounds.

    Its learning rate stays at the peak, since nobody knows how many rounds follow.
    """
    plain, improve, start = recipe.plain(), recipe.improve, None if entry.start is None else folder.place(entry.start)
    known: Sequence[EmbodimentStats] = ()
    if start is not None and improve.statistics == "first":
        known = PolicyMetadata.from_json(load_config(start), start).embodiments
    paths = [part.path for part in (*folder.earlier_data(entry.round), *(entry.data or ()))]
    config = recipe.config(
        collected_groups(recipe, folder.path, paths),
        seed=plain.seed * MOST_ROUNDS + entry.round,
        start=None if start is None else str(start),
        length=improve.steps if entry.round else improve.first_steps or improve.steps,
        optimiser=dataclasses.replace(plain.optimiser, decay="constant"),
        checkpoint=dataclasses.replace(plain.checkpoint, keep_last=1, keep_every=None),
        evaluation=dataclasses.replace(plain.evaluation, tasks=()),
    )
    config = dataclasses.replace(config, mixture=share_discounts(share_statistics(config.mixture, known)))
    scale = entry.reward_scale
    if scale is None and entry.round:
        first = folder.read_round(0)
        scale = None if first is None else first.reward_scale
    if scale is None:
        model = None if start is None else load_config(start)["model"]
        value_max = model.value_max if model is not None else float(plain.model_fields.get("value_max", 1.0))
        scale = choose_reward_scale(config, recipe, value_max)
    return dataclasses.replace(config, objective=dataclasses.replace(config.objective, reward_scale=scale))


def collected_groups(recipe: Recipe, folder: Path, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mixture group of all data of the rounds so far. The list is empty while there is no data."""
    kinds: list[tuple[Any, list[str]]] = []
    for path in paths:
        dataset = open_part(folder / path)
        kind = (dataset.spec, frozenset(dataset.instructions))
        same = next((members for other, members in kinds if other == kind), None)
        same.append(path) if same is not None else kinds.append((kind, [path]))
    if not kinds:
        return []
    datasets: dict[str, dict[str, Any]] = {}
    for _, members in kinds:
        name = Path(members[0]).name
        unique = name if name not in datasets else f"{name}-{len(datasets)}"
        first, *more = (str((folder / path).resolve()) for path in members)
        datasets[unique] = {"name": f"{GROUP}/{unique}", "path": first, "more_paths": more}
    group: dict[str, Any] = {"name": GROUP, "weight": recipe.improve.weight, "datasets": [*datasets.values()]}
    if recipe.improve.imitation_weight is not None:
        group["imitation_weight"] = recipe.improve.imitation_weight
    return [group]


# ------------------------------------------------------------------------------------------------- shared settings


@dataclass(eq=False)
class RobotTask:
    """Datasets of one robot at one task: equal sizes of state and action, and an instruction in common."""

    sizes: tuple[int, int]
    instructions: set[str]
    parts: list[Dataset]

    @classmethod
    def of(cls, config: DatasetConfig) -> "RobotTask":
        parts = [open_part(path) for path in _paths(config)]
        texts = {text for part in parts for text in part.instructions}
        texts = texts if config.instruction is None else {config.instruction}
        return cls((parts[0].spec.state_dim, parts[0].spec.action_dim), texts, parts)

    def matches(self, other: "RobotTask") -> bool:
        return self.sizes == other.sizes and bool(self.instructions & other.instructions)

    def statistics(self, known: Sequence[EmbodimentStats]) -> dict[str, tuple[float, ...]]:
        """Return the centre and scale of a known embodiment that matches, or else of all data pooled."""
        for robot in known:
            sizes = (len(robot.proprio_centre), len(robot.action_low))
            if sizes == self.sizes and self.instructions & set(robot.instructions):
                return {"proprio_centre": robot.proprio_centre, "proprio_scale": robot.proprio_scale}
        pooled = pool_statistics([part.statistics(STATE) for part in self.parts if len(part)])
        found = {"proprio_centre": np.array(pooled["mean"], np.float32), "proprio_scale": scale_of(pooled)}
        return {name: tuple(float(x) for x in values) for name, values in found.items()}


def share_statistics(mixture: Mixture, known: Sequence[EmbodimentStats]) -> Mixture:
    """Return the mixture with one centre and scale for all data of a robot at a task.

    They are those of `known` checkpoints, or else of all this data pooled. Values in the recipe are kept.
    """
    tasks: list[RobotTask] = []
    task_of: dict[str, int] = {}
    for config in mixture.datasets:
        if config.path is None or config.proprio_centre is not None:
            continue
        task = RobotTask.of(config)
        if not task.sizes[0]:
            continue
        index = next((i for i, other in enumerate(tasks) if other.matches(task)), len(tasks))
        if index == len(tasks):
            tasks.append(task)
        else:
            tasks[index].instructions |= task.instructions
            tasks[index].parts += task.parts
        task_of[config.name] = index
    statistics: list[dict[str, Any]] = [task.statistics(known) for task in tasks]

    def change(group: str, config: DatasetConfig) -> DatasetConfig:
        index = task_of.get(config.name)
        return config if index is None else dataclasses.replace(config, **statistics[index])

    return _change_datasets(mixture, change)


def share_discounts(mixture: Mixture) -> Mixture:
    """Return the mixture with the discount of the recipe's own data on collected data of the same robot and task.

    The critic cannot tell the two apart.
    """
    if all(config.discount is None for config in mixture.datasets):
        return mixture
    own = [d for group in mixture.groups if group.name != GROUP for d in group.datasets if d.path is not None]
    known = [(RobotTask.of(config), config.discount) for config in own]

    def change(group: str, config: DatasetConfig) -> DatasetConfig:
        if group != GROUP:
            return config
        task = RobotTask.of(config)
        return dataclasses.replace(config, discount=next((d for k, d in known if k.matches(task)), config.discount))

    return _change_datasets(mixture, change)


def _change_datasets(mixture: Mixture, change: Callable[[str, DatasetConfig], DatasetConfig]) -> Mixture:
    """Return the mixture with `change(name of the group, dataset)` in place of each dataset."""
    groups = [
        dataclasses.replace(group, datasets=tuple(change(group.name, config) for config in group.datasets))
        for group in mixture.groups
    ]
    return dataclasses.replace(mixture, groups=tuple(groups))


def _paths(config: DatasetConfig) -> list[str]:
    return [] if config.path is None else [config.path, *config.more_paths]


def choose_reward_scale(config: RunConfig, recipe: Recipe, value_max: float) -> float:
    """Return one factor on all rewards, chosen before the first update and kept for all rounds.

    A value must mean the same in every round, while the largest reward seen grows. The factor leaves room for a reward
    of 1 (or the largest seen, if that is more) at every step for ever, with the largest discount. Where rewards are
    successes that end the episode, it leaves room for one.
    """
    if config.objective.reward_scale is not None:
        return config.objective.reward_scale
    datasets = [d for d in config.mixture.datasets if d.path is not None]
    once, largest = True, 1.0
    for entry in datasets:
        for path in _paths(entry):
            labels = label(open_part(path), entry.reward)
            reward = np.abs(labels.reward) * entry.reward_scale
            largest = max(largest, float(reward.max(initial=0.0)))
            once &= not np.any(reward[~labels.terminated])
    own = recipe.table["mixture"].get("defaults", {}).get("reward")
    once &= own == "sparse-success" or (own == "success" and recipe.improve.stop_at_success)
    otherwise = config.objective.discount
    discount = max((entry.applied_discount(otherwise) for entry in datasets), default=otherwise)
    return value_max / largest * (1.0 if once else 1 - discount)


def check_values(run: Trainer) -> list[str]:
    """Return warnings about values that lie outside the bins. Raise if values could not be learned at all."""
    low, high = run.model_config.value_min, run.model_config.value_max
    notes = []
    for source in run.sampler.sources:
        least, most = source.value_bounds()
        name = source.config.name
        scale = run.sampler.value_scales[name]
        if least < 0 <= low:
            raise ValueError(
                f"Dataset {name!r}: expected rewards of 0 or more, as the model's values lie in [{low:g}, {high:g}], "
                "found negative ones. Begin again with model.value_min=-1 and an objective.reward_scale that fits."
            )
        if most * scale > high * (1 + 1e-6) or least * scale < low * (1 + 1e-6):
            notes.append(
                f"{name}: rewards allow values from {least * scale:.3g} to {most * scale:.3g}, but the model's lie in "
                f"[{low:g}, {high:g}]. Values beyond are clipped. A smaller objective.reward_scale has room for them."
            )
    return notes
