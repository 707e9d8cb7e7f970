"""Training: a table of the runs, their curves, and the data they drew from."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pac.evaluation.intervals import wilson
from pac.report import charts, html
from pac.report.sources import Curve, LoadedRun

Groups = Mapping[str, Sequence[LoadedRun]]
EVALUATION = "evaluation/"
KNOWN = {  # metric -> title, unit
    "loss/total": ("Loss, all terms", "per transition"),
    "loss/imitation": ("Imitation loss", "nats"),
    "loss/improvement": ("Improvement loss", "nats"),
    "loss/critic": ("Critic's loss", "nats"),
    "loss/behaviour": ("Behaviour's loss", "nats"),
    "critic/value": ("Value", "units of the value bins"),
    "critic/target_value": ("Target's value", "units of the value bins"),
    "policy/entropy": ("Entropy of the policy", "nats per action dimension"),
    "weights/effective_samples": ("Effective sample size of the weights", "actions"),
    "policy/kl_to_reference": ("KL to the reference policy", "nats"),
    "weights/temperature": ("Temperature", ""),
}
MAX_OTHERS = 24  # charts of metrics that are not in KNOWN
CURVES = (
    "Lines are moving means; faint lines are what was logged. Of several seeds the line is the mean and the band the "
    "range. Whiskers: Wilson's 95% interval of a success rate over the episodes of all seeds."
)


def runs_section(groups: Groups) -> str:
    rows = []
    for row, runs in groups.items():
        for run in runs:
            last, planned, count = run.last_step, run.config.get("steps"), run.config.get("parameters")
            rows.append(
                [
                    run.name,
                    row,
                    str(run.settings.get("method", "-")),
                    "-" if run.seed is None else str(run.seed),
                    f"{last:,}" if planned in (None, last) else f"{last:,} of {planned:,}",
                    f"{count / 1e6:.2f}M ({run.config.get('size')})" if count else "-",
                    _duration(run.summary.get("seconds")),
                    _last_success(run),
                ]
            )
    header = ["run", "row", "method", "seed", "updates", "parameters", "time", "last success in training, % [95%]"]
    return html.section("Runs", [html.table(header, rows)] if rows else [])


def _duration(seconds: int | float | None) -> str:
    if seconds is None:
        return "-"
    hours, minutes = divmod(round(seconds) // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {round(seconds) % 60:02d} s"


def _last_success(run: LoadedRun) -> str:
    curve = run.curves.get(f"{EVALUATION}all/success")
    known = curve.values[np.isfinite(curve.values)] if curve is not None else []
    if not len(known):
        return "-"
    rate, low, high = (100 * value for value in _rate([(run, known[-1])], "all"))
    return f"{rate:.1f} [{low:.1f}, {high:.1f}]" if math.isfinite(low) else f"{rate:.1f}"


def _rate(rates: Sequence[tuple[LoadedRun, float]], task: str) -> tuple[float, float, float]:
    """Return the success rate over some runs, and Wilson's interval if the number of episodes is known."""
    counts = []
    for run, _ in rates:
        settings = run.settings.get("evaluation") or {}
        counts.append(settings.get("episodes", 0) * (len(settings.get("tasks", ())) if task == "all" else 1))
    if not all(counts):
        return float(np.mean([rate for _, rate in rates])), math.nan, math.nan
    successes = sum(round(rate * count) for (_, rate), count in zip(rates, counts, strict=True))
    return (successes / sum(counts), *wilson(successes, sum(counts)))


# --------------------------------------------------------------------------------------------------------------- curves


def curves_section(groups: Groups, colours: Mapping[str, int]) -> str:
    """Return charts of all metrics that some run has. Those that are not in KNOWN are folded."""
    names = dict.fromkeys(name for runs in groups.values() for run in runs for name in run.curves)
    evaluated = sorted((n for n in names if n.startswith(EVALUATION)), key=lambda n: (not n.endswith("success"), n))
    others = [n for n in names if n not in KNOWN and not n.startswith((EVALUATION, "time/"))]
    main = [_evaluation_chart(name, groups, colours) for name in evaluated]
    main += [_chart(name, groups, colours, *about) for name, about in KNOWN.items() if name in names]
    other_charts = html.columns(_chart(name, groups, colours, name, "") for name in others[:MAX_OTHERS])
    left_out = len(others) - MAX_OTHERS
    more = f"Other metrics ({left_out} more are in metrics.jsonl)" if left_out > 0 else "Other metrics"
    key = charts.legend([(row, colours[row]) for row in groups]) + html.soft(CURVES)
    return html.section("Learning curves", [key, html.columns(main), html.folded(more, other_charts)] if names else [])


def _chart(name: str, groups: Groups, colours: Mapping[str, int], title: str, unit: str) -> str:
    series = []
    for row, runs in groups.items():
        if found := [run.curves[name] for run in runs if name in run.curves]:
            series.append(_series(row, found, colours[row]))
    return charts.lines(title, series, x_name="updates").figure(", ".join(filter(None, (unit, name))))


def _series(row: str, curves: Sequence[Curve], index: int) -> charts.Series:
    """Return the mean and range over the seeds that have reached a step."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    stacked = np.full((len(curves), len(steps)), np.nan)
    for values, curve in zip(stacked, curves, strict=True):
        values[np.searchsorted(steps, curve.steps)] = curve.values
    width = charts.smoothing_width(min(len(curve.steps) for curve in curves))
    smoothed = np.stack([charts.smooth(values, width) for values in stacked])
    several = len(curves) > 1
    return charts.Series(
        name=row,
        index=index,
        x=steps,
        y=_over_seeds(np.mean, smoothed),
        low=_over_seeds(np.min, smoothed) if several else None,
        high=_over_seeds(np.max, smoothed) if several else None,
        raw=[(curve.steps, curve.values) for curve in curves],
    )


def _over_seeds(reduce: Callable[[np.ndarray], Any], values: np.ndarray) -> np.ndarray:
    """Reduce the finite values of each column. A column without any is NaN."""
    columns = [column[np.isfinite(column)] for column in values.T]
    return np.array([float(reduce(column)) if len(column) else math.nan for column in columns])


def _evaluation_chart(name: str, groups: Groups, colours: Mapping[str, int]) -> str:
    """Return the success or return of the policy during training, with a point per evaluation."""
    task, _, metric = name.removeprefix(EVALUATION).rpartition("/")
    settings = [run.settings.get("evaluation") or {} for runs in groups.values() for run in runs]
    tasks = list(dict.fromkeys(task for one in settings for task in one.get("tasks", ())))
    if task != "all" and len(tasks) == 1:
        return ""  # the same as "all"
    percent, series = metric == "success", []
    scale = 100.0 if percent else 1.0
    for row, runs in groups.items():
        found = [(run, run.curves[name]) for run in runs if name in run.curves]
        if not found:
            continue
        steps = np.unique(np.concatenate([curve.steps for _, curve in found]))
        points = scale * np.array([_point(found, int(step), task, metric) for step in steps])
        series.append(
            charts.Series(
                name=row,
                index=colours[row],
                x=steps,
                y=points[:, 0],
                low=points[:, 1] if percent else None,
                high=points[:, 2] if percent else None,
                raw=[(curve.steps, scale * curve.values) for _, curve in found] if len(found) > 1 else [],
                marks=True,
            )
        )
    where = task if task != "all" else tasks[0] if len(tasks) == 1 else f"all {len(tasks)} tasks"
    title, y_range = f"{metric.capitalize()}, {where}", (-3.0, 103.0) if percent else None
    return charts.lines(title, series, x_name="updates", y_range=y_range).figure("%" if percent else "mean return")


def _point(found: Iterable[tuple[LoadedRun, Curve]], step: int, task: str, metric: str) -> tuple[float, float, float]:
    """Return the mean over the seeds that have this step. A success rate has its interval."""
    values = [(run, float(value)) for run, curve in found for value in curve.values[curve.steps == step]]
    values = [(run, value) for run, value in values if math.isfinite(value)]
    if not values:
        return math.nan, math.nan, math.nan
    if metric == "success":
        return _rate(values, task)
    return float(np.mean([value for _, value in values])), math.nan, math.nan


# ----------------------------------------------------------------------------------------------------------------- data


def data_section(runs: Sequence[LoadedRun]) -> str:
    """Return the mixtures, each once with the runs that share it."""
    names: dict[str, list[str]] = {}
    for run in runs:
        if rows := _mixture_rows(run):
            names.setdefault(json.dumps([rows, _batch(run)]), []).append(run.name)
    header = ["dataset", "group", "weight λ", "P_eff", "alpha", "beta", "episodes", "successes", "transitions"]
    tables = []
    for key, members in names.items():
        rows, batch = json.loads(key)
        tables.append(html.table(header, rows, caption=f"{', '.join(members)}: {batch}"))
    return html.section("Data", tables)


def _batch(run: LoadedRun) -> str:
    plan = run.config["mixture"]
    return f"{plan['batch_size']} windows of {plan['window']} transitions per update"


def _mixture_rows(run: LoadedRun) -> list[list[str]]:
    plan, schedules = run.config.get("mixture") or {"datasets": []}, run.settings.get("schedules", {})
    rows = []
    for counts in plan["datasets"]:
        dataset, group = run.datasets[counts["name"]]
        alpha, beta = (
            f"schedule {json.dumps(schedules[name])}" if schedules.get(name) is not None else _number(dataset.get(name))
            for name in ("imitation_weight", "critic_weight")
        )
        success = counts.get("success")
        rows.append(
            [
                counts["name"],
                counts["group"],
                _number(group.get("weight")),
                _number(counts.get("p_eff")),
                alpha,
                f"{_number(counts.get('actions'))} (actions)" if beta == "-" else beta,
                _number(counts.get("episodes")),
                "-" if success is None else f"{100 * success:.0f}%",
                f"≤ {counts['windows'] * plan['window']:,}",
            ]
        )
    return rows


def _number(value: int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
