"""Results of evaluation episodes: tables, bars with intervals, and the calibration of the critic."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pac.evaluation.compare import warnings
from pac.evaluation.intervals import stratified_bootstrap
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.summary import ALL, Estimate, Summary
from pac.evaluation.tables import METRICS, grids, show
from pac.report import charts, html
from pac.report.groups import ENDED_AT_SUCCESS, ComparisonGroup

Colours = Mapping[str, int]  # row -> number of its colour
MAX_NOTES = 5  # more are folded
INTERVALS = "Mean [95% interval]. Bold: within the interval of the best of its row."
SEEDS = (
    "Episodes of all seeds are pooled. The interval is about other episodes of these same trainings, not about another "
    "training seed."
)
CALIBRATION = (
    "Each chart compares the critic's value of the first action with the discounted return that followed. A dot is an "
    "episode. A cross is the mean of a row, with the 95% interval of the achieved return. Below the dashed line the "
    "critic predicted too much. The prediction includes what would have come after a time limit or a stop at success. "
    "The return does not."
)


def results_section(comparison: ComparisonGroup, colours: Colours) -> str:
    """Return tables, differences, notes and bars of one set of rules."""
    differences, complaints = comparison.differences()
    members = {
        f"{row}, {member}": summary for row, parts in comparison.by_member.items() for member, summary in parts.items()
    }
    known = [f"{task} {value:,.1f}" for task, value in comparison.experts.items() if task in comparison.tasks]
    about = [INTERVALS, SEEDS if members else "", f"Experts' returns: {', '.join(known)}." if known else ""]
    notes = html.bullets(warnings(comparison.pooled, differences))
    parts = [
        *map(html.warning, complaints),
        *_tables(comparison, comparison.pooled),
        html.soft(" ".join(filter(None, about))),
        html.folded("Each seed, with its interval", "".join(_tables(comparison, members))),
        html.folded("Differences", "".join(map(html.grid_table, grids({}, differences)))),
        html.folded("Notes", notes) if notes.count("<li>") > MAX_NOTES else notes,
        *_bar_charts(comparison, colours),
    ]
    return html.section(f"Results ({comparison.rules})" if comparison.rules else "Results", parts)


def _tables(comparison: ComparisonGroup, summaries: Mapping[str, Summary]) -> list[str]:
    """Return a table per metric. No return is the best where episodes end at success."""
    made = grids(summaries)
    if made and ENDED_AT_SUCCESS in comparison.rules:
        title = f"{made[-1].title}. Episodes end at success: a smaller return is not a worse one."
        rows = [[(text, False) for text, _ in row] for row in made[-1].rows]
        made[-1] = dataclasses.replace(made[-1], title=title, rows=rows)
    return [html.grid_table(grid) for grid in made]


def _bar_charts(comparison: ComparisonGroup, colours: Colours) -> list[str]:
    """Return bars of success and percent of expert per task. Tasks that have neither get bars of the return."""
    pooled = dict.fromkeys(place for summary in comparison.pooled.values() for place in summary.pooled)
    places = sorted(pooled, key=lambda place: place != ALL) if len(comparison.tasks) > 1 else []
    figures = []
    for metric in METRICS:
        for place in [*places, *comparison.tasks]:
            others = [name for name in ("success", "percent") if _estimates(name, comparison.pooled, place)]
            bars = _bars(metric, comparison, place, colours)
            if bars and (metric != "return" or not others):
                title = place if place in comparison.tasks else "all tasks" if place == ALL else f"all of {place}"
                drawing = charts.bars(title, bars, (0.0, 100.0) if metric == "success" else None)
                figures.append(drawing.figure(METRICS[metric][0]))
    return ["<h3>By task</h3>", html.columns(figures)]


def _estimates(metric: str, summaries: Mapping[str, Summary], place: str) -> dict[str, Estimate]:
    """Return the estimate of each row or member that has the metric there."""
    rows = {name: summary.rows[place] for name, summary in summaries.items() if place in summary.rows}
    return {name: estimate for name, row in rows.items() if (estimate := METRICS[metric][1](row)) is not None}


def _bars(metric: str, comparison: ComparisonGroup, place: str, colours: Colours) -> list[charts.Bar]:
    scale, bars = METRICS[metric][2], []
    for row, estimate in _estimates(metric, comparison.pooled, place).items():
        members = _estimates(metric, comparison.by_member.get(row, {}), place)
        bars.append(
            charts.Bar(
                name=row,
                index=colours[row],
                value=scale * estimate.mean,
                low=scale * estimate.low,
                high=scale * estimate.high,
                text=show(estimate, scale),
                parts=tuple(scale * member.mean for member in members.values()),
            )
        )
    return bars


def calibration_section(comparisons: Sequence[ComparisonGroup], colours: Colours) -> str:
    """Return the critic's predictions against the discounted returns that followed."""
    figures, rows, left_out = [], [], dict[str, None]()
    for comparison in comparisons:
        for task in comparison.tasks:
            where = f"{task} ({comparison.rules})" if comparison.rules else task
            clouds = []
            for row, parts in comparison.members.items():
                episodes = [entry for part in parts.values() for entry in part if entry.task == task]
                episodes = [entry for entry in episodes if None not in (entry.predicted, entry.achieved)]
                if episodes and row in comparison.relabelled:
                    left_out[row] = None
                elif episodes:
                    clouds.append(_cloud(row, episodes, colours))
                    rows.append(_calibration_row(where, clouds[-1]))
            if clouds:
                figures.append(charts.scatter(where, clouds, x_name="predicted", y_name="achieved").figure())
    header = ["row", "task", "episodes", "predicted", "achieved", "predicted - achieved"]
    reason = "Left out, because their critic learned another reward than the environment's"
    shown = [html.warning(f"{reason}: {', '.join(left_out)}.")] if left_out else []
    if rows:
        names = [(name, colours[name]) for name in dict.fromkeys(row[0] for row in rows)]
        shown += [html.soft(CALIBRATION), charts.legend(names), html.columns(figures), html.table(header, rows)]
    return html.section("Value calibration", shown)


def _cloud(row: str, episodes: Sequence[EpisodeRecord], colours: Colours) -> charts.Cloud:
    predicted = np.array([entry.predicted for entry in episodes], dtype=np.float64)
    achieved = np.array([entry.achieved for entry in episodes], dtype=np.float64)
    low, high = stratified_bootstrap([achieved])
    mean = float(predicted.mean()), float(achieved.mean())
    return charts.Cloud(name=row, index=colours[row], x=predicted, y=achieved, mean=mean, low=low, high=high)


def _calibration_row(where: str, cloud: charts.Cloud) -> list[str]:
    predicted, achieved = cloud.mean
    first, second = (
        f"[{low:.4g}, {high:.4g}]" if math.isfinite(low) else "[?]"
        for low, high in ((cloud.low, cloud.high), stratified_bootstrap([cloud.x - cloud.y]))
    )
    difference = f"{predicted - achieved:+.4g} {second}"
    return [cloud.name, where, f"{len(cloud.x):,}", f"{predicted:.4g}", f"{achieved:.4g} {first}", difference]
