"""What a round trains on: the recipe's data, and all that was collected or handed in before, as an ordinary mixture.

All folders of one kind (sizes, cameras, bounds, instructions) are one dataset of the group "collected": its kinds,
which are its tasks, are drawn equally often, and within a task every transition of every round is.
"""

import dataclasses
import math
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.concat import open_part
from pac.data.mixture import DatasetConfig, Mixture
from pac.data.relabel import reward_column
from pac.data.statistics import pool_statistics, scale_of
from pac.data.store import STATE, TERMINATED, Dataset, read_committed, verify
from pac.improve.settings import Recipe
from pac.policy import EmbodimentStats
from pac.recipe import RunConfig
from pac.training.trainer import Trainer

GROUP = "collected"


def collected_groups(recipe: Recipe, folder: Path, paths: Sequence[str]) -> list[dict[str, Any]]:
    """The group of all data of the rounds so far; none while there is no data."""
    kinds: list[tuple[Any, list[str], str]] = []
    for path in paths:
        dataset = open_part(folder / path)
        kind = (dataset.spec, frozenset(dataset.instructions))
        for known, members, _ in kinds:
            if known == kind:
                members.append(path)
                break
        else:
            kinds.append((kind, [path], Path(path).name))
    if not kinds:
        return []
    taken: set[str] = set()
    datasets = []
    for _, members, name in kinds:
        unique = name if name not in taken else f"{name}-{len(taken)}"
        taken.add(unique)
        first, *more = (str((folder / path).resolve()) for path in members)
        datasets.append({"name": f"{GROUP}/{unique}", "path": first, "more_paths": more})
    group: dict[str, Any] = {"name": GROUP, "weight": recipe.improve.weight, "datasets": datasets}
    if recipe.improve.imitation_weight is not None:
        group["imitation_weight"] = recipe.improve.imitation_weight
    return [group]


# ------------------------------------------------------------------------------------------------------- statistics


def share_statistics(mixture: Mixture, known: Sequence[EmbodimentStats]) -> Mixture:
    """Give all data of a robot at a task the same centre and scale: those that `known` checkpoints were trained with,
    else those of all its data together. What the recipe itself says is left alone.
    """
    clusters: list[dict[str, Any]] = []
    for config in mixture.datasets:
        parts = [open_part(path) for path in _paths(config)]
        if config.proprio_centre is not None or not parts or not parts[0].spec.state_dim:
            continue
        sizes = (parts[0].spec.state_dim, parts[0].spec.action_dim)
        texts = _texts(config, parts)
        cluster = next((c for c in clusters if c["sizes"] == sizes and c["texts"] & texts), None)
        if cluster is None:
            cluster = {"sizes": sizes, "texts": set(), "names": [], "statistics": []}
            clusters.append(cluster)
        cluster["texts"] |= texts
        cluster["names"].append(config.name)
        cluster["statistics"] += [part.statistics(STATE) for part in parts if len(part)]
    chosen = {name: _numbers(cluster, known) for cluster in clusters for name in cluster["names"]}
    groups = []
    for group in mixture.groups:
        datasets = tuple(dataclasses.replace(d, **dict[str, Any](chosen.get(d.name, {}))) for d in group.datasets)
        groups.append(dataclasses.replace(group, datasets=datasets))
    return dataclasses.replace(mixture, groups=tuple(groups))


def _numbers(cluster: dict[str, Any], known: Sequence[EmbodimentStats]) -> dict[str, tuple[float, ...]]:
    for robot in known:
        sizes = (len(robot.proprio_centre), len(robot.action_low))
        if sizes == cluster["sizes"] and cluster["texts"] & set(robot.instructions):
            return {"proprio_centre": robot.proprio_centre, "proprio_scale": robot.proprio_scale}
    pooled = pool_statistics(cluster["statistics"])
    found = {"proprio_centre": np.array(pooled["mean"], np.float32), "proprio_scale": scale_of(pooled)}
    return {name: tuple(float(x) for x in values) for name, values in found.items()}


def _paths(config: DatasetConfig) -> list[str]:
    return [] if config.path is None else [config.path, *config.more_paths]


def _texts(config: DatasetConfig, parts: Sequence[Dataset]) -> set[str]:
    told = {text for part in parts for text in part.instructions}
    return told if config.instruction is None else {config.instruction}


# ---------------------------------------------------------------------------------------------------------- rewards


def share_discounts(mixture: Mixture) -> Mixture:
    """Give collected data the discount of the recipe's own data of the same robot at the same task, if there is some: a
    critic cannot tell the two apart.
    """
    if all(config.discount is None for config in mixture.datasets):
        return mixture

    def kind(config: DatasetConfig) -> tuple[tuple[int, int], set[str]]:
        parts = [open_part(path) for path in _paths(config)]
        return (parts[0].spec.state_dim, parts[0].spec.action_dim), _texts(config, parts)

    own = [d for group in mixture.groups if group.name != GROUP for d in group.datasets if d.path is not None]
    known = [(*kind(config), config.discount) for config in own]

    def shared(config: DatasetConfig) -> DatasetConfig:
        sizes, texts = kind(config)
        found = [discount for theirs, told, discount in known if theirs == sizes and told & texts]
        return dataclasses.replace(config, discount=found[0]) if found else config

    groups = (
        dataclasses.replace(group, datasets=tuple(map(shared, group.datasets))) if group.name == GROUP else group
        for group in mixture.groups
    )
    return dataclasses.replace(mixture, groups=tuple(groups))


def choose_reward_scale(config: RunConfig, recipe: Recipe, value_max: float) -> float:
    """One factor on all rewards, chosen before the first update and kept: a value must mean the same in every round,
    while the largest reward seen grows. It leaves room for a reward of 1, or the largest seen if that is more, at every
    step for ever, by the largest discount; or once, where rewards are successes that end the episode.
    """
    if config.objective.reward_scale is not None:
        return config.objective.reward_scale
    datasets = [d for d in config.mixture.datasets if d.path is not None]
    once, largest = True, 1.0
    for entry in datasets:
        for path in _paths(entry):
            dataset = open_part(path)
            reward = np.abs(reward_column(dataset, entry.reward)) * entry.reward_scale
            largest = max(largest, float(reward.max(initial=0.0)))
            once &= not np.any(reward[~dataset.arrays[TERMINATED]])
    own = recipe.table["mixture"].get("defaults", {}).get("reward")
    once &= own == "success" and recipe.improve.stop_at_success
    otherwise = config.objective.discount
    discount = max((entry.applied_discount(otherwise) for entry in datasets), default=otherwise)
    return value_max / largest * (1.0 if once else 1 - discount)


def check_values(run: Trainer) -> list[str]:
    """What to say of rewards whose values do not fit the bins; raises if none would be learned."""
    low, high = run.model_config.value_min, run.model_config.value_max
    scale, notes = float(run.objective.reward_scale or 1.0), []
    bounds = run.sampler.value_bounds(run.config.objective.discount)
    for source, (least, most) in zip(run.sampler.sources, bounds, strict=True):
        name = source.config.name
        if least < 0 <= low:
            raise ValueError(
                f"Dataset {name!r}: expected rewards of 0 or more, as the model's values lie in [{low:g}, {high:g}], "
                "found negative ones. Begin again with model.value_min=-1 and a fitting objective.reward_scale."
            )
        if most * scale > high * (1 + 1e-6) or least * scale < low * (1 + 1e-6):
            notes.append(
                f"{name}: rewards allow values from {least * scale:.3g} to {most * scale:.3g}, the model's end at "
                f"[{low:g}, {high:g}]; what is beyond is cut off. A smaller objective.reward_scale has room for them."
            )
    return notes


# ------------------------------------------------------------------------------------------------------------ inbox


def stamp(path: Path) -> dict[str, int]:
    """What tells a dataset from any other: its sizes, and a checksum over those of its files."""
    committed = read_committed(path)
    sealed = path / "committed.json"
    checksum = zlib.crc32(sealed.read_bytes()) if sealed.exists() else 0
    return {"episodes": committed["episodes"], "rows": committed["rows"], "crc32": checksum}


def check_unchanged(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Raise unless all data of earlier rounds is there as it was: nothing is trained on less than before."""
    for entry in entries:
        path = folder / entry["path"]
        found = stamp(path) if path.is_dir() else "none"
        if found != (before := {key: entry[key] for key in ("episodes", "rows", "crc32")}):
            raise ValueError(
                f"{path}: expected the data that an earlier round trained on, {before}, found {found}. Put it back as "
                "it was, and new episodes into a folder of their own in the inbox."
            )


def read_inbox(folder: Path, inbox: str, known: Collection[str]) -> list[dict[str, Any]]:
    """Datasets in the inbox that no round has used yet; raises if one is not whole."""
    found = []
    for path in sorted((folder / inbox).glob("*")):
        name = f"{inbox}/{path.name}"
        if path.name.startswith(".") or not path.is_dir() or name in known:
            continue
        if problems := verify(path):
            raise ValueError(
                f"{path}: expected a whole dataset, found {problems[0]} Finish copying it, or take it out of the "
                "inbox; then continue with --resume."
            )
        entry = {"path": name, "made_by": "inbox"} | stamp(path)
        if not entry["episodes"]:
            raise ValueError(f"{path}: expected episodes, found none. Take it out of the inbox.")
        found.append(entry)
    return found


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{math.ceil(seconds / 60)} min"
