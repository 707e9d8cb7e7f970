"""The top of a report: one plain sentence, and one chart."""

import math
from collections.abc import Mapping, Sequence

from pac.evaluation.compare import Difference
from pac.evaluation.summary import ALL, Estimate
from pac.evaluation.tables import METRICS
from pac.report import charts, html
from pac.report.groups import ComparisonGroup, plain_names
from pac.report.improvement import round_chart
from pac.report.results import bar_chart, estimates, main_result
from pac.report.sources import LoadedImprovement, LoadedRun
from pac.report.training import EVALUATION, metric_chart

MOST_NAMES = 4  # of a list
Groups = Mapping[str, Sequence[LoadedRun]]


def headline(
    comparisons: Sequence[ComparisonGroup],
    rows: Groups,
    improvements: Sequence[LoadedImprovement],
    colours: Mapping[str, int],
) -> str:
    """Return the sentence and the chart of what a page shows: evaluations, else improvements, else runs."""
    if comparisons:
        group = max(comparisons, key=lambda one: sum(row.overall.episodes for row in one.pooled.values()))
        metric, place = main_result(group)
        text, chart = describe_comparison(group), bar_chart(metric, group, place, colours)
    elif rounds := [one for one in improvements if one.rounds and one.rounds[-1].summary]:
        tasks = list(dict.fromkeys(task for entry in rounds[0].rounds for task in entry.summary))
        text, chart = describe_improvement(rounds[0]), round_chart(rounds[0], tasks[0], plain_names(tasks)[tasks[0]])
    else:
        names = [name for runs in rows.values() for run in runs for name in run.curves]
        metric = next((n for n in (f"{EVALUATION}all/success", f"{EVALUATION}all/return") if n in names), "loss/total")
        text, chart = describe_runs(rows, metric), metric_chart(metric, rows, colours) if metric in names else ""
        chart += charts.legend([(row, colours[row]) for row in rows]) if len(rows) > 1 else ""
    return f'<p class="lead">{html.escape(text)}</p><div class="headline">{chart}</div>' if text else ""


def describe_comparison(group: ComparisonGroup) -> str:
    """Return which row is the best, and which others it is better than."""
    metric, place = main_result(group)
    found = estimates(metric, group.pooled, place)
    best, *others = sorted(found, key=lambda row: -found[row].mean)
    where = f"{len(group.tasks)} tasks" if place == ALL else plain_names(group.tasks)[place]
    text = f"{best} {_verb(metric, found[best])} on {where}"
    text += f", over {group.pooled[best].rows[place].episodes:,} episodes."
    known = {frozenset((d.first, d.second)): d for d in group.differences()[0] if (d.metric, d.where) == (metric, ALL)}
    pairs = {row: known.get(frozenset((best, row))) for row in others}
    better = [f"{row} ({_value(metric, found[row])})" for row in others if _is_shown(pairs[row])]
    unclear = [f"{row} ({_value(metric, found[row])})" for row in others if row in pairs and not _is_shown(pairs[row])]
    text += f" It is better than {_listed(better)}." if better else ""
    return text + (f" It cannot be told apart from {_listed(unclear)} with these episodes." if unclear else "")


def _is_shown(difference: Difference | None) -> bool:
    return difference is not None and difference.shown


def _verb(metric: str, estimate: Estimate) -> str:
    value, scale = _value(metric, estimate), METRICS[metric][2]
    ends = f" (95%: {scale * estimate.low:.0f} to {scale * estimate.high:.0f})" if math.isfinite(estimate.low) else ""
    verb = {"success": "succeeds in", "percent": "reaches", "return": "has a mean return of"}[metric]
    return f"{verb} {value}{ends}" + (" of the expert's return" if metric == "percent" else "")


def _value(metric: str, estimate: Estimate) -> str:
    return f"{estimate.mean:.4g}" if metric == "return" else f"{METRICS[metric][2] * estimate.mean:.0f}%"


def _listed(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def describe_improvement(improvement: LoadedImprovement) -> str:
    """Return the first and the last promoted result of the first task."""
    first = improvement.rounds[0]
    last = next((one for one in reversed(improvement.rounds) if one.promoted), first)
    task = next(iter(last.summary))
    promoted = sum(one.promoted for one in improvement.rounds)
    shown = plain_names(dict.fromkeys(task for one in improvement.rounds for task in one.summary))
    text = f"{shown[task]}: {last.summary[task].unit} {last.summary[task]} after round {last.round}"
    text += f", {first.summary[task]} after round {first.round}." if task in first.summary else "."
    return f"{text} {promoted} of {len(improvement.rounds)} rounds were promoted."


def describe_runs(rows: Groups, metric: str) -> str:
    """Return the newest evaluation in training of each row, or that there was none."""
    count = sum(map(len, rows.values()))
    if not metric.startswith(EVALUATION):
        return f"{count} run{'s' * (count != 1)}, without an evaluation." if count else ""
    parts = []
    for row, runs in rows.items():
        last = [(run.curves[metric].values[-1], run.curves[metric].steps[-1]) for run in runs if metric in run.curves]
        if last:
            mean, step = sum(value for value, _ in last) / len(last), max(step for _, step in last)
            value = f"{100 * mean:.0f}% success" if metric.endswith("success") else f"return {mean:.4g}"
            parts.append(f"{row}: {value} at update {step:,}")
    return f"Evaluated in training. {'. '.join(parts)}."
