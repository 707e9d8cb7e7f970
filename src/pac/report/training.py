"""What happened in training: the runs, their curves, and the data they drew from."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac.evaluation.intervals import wilson
from pac.report import charts
from pac.report import html as look
from pac.report.groups import datasets_of
from pac.report.sources import Curve, LoadedRun, number, table

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
}
SHARPNESS = {
    "policy/entropy": ("Entropy of the policy", "nats an action dimension"),
    "weights/effective_samples": ("Effective sample size of the weights", "actions"),
    "policy/kl_to_reference": ("KL to the reference policy", "nats"),
    "weights/temperature": ("Temperature", ""),
}
MOST_OTHERS = 24  # charts of metrics that have no place of their own


def runs_table(groups: Groups) -> str:
    rows = []
    for name, runs in groups.items():
        for run in runs:
            flat = [_text(run.seed), _steps(run), _size(run), _duration(run), _last_success(run)]
            rows.append([html.escape(run.name), html.escape(name), *map(html.escape, flat)])
    header = ["run", "method", "seed", "updates", "parameters", "time", "success in training, last, % [95%]"]
    return look.table(header, rows)


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _steps(run: LoadedRun) -> str:
    planned = run.planned
    return f"{run.last_step:,}" + (f" of {planned:,}" if planned is not None and planned != run.last_step else "")


def _size(run: LoadedRun) -> str:
    count = number(run.config.get("parameters"))
    return f"{count / 1e6:.2f}M ({run.config.get('size')})" if math.isfinite(count) else "-"


def _duration(run: LoadedRun) -> str:
    seconds = number(run.summary.get("seconds"))
    if not math.isfinite(seconds):
        return "-"
    hours, minutes = divmod(round(seconds) // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {round(seconds) % 60:02d} s"


def _last_success(run: LoadedRun) -> str:
    curve = run.curves.get("evaluation/all/success")
    if curve is None or not np.isfinite(curve.values).any():
        return "-"
    rate, trials = float(curve.values[np.isfinite(curve.values)][-1]), _trials(run, "all")
    if trials is None:
        return f"{100 * rate:.1f}"
    low, high = wilson(rate * trials, trials)
    return f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _trials(run: LoadedRun, task: str) -> int | None:
    """Behind a number of an evaluation during training."""
    settings = table(run.settings.get("evaluation"))
    each, tasks = settings.get("episodes", settings.get("trials")), settings.get("tasks")
    if not isinstance(each, int) or not isinstance(tasks, list) or each < 1:
        return None
    return each * len(tasks) if task == "all" else each


# --------------------------------------------------------------------------------------------------------------- curves


def curves(groups: Groups, colours: Mapping[str, int]) -> str:
    """Sections of charts, each only if some run has such a metric."""
    names = dict.fromkeys(name for runs in groups.values() for run in runs for name in run.curves)
    known = [*KNOWN, *SHARPNESS]
    others = [n for n in names if n not in known and not n.startswith((EVALUATION, "time/"))]
    asked = sorted(
        (name for name in names if name.startswith(EVALUATION)), key=lambda n: (not n.endswith("success"), n)
    )
    tried = [_tried(name, groups, colours) for name in asked]
    sharp = [_chart(name, groups, colours, *about) for name, about in SHARPNESS.items() if name in names]
    rest = [_chart(name, groups, colours, name, "") for name in others[:MOST_OTHERS]]
    main = [_chart(name, groups, colours, *about) for name, about in KNOWN.items() if name in names]
    key = charts.legend([(name, colours[name]) for name in groups])
    parts = [
        _grid("Learning curves", key + _how_drawn(groups), [*tried, *main]),
        _grid("How sharp the improvement is", key, sharp),
    ]
    if any(rest):
        more = f" ({len(others) - MOST_OTHERS} more are in metrics.jsonl)" if len(others) > MOST_OTHERS else ""
        parts.append(
            f'<details><summary>Other metrics{more}</summary>{key}<div class="grid">{"".join(rest)}</div></details>'
        )
    return "\n".join(part for part in parts if part)


def _grid(title: str, above: str, made: Sequence[str]) -> str:
    inner = "".join(made)
    return f'<h2>{title}</h2>{above}<div class="grid">{inner}</div>' if inner else ""


def _how_drawn(groups: Groups) -> str:
    text = "Lines are moving means; faint, what was logged."
    if any(len(runs) > 1 for runs in groups.values()):
        text += " Of several seeds the line is their mean and the band their range."
    text += (
        " Whiskers: Wilson's 95% of a success rate over the trials of all seeds; of returns the runs keep means only."
    )
    return f'<p class="soft">{text}</p>'


def _chart(name: str, groups: Groups, colours: Mapping[str, int], title: str, unit: str) -> str:
    series = []
    for group, runs in groups.items():
        found = [run.curves[name] for run in runs if name in run.curves]
        if found:
            series.append(_series(group, found, colours[group]))
    return charts.lines(title, series, x_name="updates", note=", ".join(filter(None, (unit, name))))


def _series(group: str, found: Sequence[Curve], index: int) -> charts.Series:
    """Of the seeds that have got as far as a step: one that stopped early does not cut the others off."""
    steps = np.unique(np.concatenate([curve.steps for curve in found]))
    stacked = np.full((len(found), len(steps)), np.nan)
    for row, curve in zip(stacked, found, strict=True):
        row[np.searchsorted(steps, curve.steps)] = curve.values
    width = charts.smoothing_width(min(len(curve.steps) for curve in found))
    smoothed = np.stack([charts.smooth(row, width) for row in stacked])
    return charts.Series(
        name=group,
        index=index,
        x=steps,
        y=_over(np.mean, smoothed),
        low=_over(np.min, smoothed) if len(found) > 1 else None,
        high=_over(np.max, smoothed) if len(found) > 1 else None,
        raw=[(curve.steps, curve.values) for curve in found],
    )


def _over(reduce: Any, rows: np.ndarray) -> np.ndarray:
    """Of each column, what is known of it; NaN where nothing is."""
    columns = [column[np.isfinite(column)] for column in rows.T]
    return np.array([float(reduce(column)) if len(column) else math.nan for column in columns])


def _tried(name: str, groups: Groups, colours: Mapping[str, int]) -> str:
    """Success or return of the policy during training: one point an evaluation."""
    task, _, metric = name.removeprefix(EVALUATION).rpartition("/")
    only = {
        task
        for runs in groups.values()
        for run in runs
        for task in table(run.settings.get("evaluation")).get("tasks") or []
    }
    if task != "all" and len(only) == 1:
        return ""  # it is the same as "all"
    scale = 100.0 if metric == "success" else 1.0
    series = []
    for group, runs in groups.items():
        found = [(run, run.curves[name]) for run in runs if name in run.curves]
        if not found:
            continue
        steps = np.unique(np.concatenate([curve.steps for _, curve in found]))
        points = [_point(found, int(step), task, metric) for step in steps]
        mean, low, high = (scale * np.array(column) for column in zip(*points, strict=True))
        raw = [(curve.steps, scale * curve.values) for _, curve in found] if len(found) > 1 else []
        ends: dict[str, Any] = {"low": low, "high": high} if metric == "success" else {}
        series.append(charts.Series(name=group, index=colours[group], x=steps, y=mean, raw=raw, marks=True, **ends))
    where = next(iter(only)) if len(only) == 1 else f"all {len(only)} tasks" if task == "all" else task
    title = f"{metric.capitalize()}, {where}"
    y_range = (-3.0, 103.0) if metric == "success" else None
    return charts.lines(
        title, series, x_name="updates", y_range=y_range, note="%" if metric == "success" else "mean return"
    )


def _point(found: Sequence[tuple[LoadedRun, Curve]], step: int, task: str, metric: str) -> tuple[float, float, float]:
    """Over the seeds that have this step: mean, and Wilson's interval if the number of trials is known."""
    values, trials = [], list[int | None]()
    for run, curve in found:
        place = np.flatnonzero(curve.steps == step)
        if len(place) and np.isfinite(curve.values[place[0]]):
            values.append(float(curve.values[place[0]]))
            trials.append(_trials(run, task))
    if not values:
        return math.nan, math.nan, math.nan
    counts = [count for count in trials if count is not None]
    if metric != "success" or len(counts) < len(values):
        return float(np.mean(values)), math.nan, math.nan
    successes = sum(round(value * count) for value, count in zip(values, counts, strict=True))
    return (successes / sum(counts), *wilson(successes, sum(counts)))


# -------------------------------------------------------------------------------------------------------------- mixture


def mixtures(runs: Sequence[LoadedRun]) -> str:
    """What was drawn from, once for runs that share it."""
    shared: dict[str, list[LoadedRun]] = {}
    for run in runs:
        rows = _mixture_rows(run)
        if rows:
            shared.setdefault(json.dumps([rows, _batch(run)]), []).append(run)
    parts = []
    for key, members in shared.items():
        rows, batch = json.loads(key)
        header = ["dataset", "group", "weight λ", "P_eff", "alpha", "beta", "episodes", "successes", "transitions"]
        names = ", ".join(run.name for run in members)
        caption = f"{html.escape(names)} <span>{html.escape(batch)}</span>"
        parts.append(look.table(header, [list(map(html.escape, row)) for row in rows], caption=caption))
    return "<h2>Data</h2>" + "\n".join(parts) if parts else ""


def _batch(run: LoadedRun) -> str:
    plan = table(run.config.get("mixture"))
    size, window = plan.get("batch_size"), plan.get("window")
    return f"{size} windows of {window} observations per update" if size and window else ""


def _mixture_rows(run: LoadedRun) -> list[list[str]]:
    plan = table(run.config.get("mixture"))
    asked = {dataset.get("name"): (group, dataset) for group, dataset in datasets_of(run)}
    scheduled = table(run.settings.get("schedules"))
    counted = plan.get("datasets")
    rows = []
    for row in map(table, counted if isinstance(counted, list) else []):
        group, dataset = asked.get(row.get("name"), ({}, {}))
        windows, length = number(row.get("windows")), number(plan.get("window"))
        success = number(row.get("success"))
        rows.append(
            [
                str(row.get("name")),
                str(row.get("group")),
                _plain(group.get("weight")),
                _plain(row.get("p_eff")),
                _weight(scheduled.get("imitation_weight"), dataset.get("imitation_weight"), ""),
                _weight(
                    scheduled.get("critic_weight"),
                    dataset.get("critic_weight"),
                    f"{_plain(row.get('actions'))} (actions)",
                ),
                _plain(row.get("episodes")),
                f"{100 * success:.0f}%" if math.isfinite(success) else "-",
                f"≤ {windows * length:,.0f}" if math.isfinite(windows * length) else "-",
            ]
        )
    return rows


def _weight(schedule: Any, value: Any, otherwise: str) -> str:
    if schedule is not None:
        return f"schedule {json.dumps(schedule)}"
    return _plain(value) if value is not None else otherwise or "-"


def _plain(value: Any) -> str:
    found = number(value)
    if not math.isfinite(found):
        return "-"
    return f"{found:,.0f}" if found.is_integer() else f"{found:.4g}"
