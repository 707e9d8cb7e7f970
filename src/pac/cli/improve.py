"""`pac improve`: rounds of collecting, training and evaluating. A round is kept if it is not significantly worse.

After a kill, --resume continues to the same end. docs/improve.md has the keys of [improve] and the rules.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from pac.cli.next_step import print_next, report_command
from pac.improve.folder import ROUNDS, FinishedRound
from pac.improve.loop import StoppedError
from pac.improve.run import improve_in
from pac.training.logging import make_console

ENDS = {
    "mastered": "Every target is mastered.",
    "budget": "All rounds are done. A larger improve.rounds continues with --resume.",
    "waiting": "Waiting for data. Put some into the inbox, then continue with --resume.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", help="TOML file with a section [improve], the name of a recipe that ships with PAC, or a run")
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings that replace those of the recipe, as improve.rounds=20",
    )
    add("--out", type=Path, required=True, help="folder of the improvement")
    add("--resume", action="store_true", help="continue the improvement in --out")
    add("--overwrite", action="store_true", help="begin again in --out and keep its inbox")
    add("--start", help="checkpoint to start from, instead of a fresh model")
    add("--collect", choices=("policy", "none"), help="none: people put datasets into --out/inbox")


def run(args: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("pac improve: expected a single process, found torchrun. Start it without.")
    overrides = list(args.overrides)
    overrides += [f"start={json.dumps(args.start)}"] if args.start else []
    overrides += [f"improve.collect={args.collect}"] if args.collect else []
    console = make_console()
    options = {"resume": args.resume, "overwrite": args.overwrite}
    try:
        status, folder = improve_in(args.out, args.recipe, overrides, console, **options)
    except StoppedError as stopped:
        console.print("Stopped. Everything that was finished is kept. Continue with --resume.")
        return 128 + stopped.number
    if folder.rounds:
        console.print(table(folder.rounds))
    made = f"{args.out}: {len(folder.rounds)} rounds. {ENDS[status]}"
    print_next(console, made, ("", report_command([args.out], args.out / "page.html")))
    return 0


def table(rounds: Sequence[FinishedRound]) -> Table:
    """Return a table with one row per round and task."""
    found = Table("round", "start", "episodes", box=None, pad_edge=False, collapse_padding=True)
    found.add_column("task", overflow="fold")
    found.add_column("result", no_wrap=True)
    found.add_column("promoted")
    for entry in rounds:
        place = entry.start.split("/")
        start = str(int(place[1])) if place[0] == ROUNDS else "none" if entry.start == "nothing" else "--start"
        row = (str(entry.round), start, str(sum(entry.episodes.values())))
        for task, result in entry.summary.items():
            found.add_row(*row, escape(task), escape(str(result)), "yes" if entry.promoted else "no")
            row = ("", "", "")
    return found
