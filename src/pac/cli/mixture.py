"""`pac mixture`: how often each dataset of a mixture is drawn, and how long one epoch is."""

import argparse
import json
import sys

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.data.mixture import MixturePlan, load_mixture, plan
from pac.resources import find_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="mixture in TOML, or one that ships with PAC: paper/scaling, paper/pretraining")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    planned = plan(load_mixture(find_recipe(args.file)))
    if args.json:
        print(json.dumps(planned.as_json(), indent=2))
    else:
        print_plan(planned, Console(width=None if sys.stdout.isatty() else 120))


def print_plan(planned: MixturePlan, console: Console) -> None:
    """One row a group and a dataset: what is there, and how often it will be drawn."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("dataset", no_wrap=True, overflow="fold")
    for column in ("λ", "episodes", "windows", "tokens", "success", "P_eff", "epoch"):
        table.add_column(column, justify="right", no_wrap=True)
    for group in planned.mixture.groups:
        rows = [row for row in planned.datasets if row.group == group.name]
        known = [row.counts.episodes for row in rows if row.counts.episodes is not None]
        episodes = sum(known) if len(known) == len(rows) else group.episodes
        table.add_row(
            escape(group.name),
            f"{group.weight:g}",
            _number(episodes),
            _number(sum(row.counts.windows for row in rows)),
            f"{sum(row.tokens for row in rows):.3g}",
            _share(group.success),
            str(sum(row.p_eff for row in rows)),
            "",
            style="bold",
        )
        for row in rows:
            cells = (_number(row.counts.episodes), _number(row.counts.windows), f"{row.tokens:.3g}")
            table.add_row(
                f"  {escape(row.name)}",
                "",
                *cells,
                _share(row.counts.success),
                str(row.p_eff),
                f"{row.epoch_steps:,.0f}",
            )
    console.print(table)
    console.print(f"One epoch: {planned.epoch_steps:,} steps of {planned.mixture.batch_size} windows.")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
