"""Training: a table of the runs, their curves, and the data they drew from."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac.evaluation.intervals import wilson
from pac.report import charts, html
from pac.report.groups import plain_names
from pac.report.sources import Curve, LoadedRun
from pac.training.logging import ENDS

Groups = Mapping[str, Sequence[LoadedRun]]
EVALUATION = "evaluation/"
UNITS = {"success": "success, % of episodes", "return": "mean return"}
KNOWN = {  # metric -> title, name of the y axis with its unit
    "loss/total": ("Loss, all terms", "loss per transition"),
    "loss/imitation": ("Imitation loss", "loss, nats"),
    "loss/improvement": ("Improvement loss", "loss, nats"),
    "loss/critic": ("Critic's loss", "loss, nats"),
    "loss/behaviour": ("Behaviour's loss", "loss, nats"),
    "critic/value": ("Value", "value, units of its bins"),
    "critic/target_value": ("Target's value", "value, units of its bins"),
    "policy/entropy": ("Entropy of the policy", "nats per action dimension"),
    "weights/effective_samples": ("Effective sample size of the weights", "actions"),
    "policy/kl_to_reference": ("KL to the reference policy", "KL, nats"),
    "weights/temperature": ("Temperature", "temperature, units of value"),
}
MAX_OTHERS = 24  # charts of metrics that are not in KNOWN
CURVES = (
    "Lines are moving means; faint lines are what was logged. Of several seeds the line is the mean and the band the "
    "range. Whiskers: 95% intervals over the episodes; of success over those of all seeds."
)


def runs_section(groups: Groups) -> str:
    rows, labelled = [], any(row != run.name for row, runs in groups.items() for run in runs)
    for row, runs in groups.items():
        for run in runs:
            last, planned, count = run.last_step, run.settings.get("steps"), run.settings.get("parameters")
            rows.append(
                [
                    run.name,
                    *([row] if labelled else []),
                    str(run.recipe.get("method", "-")),
                    "-" if run.seed is None else str(run.seed),
                    f"{last:,}" if planned in (None, last) else f"{last:,} of {planned:,}",
                    f"{count / 1e6:.2f}M ({run.settings.get('size')})" if count else "-",
                    f"{run.summary['seconds'] / 60:,.1f} min" if "seconds" in run.summary else "-",
                ]
            )
    header = ["run", *(["row"] if labelled else []), "method", "seed", "updates", "parameters", "time"]
    return html.section("Runs", [html.table(header, rows)] if rows else [])


def _rate(rates: Sequence[tuple[LoadedRun, float]], all_tasks: bool) -> tuple[float, float, float]:
    """Return the success rate over some runs, and Wilson's interval if the number of episodes is known."""
    counts = []
    for run, _ in rates:
        settings = run.recipe.get("evaluation") or {}
        counts.append(settings.get("episodes", 0) * (len(settings.get("tasks", ())) if all_tasks else 1))
    if not all(counts):
        return float(np.mean([rate for _, rate in rates])), math.nan, math.nan
    successes = sum(round(rate * count) for (_, rate), count in zip(rates, counts, strict=True))
    return (successes / sum(counts), *wilson(successes, sum(counts)))


def curves_section(groups: Groups, colours: Mapping[str, int]) -> str:
    """Return charts of all metrics that some run has. Those without a title in KNOWN are folded."""
    names = dict.fromkeys(name for runs in groups.values() for run in runs for name in run.curves)
    evaluated = [name for name in names if name.startswith(EVALUATION) and not name.endswith(ENDS)]
    evaluated = sorted(evaluated, key=lambda n: (not n.endswith("success"), n))
    tasks = dict.fromkeys(name.removeprefix(EVALUATION).rpartition("/")[0] for name in evaluated)
    tasks.pop("all", None)
    if len(tasks) == 1:  # the same as all tasks
        evaluated = [name for name in evaluated if not name.startswith(f"{EVALUATION}all/")]
    others = [n for n in names if n not in KNOWN and not n.startswith((EVALUATION, "time/"))]
    shown = plain_names(tasks)
    main = [metric_chart(n, groups, colours, shown) for n in [*evaluated, *(n for n in KNOWN if n in names)]]
    other_charts = html.columns(metric_chart(name, groups, colours) for name in others[:MAX_OTHERS])
    more = "Other metrics" if len(others) <= MAX_OTHERS else "Other metrics (metrics.jsonl has more)"
    key = charts.legend([(row, colours[row]) for row in groups]) + html.soft(CURVES)
    return html.section("Learning curves", [key, html.columns(main), html.folded(more, other_charts)] if names else [])


def metric_chart(name: str, groups: Groups, colours: Mapping[str, int], shown: Mapping[str, str] | None = None) -> str:
    """Return the chart of a metric. `shown` has the plain names of tasks."""
    title, unit = KNOWN.get(name, (name, "value"))
    if is_evaluation := name.startswith(EVALUATION):
        task, _, metric = name.removeprefix(EVALUATION).rpartition("/")
        place = "all tasks" if task == "all" else (shown or {}).get(task, task)
        title, unit = f"{metric.capitalize()} in training, {place}", UNITS.get(metric, metric)
    series = []
    for row, runs in groups.items():
        if found := [run for run in runs if name in run.curves]:
            make = _evaluation_series if is_evaluation else _series
            series.append(make(row, found, name, colours[row]))
    y_range = (-3.0, 103.0) if is_evaluation and name.endswith("/success") else None
    drawing = charts.lines(title, series, x_name="updates", y_name=unit, y_range=y_range)
    return drawing.figure("" if is_evaluation or title == name else name)


def _stack(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return all steps, and the values of each curve there. NaN where a curve has none."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    values = np.full((len(curves), len(steps)), np.nan)
    for row, curve in zip(values, curves, strict=True):
        row[np.searchsorted(steps, curve.steps)] = curve.values
    return steps, values


def _series(row: str, runs: Sequence[LoadedRun], name: str, index: int) -> charts.Series:
    """Return the mean and range over the seeds that have reached a step."""
    curves = [run.curves[name] for run in runs]
    steps, values = _stack(curves)
    width = charts.smoothing_width(min(len(curve.steps) for curve in curves))
    smoothed = np.stack([charts.smooth(value, width) for value in values])
    columns = [column[np.isfinite(column)] for column in smoothed.T]
    mean, low, high = (
        np.array([float(reduce(column)) if len(column) else math.nan for column in columns])
        for reduce in (np.mean, np.min, np.max)
    )
    ends: dict[str, Any] = {"low": low, "high": high} if len(curves) > 1 else {}
    raw = [(curve.steps, curve.values) for curve in curves]
    return charts.Series(name=row, index=index, x=steps, y=mean, raw=raw, **ends)


def _evaluation_series(row: str, runs: Sequence[LoadedRun], name: str, index: int) -> charts.Series:
    """Return the success or return of the policy during training, with a point per evaluation."""
    curves = [run.curves[name] for run in runs]
    steps, values = _stack(curves)
    percent, all_tasks = name.endswith("/success"), name.startswith(f"{EVALUATION}all/")
    points = np.full((len(steps), 3), np.nan)  # mean and interval
    for point, column in zip(points, values.T, strict=True):
        known = [(run, float(value)) for run, value in zip(runs, column, strict=True) if math.isfinite(value)]
        if known and percent:
            point[:] = [100 * value for value in _rate(known, all_tasks)]
        elif known:
            point[0] = np.mean([value for _, value in known])
    ends = [run.curves.get(f"{name}{end}") for run in runs[:1] for end in ENDS]
    if len(runs) == 1 and not percent and None not in ends and all(len(end.steps) == len(steps) for end in ends if end):
        points[:, 1:] = np.stack([end.values for end in ends if end], axis=1)
    y, low, high = points.T
    raw = [(curve.steps, (100 if percent else 1) * curve.values) for curve in curves] if len(runs) > 1 else []
    return charts.Series(name=row, index=index, x=steps, y=y, low=low, high=high, raw=raw, marks=True)


def data_section(runs: Sequence[LoadedRun]) -> str:
    """Return the mixtures, each once with the runs that share it."""
    names: dict[tuple[str, tuple[tuple[str, ...], ...]], list[str]] = {}
    for run in runs:
        if plan := run.settings.get("mixture"):
            batch = f"{plan['batch_size']} windows of {plan['window']} transitions per update"
            rows = tuple(_mixture_row(run, counts) for counts in plan["datasets"])
            names.setdefault((batch, rows), []).append(run.name)
    header = ["dataset", "group", "weight λ", "P_eff", "alpha", "beta", "episodes", "successes", "transitions"]
    tables = [html.table(header, rows, caption=f"{', '.join(each)}: {batch}") for (batch, rows), each in names.items()]
    return html.section("Data", tables)


def _mixture_row(run: LoadedRun, counts: Mapping[str, Any]) -> tuple[str, ...]:
    dataset, group = run.datasets[counts["name"]]
    schedules = run.recipe.get("schedules", {})
    alpha, beta = (
        f"schedule {json.dumps(schedules[name])}" if schedules.get(name) is not None else _number(dataset.get(name))
        for name in ("imitation_weight", "critic_weight")
    )
    success = counts.get("success")
    return (
        counts["name"],
        counts["group"],
        _number(group.get("weight")),
        _number(counts.get("p_eff")),
        alpha,
        f"{_number(counts.get('actions'))} (actions)" if beta == "-" else beta,
        _number(counts.get("episodes")),
        "-" if success is None else f"{100 * success:.0f}%",
        f"≤ {counts['windows'] * run.settings['mixture']['window']:,}",
    )


def _number(value: int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
