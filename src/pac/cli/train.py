"""`pac train`: train a recipe in a folder, or resume the run in that folder."""

import argparse
import json
import shlex
from pathlib import Path

import torch
from torch._dynamo.exc import TorchDynamoException

from pac.cli.mixture import print_plan
from pac.cli.next_step import evaluate_command, evaluation_of, print_next, report_command
from pac.collection import collect_data
from pac.evaluation.in_training import TrainingEvaluator
from pac.recipe import load_recipe
from pac.training import distributed
from pac.training.run import perform
from pac.training.run_dir import COLLECTED, CONFIG
from pac.training.setup import choose_device
from pac.training.trainer import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="recipe in TOML, or one that ships with PAC, such as smoke")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the recipe's, dotted")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--start", help="checkpoint to fine-tune from; only its weights are used")


def run(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([f"start={json.dumps(args.start)}"] if args.start else [])]
    with distributed.report_errors_once():
        config = load_recipe(args.recipe, overrides, collected=args.out / COLLECTED)
        with distributed.processes(choose_device(config.machine.device)) as processes:
            try:
                trainer = perform(
                    config,
                    args.out,
                    processes,
                    resume=args.resume,
                    overwrite=args.overwrite,
                    command=command(args),
                    evaluator=TrainingEvaluator(),
                    collect=collect_data,
                    before_start=lambda trainer: print_plan(trainer.plan, trainer.console),
                )
            except (RuntimeError, OSError) as error:
                if text := explain(error, args.out):
                    raise ValueError(text) from error
                raise
            print_next_steps(trainer, args)
            return 0 if trainer.interrupted is None else 128 + trainer.interrupted


def print_next_steps(trainer: Trainer, args: argparse.Namespace) -> None:
    """Print the run's folder, and how to go on: resume it, or evaluate it, or look at its curves."""
    out, evaluation = args.out, evaluation_of(trainer.config)
    if trainer.interrupted is not None:
        return print_next(trainer.console, "", ("", [*shlex.split(command(args)), "--resume"]))
    page = ("to see its curves", report_command([out], out / "page.html"))
    test = ("", evaluate_command(out, evaluation, "--json", out / "evaluation.json"))
    made = f"{out}: a policy of {trainer.state.step:,} steps, with its log and checkpoints."
    print_next(trainer.console, made, test if evaluation.tasks else page)


def explain(error: RuntimeError | OSError, out: Path) -> str | None:
    """Return an error text for people about memory, the compiler or the disk. Return None for other errors."""
    has_begun, reason = (out / CONFIG).exists(), (str(error).splitlines() or [""])[0].rstrip(".")
    if isinstance(error, OSError):
        fix = "continue with --resume" if has_begun else "begin again or choose another --out"
        found = f"expected to read the data and write the run, found {error}"
        return f"{out}: {found}. Free some space or repair the disk, then {fix}."
    if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
        fix = "Choose a smaller model.size or machine.data=stream, or train on several GPUs with torchrun."
        if has_begun:
            fix = "Continue with --resume and a higher machine.accumulate or machine.recompute=true, or begin again "
            fix += "with a smaller mixture.batch_size."
        return f"Out of memory: {reason}. {fix}"
    if isinstance(error, TorchDynamoException):
        found = f"machine.compile: expected PyTorch's compiler to work here, found {reason}"
        fix = "Install a C++ compiler, such as g++, or set machine.compile=false, and continue with --resume."
        return f"{found}. {fix}"
    return None


def command(args: argparse.Namespace) -> str:
    """Return the command line that starts this run. Resuming it does not change it."""
    start = ["--start", args.start] if args.start else []
    return shlex.join(["pac", "train", args.recipe, *args.overrides, "--out", str(args.out), *start])
