"""`pac train`: train a recipe in a folder, or resume the run in that folder.

    pac train recipe.toml --out runs/a                                  # a recipe
    pac train --data data/a method=pac size=nano steps=2000 --out runs/a   # datasets, without a recipe

Settings are a recipe's keys, dotted or short: `discount=0.97` is `objective.discount=0.97` (docs/training.md).
"""

import argparse
import json
import shlex
from pathlib import Path

from pac.cli.mixture import print_plan
from pac.cli.next_step import evaluate_command, evaluation_of, print_next, report_command
from pac.collection import collect_data
from pac.evaluation.in_training import TrainingEvaluator
from pac.report.dataset_summary import print_warnings
from pac.training.run import train_in
from pac.training.trainer import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", nargs="?", help="recipe in TOML, or one that ships with PAC, such as smoke; not needed with --data")
    add("overrides", nargs="*", metavar="key=value", help="settings that replace the recipe's, dotted or short")
    add("--data", action="append", default=[], metavar="DIR[@WEIGHT]", help="dataset to train on; of several a mixture")
    add("--out", type=Path, required=True, help="the run's folder")
    add("--resume", action="store_true", help="continue the run in --out")
    add("--overwrite", action="store_true", help="replace the run in --out")
    add("--start", help="checkpoint to fine-tune from; only its weights are used")


def run(args: argparse.Namespace) -> int:
    if args.recipe and "=" in args.recipe and not Path(args.recipe).exists():
        args.recipe, args.overrides = None, [args.recipe, *args.overrides]
    if args.recipe is None and not args.data:
        raise ValueError("Expected a recipe or --data, found neither. Try: pac train smoke --out runs/smoke")
    trainer = train_in(
        args.out,
        args.recipe,
        [*args.overrides, *([f"start={json.dumps(args.start)}"] if args.start else [])],
        data=args.data,
        resume=args.resume,
        overwrite=args.overwrite,
        command=command(args),
        evaluator=TrainingEvaluator(),
        collect=collect_data,
        before_start=print_data,
    )
    print_next_steps(trainer, args)
    return 0 if trainer.interrupted is None else 128 + trainer.interrupted


def print_data(trainer: Trainer) -> None:
    """Print how the mixture is sampled. Before step 0, also warn of likely mistakes in its data."""
    print_plan(trainer.plan, trainer.console)
    print_warnings(trainer)


def print_next_steps(trainer: Trainer, args: argparse.Namespace) -> None:
    """Print the run's folder, and how to go on: resume it, or evaluate it, or look at its curves."""
    out, evaluation = args.out, evaluation_of(trainer.config)
    if trainer.interrupted is not None:
        return print_next(trainer.console, "", ("", [*shlex.split(command(args)), "--resume"]))
    page = ("to see its curves", report_command([out], out / "page.html"))
    test = ("", evaluate_command(out, evaluation, "--json", out / "evaluation.json"))
    made = f"{out}: a policy of {trainer.state.step:,} steps, with its log and checkpoints."
    print_next(trainer.console, made, test if evaluation.tasks else page)


def command(args: argparse.Namespace) -> str:
    """Return the command line that starts this run. Resuming it does not change it."""
    words = ["pac", "train", *([args.recipe] if args.recipe else []), *args.overrides]
    words += [word for text in args.data for word in ("--data", text)] + ["--out", str(args.out)]
    return shlex.join(words + (["--start", args.start] if args.start else []))
