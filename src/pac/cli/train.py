"""`pac train`: a recipe and a folder -> a run; or the run in that folder, continued."""

import argparse
import json
import shlex
from pathlib import Path

import torch
from torch._dynamo.exc import TorchDynamoException

from pac.cli.mixture import print_plan
from pac.collection import collect_data
from pac.evaluation.in_training import TrainingEvaluator
from pac.recipe import load_recipe
from pac.training import distributed
from pac.training.run import perform
from pac.training.run_dir import COLLECTED, CONFIG
from pac.training.setup import choose_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="recipe in TOML, or one that ships with PAC, such as smoke")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings in place of the recipe's, dotted")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--start", help="checkpoint to fine-tune from: its weights, and nothing else of it")


def run(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([f"start={json.dumps(args.start)}"] if args.start else [])]
    with distributed.report_errors_once():
        config = load_recipe(args.recipe, overrides, collected=args.out / COLLECTED)
        with distributed.processes(choose_device(config.machine.device)) as processes:
            try:
                run = perform(
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
                return 0 if run.interrupted is None else 128 + run.interrupted
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
                    raise ValueError(f"Out of memory: {_first_line(error)} {_less_memory(args.out)}") from error
                if isinstance(error, TorchDynamoException):
                    raise ValueError(
                        f"machine.compile: expected PyTorch's compiler to work here, found {_first_line(error)} "
                        "Install a C++ compiler, such as g++, or set machine.compile=false, and continue with --resume."
                    ) from error
                raise
            except OSError as error:
                then = (
                    "continue with --resume" if (args.out / CONFIG).exists() else "begin again or choose another --out"
                )
                raise ValueError(
                    f"{args.out}: expected to read the data and write the run, found {error}. Free some space or "
                    f"repair the disk, then {then}."
                ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") + "."


def _less_memory(out: Path) -> str:
    """What helps depends on whether the run has begun: before that it is the model, or the data."""
    if (out / CONFIG).exists():
        return (
            "Continue with --resume and a higher machine.accumulate or machine.recompute=true, or begin again with a "
            "smaller mixture.batch_size."
        )
    return "Choose a smaller model.size or machine.data=stream, or train on several GPUs with torchrun."


def command(args: argparse.Namespace) -> str:
    """The command line that begins this run; how it was taken up again does not change what it is."""
    start = ["--start", args.start] if args.start else []
    return shlex.join(["pac", "train", args.recipe, *args.overrides, "--out", str(args.out), *start])
