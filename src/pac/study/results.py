"""The results of a study: one JSON document of all episodes, and tables of the rows, seeds pooled and seed by seed."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pac.config import EvaluationConfig
from pac.evaluation import experts, tables
from pac.evaluation.compare import warnings
from pac.evaluation.plan import versions
from pac.evaluation.records import EpisodeRecord, by_actor
from pac.evaluation.result import make_document
from pac.evaluation.summary import Summary, summarise
from pac.evaluation.tables import METRICS, Grid
from pac.study import data
from pac.study.experts import experts_path
from pac.study.folder import StudyFolder
from pac.study.plan import DOMAIN_KEYS, Study


@dataclass(frozen=True)
class StudyResults:
    """The episodes of a study's finished runs, compared."""

    records: list[EpisodeRecord]
    document: dict[str, Any]  # an evaluation whose actors are rows and seeds
    grids: list[Grid]


def make_results(folder: StudyFolder, command: str) -> StudyResults:
    """Compare the rows over all runs that have an evaluation."""
    study, facts, records = folder.study, list[dict[str, Any]](), list[EpisodeRecord]()
    for run in folder.evaluated_runs:
        evaluation = folder.read_evaluation(run)
        facts.append(evaluation.facts)
        records += evaluation.records
    domains, rules = _domains(study), study.runs[0].config.evaluation
    qualities = data.data_quality(folder)
    table = experts.load(experts_path(folder))
    known = {task: table[task].mean for task in study.whole_tasks if task in table}
    summaries = _summaries(study, records, known)
    settings = {
        "seed": rules.seed,
        "tasks": list(dict.fromkeys(entry.task for entry in records)),
        "actors": {label: {"study": study.name} for label in by_actor(records)},
        "max_steps": rules.max_steps,
        "stop_at_success": rules.stop_at_success,
        "cameras": [],
        "versions": _versions(facts),
    }
    document = make_document(
        records,
        settings,
        summaries,
        episodes=study.config.episodes,
        experts={task: table[task] for task in known},
        command=command,
        about=study.config.about,
        domains={name: {key: getattr(domain, key) for key in DOMAIN_KEYS} for name, domain in domains.items() if name},
        rows={run.row: run.config.as_json() for run in study.runs},
        data=data.as_json(qualities),
        runs=facts,
        notes=[*data.notes(qualities), *warnings(summaries, [])],
    )
    grids = [
        grid for name, domain in domains.items() for grid in _grids(study, name, domain, records, known, qualities)
    ]
    return StudyResults(records, document, grids)


def _versions(facts: list[dict[str, Any]]) -> dict[str, str | None]:
    """Move the versions of the machines that evaluated out of `facts`. Return all of them, where they differ."""
    each = [about.pop("versions", None) or versions() for about in facts]
    found: dict[str, str | None] = {}
    for name in dict.fromkeys(name for one in each for name in one):
        different = dict.fromkeys(str(one[name]) for one in each if one.get(name))
        found[name] = ", ".join(different) or None
    return found


def _domains(study: Study) -> dict[str, EvaluationConfig]:
    """Return the domains with the tasks of all runs. Where each task has a model of its own, a run has one of them."""
    found: dict[str, EvaluationConfig] = {}
    for run in study.runs:
        for name, domain in run.domains.items():
            tasks = dict.fromkeys([*(found[name].tasks if name in found else ()), *domain.tasks])
            found[name] = dataclasses.replace(domain, tasks=tuple(tasks))
    return found


def _summaries(study: Study, records: Sequence[EpisodeRecord], known: Mapping[str, float]) -> dict[str, Summary]:
    """Summarise the episodes of each row, all seeds pooled."""
    rows = {label: row for row, labels in study.actors.items() for label in labels.values()}
    groups = by_actor(dataclasses.replace(entry, actor=rows[entry.actor]) for entry in records)
    return {row: summarise(groups[row], experts=known) for row in study.actors if row in groups}


def _grids(
    study: Study,
    name: str,
    domain: EvaluationConfig,
    records: Sequence[EpisodeRecord],
    known: Mapping[str, float],
    qualities: data.Qualities,
) -> list[Grid]:
    """Return the tables of one domain: seeds pooled, and seed by seed."""
    inside = [entry for entry in records if entry.task in domain.tasks]
    each = {label: summarise(group, experts=known) for label, group in by_actor(inside).items()}
    # Where success ends an episode, its return says little: the sooner the success, the smaller the return.
    metrics = ("success", "percent") if domain.stop_at_success else tuple(METRICS)
    made = tables.grids(_summaries(study, inside, known), metrics=metrics)
    rows = {label: row for row, labels in study.actors.items() for label in labels.values()}
    groups = by_actor(dataclasses.replace(entry, actor=rows[entry.actor]) for entry in inside)
    made = [data.pool_poor(data.with_data(grid, qualities), groups, qualities) for grid in made]
    grids = [*made, seeds_grid(study, each, metrics)]
    return [dataclasses.replace(grid, title=f"{name}: {grid.title}" if name else grid.title) for grid in grids]


def seeds_grid(study: Study, each: Mapping[str, Summary], metrics: Sequence[str]) -> Grid:
    """Return the first metric that is known, pooled over tasks, with a line per seed."""
    overall = {label: summary.overall for label, summary in each.items()}
    name = next(name for name in metrics if any(METRICS[name][1](row) for row in overall.values()))
    title, pick, scale = METRICS[name]
    lines: list[list[tables.Cell]] = []
    for seed in dict.fromkeys(run.seed for run in study.runs):
        found = [overall.get(labels.get(seed, "")) for labels in study.actors.values()]
        shown = [tables.show(pick(row), scale) if row is not None else "-" for row in found]
        lines.append([(str(seed), False), *((text, False) for text in shown)])
    return Grid(f"{title}, seed by seed", ["seed", *study.actors], lines)
