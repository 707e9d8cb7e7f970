"""`pac study`: train every row of a study with every seed, try them all from the same starts, and compare.

The same command goes on where it was stopped. Several runs share a GPU well: with NVIDIA's MPS daemon
(`nvidia-cuda-mps-control -d`) their kernels overlap.
"""

import argparse
import dataclasses
import datetime
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pac.config import EvaluationConfig
from pac.evaluation import experts, tables
from pac.evaluation.compare import warnings
from pac.evaluation.plan import versions
from pac.evaluation.records import FORMAT, EpisodeRecord, by_actor
from pac.evaluation.summary import Summary, summarise
from pac.evaluation.tables import METRICS, Grid
from pac.files import write_atomically as write_text
from pac.files import write_json
from pac.report import write_report
from pac.study.experts import experts_path, write_experts
from pac.study.plan import RULES, Study, load_study, whole_tasks
from pac.study.runner import check_same, make_data, perform_all, read_trials, trials_path
from pac.training.logging import make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="study in TOML, or one that ships with PAC, such as study/poor")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings in place of the file's, dotted")
    parser.add_argument("--out", type=Path, required=True, help="folder for data, runs, trials and results")
    parser.add_argument("--only", action="append", metavar="ROW", help="this row alone; may be repeated")
    parser.add_argument(
        "--domain", action="append", metavar="NAME", help="trials of this domain alone; may be repeated"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at a time (default: cores)")


def run(args: argparse.Namespace) -> int:
    study, console = load_study(args.file, args.overrides, args.out, domains=args.domain or ()), make_console()
    if unknown := sorted(set(args.only or ()) - set(study.rows)):
        raise ValueError(f"--only: expected rows of the study, found {unknown[0]!r}. Rows: {', '.join(study.rows)}.")
    chosen = [run for run in study.runs if not args.only or run.row in args.only]
    study = dataclasses.replace(study, runs=chosen)
    console.print(f"{study.name}: {len(study.rows)} rows, {len(study.runs)} runs -> {args.out}")
    check_same(study, args.out)
    make_data(study, args.out, args.processes, console)
    write_experts(study, args.out)
    failed = perform_all(study, args.out, args.processes, console)
    if not any(trials_path(args.out, run).exists() for run in study.runs):
        return 1
    document, made = results(study, args.out, command(args))
    write_json(args.out / "results.json", document)
    tables.print_grids(made, console if console.is_terminal else Console(width=200))
    write_text(args.out / "results.md", tables.markdown(made, document["notes"], document["command"]))
    done = [run for run in study.runs if trials_path(args.out, run).exists()]
    folders = [f"{run.row}={args.out / 'runs' / run.name}" for run in done]
    notes = [study.config.about] if study.config.about else []
    page = args.out / "page.html"
    write_report([args.out / "results.json", *folders], page, title=f"Study: {study.name}", notes=notes)
    console.print(f"{args.out}/results.json, results.md, page.html")
    return 1 if failed else 0


def command(args: argparse.Namespace) -> str:
    only = [word for row in args.only or () for word in ("--only", row)]
    only += [word for name in args.domain or () for word in ("--domain", name)]
    return shlex.join(["pac", "study", args.file, *args.overrides, "--out", str(args.out), *only])


def results(study: Study, folder: Path, command: str) -> tuple[dict[str, Any], list[Grid]]:
    """What was found, as an evaluation whose actors are rows and seeds; and tables of the rows over their seeds."""
    facts, records = list[dict[str, Any]](), list[EpisodeRecord]()
    for run in study.runs:
        if trials_path(folder, run).exists():
            about, trials = read_trials(folder, run)
            facts.append(about)
            records += trials
    domains = _domains(study)
    table, rules = experts.load(experts_path(study, folder)), study.runs[0].config.evaluation
    known = {task: table[task].mean for task in whole_tasks(study) if task in table}
    found = by_actor(records)
    rows = {row: _together(row, study, found) for row in study.contestants}
    summaries = {row: summarise(trials, experts=known) for row, trials in rows.items() if trials}
    document = {
        "format": FORMAT,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "about": study.config.about,
        "settings": {
            "seed": rules.seed,
            "tasks": list(dict.fromkeys(entry.task for entry in records)),
            "actors": {label: {"study": study.name} for label in found},
            "max_steps": rules.max_steps,
            "stop_at_success": rules.stop_at_success,
            "cameras": [],
            "versions": _versions(facts),
        },
        "domains": {name: _rules(place) for name, place in domains.items() if name},
        "trials_per_task": study.config.trials,
        "experts": experts.used(table, known),
        "rows": {run.row: run.config.as_json() for run in study.runs},
        "runs": facts,
        "summary": {row: dataclasses.asdict(summary) for row, summary in summaries.items()},
        "notes": warnings(summaries, []),
        "trials": [entry.as_json() for entry in records],
    }
    return document, [grid for place in domains for grid in _grids(study, place, domains[place], found, known)]


def _versions(facts: list[dict[str, Any]]) -> dict[str, str | None]:
    """Of those who played the trials, perhaps on other machines; all of them, where they differ."""
    played = [about.pop("versions", None) or versions() for about in facts]
    found: dict[str, str | None] = {}
    for name in dict.fromkeys(name for each in played for name in each):
        different = dict.fromkeys(str(each[name]) for each in played if each.get(name))
        found[name] = ", ".join(different) or None
    return found


def _domains(study: Study) -> dict[str, EvaluationConfig]:
    """Of all runs: where every task has a model of its own, each run knows its own alone."""
    made: dict[str, EvaluationConfig] = {}
    for run in study.runs:
        for name, place in run.domains.items():
            tasks = dict.fromkeys([*(made[name].tasks if name in made else ()), *place.tasks])
            made[name] = dataclasses.replace(place, tasks=tuple(tasks))
    return made


def _rules(place: EvaluationConfig) -> dict[str, Any]:
    return {name: getattr(place, name) for name in RULES}


def _grids(
    study: Study,
    name: str,
    place: EvaluationConfig,
    found: Mapping[str, Sequence[EpisodeRecord]],
    known: Mapping[str, float],
) -> list[Grid]:
    """Tables of the rows over their seeds, and seed by seed; of one domain."""
    here = {label: [entry for entry in trials if entry.task in place.tasks] for label, trials in found.items()}
    rows = {row: _together(row, study, here) for row in study.contestants}
    summaries = {row: summarise(trials, experts=known) for row, trials in rows.items() if trials}
    each = {label: summarise(trials, experts=known) for label, trials in here.items() if trials}
    # An episode that ends at success has a return that says little: the sooner, the smaller.
    metrics = ("success", "percent") if place.stop_at_success else tuple(METRICS)
    made = [*tables.grids(summaries, metrics=metrics), seeds_grid(study, each, metrics)]
    return [dataclasses.replace(grid, title=f"{name}: {grid.title}" if name else grid.title) for grid in made]


def _together(row: str, study: Study, found: Mapping[str, Sequence[EpisodeRecord]]) -> list[EpisodeRecord]:
    """Trials of a row, all seeds together."""
    labels = study.contestants[row].values()
    return [dataclasses.replace(entry, actor=row) for label in labels for entry in found.get(label, ())]


def seeds_grid(study: Study, each: Mapping[str, Summary], metrics: Sequence[str]) -> Grid:
    """The first of the metrics that there is, pooled over tasks, seed by seed."""
    overall = {label: summary.overall for label, summary in each.items()}
    name = next(name for name in metrics if any(METRICS[name][1](row) for row in overall.values()))
    title, pick, scale = METRICS[name]
    lines: list[list[tables.Cell]] = []
    for seed in dict.fromkeys(run.seed for run in study.runs):
        found = [overall.get(labels.get(seed, "")) for labels in study.contestants.values()]
        shown = [tables.show(pick(row), scale) if row is not None else "-" for row in found]
        lines.append([(f"seed {seed}", False), *((text, False) for text in shown)])
    return Grid(f"{title}, seed by seed", ["", *study.contestants], lines)
