"""Results of evaluation episodes: tables, bars with intervals, and the calibration of the critic."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pac.evaluation.compare import warnings
from pac.evaluation.intervals import stratified_bootstrap
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.samplings import sampling_notes, without
from pac.evaluation.summary import ALL, Estimate, Summary
from pac.evaluation.tables import METRICS, Grid, grids, show
from pac.report import charts, html
from pac.report.groups import ENDED_AT_SUCCESS, ComparisonGroup, plain_names

AXES = {"success": "success, % of episodes", "percent": "percent of expert's return", "return": "return"}
Colours = Mapping[str, int]  # row -> number of its colour
MAX_NOTES = 5  # more are folded
INTERVALS = "Mean [95% interval]. Bold: within the interval of the best of its row."
SEEDS = (
    "Episodes of all seeds are pooled. The interval is about other episodes of these same trainings, not about another "
    "training seed."
)
CALIBRATION = (
    "Is the critic's value right? Each dot is an episode: the value of its first action, and the discounted return "
    "that followed. On the dashed line the two are equal, which is perfect calibration. Below it the critic "
    "overestimates. Above it the critic underestimates. A cross is the mean of a row, with the 95% interval of the "
    "achieved return. The prediction includes what would have come after a time limit or a stop at success. The return "
    "does not."
)
PREDICTED, ACHIEVED = "predicted: value of the first action", "achieved: discounted return"


def results_section(comparison: ComparisonGroup, colours: Colours) -> str:
    """Return tables, differences, notes and bars of one set of rules."""
    differences, complaints = comparison.differences()
    members = {
        f"{row}, {member}": summary for row, parts in comparison.by_member.items() for member, summary in parts.items()
    }
    known = [f"{task} {value:,.1f}" for task, value in comparison.experts.items() if task in comparison.tasks]
    about = [INTERVALS, SEEDS if members else "", f"Experts' returns: {', '.join(known)}." if known else ""]
    notes = html.bullets(warnings(comparison.pooled, without(differences, comparison.sampling_pairs)))
    ways = sampling_notes(comparison.sampling_pairs, differences, stop_at_success=ENDED_AT_SUCCESS in comparison.rules)
    parts = [
        *map(html.warning, complaints),
        *(f"<p>{html.escape(note)}</p>" for note in ways),
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
    shown = plain_names(comparison.tasks)
    made = [_renamed(grid, shown) for grid in grids(summaries)]
    if made and ENDED_AT_SUCCESS in comparison.rules:
        title = f"{made[-1].title}. Episodes end at success: a smaller return is not a worse one."
        rows = [[(text, False) for text, _ in row] for row in made[-1].rows]
        made[-1] = dataclasses.replace(made[-1], title=title, rows=rows)
    return [html.grid_table(grid) for grid in made]


def _renamed(grid: Grid, shown: Mapping[str, str]) -> Grid:
    """Return a table with the plain names of tasks."""
    rows = [[(shown.get(head[0], head[0]), head[1]), *cells] for head, *cells in grid.rows]
    return dataclasses.replace(grid, rows=rows)


def _bar_charts(comparison: ComparisonGroup, colours: Colours) -> list[str]:
    """Return bars of success and percent of expert per task. Tasks that have neither get bars of the return.

    The chart at the top of the page is left out.
    """
    pooled = dict.fromkeys(place for summary in comparison.pooled.values() for place in summary.pooled)
    places = sorted(pooled, key=lambda place: place != ALL) if len(comparison.tasks) > 1 else []
    figures = []
    for metric in METRICS:
        for place in [*places, *comparison.tasks]:
            others = [name for name in ("success", "percent") if estimates(name, comparison.pooled, place)]
            if (metric, place) != main_result(comparison) and (metric != "return" or not others):
                figures.append(bar_chart(metric, comparison, place, colours))
    return ["<h3>By task</h3>", html.columns(figures)] if any(figures) else []


def main_result(comparison: ComparisonGroup) -> tuple[str, str]:
    """Return the metric and the place, a task or all, that sum up a comparison."""
    place = ALL if len(comparison.tasks) > 1 else comparison.tasks[0]
    return next(metric for metric in METRICS if estimates(metric, comparison.pooled, place)), place


def bar_chart(metric: str, comparison: ComparisonGroup, place: str, colours: Colours) -> str:
    """Return bars of one metric at one place; nothing if no row has it."""
    bars = _bars(metric, comparison, place, colours)
    title = "All tasks" if place == ALL else plain_names(comparison.tasks).get(place, f"all of {place}")
    drawing = charts.bars(title, bars, (0.0, 100.0) if metric == "success" else None, x_name=AXES[metric])
    return drawing.figure() if bars else ""


def estimates(metric: str, summaries: Mapping[str, Summary], place: str) -> dict[str, Estimate]:
    """Return the estimate of each row or member that has the metric there."""
    rows = {name: summary.rows[place] for name, summary in summaries.items() if place in summary.rows}
    return {name: estimate for name, row in rows.items() if (estimate := METRICS[metric][1](row)) is not None}


def _bars(metric: str, comparison: ComparisonGroup, place: str, colours: Colours) -> list[charts.Bar]:
    scale, bars = METRICS[metric][2], []
    for row, estimate in estimates(metric, comparison.pooled, place).items():
        members = estimates(metric, comparison.by_member.get(row, {}), place)
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
            name = plain_names(comparison.tasks)[task]
            where = f"{name} ({comparison.rules})" if comparison.rules else name
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
                figures.append(charts.scatter(where, clouds, x_name=PREDICTED, y_name=ACHIEVED).figure())
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
