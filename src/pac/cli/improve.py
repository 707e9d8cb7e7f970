"""`pac improve`: collect, train, evaluate, keep what is no worse; and again, until the tasks are mastered.

Killed at any moment, --resume goes on to the same end. docs/improve.md has the keys of [improve] and the rules.
"""

import argparse
import json
import os
from pathlib import Path

import torch

from pac.improve.folder import ImproveFolder
from pac.improve.loop import Loop
from pac.improve.messages import table
from pac.improve.settings import describe, load
from pac.improve.stopping import StoppedError, signals
from pac.rollout import PersistentWorkers
from pac.training.logging import make_console
from pac.training.run_dir import COLLECTED

ENDS = {
    "mastered": "Every target is mastered.",
    "budget": "The budget of rounds is spent. A larger improve.rounds would go on with --resume.",
    "waiting": "Waiting for data: go on with --resume when there is some.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="recipe in TOML with a section [improve], or one that ships with PAC")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings in place of the recipe's, dotted")
    parser.add_argument("--out", type=Path, required=True, help="the improvement's folder")
    parser.add_argument("--resume", action="store_true", help="continue the improvement in --out")
    parser.add_argument("--overwrite", action="store_true", help="begin again in --out; its inbox is kept")
    parser.add_argument("--start", help="checkpoint to begin from, instead of a fresh model")
    parser.add_argument("--collect", choices=("policy", "none"), help="none: people put datasets into --out/inbox")


def run(args: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("pac improve: expected a single process, found torchrun. Start it without.")
    overrides = list(args.overrides)
    overrides += [f"start={json.dumps(args.start)}"] if args.start else []
    overrides += [f"improve.collect={args.collect}"] if args.collect else []
    recipe = load(args.recipe, overrides, args.out / COLLECTED)
    folder, console = ImproveFolder(args.out), make_console()
    for note in folder.open(describe(recipe), resume=args.resume, overwrite=args.overwrite):
        console.print(note, markup=False, highlight=False)
    with PersistentWorkers() as crew:
        loop = Loop(recipe, folder, console, crew)
        try:
            with signals():
                status = loop.go()
        except (StoppedError, KeyboardInterrupt) as stopped:
            number = stopped.number if isinstance(stopped, StoppedError) else 2
            console.print("Stopped; everything that was finished is kept. Continue with --resume.")
            return 128 + number
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"Out of GPU memory: {str(error).splitlines()[0]} Lower mixture.batch_size or raise "
                "machine.accumulate, then begin again; or continue elsewhere with --resume."
            ) from error
        except OSError as error:
            raise ValueError(
                f"{args.out}: expected to read the data and write the rounds, found {error}. Free some space or repair "
                "the disk, then continue with --resume."
            ) from error
    if folder.rounds:
        console.print(table(folder.rounds, recipe.improve.all_tasks))
    console.print(f"{ENDS[status]} {args.out}", markup=False, highlight=False)
    return 0
