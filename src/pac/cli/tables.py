"""Tables of an evaluation in the terminal. Commands share it."""

from collections.abc import Container, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.evaluation.tables import Cell, Grid, stacked


def print_grids(grids: Sequence[Grid], console: Console) -> None:
    """Print tables. One that is too wide for the console has a line per actor in place of a column."""
    unlimited = console.options.update(width=10_000)
    for grid in grids:
        table = _draw(grid.title, grid.header, grid.rows, {len(grid.rows) - grid.pooled})
        if grid.stub < len(grid.header) and console.measure(table, options=unlimited).maximum > console.width:
            tall = stacked(grid)
            gaps = set(range(0, len(tall.rows), len(grid.header) - grid.stub))
            table = _draw(tall.title, tall.header, tall.rows, gaps)
        console.print(table)


def _draw(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], gaps: Container[int]) -> Table:
    """Return a table with a gap before each row whose number is in `gaps`."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(escape(name), justify="left" if i == 0 or name == "actor" else "right", overflow="fold")
    for i, row in enumerate(rows):
        cells = [f"[bold]{escape(text)}[/bold]" if bold else escape(text) for text, bold in row]
        table.add_row(*cells, end_section=i + 1 in gaps)
    return table
