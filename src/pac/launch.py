"""`pac train`: a recipe and a folder -> a run; or the run in that folder, continued."""

import argparse
import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from pac import distributed
from pac.config import ObjectiveConfig
from pac.data import mixture as mixtures
from pac.distributed import World
from pac.ingredients import choose_device, collect_data
from pac.logs import make_console
from pac.model.pac import count_parameters
from pac.recipe import SECTIONS, RunConfig, load_recipe
from pac.run import COLLECTED, CONFIG, RunDirectory
from pac.sections import Schedules
from pac.train import Run

# What may differ when a run is resumed; all else would make it another run under the name of the first.
CHANGEABLE = ("length", "checkpoint", "evaluation", "machine")


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "train", help="train a policy and a critic on a mixture", description=__doc__
    )
    parser.add_argument("recipe", help="recipe in TOML, or one that ships with PAC, such as smoke")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings in place of the recipe's, dotted")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--start", help="checkpoint to fine-tune from: its weights, and nothing else of it")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([f"start={json.dumps(args.start)}"] if args.start else [])]
    with distributed.one_voice():
        config = load_recipe(args.recipe, overrides, collected=args.out / COLLECTED)
        with distributed.world(choose_device(config.machine.device)) as world:
            try:
                options = {"resume": args.resume, "overwrite": args.overwrite}
                run = perform(config, args.out, world, **options, command=command(args))
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


def perform(
    config: RunConfig, folder: Path, world: World, *, resume: bool = False, overwrite: bool = False, command: str = ""
) -> Run:
    """Train in `folder` to the end, or to a signal; a run that is finished already is left as it is."""
    run = _prepare(config, folder, world, resume=resume, overwrite=overwrite)
    resumed = resume and run.resume()
    if resumed and run.finished:
        run.console.print(f"{folder} is finished: {run.state.step:,} steps. A longer `length` would go on from here.")
        return run
    if world.is_main:
        run.directory.begin(run.describe() | {"command": command})
        mixtures.print_plan(run.plan, run.console)
        begun = f"from step {run.state.step:,} " if resumed else ""
        run.console.print(
            f"{config.method}, size {run.size}, {count_parameters(run.state.target) / 1e6:.2f}M parameters, "
            f"{run.steps:,} steps {begun}on {world.device} x {world.size}, target every {run.target_period} -> {folder}"
        )
    run.train()
    if run.interrupted is not None:
        run.console.print(f"Stopped at step {run.state.step:,}; everything is saved. Continue with --resume.")
    return run


def command(args: argparse.Namespace) -> str:
    """The command line that begins this run; how it was taken up again does not change what it is."""
    start = ["--start", args.start] if args.start else []
    return shlex.join(["pac", "train", args.recipe, *args.overrides, "--out", str(args.out), *start])


def _prepare(config: RunConfig, folder: Path, world: World, *, resume: bool, overwrite: bool) -> Run:
    """Open the folder, make its data if the recipe says so, and build the run."""
    directory = RunDirectory(folder)
    world.on_main(lambda: directory.open(resume=resume, overwrite=overwrite))
    try:
        if wanted := config.collect:
            world.on_main(lambda: collect_data(wanted, directory.path / COLLECTED, make_console()))
        run = Run(config, directory, world)
        world.on_main(run.check_disk)
    except BaseException:
        if world.is_main:
            directory.abandon()
        raise
    if resume and (directory.path / CONFIG).exists():
        world.on_main(lambda: _compare(json.loads((directory.path / CONFIG).read_text()), run))
    return run


def _compare(before: dict[str, Any], run: Run) -> None:
    """Raise if this is not the run that was begun; say what is changed of what may be."""
    now = json.loads(json.dumps(run.describe(), default=str))
    for name, old, new in differences(before["config"], now["config"]):
        text = f"{name}: {json.dumps(old)} before, {json.dumps(new)} now"
        if name.split(".")[0] not in CHANGEABLE:
            raise ValueError(
                f"{run.directory.path}: expected the settings that the run was begun with, found {text}. Resume with "
                "the same recipe and overrides, or fine-tune into another folder with --start."
            )
        run.console.print(f"[bold]Going on with another {text}.")
    old_data, new_data = ({name: found[name] for name in ("mixture", "value_scales")} for found in (before, now))
    for name, old, new in differences(old_data, new_data):
        raise ValueError(
            f"{run.directory.path}: expected the data that the run was begun with, found {name}: {old} before, "
            f"{new} now. Restore it, or fine-tune into another folder with --start."
        )


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where the settings of two runs differ. Paths are left out, since folders may move, and so are options that the
    older PAC of a run did not have yet, as long as they are left alone.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{name}.{key}".lstrip(".")
            if key not in ("path", "more_paths") and (key in old or not _left_alone(place, new[key])):
                yield from differences(old.get(key), new.get(key), place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{name}.{i}")
    elif old != new:
        yield name, old, new


def _left_alone(name: str, value: Any) -> bool:
    """Whether an option of a section, such as objective.discount, has its default."""
    section, _, option = name.removeprefix("recipe.").partition(".")
    kinds = {"objective": ObjectiveConfig, "schedules": Schedules, **SECTIONS}
    usual = {field.name: field.default for field in dataclasses.fields(kinds[section])} if section in kinds else {}
    return option in usual and json.loads(json.dumps(usual[option], default=str)) == value
