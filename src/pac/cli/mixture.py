"""`pac mixture`: how often each dataset of a mixture is sampled, and the length of an epoch."""

import argparse
import json
from fractions import Fraction
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.cli.info import short
from pac.cli.next_step import print_next
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
        print_plan(planned, Console())
        paths = [dataset.path for group in planned.mixture.groups for dataset in group.datasets]
        if all(path is not None and Path(path).exists() for path in paths):
            name = Path(args.file).stem
            print_next(Console(), "", ("", ["pac", "train", "own", "--out", f"runs/{name}", f"mixture={args.file}"]))


def print_plan(planned: MixturePlan, console: Console) -> None:
    """Print one row per group and per dataset: its size, and how often it is sampled."""
    table = Table(box=SIMPLE, pad_edge=False, padding=0)
    table.add_column("dataset", overflow="fold")
    for column in ("episodes", "windows", "tokens", "success", "sampled", "epoch"):
        table.add_column(column, justify="right", no_wrap=True)
    for group in planned.mixture.groups:
        rows = [row for row in planned.datasets if row.group == group.name]
        known = [row.counts.episodes for row in rows if row.counts.episodes is not None]
        episodes = sum(known) if len(known) == len(rows) else group.episodes
        windows, tokens = sum(row.counts.windows for row in rows), sum(row.tokens for row in rows)
        share = sum(row.p_eff for row in rows)
        name = f"{escape(group.name)}, weight {group.weight:g}"
        table.add_row(name, *_cells(episodes, windows, tokens, group.success, share), "", style="bold")
        for row in rows:
            cells = _cells(row.counts.episodes, row.counts.windows, row.tokens, row.counts.success, row.p_eff)
            table.add_row(f"  {escape(row.name)}", *cells, short(row.epoch_steps) if row.p_eff else "never")
    console.print(table)
    console.print(
        "sampled: share of each batch. epoch: steps until each window of the dataset is sampled once, on average. "
        f"One epoch of all: {planned.epoch_steps:,} steps of {planned.mixture.batch_size} windows."
    )


def _cells(
    episodes: int | None, windows: int, tokens: float, success: float | None, share: Fraction | int
) -> tuple[str, ...]:
    counts = ("-" if episodes is None else short(episodes), short(windows), short(tokens))
    return (*counts, "-" if success is None else f"{success:.0%}", str(share))
