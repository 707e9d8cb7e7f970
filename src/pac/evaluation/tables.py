"""Tables of an evaluation, for the terminal and in Markdown: one a number, a row a task, a column an actor."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.evaluation.compare import Difference
from pac.evaluation.summary import ALL, Estimate, Row, Summary, best

Cell = tuple[str, bool]  # text, and whether it is among the best


@dataclass(frozen=True)
class Grid:
    """A table, whatever it is drawn with."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    pooled: int = 0  # how many rows at the end pool the others


METRICS: dict[str, tuple[str, Callable[[Row], Estimate | None], float]] = {
    "success": ("Success, %", lambda row: row.success, 100.0),
    "percent": ("Percent of expert", lambda row: row.percent, 1.0),
    "return": ("Return", lambda row: row.returns, 1.0),
}


def grids(
    summaries: Mapping[str, Summary], differences: Sequence[Difference] = (), metrics: Iterable[str] = tuple(METRICS)
) -> list[Grid]:
    """Success where a world defines it, percent of expert where one was measured, return; then the differences."""
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
            name = _place(place, max(map(len, counted)))
            head = [(name, False), ("/".join(f"{n:,}" for n in numbers), False)]
            top = best(estimates)
            rows.append(head + [(show(entry, scale), label in top) for label, entry in estimates.items()])
            methods |= dict.fromkeys(entry.method for entry in estimates.values() if entry)
    if not rows:
        return None
    shown = sum(1 for row in rows if row[0][0].startswith("pooled"))
    return Grid(f"{title} (95%: {'; '.join(methods)})", ["task", "episodes", *summaries], rows, shown)


def _counted(place: str, summary: Summary, pick: Callable[[Row], Estimate | None]) -> dict[str, int]:
    """The tasks of a row that are part of its number, not all of which may have one, and how many trials of each."""
    inside = {task: row for task, row in summary.tasks.items() if place in (ALL, task, task.partition("/")[0])}
    return {task: row.episodes for task, row in inside.items() if pick(row)}


def _place(place: str, tasks: int) -> str:
    number = f"{tasks} task{'s' * (tasks > 1)}"
    if place == ALL:
        return f"pooled, {number}"
    return place if "/" in place else f"pooled, {place}, {number}"


def show(estimate: Estimate | None, scale: float = 1.0) -> str:
    """`61.0 [57.3, 64.5]`; without an interval where one trial allows none."""
    if estimate is None:
        return "-"
    mean, low, high = (scale * value for value in (estimate.mean, estimate.low, estimate.high))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]" if abs(low) < 1e300 else f"{mean:.1f} [?]"


def _differences(differences: Sequence[Difference]) -> Grid | None:
    """Pooled differences; those of single tasks are in the JSON. Bold: 0 is not in the interval."""
    rows: list[list[Cell]] = []
    for d in differences:
        if d.where != ALL:
            continue
        scale = METRICS[d.metric][2]
        mean, low, high = (scale * value for value in (d.difference, d.low, d.high))
        text = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if abs(low) < 1e300 else f"{mean:+.1f} [?]"
        needed = "" if d.shown or d.needed is None else f"{d.needed:,}"
        rows.append(
            [
                (f"{d.first} - {d.second}", False),
                (METRICS[d.metric][0], False),
                (f"{d.pairs:,}", False),
                (text, d.shown),
                (needed, False),
            ]
        )
    if not rows:
        return None
    methods = "; ".join(dict.fromkeys(d.method for d in differences if d.where == ALL))
    header = ["actors", "of", "pairs", "difference", "pairs needed"]
    return Grid(f"Differences over the same initial states (95%: {methods})", header, rows)


def print_grids(made: Sequence[Grid], console: Console) -> None:
    for grid in made:
        table = Table(title=escape(grid.title), title_justify="left")
        for i, name in enumerate(grid.header):
            table.add_column(escape(name), justify="left" if i == 0 else "right", overflow="fold")
        for i, row in enumerate(grid.rows):
            cells = [f"[bold]{escape(text)}[/bold]" if bold else escape(text) for text, bold in row]
            table.add_row(*cells, end_section=i == len(grid.rows) - grid.pooled - 1)
        console.print(table)


def markdown(made: Sequence[Grid], notes: Sequence[str] = (), command: str = "") -> str:
    """The same tables as Markdown, with the command that made them."""
    parts = [f"```\n{command}\n```"] if command else []
    for grid in made:
        lines = [_line(grid.header), "|" + "|".join(["---", *["---:"] * (len(grid.header) - 1)]) + "|"]
        lines += [_line([f"**{text}**" if bold else text for text, bold in row]) for row in grid.rows]
        parts.append(f"**{grid.title}**\n\n" + "\n".join(lines))
    parts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
