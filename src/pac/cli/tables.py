"""Tables of an evaluation in the terminal. Commands share it."""

from collections.abc import Container, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.evaluation.tables import Cell, Grid


def print_grids(made: Sequence[Grid], console: Console) -> None:
    """Print tables. One that is too wide for the console has a line per actor in place of a column."""
    unlimited = console.options.update(width=10_000)
    for grid in made:
        table = _draw(grid.title, grid.header, grid.rows, {len(grid.rows) - grid.pooled})
        if grid.stub < len(grid.header) and console.measure(table, options=unlimited).maximum > console.width:
            header, rows = _stack(grid)
            table = _draw(grid.title, header, rows, set(range(0, len(rows), len(grid.header) - grid.stub)))
        console.print(table)


def _stack(grid: Grid) -> tuple[list[str], list[list[Cell]]]:
    """Return the header and rows of a table with a line per row and actor."""
    rows = list[list[Cell]]()
    for row in grid.rows:
        head = row[: grid.stub]
        for actor, cell in zip(grid.header[grid.stub :], row[grid.stub :], strict=True):
            rows.append([*head, (actor, False), cell])
            head = [("", False)] * grid.stub
    return [*grid.header[: grid.stub], "actor", "value"], rows


def _draw(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], gaps: Container[int]) -> Table:
    """Return a table with a gap before each row whose number is in `gaps`."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(escape(name), justify="left" if i == 0 or name == "actor" else "right", overflow="fold")
    for i, row in enumerate(rows):
        cells = [f"[bold]{escape(text)}[/bold]" if bold else escape(text) for text, bold in row]
        table.add_row(*cells, end_section=i + 1 in gaps)
    return table
