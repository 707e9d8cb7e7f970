"""Tables of an evaluation, and their Markdown: one per number, a row per task, a column per actor."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pac.evaluation.compare import Difference
from pac.evaluation.summary import ALL, Estimate, Row, Summary, best

Cell = tuple[str, bool]  # text, and whether it is among the best


@dataclass(frozen=True)
class Grid:
    """A table, independent of how it is drawn."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    pooled: int = 0  # how many rows at the end pool the others
    stub: int = 1  # how many columns at the left name a row; each of the others is an actor


METRICS: dict[str, tuple[str, Callable[[Row], Estimate | None], float]] = {
    "success": ("Success, %", lambda row: row.success, 100.0),
    "percent": ("Percent of expert", lambda row: row.percent, 1.0),
    "return": ("Return", lambda row: row.returns, 1.0),
}


def grids(
    summaries: Mapping[str, Summary], differences: Sequence[Difference] = (), metrics: Iterable[str] = tuple(METRICS)
) -> list[Grid]:
    """Return a table for each of the metrics that is known, and one of the differences."""
    made = [_metric(name, summaries) for name in metrics]
    return [grid for grid in [*made, _differences(differences)] if grid is not None]


def _metric(name: str, summaries: Mapping[str, Summary]) -> Grid | None:
    title, pick, scale = METRICS[name]
    places = list(dict.fromkeys(place for summary in summaries.values() for place in summary.tasks))
    pooled = list(dict.fromkeys(place for summary in summaries.values() for place in summary.pooled))
    pooled = pooled if len(places) > 1 else []
    rows, methods = [], dict[str, None]()
    for place in [*places, *pooled]:
        found = {label: summary.rows.get(place) for label, summary in summaries.items()}
        estimates = {label: pick(row) if row else None for label, row in found.items()}
        if any(estimates.values()):
            counted = [_counted(place, summary, pick) for summary in summaries.values()]
            numbers = sorted({sum(tasks.values()) for tasks in counted if tasks})
            place_name = _place(place, max(map(len, counted)))
            head = [(place_name, False), ("/".join(f"{n:,}" for n in numbers), False)]
            top = best(estimates)
            rows.append(head + [(show(entry, scale), label in top) for label, entry in estimates.items()])
            methods |= dict.fromkeys(entry.method for entry in estimates.values() if entry)
    if not rows:
        return None
    num_pooled = sum(1 for row in rows if row[0][0].startswith("pooled"))
    return Grid(f"{title} (95%: {'; '.join(methods)})", ["task", "episodes", *summaries], rows, num_pooled, stub=2)


def _counted(place: str, summary: Summary, pick: Callable[[Row], Estimate | None]) -> dict[str, int]:
    """Return the tasks of a row that have the number, with their episodes."""
    inside = {task: row for task, row in summary.tasks.items() if place in (ALL, task, task.partition("/")[0])}
    return {task: row.episodes for task, row in inside.items() if pick(row)}


def _place(place: str, tasks: int) -> str:
    number = f"{tasks} task{'s' * (tasks > 1)}"
    if place == ALL:
        return f"pooled, {number}"
    return place if "/" in place else f"pooled, {place}, {number}"


def show(estimate: Estimate | None, scale: float = 1.0) -> str:
    """Return a text such as `61.0 [57.3, 64.5]`. A single episode has no interval."""
    if estimate is None:
        return "-"
    mean, low, high = (scale * value for value in (estimate.mean, estimate.low, estimate.high))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]" if abs(low) < 1e300 else f"{mean:.1f} [?]"


def _differences(differences: Sequence[Difference]) -> Grid | None:
    """Return the pooled differences; those of single tasks are in the JSON. Bold: 0 is not in the interval."""
    pooled, rows = [d for d in differences if d.where == ALL], list[list[Cell]]()
    if not pooled:
        return None
    for d in pooled:
        mean, low, high = (METRICS[d.metric][2] * value for value in (d.difference, d.low, d.high))
        interval = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if abs(low) < 1e300 else f"{mean:+.1f} [?]"
        needed = "" if d.shown or d.needed is None else f"{d.needed:,}"
        texts = (f"{d.first} - {d.second}", METRICS[d.metric][0], f"{d.pairs:,}", interval, needed)
        rows.append([(text, d.shown and text == interval) for text in texts])
    methods = "; ".join(dict.fromkeys(d.method for d in pooled))
    header = ["actors", "metric", "pairs", "difference", "pairs needed"]
    return Grid(f"Differences over the same initial states (95%: {methods})", header, rows, stub=len(header))


def markdown(made: Sequence[Grid], notes: Sequence[str] = (), command: str = "") -> str:
    """Return the same tables as Markdown, with the command that made them."""
    parts = [f"```\n{command}\n```"] if command else []
    for grid in made:
        lines = [_line(grid.header), "|" + "|".join(["---", *["---:"] * (len(grid.header) - 1)]) + "|"]
        lines += [_line([f"**{text}**" if bold else text for text, bold in row]) for row in grid.rows]
        parts.append(f"**{grid.title}**\n\n" + "\n".join(lines))
    parts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
