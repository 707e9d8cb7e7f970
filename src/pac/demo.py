"""Scores, findings and the page of `pac demo`. The rest of the demo is a study (recipes/demo.toml).

An episode scores 100 or 0 where the environment defines success. Elsewhere its score is its return in percent of an
expert's. So tasks of both kinds can be pooled; all weigh the same. Intervals are about more episodes of these same
trainings, not about more seeds.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pac.collection import folder_name
from pac.data.store import Dataset
from pac.evaluation import EpisodeRecord, Estimate, best
from pac.evaluation.intervals import wilson
from pac.evaluation.records import by_actor
from pac.evaluation.summary import mean_of_means
from pac.evaluation.tables import Grid, show
from pac.report import html as page
from pac.study.folder import StudyFolder
from pac.study.plan import Study

Scores = dict[str, np.ndarray]  # task -> a score per episode, in the order of the initial states
IMPROVED, CLONING, DATA = ("PAC", "PAC+V"), ("filtered BC", "BC+Q"), "the data"
# Return of the good planner with all its samples, in the demo's 250 steps (results/demo/experts.parquet).
EXPERTS = {"control/cartpole.balance": 246.2}


def score(task: str, success: bool | None, total: float) -> float:
    return 100 * total / EXPERTS[task] if task in EXPERTS else 100.0 * bool(success)


def method_scores(study: Study, records: Sequence[EpisodeRecord]) -> dict[str, Scores]:
    """Return the scores of each row of the study. Raise unless all rows were evaluated from the same states."""
    groups, tasks, found = by_actor(records), dict.fromkeys(entry.task for entry in records), dict[str, Scores]()
    starts = dict[str, list[Any]]()
    for row, labels in study.actors.items():
        entries = sorted((entry for label in labels.values() for entry in groups[label]), key=lambda e: e.start)
        starts[row] = [(*entry.start, entry.state) for entry in entries]
        found[row] = {t: np.array([score(t, e.success, e.total) for e in entries if e.task == t]) for t in tasks}
    first = next(iter(starts))
    for row in starts:
        if starts[row] != starts[first]:
            raise ValueError(f"Expected {row} to start from the states of {first}, found others. Run the demo again.")
    return found


def data_scores(folder: StudyFolder) -> Scores:
    """Return the scores of the collected episodes, which are as long as those of the evaluation."""
    found = {}
    for name, collection in folder.study.collections.items():
        for task in collection.tasks:
            index = Dataset(folder.data / name / folder_name(task)).index
            pairs = zip(index["success"], index["return"], strict=True)
            found[task] = np.array([score(task, bool(success > 0), float(total)) for success, total in pairs])
    return found


# -------------------------------------------------------------------------------------------------------- estimates


def estimates(scores: Scores) -> dict[str, Estimate]:
    """Return an estimate per task, per suite with several tasks, and of all tasks."""
    found = {task: _task_estimate(task, values) for task, values in scores.items()}
    for suite in dict.fromkeys(task.partition("/")[0] for task in scores):
        members = [values for task, values in scores.items() if task.startswith(f"{suite}/")]
        found |= {f"pooled, {suite}": mean_of_means(members)} if len(members) > 1 else {}
    return found | {"pooled": mean_of_means(list(scores.values()))}


def _task_estimate(task: str, values: np.ndarray) -> Estimate:
    if task in EXPERTS:
        return mean_of_means([values])
    low, high = wilson(int((values > 50).sum()), len(values))
    return Estimate(mean=float(values.mean()), low=100 * low, high=100 * high, n=len(values), method="Wilson")


def difference(first: Scores, second: Scores) -> Estimate:
    """Return the pooled difference over episodes from the same initial states."""
    return mean_of_means([first[task] - second[task] for task in first])


# --------------------------------------------------------------------------------------------- table, findings, page


def grid(scores: Mapping[str, Scores], episodes: int) -> Grid:
    """Return the table. Methods within the interval of a row's best method are among the best."""
    columns, rows = {name: estimates(values) for name, values in scores.items()}, []
    for place in columns[IMPROVED[0]]:
        top = best({name: column[place] for name, column in columns.items() if name != DATA})
        rows.append([(place, False), *((show(column[place]), name in top) for name, column in columns.items())])
    title = f"Success, or percent of expert; mean [95%], {episodes} episodes per task, actions sampled"
    return Grid(title, ["task", *columns], rows, len(rows) - len(scores[IMPROVED[0]]))


def findings(scores: Mapping[str, Scores]) -> list[str]:
    """Return what the table shows, in words; also where cloning wins."""
    found, lines = {name: estimates(values) for name, values in scores.items()}, []
    for method in IMPROVED:
        above = {other: found[method]["pooled"].low > found[other]["pooled"].high for other in CLONING}
        words = [f"{'above' if yes else 'not clearly above'} {other}'s" for other, yes in above.items()]
        paired = [f"{show(difference(scores[method], scores[other]))} to {other}" for other in CLONING]
        lines.append(
            f"{method}: its pooled interval is {' and '.join(words)}. Differences over the same initial states: "
            f"{', '.join(paired)}."
        )
    for task in scores["PAC"]:
        clone = max(CLONING, key=lambda name: found[name][task].mean)
        if found[clone][task].mean > found["PAC"][task].mean:
            apart = found[clone][task].low > found["PAC"][task].high
            size = "by more than the intervals" if apart else "within the intervals"
            lines.append(f"{task}: {clone} is ahead of PAC, {size}.")
    return lines


def document(study: Study, scores: Mapping[str, Scores], command: str, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the demo's numbers as plain values for JSON."""
    config, collections = study.runs[0].config, list(study.collections.values())
    pairs = [(method, clone) for method in IMPROVED for clone in CLONING]
    columns = {name: estimates(values) for name, values in scores.items()}
    return {
        "command": command,
        "settings": {
            "seed": study.config.seeds[0],
            "tasks": len(scores["PAC"]),
            "collected_episodes": collections[0].episodes,
            "length": config.length,
            "batch_size": config.mixture.batch_size,
            "episodes": study.config.episodes,
        },
        "experts": EXPERTS,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "table": {name: {place: asdict(entry) for place, entry in column.items()} for name, column in columns.items()},
        "differences": {f"{a} - {b}": asdict(difference(scores[a], scores[b])) for a, b in pairs},
        "findings": findings(scores),
        "scores": {name: {task: v.round(3).tolist() for task, v in values.items()} for name, values in scores.items()},
    }


def intro(study: Study, scores: Mapping[str, Scores]) -> str:
    """Return the top of the page as HTML: how the data was collected, the table, the findings."""
    collections, config = list(study.collections.values()), study.runs[0].config
    table = page.grid_table(grid(scores, study.config.episodes))
    behaviours = [f"<code>{html.escape(c.behaviour)}</code> ({c.max_steps} steps)" for c in collections]
    known = ", ".join(f"{task} {value:g}" for task, value in EXPERTS.items())
    return (
        f"<p>{collections[0].episodes} episodes per task were collected with {' and '.join(behaviours)}. Such "
        "a policy switches every few steps between correct, mirrored, idle and wrong-goal actions. No episode is a "
        f"clean demonstration. Each method trains one {config.size} model for all tasks, for "
        f"{html.escape(config.length)} of equal batches. Filtered BC clones the successes, and the best quarter by "
        "return of a task without success. Evaluation episodes are as long as those of the data, and actions are "
        f"sampled. 100% is the return of the good planner in that time ({known}).</p>{table}"
        + "".join(f"<p>{html.escape(line)}</p>" for line in findings(scores))
        + '<p class="soft">Tasks weigh the same. Intervals are about more episodes of these trainings, not about more '
        "seeds. In Meta-World an episode ends at success: a smaller return is not a worse one.</p>"
    )
