"""Rounds of improvement: the result of each task by round, and which rounds were promoted."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pac.improve.folder import FinishedRound
from pac.report import charts, html
from pac.report.groups import plain_names
from pac.report.sources import LoadedImprovement

SCALES = {"success": (100.0, "success, % of episodes"), "return": (1.0, "return")}
KEY = "Filled: promoted. Hollow: refused, and the policy before it kept. Whiskers: 95% of the round's own episodes."


def improvements_section(improvements: Sequence[LoadedImprovement]) -> str:
    parts: list[str] = []
    for improvement in improvements:
        tasks = list(dict.fromkeys(task for entry in improvement.rounds for task in entry.summary))
        shown = plain_names(tasks)
        figures = html.columns(round_chart(improvement, task, shown[task]) for task in tasks)
        parts += [f"<h3>{html.escape(improvement.row)}</h3>", html.soft(f"Status: {improvement.status}. {KEY}")]
        parts += [figures, _table(improvement.rounds, tasks, shown)] if tasks else []
    return html.section("Rounds of improvement", parts)


def round_chart(improvement: LoadedImprovement, task: str, title: str) -> str:
    """Return a chart of one task by round."""
    entries = [entry for entry in improvement.rounds if task in entry.summary]
    unit = entries[0].summary[task].unit
    scale, name = SCALES[unit]
    y, low, high = (
        scale * np.array([getattr(entry.summary[task], end) for entry in entries], dtype=np.float64)
        for end in ("mean", "low", "high")
    )
    series = charts.Series(
        name=task,
        index=0,
        x=np.array([entry.round for entry in entries], dtype=np.float64),
        y=y,
        low=low,
        high=high,
        marks=True,
        hollow=np.array([not entry.promoted for entry in entries]),
    )
    expert = improvement.experts.get(task, math.nan)
    line = ("expert", expert) if unit == "return" and math.isfinite(expert) else None
    y_range = (-3.0, 103.0) if unit == "success" else None
    return charts.lines(title, [series], x_name="round", y_name=name, y_range=y_range, line=line).figure()


def _table(rounds: Sequence[FinishedRound], tasks: Sequence[str], shown: Mapping[str, str]) -> str:
    rows = [
        [
            str(entry.round),
            *(str(entry.summary[task]) if task in entry.summary else "-" for task in tasks),
            f"{sum(entry.episodes.values()):,}",
            f"{entry.steps:,}",
            f"{sum(entry.seconds.values()):,.0f}",
            "yes" if entry.promoted else "no",
            entry.reason,
        ]
        for entry in rounds
    ]
    header = ["round", *(shown[task] for task in tasks), "episodes", "updates", "seconds", "promoted", "reason"]
    return html.table(header, rows, words=len(header) - 1)
