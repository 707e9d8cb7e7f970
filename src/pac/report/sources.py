"""What a report is made of, read from disk: runs, evaluations, improvements. Nothing is computed here, and nothing
that is damaged or unfinished stops the rest: it is read as far as it goes, with a note.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pac.evaluation.records import EpisodeRecord, partial_path
from pac.evaluation.records import read_evaluation as read_records
from pac.evaluation.video import file_name
from pac.old_names import rename_run_config
from pac.training.run_dir import CONFIG

EXPECTED = (
    "the folder of a run (`pac train`, with config.json), the JSON of an evaluation (`pac evaluate --json`) or the "
    "folder of an improvement (`pac improve`, with improve.json)"
)
FILMS = {".mp4": "video/mp4", ".gif": "image/gif", ".webp": "image/webp"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric: a value a step, steps rising; NaN where the run had none."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedRun:
    """A run's folder."""

    name: str  # as it was named
    path: Path | None = None
    label: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # what config.json holds; empty if that is damaged
    curves: Mapping[str, Curve] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return table(self.config.get("config"))

    @property
    def method(self) -> str:
        return str(self.settings.get("method") or self.summary.get("method") or "unknown method")

    @property
    def seed(self) -> int | None:
        seed = self.settings.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def planned(self) -> int | None:
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def last_step(self) -> int:
        return max((int(curve.steps[-1]) for curve in self.curves.values() if len(curve.steps)), default=0)


@dataclass(frozen=True, kw_only=True)
class Film:
    """A video beside an evaluation, of one of its trials."""

    path: Path
    caption: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Trials, and what shaped them. To report on trials of your own, give `name`, `records`, and nothing else."""

    name: str
    records: list[EpisodeRecord]
    path: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)  # all else in the file
    films: tuple[Film, ...] = ()
    notes: tuple[str, ...] = ()

    def actor(self, label: str) -> dict[str, Any]:
        """What the file says of an actor."""
        return table(table(self.settings.get("actors")).get(label))


@dataclass(frozen=True, kw_only=True, eq=False)
class Improvement:
    """Rounds of collecting, training and evaluating."""

    name: str
    path: Path | None = None
    content: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[dict[str, Any], ...] = ()
    experts: Mapping[str, float] = field(default_factory=dict)  # the return that counts as 100%
    notes: tuple[str, ...] = ()


Source = LoadedRun | Evaluation | Improvement


def read(text: str | Path) -> Source:
    """A path, or LABEL=PATH: the label names a run's group."""
    label, path = None, Path(text)
    if not path.exists() and not partial_path(path).exists() and "=" in str(text):
        label, _, rest = str(text).partition("=")
        path = Path(rest)
    name = str(path)
    if (path / "improve.json").is_file():
        return _improvement(path, name)
    if path.is_dir():
        return _run(path, name, label)
    if partial_path(whole := path.with_name(path.name.removesuffix(".partial.jsonl"))) == path:
        path = whole
    if path.is_file() or partial_path(path).is_file():
        return _evaluation(path, name)
    raise ValueError(f"{path}: expected {EXPECTED}, found nothing there.")


def table(value: Any) -> dict[str, Any]:
    """The value if it is a table, else an empty one: files may hold anything."""
    return dict(value) if isinstance(value, Mapping) else {}


def number(value: Any) -> float:
    """The value if it is a number, else NaN."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


# ------------------------------------------------------------------------------------------------------------- runs


def _run(path: Path, name: str, label: str | None) -> LoadedRun:
    config, notes = _json(path / CONFIG)
    config = rename_run_config(config)
    whole = {"config", "model", "steps"} <= config.keys()
    if (config and not whole) or not (whole or notes or (path / "metrics.jsonl").is_file()):
        raise ValueError(f"{path}: expected {EXPECTED}, found {_listing(path)}.")
    if not whole:
        notes = notes or [f"{CONFIG} is missing: method and seed are not known."]
    curves, complaints = read_curves(path / "metrics.jsonl")
    summary, damaged = _json(path / "summary.json")
    run = LoadedRun(name=name, path=path, label=label, config=config, curves=curves, summary=summary)
    ends = run.planned is not None and run.last_step < run.planned
    if ends or not (path / "summary.json").is_file():
        planned = f" of {run.planned:,}" if run.planned is not None else ""
        complaints = [*complaints, f"Not finished: step {run.last_step:,}{planned}."]
    told = tuple(f"{name}: {note}" for note in [*notes, *complaints, *damaged])
    return LoadedRun(name=name, path=path, label=label, config=config, curves=curves, summary=summary, notes=told)


def _listing(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    return f"a folder with {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}" if names else "an empty folder"


def _json(path: Path) -> tuple[dict[str, Any], list[str]]:
    """A table and no complaint; or nothing and, if the file is there, a complaint."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("expected a table")
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        return {}, [f"{path.name} cannot be read ({error})."]
    return content, []


def read_curves(path: Path) -> tuple[dict[str, Curve], list[str]]:
    """Of a metrics.jsonl. A last line that is still being written does not count; other damaged lines are counted."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    found: dict[str, dict[int, float]] = {}
    damaged = 0
    for line in lines:
        try:
            row = json.loads(line)
            step = int(row.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            damaged += 1
            continue
        for name, value in row.items():
            value = number(value)
            found.setdefault(name, {})[step] = value if math.isfinite(value) else math.nan
    notes = [f"{damaged} of {len(lines)} lines of {path.name} cannot be read and are left out."] if damaged else []
    if not lines:
        notes.append(f"No {path.name} yet: no curves.")
    return {name: _curve(points) for name, points in found.items()}, notes


def _curve(points: Mapping[int, float]) -> Curve:
    steps = np.array(sorted(points))
    return Curve(steps=steps, values=np.array([points[int(step)] for step in steps], dtype=np.float64))


# ------------------------------------------------------------------------------------------------------ evaluations


def _evaluation(path: Path, name: str) -> Evaluation:
    try:
        settings, records = read_records(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: expected {EXPECTED}, found something else: {error}") from error
    document, _ = _json(path)
    document.pop("episodes", None)
    notes = []
    if partial_path(path).is_file():
        notes.append(f"{name}: not finished; {len(records):,} trials so far.")
    if not records:
        notes.append(f"{name}: no trial is finished yet.")
    known = _films(path.parent, records)
    return Evaluation(
        name=name, records=records, path=path, settings=settings, document=document, films=known, notes=tuple(notes)
    )


def _films(folder: Path, records: Iterable[EpisodeRecord]) -> tuple[Film, ...]:
    """Videos in the file's folder, or a folder in it, that are called as `pac evaluate --videos` calls them."""
    trials = {Path(file_name(entry.actor, entry.task, entry.index)).stem: entry for entry in records}
    files = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.suffix in FILMS)
    films = []
    for path in files:
        entry = trials.get(path.stem) or trials.get(path.stem.rpartition(".")[0])  # the second of a name has a number
        if entry is not None and path.is_file():
            outcome = {True: ", success", False: ", no success", None: ""}[entry.success]
            caption = f"{entry.actor}: {entry.task}, trial {entry.index}, return {entry.total:.1f}{outcome}"
            films.append(Film(path=path, caption=caption))
    return tuple(films)


# ----------------------------------------------------------------------------------------------------- improvements


def _improvement(path: Path, name: str) -> Improvement:
    content, notes = _json(path / "improve.json")
    given = content.get("rounds")
    rounds = tuple(entry for entry in given if isinstance(entry, dict)) if isinstance(given, list) else ()
    if content.get("status") == "running":
        notes.append(f"Not finished: {len(rounds)} round{'s' * (len(rounds) != 1)} so far.")
    if not rounds:
        notes.append("No round is finished yet.")
    experts: dict[str, float] = {}
    for entry in rounds:  # what the evaluations themselves measured against: none where episodes were cut short
        document = _json(path / str(entry.get("evaluation")))[0]
        experts |= {task: number(table(value).get("mean")) for task, value in table(document.get("experts")).items()}
    told = tuple(f"{name}: {note}" for note in notes)
    return Improvement(name=name, path=path, content=content, rounds=rounds, experts=experts, notes=told)
