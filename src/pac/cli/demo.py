"""`pac demo`: from nothing to a policy that is better than its data, on two cores, in minutes.

    collect -> train four methods, two at a time -> try them all from the same states -> a table and a page

The data is made by the built-in behaviours with faults that come and go every few steps: a stick held the wrong way
round, a wrong goal, standing still, another task's script. No episode is worth cloning whole. The steps are those of
`pac collect`, `pac train`, `pac evaluate` and `pac report`, and what they leave in --out is read by these commands
too. A second run uses what is there, and one that was killed goes on.
"""

import argparse
import shlex
import time
from pathlib import Path

from rich.console import Console

from pac.demo import scores as found
from pac.demo.settings import FULL, LOG, QUICK, Settings, claim
from pac.demo.steps import make_data, train, try_all
from pac.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of the data and of training (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one task of each suite, wider intervals: two minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where all of it goes (default: runs/demo)")


def run(args: argparse.Namespace) -> None:
    if args.seed < 0:
        raise ValueError(f"--seed: expected a whole number of 0 or more, found {args.seed}.")
    words = ["pac", "demo", "--seed", str(args.seed), *["--quick"] * args.quick]
    folder = args.out / f"seed-{args.seed}{'-quick' * args.quick}"
    settings = Settings(seed=args.seed, **(QUICK if args.quick else FULL))
    console = Console() if Console().is_terminal else Console(width=200)
    make(settings, folder, console, command=shlex.join(words))


def make(settings: Settings, folder: Path, console: Console, command: str = "") -> Path:
    """All of it, into a folder; returns the page."""
    clock = [time.perf_counter()]
    claim(folder, settings)
    make_data(settings, folder / "data", console)
    clock.append(time.perf_counter())
    train(settings, folder, console)
    clock.append(time.perf_counter())
    records = [entry for world in settings.worlds for entry in try_all(world, settings, folder, console)]
    clock.append(time.perf_counter())
    scores = {LOG: found.score_data(folder / "data", settings)} | found.score_methods(records)
    console.print(found.table(scores, settings.episodes, settings.trials))
    for line in found.findings(scores):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    seconds = {name: clock[i + 1] - clock[i] for i, name in enumerate(("data", "training", "trials"))}
    write_json(folder / "demo.json", found.document(settings, scores, command, seconds))
    page = found.write_page(settings, folder, scores, command)
    told = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    console.print(f"{told}. The page: {page}", soft_wrap=True, highlight=False)
    return page
