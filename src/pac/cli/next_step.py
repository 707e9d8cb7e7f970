"""The last lines of a command: what it made, and the next command to type."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pac.config import EvaluationConfig
from pac.recipe import RunConfig

Command = Sequence[str | Path]
Step = tuple[str, Command]  # a reason, which may be empty, and the command


def print_next(console: Console, made: str = "", *steps: Step) -> None:
    """Print what a command made, then a line `Next, REASON: COMMAND` for each step. A reason may be empty."""
    if made:
        print_plain(console, made)
    for reason, words in steps:
        print_plain(console, f"Next{', ' * bool(reason)}{reason}: {shlex.join(map(str, words))}")


def print_plain(console: Console, text: str) -> None:
    """Print a text as it is, on one line."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def train_command(dataset: Path, *settings: str) -> list[str | Path]:
    """Return the command that trains on one dataset with the recipe `own`."""
    return ["pac", "train", "own", *settings, "--data", dataset, "--out", Path("runs", dataset.resolve().name)]


def evaluate_command(run: Path, evaluation: EvaluationConfig, *options: str | Path) -> list[str | Path]:
    """Return the command that evaluates a run on tasks, with their limits."""
    words: list[str | Path] = ["pac", "evaluate", run, "--tasks", *evaluation.tasks]
    words += [] if evaluation.max_steps is None else ["--max-steps", str(evaluation.max_steps)]
    words += [] if evaluation.sampling == "sample" else ["--sampling", evaluation.sampling]
    return [*words, *["--stop-at-success"] * evaluation.stop_at_success, *options]


def report_command(sources: Sequence[str | Path], page: Path) -> list[str | Path]:
    """Return the command that makes a page of runs, evaluations or improvements."""
    return ["pac", "report", *sources, "--out", page]


def evaluation_of(config: RunConfig) -> EvaluationConfig:
    """Return the evaluation of a recipe. If it has no tasks, those that its data was collected in."""
    if config.evaluation.tasks:
        return config.evaluation
    paths = [dataset.path for group in config.mixture.groups for dataset in group.datasets]
    found = [settings for path in paths if path is not None and (settings := collected_settings(Path(path)))]
    limits = {(entry.get("max_steps"), bool(entry.get("stop_at_success"))) for entry in found}
    max_steps, stop = limits.pop() if len(limits) == 1 else (None, False)
    tasks = tuple(dict.fromkeys(entry["task"] for entry in found))
    return dataclasses.replace(config.evaluation, tasks=tasks, max_steps=max_steps, stop_at_success=stop)


def collected_settings(dataset: Path) -> dict[str, Any]:
    """Return the settings of `pac collect` that made a dataset; empty if something else made it."""
    try:
        return dict(json.loads((dataset / "collect.json").read_text())["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
