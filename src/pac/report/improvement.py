"""Rounds of improvement: what each task's policy reached, round after round, and which rounds were refused."""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pac.report import charts
from pac.report import html as look
from pac.report.sources import Improvement, number, table

SCALES = {"success": (100.0, "success, %"), "return": (1.0, "return")}


def section(improvements: Sequence[Improvement]) -> str:
    parts = [part for one in improvements for part in _parts(one)]
    return "<h2>Rounds of improvement</h2>" + "\n".join(parts) if parts else ""


def _parts(one: Improvement) -> list[str]:
    if not one.rounds:
        return []
    tasks = dict.fromkeys(task for entry in one.rounds for task in table(entry.get("summary")))
    figures = "".join(_chart(one, task) for task in tasks)
    status = one.content.get("status")
    said = f'<p class="soft">Status: {html.escape(str(status))}.</p>' if status else ""
    key = "Filled: promoted. Hollow: refused, and the policy before it kept. Whiskers: 95% of the round's own trials."
    return [
        f"<h3>{html.escape(one.name)}</h3>{said}",
        f'<div class="grid">{figures}</div><p class="soft">{key}</p>',
        _table(one, list(tasks)),
    ]


def _chart(one: Improvement, task: str) -> str:
    told = [(entry, table(table(entry.get("summary")).get(task))) for entry in one.rounds]
    unit = next((str(about["unit"]) for _, about in told if "unit" in about), "return")
    scale, name = SCALES.get(unit, (1.0, unit))
    mean, low, high = (scale * np.array([number(about.get(k)) for _, about in told]) for k in ("mean", "low", "high"))
    series = charts.Series(
        name=task,
        index=0,
        x=np.array([_round(entry, i) for i, (entry, _) in enumerate(told)], dtype=float),
        y=mean,
        low=low,
        high=high,
        marks=True,
        hollow=np.array([entry.get("promoted") is False for entry, _ in told]),
    )
    expert = one.experts.get(task, math.nan)
    line = ("expert", expert) if unit == "return" and math.isfinite(expert) else None
    y_range = (-3.0, 103.0) if unit == "success" else None
    return charts.lines(task, [series], x_name="round", y_range=y_range, line=line, note=name)


def _round(entry: dict[str, Any], place: int) -> float:
    given = number(entry.get("round"))
    return given if math.isfinite(given) else float(place)


def _table(one: Improvement, tasks: Sequence[str]) -> str:
    rows = []
    for place, entry in enumerate(one.rounds):
        episodes, seconds = table(entry.get("episodes")), table(entry.get("seconds"))
        collected = sum(value for value in map(number, episodes.values()) if math.isfinite(value))
        spent = sum(value for value in map(number, seconds.values()) if math.isfinite(value))
        promoted = {True: "yes", False: "refused"}.get(entry["promoted"], "-") if "promoted" in entry else "-"
        rows.append(
            [
                f"{_round(entry, place):.0f}",
                *(_value(table(table(entry.get("summary")).get(task))) for task in tasks),
                f"{collected:,.0f}" if episodes else "-",
                f"{number(entry.get('steps')):,.0f}" if math.isfinite(number(entry.get("steps"))) else "-",
                f"{spent:,.0f}" if seconds else "-",
                promoted,
                html.escape(str(entry.get("reason") or "")),
            ]
        )
    header = ["round", *map(html.escape, tasks), "episodes", "updates", "seconds", "promoted", "why"]
    return look.table(header, rows, words=len(header) - 1)


def _value(about: dict[str, Any]) -> str:
    scale = SCALES.get(str(about.get("unit")), (1.0, ""))[0]
    mean, low, high = (scale * number(about.get(key)) for key in ("mean", "low", "high"))
    if not math.isfinite(mean):
        return "-"
    sign = "%" if scale == 100.0 else ""
    return f"{mean:.1f}{sign} [{low:.1f}, {high:.1f}]" if math.isfinite(low + high) else f"{mean:.1f}{sign} [?]"
