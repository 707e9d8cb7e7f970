"""What trials show: tables of methods and tasks, bars with intervals, and whether the critic knew what would come."""

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from pac.evaluation.compare import Difference
from pac.evaluation.intervals import stratified_bootstrap
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.summary import ALL, Estimate, Row, Summary, best
from pac.evaluation.tables import METRICS, grids, show
from pac.report import charts
from pac.report import html as look
from pac.report.groups import ENDED, ComparisonGroup

Colours = Mapping[str, int]
UNITS = {"success": "success, %", "percent": "% of expert", "return": "return"}
FEW_NOTES = 5  # shown at once
CALIBRATION = """The critic's value of the first action, and the discounted return that followed: a dot a trial, a cross
the mean of a method with the 95% interval of what was achieved. Below the dashed line the critic promised too much.
What would have come after the end of an episode (time limit, or stop at success) is in the prediction and not in the
return."""


def section(contest: ComparisonGroup, colours: Colours, notes: Mapping[str, str]) -> str:
    rules = f" ({contest.rules})" if contest.rules else ""
    differences, complaints = contest.differences()
    marks = {name: chr(ord("a") + i) for i, name in enumerate(name for name in contest.members if name in notes)}
    footnotes = "".join(
        f"<li><sup>{mark}</sup> {html.escape(name)}: {html.escape(notes[name])}</li>" for name, mark in marks.items()
    )
    made = [metric_table(metric, contest, marks) for metric in METRICS]
    seeds = any(len(parts) > 1 for parts in contest.members.values())
    return "\n".join(
        [
            f"<h2>Results{html.escape(rules)}</h2>",
            *map(look.warning, complaints),
            *made,
            f'<ul class="soft">{footnotes}</ul>' if footnotes else "",
            f'<p class="soft">{_explain(contest, seeds)}</p>',
            each_seed(contest) if seeds else "",
            _differences(differences),
            _warnings(contest.warnings(differences)),
            bar_charts(contest, colours),
        ]
    )


def _explain(contest: ComparisonGroup, seeds: bool) -> str:
    parts = ["Mean [95% interval]. Bold: within the interval of the best of its row."]
    if seeds:
        parts.append(
            "Small: each training seed. Trials of all seeds are pooled: the interval is about other trials of these "
            "same trainings, not about another training."
        )
    if contest.experts:
        parts.append(
            f"Experts' returns: {', '.join(f'{html.escape(k)} {v:,.1f}' for k, v in contest.experts.items())}."
        )
    return " ".join(parts)


def places(summaries: Mapping[str, Summary]) -> dict[str, str]:
    """Tasks and what pools them -> how they are called."""
    tasks = dict.fromkeys(task for summary in summaries.values() for task in summary.tasks)
    names = {task: task for task in tasks}
    if len(tasks) > 1:
        for place in dict.fromkeys(place for summary in summaries.values() for place in summary.pooled):
            count = max(summary.pooled[place].tasks for summary in summaries.values() if place in summary.pooled)
            suite = "" if place == ALL else f" {place},"
            names[place] = f"pooled,{suite} {count} task{'s' * (count != 1)}"
    return names


def estimate(metric: str, summary: Summary, place: str) -> Estimate | None:
    row: Row | None = summary.rows.get(place)
    return METRICS[metric][1](row) if row is not None else None


def metric_table(metric: str, contest: ComparisonGroup, marks: Mapping[str, str]) -> str:
    title = METRICS[metric][0]
    cut_short = metric == "return" and ENDED in contest.rules  # the sooner, the smaller: none of them is the best
    rows, pooled, methods = [], 0, dict[str, None]()
    for place, name in places(contest.pooled).items():
        estimates = {group: estimate(metric, summary, place) for group, summary in contest.pooled.items()}
        known = [entry for entry in estimates.values() if entry is not None]
        if not known:
            continue
        pooled += name != place
        methods |= dict.fromkeys(entry.method for entry in known)
        top = set[str]() if cut_short else best(estimates)
        trials = sorted({s.rows[place].episodes for s in contest.pooled.values() if place in s.rows})
        cells = [_cell(metric, contest, group, place, entry, group in top) for group, entry in estimates.items()]
        rows.append([html.escape(name), "/".join(f"{n:,}" for n in trials), *cells])
    if not rows:
        return ""
    header = ["task", "trials"] + [
        html.escape(group) + (f"<sup>{marks[group]}</sup>" if group in marks else "") for group in contest.pooled
    ]
    remark = " Until success: a smaller one is not a worse one." if cut_short else ""
    caption = f"{html.escape(title)} <span>95%: {html.escape('; '.join(methods))}.{remark}</span>"
    return look.table(header, rows, caption=caption, pooled=pooled)


def _cell(metric: str, contest: ComparisonGroup, group: str, place: str, entry: Estimate | None, top: bool) -> str:
    scale = METRICS[metric][2]
    text = html.escape(show(entry, scale))
    parts = [estimate(metric, summary, place) for summary in contest.single[group].values()]
    seeds = " / ".join("-" if part is None else f"{scale * part.mean:.1f}" for part in parts)
    below = f"<small>{seeds}</small>" if len(parts) > 1 and entry is not None else ""
    return f"{f'<strong>{text}</strong>' if top else text}{below}"


def each_seed(contest: ComparisonGroup) -> str:
    """A row a training, a column a task."""
    names = places(contest.pooled)
    tables = []
    for metric, (title, _, scale) in METRICS.items():
        shown = [place for place in names if any(estimate(metric, s, place) for s in contest.pooled.values())]
        rows = [
            [
                html.escape(f"{group}, {member}" if member else group),
                *(html.escape(show(estimate(metric, summary, place), scale)) for place in shown),
            ]
            for group, parts in contest.single.items()
            for member, summary in parts.items()
        ]
        if shown:
            header = ["training", *(html.escape(names[place]) for place in shown)]
            tables.append(look.table(header, rows, caption=html.escape(title)))
    return f"<details><summary>Each seed, with its interval</summary>{''.join(tables)}</details>"


def _differences(differences: Sequence[Difference]) -> str:
    made = grids({}, differences)
    if not made:
        return ""
    grid = made[0]
    rows = [[f"<strong>{html.escape(t)}</strong>" if bold else html.escape(t) for t, bold in row] for row in grid.rows]
    inner = look.table(list(map(html.escape, grid.header)), rows)
    return f"<details><summary>{html.escape(grid.title)}</summary>{inner}</details>"


def _warnings(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    if len(texts) > FEW_NOTES:
        return f'<details><summary>{len(texts)} notes</summary><ul class="soft">{items}</ul></details>'
    return f'<ul class="soft">{items}</ul>' if items else ""


def bar_charts(contest: ComparisonGroup, colours: Colours) -> str:
    """Success and percent of expert for each task; returns of tasks that have neither."""
    names = places(contest.pooled)
    order = sorted(names, key=lambda place: place != ALL)  # what pools all comes first
    made = []
    for metric in METRICS:
        drawn = [
            _bars(metric, contest, colours, place, names[place]) for place in order if _wanted(metric, contest, place)
        ]
        made += drawn
    return f'<h3>By task</h3><div class="grid">{"".join(made)}</div>' if made else ""


def _wanted(metric: str, contest: ComparisonGroup, place: str) -> bool:
    has = {m: any(estimate(m, summary, place) for summary in contest.pooled.values()) for m in METRICS}
    return has[metric] and (metric != "return" or not (has["success"] or has["percent"]))


def _bars(metric: str, contest: ComparisonGroup, colours: Colours, place: str, name: str) -> str:
    scale, rows = METRICS[metric][2], []
    for group, summary in contest.pooled.items():
        entry = estimate(metric, summary, place)
        if entry is None:
            continue
        parts = [estimate(metric, part, place) for part in contest.single[group].values()]
        means = tuple(scale * part.mean for part in parts if part is not None)
        rows.append(
            charts.Bar(
                name=group,
                index=colours[group],
                value=scale * entry.mean,
                low=scale * entry.low,
                high=scale * entry.high,
                text=show(entry, scale),
                parts=means if len(means) > 1 else (),
            )
        )
    return charts.bars(name, rows, unit=UNITS[metric], y_range=(0.0, 100.0) if metric == "success" else None)


# -------------------------------------------------------------------------------------------------------- calibration


def calibration(contests: Sequence[ComparisonGroup], colours: Colours) -> str:
    """What the critic expected of the first action against the discounted return that followed, a dot a trial."""
    figures, rows, left_out = [], [], dict[str, None]()
    for contest in contests:
        for task in dict.fromkeys(task for summary in contest.pooled.values() for task in summary.tasks):
            clouds = []
            for group, parts in contest.members.items():
                told = [entry for part in parts.values() for entry in part if entry.task == task and _foreseen(entry)]
                if told and group in contest.relabelled:
                    left_out[group] = None
                elif told:
                    clouds.append(_cloud(group, told, colours))
                    rows.append(_calibration_row(group, task, contest.rules, clouds[-1]))
            if clouds:
                title = f"{task} ({contest.rules})" if contest.rules else task
                figures.append(charts.scatter(title, clouds, x_name="predicted", y_name="achieved"))
    names = ", ".join(left_out)
    silent = look.warning(f"Left out, since their critic learned another reward than the world's: {names}.")
    if not figures:
        return f"<h2>Value calibration</h2>{silent}" if left_out else ""
    header = ["method", "task", "trials", "predicted", "achieved", "predicted - achieved"]
    shown = dict.fromkeys((cloud_name, colours[cloud_name]) for cloud_name in dict.fromkeys(row[0] for row in rows))
    return "\n".join(
        [
            "<h2>Value calibration</h2>",
            f"<p>{CALIBRATION}</p>",
            silent if left_out else "",
            charts.legend(list(shown)),
            f'<div class="grid">{"".join(figures)}</div>',
            look.table(header, [list(map(html.escape, row)) for row in rows]),
        ]
    )


def _foreseen(entry: EpisodeRecord) -> bool:
    return entry.predicted is not None and entry.achieved is not None and math.isfinite(entry.predicted)


def _cloud(group: str, records: Sequence[EpisodeRecord], colours: Colours) -> charts.Cloud:
    predicted = np.array([entry.predicted for entry in records], dtype=np.float64)
    achieved = np.array([entry.achieved for entry in records], dtype=np.float64)
    low, high = stratified_bootstrap([achieved])
    mean = float(predicted.mean()), float(achieved.mean())
    return charts.Cloud(name=group, index=colours[group], x=predicted, y=achieved, mean=mean, low=low, high=high)


def _calibration_row(group: str, task: str, rules: str, cloud: charts.Cloud) -> list[str]:
    predicted, achieved = cloud.mean
    low, high = stratified_bootstrap([cloud.x - cloud.y])
    ends = (f"[{a:.4g}, {b:.4g}]" if math.isfinite(a) else "[?]" for a, b in ((cloud.low, cloud.high), (low, high)))
    first, second = ends
    where = f"{task} ({rules})" if rules else task
    return [
        group,
        where,
        f"{len(cloud.x):,}",
        f"{predicted:.4g}",
        f"{achieved:.4g} {first}",
        f"{predicted - achieved:+.4g} {second}",
    ]
