"""The success of the data that a study learns from: one number per row and task, and a column of its tables.

Poor data should succeed in 10 to 40% of its episodes. With fewer successes there is little to learn. With more,
cloning is right by construction, and says nothing about RL.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pac.collection import folder_name
from pac.data.mixture import DatasetConfig, count
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.summary import best, summarise
from pac.evaluation.tables import METRICS, Cell, Grid, show
from pac.study.folder import StudyFolder
from pac.study.plan import StudyRun
from pac.training.run_dir import CONFIG

LOWEST, HIGHEST = 0.1, 0.4  # success of poor data
COLUMN = "data"


@dataclass(frozen=True, kw_only=True)
class DataQuality:
    """The episodes of a task that a row of a study learns from."""

    episodes: int
    success: float
    poor: bool  # the study calls them poor (`study.poor`)

    @property
    def is_marked(self) -> bool:
        """Whether the episodes are called poor and succeed too seldom or too often for that."""
        return self.poor and not LOWEST <= round(self.success, 6) <= HIGHEST

    def show(self) -> str:
        text = f"{100 * self.success:.1f}"
        return f"({text})" if self.is_marked else text


Qualities = Mapping[str, Mapping[str, DataQuality]]  # row -> task -> quality


def data_quality(folder: StudyFolder) -> dict[str, dict[str, DataQuality]]:
    """Return the success of the data by row and task. Data that does not tell its success is left out."""
    found: dict[str, dict[str, DataQuality]] = {}
    measured: dict[tuple[Any, ...], tuple[int, float] | None] = {}
    for run in folder.evaluated_runs:
        for task in run.config.evaluation.tasks:
            parts = list[tuple[int, float]]()
            datasets = [entry for entry in run.config.mixture.datasets if _is_of_task(entry, task)]
            for entry in datasets:
                key = (entry.path, entry.more_paths, entry.counts)
                if measured.get(key) is None:
                    measured[key] = _measure(folder, run, entry)
                if part := measured[key]:
                    parts.append(part)
            if episodes := sum(number for number, _ in parts):
                share = sum(number * success for number, success in parts) / episodes
                quality = DataQuality(episodes=episodes, success=share, poor=any(_is_poor(folder, e) for e in datasets))
                for row, _ in run.labels.values():
                    found.setdefault(row, {})[task] = quality
    return found


def _is_of_task(entry: DatasetConfig, task: str) -> bool:
    """Return whether a dataset lies in a folder that `pac collect` names after the task."""
    return entry.path is not None and Path(entry.path).name == folder_name(task)


def _is_poor(folder: StudyFolder, entry: DatasetConfig) -> bool:
    """Return whether a dataset is of a collection that the study calls poor."""
    parents = Path(entry.path or "").resolve().parents
    return any((folder.data / name).resolve() in parents for name in folder.study.config.poor)


def _measure(folder: StudyFolder, run: StudyRun, entry: DatasetConfig) -> tuple[int, float] | None:
    """Return episodes and success of a dataset before any filter.

    Where the data is gone, the run's own record serves, unless the run filtered the episodes.
    """
    if all(Path(path).exists() for path in (entry.path or "", *entry.more_paths)):
        counts = count(dataclasses.replace(entry, success_only=False, return_quantile=0.0), run.config.mixture.window)
        return None if counts.success is None or not counts.episodes else (counts.episodes, counts.success)
    config = folder.run_path(run) / CONFIG
    if not config.exists() or entry.success_only or entry.return_quantile > 0:
        return None
    for known in json.loads(config.read_text()).get("mixture", {}).get("datasets", []):
        if known["name"] == entry.name and known.get("success") is not None:
            return int(known["episodes"]), float(known["success"])
    return None


def as_json(qualities: Qualities) -> dict[str, dict[str, Any]]:
    return {row: {task: dataclasses.asdict(q) for task, q in tasks.items()} for row, tasks in qualities.items()}


def from_json(content: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, DataQuality]]:
    return {row: {task: DataQuality(**q) for task, q in tasks.items()} for row, tasks in content.items()}


def with_data(grid: Grid, qualities: Qualities) -> Grid:
    """Return a table of success with a column for the data's success. Rows that differ in it are divided by slashes."""
    if not qualities or METRICS["success"][0] not in grid.title or grid.header[0] != "task":
        return grid
    actors, everything = grid.header[grid.stub :], [line[0][0] for line in grid.rows[: len(grid.rows) - grid.pooled]]
    lines = list[list[Cell]]()
    for line in grid.rows:
        tasks = everything if line[0][0].startswith("pooled") else [line[0][0]]
        cell = show_share(dict.fromkeys(actors, tasks), qualities), False
        lines.append([*line[: grid.stub], cell, *line[grid.stub :]])
    header = [*grid.header[: grid.stub], COLUMN, *actors]
    return dataclasses.replace(grid, header=header, rows=lines, stub=grid.stub + 1)


def show_share(tasks: Mapping[str, Sequence[str]], qualities: Qualities) -> str:
    """Return the data's success over the tasks of each row, where it is known for all of them."""
    shown = dict[str, None]()
    for row, names in tasks.items():
        known = [qualities.get(row, {}).get(name) for name in names]
        parts = [quality for quality in known if quality is not None]
        if parts and len(parts) == len(known):
            episodes = sum(part.episodes for part in parts)
            share = f"{100 * sum(part.episodes * part.success for part in parts) / episodes:.1f}"
            shown[parts[0].show() if len(parts) == 1 else share] = None
    return " / ".join(shown) or "-"


def notes(qualities: Qualities) -> list[str]:
    """Return a note on poor data that succeeds too seldom or too often."""
    marked = sorted({task for tasks in qualities.values() for task, quality in tasks.items() if quality.is_marked})
    if not marked:
        return []
    limits = f"{100 * LOWEST:.0f} to {100 * HIGHEST:.0f}%"
    return [
        f"Poor data should succeed in {limits} of its episodes. In parentheses: data outside these limits "
        f"({', '.join(marked)}). Claims about poor data leave these tasks out."
    ]


def pool_poor(grid: Grid, groups: Mapping[str, Sequence[EpisodeRecord]], qualities: Qualities) -> Grid:
    """Return a table of success with one more line where data is marked: it pools the tasks whose data is poor.

    `groups` holds the episodes of each row.
    """
    if COLUMN not in grid.header or not notes(qualities):
        return grid
    actors = grid.header[grid.stub :]
    known = {row: {task for task, q in qualities.get(row, {}).items() if q.poor and not q.is_marked} for row in actors}
    kept = {row: [entry for entry in groups.get(row, ()) if entry.task in known[row]] for row in actors}
    poor = {row: list(dict.fromkeys(entry.task for entry in entries)) for row, entries in kept.items() if entries}
    found = {row: summarise(kept[row]).overall for row in poor}
    if not found:
        return grid
    tasks, episodes = (_several(getattr(row, name) for row in found.values()) for name in ("tasks", "episodes"))
    share = show_share(poor, qualities)
    estimates = {row: found[row].success if row in found else None for row in actors}
    top = best(estimates)
    head = [(text, False) for text in (f"pooled, {tasks} with poor data", episodes, share)]
    line = [*head, *((show(estimate, 100.0), row in top) for row, estimate in estimates.items())]
    return dataclasses.replace(grid, rows=[*grid.rows, line], pooled=grid.pooled + 1)


def _several(numbers: Iterable[int]) -> str:
    return "/".join(f"{number:,}" for number in sorted(set(numbers)))
