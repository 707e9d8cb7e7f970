"""The sources of a report, read from disk: runs, evaluations and improvements.

A source that is damaged or unfinished is read as far as it goes, with a note.
"""

import dataclasses
import glob
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pac.evaluation.records import EpisodeRecord, partial_path, read_evaluation
from pac.evaluation.video import file_name
from pac.files import problem
from pac.improve.folder import IMPROVE, FinishedRound
from pac.old_names import rename_run_config
from pac.training.run_dir import CONFIG

EXPECTED = (
    "the folder of a run (`pac train`, with config.json), the JSON of an evaluation (`pac evaluate --json`) or the "
    "folder of an improvement (`pac improve`, with improve.json)"
)
FIX = "Check the path. Put quotes around a pattern such as 'PAC=runs/pac-*'."
VALUE = "Value of the first action"
VIDEO_TYPES = {".mp4": "video/mp4", ".gif": "image/gif", ".webp": "image/webp"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """What runs, evaluations and improvements have in common."""

    name: str  # the path as the user wrote it
    label: str | None = None  # given by the user; sources of one label are pooled
    path: Path | None = None  # None: made in memory
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # shown as JSON; of a run, the whole config.json
    command: str | None = None  # that made it

    @property
    def row(self) -> str:
        """The name in tables and legends."""
        return self.label or self.name


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """A metric at rising steps. NaN where the run logged no number."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedRun(Source):
    """The folder of a run."""

    curves: Mapping[str, Curve] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe. It is empty if config.json is damaged."""
        return dict(self.settings.get("config", {}))

    @property
    def seed(self) -> int | None:
        return self.recipe.get("seed")

    @property
    def last_step(self) -> int:
        return max((int(curve.steps[-1]) for curve in self.curves.values()), default=0)

    @property
    def datasets(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Each dataset of the recipe's mixture with its group, by name."""
        groups = self.recipe.get("mixture", {}).get("groups", [])
        return {dataset["name"]: (dataset, group) for group in groups for dataset in group["datasets"]}


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedEvaluation(Source):
    """Evaluation episodes and their settings. Episodes of your own need `name` and `records` only."""

    records: list[EpisodeRecord]
    experts: Mapping[str, float] = field(default_factory=dict)  # the return that counts as 100% of each task
    videos: Mapping[Path, str] = field(default_factory=dict)  # file -> caption

    def describe_actor(self, actor: str) -> dict[str, Any]:
        """Return the actor's entry in the settings."""
        return dict(self.settings.get("actors", {}).get(actor, {}))


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedImprovement(Source):
    """Rounds of collection, training and evaluation."""

    status: str = ""
    rounds: tuple[FinishedRound, ...] = ()
    experts: Mapping[str, float] = field(default_factory=dict)


def read_sources(text: str | Path) -> list[Source]:
    """Read `PATH` or `LABEL=PATH`. A path may be a pattern such as runs/pac-*; it stands for all paths that match."""
    text = str(text)
    splits = [(None, text), *((text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "=")]
    for label, pattern in splits:
        if paths := _paths(pattern):
            return [_read_source(path, label) for path in paths]
    raise problem(text, expected=EXPECTED, found="nothing there", fix=FIX)


def _paths(pattern: str) -> list[Path]:
    path = Path(pattern)
    return [path] if path.exists() or partial_path(path).exists() else sorted(map(Path, glob.glob(pattern)))


def _read_source(path: Path, label: str | None) -> Source:
    if (path / IMPROVE).is_file():
        source: Source = _read_improvement(path)
    else:
        source = _read_run(path) if path.is_dir() else _read_evaluation(path)
    notes = tuple(f"{path}: {note}" for note in source.notes)
    return dataclasses.replace(source, label=label, notes=notes)


def _read_json(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a JSON object and notes. It is empty if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("expected an object")
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        return {}, [f"{path.name} cannot be read ({error})."]
    return content, []


def _read_run(path: Path) -> LoadedRun:
    config, notes = _read_json(path / CONFIG)
    whole = {"config", "model", "steps"} <= config.keys()
    if whole:
        config = rename_run_config(config)
    elif config or not (notes or (path / "metrics.jsonl").is_file()):
        names = ", ".join(sorted(entry.name for entry in path.iterdir())[:5])
        raise problem(path, expected=EXPECTED, found=f"a folder with {names}" if names else "an empty folder", fix=FIX)
    elif not notes:
        notes = [f"{CONFIG} is missing: its settings and seed are not known."]
    curves, damaged_lines = read_curves(path / "metrics.jsonl")
    summary, damaged = _read_json(path / "summary.json")
    last, planned = max((int(curve.steps[-1]) for curve in curves.values()), default=0), config.get("steps")
    if not summary or (planned is not None and last < planned):
        damaged.append(f"Not finished: step {last:,}{'' if planned is None else f' of {planned:,}'}.")
    return LoadedRun(
        name=str(path),
        path=path,
        notes=(*notes, *damaged_lines, *damaged),
        settings=config,
        command=config.get("command"),
        curves=curves,
        summary=summary,
    )


def read_curves(path: Path) -> tuple[dict[str, Curve], list[str]]:
    """Return the metrics of a metrics.jsonl, and notes. A last line without its end is still being written."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    points: dict[str, dict[int, float]] = {}
    damaged = 0
    for line in lines:
        try:
            row = json.loads(line)
            step = int(row.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
            continue
        for name, value in row.items():
            known = isinstance(value, int | float) and math.isfinite(value)
            points.setdefault(name, {})[step] = value if known else math.nan
    notes = [f"{damaged} of {len(lines)} lines of {path.name} cannot be read and are left out."] if damaged else []
    if not lines:
        notes.append(f"No {path.name} yet: no curves.")
    curves = {}
    for name, values in points.items():
        steps = np.array(sorted(values))
        curves[name] = Curve(steps=steps, values=np.array([values[int(step)] for step in steps], dtype=np.float64))
    return curves, notes


def _read_evaluation(path: Path) -> LoadedEvaluation:
    name = str(path)
    path = path.with_name(path.name.removesuffix(".partial.jsonl"))
    try:
        settings, records = read_evaluation(path)
    except (ValueError, OSError) as error:
        raise problem(name, expected=EXPECTED, found=f"something else ({error})", fix=FIX) from error
    document, _ = _read_json(path)
    unfinished = not records or partial_path(path).is_file()
    return LoadedEvaluation(
        name=name,
        path=path,
        notes=(f"Not finished: {len(records):,} episodes so far.",) if unfinished else (),
        settings=settings,
        command=document.get("command"),
        records=records,
        experts=_experts(document),
        videos=_find_videos(path.parent, records),
    )


def _experts(document: Mapping[str, Any]) -> dict[str, float]:
    return {task: expert["mean"] for task, expert in document.get("experts", {}).items()}


def _find_videos(folder: Path, records: Iterable[EpisodeRecord]) -> dict[Path, str]:
    """Return the captions of videos that `pac evaluate --videos` wrote into the folder, or into a folder inside it."""
    episodes = {Path(file_name(entry.actor, entry.task, entry.index)).stem: entry for entry in records}
    files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.suffix in VIDEO_TYPES)
    captions = {}
    for path in files:
        entry = episodes.get(path.stem) or episodes.get(path.stem.rpartition(".")[0])  # equal names get a number
        if entry is not None and path.is_file():
            outcome = {True: ", success", False: ", no success", None: ""}[entry.success]
            text = f"{entry.actor}: {entry.task}, episode {entry.index}, return {entry.total:.1f}{outcome}"
            if entry.predicted is not None and entry.achieved is not None:
                text += f". {VALUE} {entry.predicted:.4g}, discounted return {entry.achieved:.4g}"
            captions[path] = text
    return captions


def _read_improvement(path: Path) -> LoadedImprovement:
    content, notes = _read_json(path / IMPROVE)
    rounds, status = tuple(map(FinishedRound.from_json, content.get("rounds", ()))), str(content.get("status", ""))
    if status == "running" or not rounds:
        notes.append(f"Not finished: {len(rounds)} round{'s' * (len(rounds) != 1)} so far.")
    experts: dict[str, float] = {}
    for entry in rounds:  # evaluations of episodes that were cut short name no experts
        experts |= _experts(_read_json(path / entry.evaluation)[0])
    return LoadedImprovement(
        name=str(path),
        path=path,
        notes=tuple(notes),
        settings=content.get("config", {}),
        status=status,
        rounds=rounds,
        experts=experts,
    )
