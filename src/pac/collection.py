"""Collection: episodes of any task by any actor, written to the episode store.

A dataset holds episodes 0, 1, 2, ... of one task under one seed. So a second call continues at the first missing
episode. Workers, interruptions and crashes change no byte. `collect.json` keeps the settings.
"""

import dataclasses
import json
import logging
import math
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

import pac
from pac import envs, policy
from pac.config import CollectConfig
from pac.data.store import Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.evaluation.intervals import wilson
from pac.evaluation.runner import cameras_of
from pac.files import problem, progress_bar, versions, write_json
from pac.old_names import rename_behaviour
from pac.rollout import ActorLike, ActorMix, EpisodeResult, Job, rollout

SETTINGS_FILE = "collect.json"
log = logging.getLogger("pac.collection")


@dataclass(frozen=True, kw_only=True)
class CollectionSettings:
    """Settings that determine the episodes of a dataset, except their number."""

    task: str
    behaviours: tuple[str, ...]  # specs, or paths of checkpoints
    weights: tuple[float, ...]
    seed: int
    cameras: tuple[str, ...] = ()
    max_steps: int | None = None
    stop_at_success: bool = False
    any_instruction: bool = False  # a policy does not refuse an instruction that it does not know

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return table

    def command(self) -> str:
        """Return the command for these episodes, without their number, --out and --workers."""
        words = ["pac", "collect", self.task, "--seed", str(self.seed)]
        for name, weight in zip(self.behaviours, self.weights, strict=True):
            words += ["--behaviour", name if weight == 1 else f"{name}@{weight:g}"]
        words += ["--cameras", *self.cameras] if self.cameras else []
        words += [] if self.max_steps is None else ["--max-steps", str(self.max_steps)]
        words += ["--any-instruction"] if self.any_instruction else []
        return shlex.join(words + ["--stop-at-success"] * self.stop_at_success)


class CollectionFolder:
    """The folder for the dataset of one task. The dataset is created with its first episode."""

    def __init__(self, path: Path, settings: CollectionSettings) -> None:
        self.path, self.settings = path, settings
        self.writer: DatasetWriter | None = None
        self.num_before = self._count_episodes()

    def append(self, result: EpisodeResult) -> None:
        if self.writer is None:
            self.writer = DatasetWriter(self.path, dataset_spec(result))
            if (found := self.writer.num_episodes) != self.num_before:
                raise problem(
                    self.path,
                    expected=f"{self.num_before} episodes, as at the start",
                    found=f"{found}, because another process collected into this folder",
                    fix="Repeat the command to continue from there.",
                )
            if not (self.path / SETTINGS_FILE).exists():
                settings = self.settings
                record = {"command": settings.command(), "settings": settings.to_json(), "versions": _versions()}
                write_json(self.path / SETTINGS_FILE, record)
        self.writer.append(result.episode)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _count_episodes(self) -> int:
        """Return the number of episodes in the folder. Raise if they were collected with other settings."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return 0
        if not (self.path / "spec.json").is_file():
            raise ValueError(
                f"{self.path}: expected a dataset or a new folder, found other files. Choose another --out."
            )
        dataset = Dataset(self.path)
        file = self.path / SETTINGS_FILE
        if not file.is_file():
            if len(dataset):
                raise ValueError(
                    f"{self.path}: expected a dataset made by `pac collect`, found {len(dataset)} episodes and no "
                    f"{SETTINGS_FILE}. Choose another --out, and combine both in a mixture."
                )
            return 0
        self._compare(file)
        job = self.settings
        seeds = [envs.episode_seed(job.task, job.seed, i) for i in range(len(dataset))]
        if list(dataset.index["seed"]) != seeds:
            raise ValueError(
                f"{self.path}: expected episodes 0 to {len(dataset) - 1} of {job.task}, seed {job.seed}, found others "
                "among them. Collect into a folder of its own."
            )
        return len(dataset)

    def _compare(self, file: Path) -> None:
        try:
            record = json.loads(file.read_text())
            found, before = {"any_instruction": False, **record["settings"]}, dict(record["versions"])
            found["behaviours"] = list(map(rename_behaviour, found["behaviours"]))
            expected = self.settings.to_json() | {"behaviours": list(map(rename_behaviour, self.settings.behaviours))}
            differing = [name for name in expected if found[name] != expected[name]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: expected the settings of a collection, found {error!r}. Restore it.") from error
        if differing:
            changes = "; ".join(f"{name} {found[name]!r} before, {expected[name]!r} now" for name in differing)
            raise ValueError(
                f"{self.path}: expected the settings of the earlier episodes, found {changes}. Repeat the first "
                "command to continue, or choose another --out."
            )
        if before != (now := _versions()):
            log.warning("%s: earlier episodes were collected with %s, new ones with %s.", self.path, before, now)


def dataset_spec(result: EpisodeResult) -> DatasetSpec:
    """Return the spec of a dataset with episodes like this one."""
    low, high = result.spec.action_low, result.spec.action_high
    bounded = all(map(math.isfinite, (*low, *high)))
    bounds = {"action_low": low, "action_high": high} if bounded else {}
    known = {"control_rate": result.spec.control_rate, "state_names": result.spec.state_names}
    return DatasetSpec.of(result.episode, **known, **bounds)


def collect(
    folders: Sequence[CollectionFolder],
    actor: ActorLike,
    episodes: int,
    *,
    console: Console | None = None,
    **options: Any,
) -> int:
    """Collect the missing ones of the first `episodes` episodes for every folder.

    `options` are those of `rollout`. Return the number of episodes that started again because a worker was lost.
    """
    by_task = {folder.settings.task: folder for folder in folders}
    first = folders[0].settings
    jobs = [Job(t, f.settings.seed, i) for t, f in by_task.items() for i in range(f.num_before, episodes)]
    limits: dict[str, Any] = {
        name: getattr(first, name) for name in ("max_steps", "stop_at_success", "any_instruction")
    }
    cameras = {task: folder.settings.cameras for task, folder in by_task.items()}
    results = rollout(actor, jobs, cameras=cameras, **limits, **options)
    restarts = 0
    with ExitStack() as stack:
        for folder in folders:
            stack.callback(folder.close)
        stack.callback(results.close)  # type: ignore[attr-defined]
        progress = stack.enter_context(progress_bar(console))
        bars = {
            task: progress.add_task(escape(task), total=episodes, completed=min(folder.num_before, episodes))
            for task, folder in by_task.items()
        }
        for result in results:
            by_task[result.task].append(result)
            progress.advance(bars[result.task])
            restarts += result.restarts
    return restarts


def collect_data(config: CollectConfig, folder: Path, console: Console, workers: int | None = None) -> None:
    """Collect the episodes of a recipe's [collect] that are missing in `folder`."""
    actor, names, weights = load_actors([config.behaviour])
    same: dict[str, Any] = {"behaviours": names, "weights": weights, "seed": config.seed, "max_steps": config.max_steps}
    same |= {"stop_at_success": config.stop_at_success}
    cameras = cameras_of(actor, config.tasks, config.max_steps)
    folders = [
        CollectionFolder(
            folder / folder_name(task), CollectionSettings(task=task, cameras=config.cameras or cameras[task], **same)
        )
        for task in config.tasks
    ]
    if all(place.num_before >= config.episodes for place in folders):
        return
    console.print(f"Collecting {config.episodes} episodes each of {', '.join(config.tasks)} with {config.behaviour}.")
    collect(folders, actor, config.episodes, console=console, workers=config.workers if workers is None else workers)
    for place in folders:
        console.print(summary(place.path), soft_wrap=True, markup=False, highlight=False)


def load_actors(texts: Sequence[str]) -> tuple[ActorLike, tuple[str, ...], tuple[float, ...]]:
    """Return the actor that texts such as "scripted@0.7" or "runs/a" name, with all names and weights."""
    names, weights = [], []
    for text in texts:
        name, _, weight = ("", "", text) if Path(text).is_dir() else text.rpartition("@")
        try:
            weights.append(float(weight) if name else 1.0)
            names.append(name or text)
        except ValueError:
            weights.append(1.0)
            names.append(text)
    loaded = tuple(policy.load(name) if Path(name).is_dir() else name for name in names)
    mix = ActorMix(loaded, tuple(weights))
    return (loaded[0] if len(loaded) == 1 else mix), tuple(names), tuple(weights)


def folder_name(task: str) -> str:
    return task.replace("/", "-").replace(":", "-")


def summary(path: Path) -> str:
    """Return one line about a dataset: its size, success and returns."""
    dataset = Dataset(path)
    index = dataset.index
    known = index["success"][index["success"] >= 0]
    low, high = wilson(int(known.sum()), len(known))
    success = f"success {100 * known.mean():.1f}% [{100 * low:.1f}, {100 * high:.1f}], " if len(known) else ""
    tenth, median, ninetieth = np.quantile(index["return"], (0.1, 0.5, 0.9))
    returns = f"return {index['return'].mean():.4g} (10% {tenth:.4g}, 50% {median:.4g}, 90% {ninetieth:.4g})"
    return f"{path}: {len(dataset)} episodes, {dataset.num_steps} steps, {success}{returns}"


def _versions() -> dict[str, str]:
    """Return the versions that may change a return, although the seed is the same."""
    installed = versions(("gymnasium", "mujoco", "dm_control", "metaworld"))
    return {"pac": pac.__version__} | {name: version for name, version in installed.items() if version is not None}
