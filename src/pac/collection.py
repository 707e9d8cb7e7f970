"""`pac collect`: episodes of any task by any behaviour, into the episode store.

A dataset holds episodes 0, 1, 2, ... of one task under one seed, so a second run of the same command goes on at the
first that is missing, and nothing depends on workers, interruptions or crashes. `collect.json` keeps the settings.
"""

import dataclasses
import importlib.metadata
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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import pac
from pac import envs, policy
from pac.config import CollectConfig
from pac.data.store import Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.evaluation.intervals import wilson
from pac.files import write_atomically
from pac.rollout import ActorLike, ActorMix, EpisodeResult, Job, rollout

SETTINGS_FILE = "collect.json"
log = logging.getLogger("pac.collection")


@dataclass(frozen=True, kw_only=True)
class CollectionSettings:
    """What decides the episodes of a dataset, apart from their number."""

    task: str
    behaviours: tuple[str, ...]  # specs, or paths of checkpoints
    weights: tuple[float, ...]
    seed: int
    cameras: tuple[str, ...] = ()
    max_steps: int | None = None
    stop_at_success: bool = False

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return table

    def command(self) -> str:
        """What to type for these episodes; how many, where to and with how many workers is for the reader to add."""
        words = ["pac", "collect", self.task, "--seed", str(self.seed)]
        for name, weight in zip(self.behaviours, self.weights, strict=True):
            words += ["--behaviour", name if weight == 1 else f"{name}@{weight:g}"]
        words += ["--cameras", *self.cameras] if self.cameras else []
        words += [] if self.max_steps is None else ["--max-steps", str(self.max_steps)]
        return shlex.join(words + ["--stop-at-success"] * self.stop_at_success)


class CollectionFolder:
    """The dataset of one task, which appears with its first episode."""

    def __init__(self, path: Path, settings: CollectionSettings) -> None:
        self.path, self.settings = path, settings
        self.writer: DatasetWriter | None = None
        self.num_before = self._find()

    def append(self, trial: EpisodeResult) -> None:
        if self.writer is None:
            self.writer = DatasetWriter(self.path, dataset_spec(trial))
            if (found := self.writer.num_episodes) != self.num_before:
                raise ValueError(
                    f"{self.path}: expected {self.num_before} episodes, as at the start, found {found}: another "
                    "process collected here meanwhile. Repeat the command to go on from there."
                )
            if not (self.path / SETTINGS_FILE).exists():
                write_atomically(self.path / SETTINGS_FILE, self._record())
        self.writer.append(trial.episode)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _record(self) -> bytes:
        settings = self.settings
        table = {"command": settings.command(), "settings": settings.to_json(), "versions": _versions()}
        return json.dumps(table, indent=2).encode() + b"\n"

    def _find(self) -> int:
        """How many episodes are there already, once it is sure that they are of the same kind."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return 0
        if not (self.path / "spec.json").is_file():
            raise ValueError(f"{self.path}: expected a dataset or a new folder, found other files. Name another --out.")
        dataset = Dataset(self.path)
        file = self.path / SETTINGS_FILE
        if not file.is_file():
            if len(dataset):
                raise ValueError(
                    f"{self.path}: expected a dataset made by `pac collect`, found {len(dataset)} episodes and no "
                    f"{SETTINGS_FILE}. Name another --out, and mix the two in a mixture file."
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
            found, versions = record["settings"], dict(record["versions"])
            wanted = self.settings.to_json()
            differing = [name for name in wanted if found[name] != wanted[name]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: expected the settings of a collection, found {error!r}. Restore it.") from error
        if differing:
            text = "; ".join(f"{name} {found[name]!r}, now {wanted[name]!r}" for name in differing)
            raise ValueError(
                f"{self.path}: expected the settings this dataset was begun with, found {text}. Repeat the first "
                "command to go on, or name another --out."
            )
        if versions != _versions():
            log.warning("%s was begun with %s; going on with %s.", self.path, versions, _versions())


def dataset_spec(trial: EpisodeResult) -> DatasetSpec:
    """The spec of a dataset that begins with this trial."""
    low, high = trial.spec.action_low, trial.spec.action_high
    bounded = all(map(math.isfinite, (*low, *high)))
    bounds = {"action_low": low, "action_high": high} if bounded else {}
    return DatasetSpec.of(trial.episode, control_rate=trial.spec.control_rate, **bounds)


def collect(
    folders: Sequence[CollectionFolder],
    actor: ActorLike,
    episodes: int,
    *,
    console: Console | None = None,
    **options: Any,
) -> int:
    """Fill every folder up to `episodes`; `options` are those of `rollout`. Returns how many were begun again."""
    by_task = {folder.settings.task: folder for folder in folders}
    first = folders[0].settings
    jobs = [Job(t, f.settings.seed, i) for t, f in by_task.items() for i in range(f.num_before, episodes)]
    setup = {name: getattr(first, name) for name in ("cameras", "max_steps", "stop_at_success")}
    trials = rollout(actor, jobs, **setup, **options)
    redone = 0
    with ExitStack() as stack:
        for folder in folders:
            stack.callback(folder.close)
        stack.callback(trials.close)  # type: ignore[attr-defined]
        progress = stack.enter_context(_progress(console))
        bars = {
            task: progress.add_task(escape(task), total=episodes, completed=min(folder.num_before, episodes))
            for task, folder in by_task.items()
        }
        for trial in trials:
            by_task[trial.task].append(trial)
            progress.advance(bars[trial.task])
            redone += trial.restarts
    return redone


def collect_data(config: CollectConfig, folder: Path, console: Console, workers: int | None = None) -> None:
    """Collect the episodes of a recipe's [collect] that are missing in `folder`."""
    actor, names, weights = load_actors([config.behaviour])
    same: dict[str, Any] = {"behaviours": names, "weights": weights, "seed": config.seed, "max_steps": config.max_steps}
    same |= {"stop_at_success": config.stop_at_success, "cameras": config.cameras or ()}
    folders = [
        CollectionFolder(folder / folder_name(task), CollectionSettings(task=task, **same)) for task in config.tasks
    ]
    if all(place.num_before >= config.episodes for place in folders):
        return
    console.print(f"Collecting {config.episodes} episodes each of {', '.join(config.tasks)} with {config.behaviour}.")
    collect(folders, actor, config.episodes, console=console, workers=config.workers if workers is None else workers)
    for place in folders:
        console.print(summary(place.path), soft_wrap=True, markup=False, highlight=False)


def load_actors(texts: Sequence[str]) -> tuple[ActorLike, tuple[str, ...], tuple[float, ...]]:
    """`["scripted@0.7", "runs/a/checkpoints/100"]` -> who acts, with names and weights."""
    names, weights = [], []
    for text in texts:
        name, _, weight = text.rpartition("@")
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
    """What a dataset holds now: one line."""
    dataset = Dataset(path)
    index = dataset.index
    known = index["success"][index["success"] >= 0]
    low, high = wilson(int(known.sum()), len(known))
    success = f"success {100 * known.mean():.1f}% [{100 * low:.1f}, {100 * high:.1f}], " if len(known) else ""
    tenth, median, ninetieth = np.quantile(index["return"], (0.1, 0.5, 0.9))
    returns = f"return {index['return'].mean():.4g} (10% {tenth:.4g}, 50% {median:.4g}, 90% {ninetieth:.4g})"
    return f"{path}: {len(dataset)} episodes, {dataset.num_steps} steps, {success}{returns}"


def _progress(console: Console | None) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    off = console is None or not console.is_terminal
    return Progress(TextColumn("{task.description}"), *columns, console=console, disable=off, transient=True)


def _versions() -> dict[str, str]:
    """Of what decides a return; the same seed gives slightly different ones on another simulator."""
    found = {"pac": pac.__version__}
    for name in ("gymnasium", "mujoco", "dm_control", "metaworld"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
