"""Train in a folder: open it, collect the recipe's data, build the run, resume if asked to, train.

`pac train` and `pac.train` call `train_in`. `pac study` calls `perform`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pac.config import CollectConfig, ObjectiveConfig, Schedules
from pac.data.mixture import DatasetConfig, Mixture
from pac.files import problem
from pac.model.pac import count_parameters
from pac.model.pretrained import parse_model
from pac.old_names import MEANING_BEFORE, rename_run_config
from pac.recipe import SECTIONS, RunConfig, continued, load_recipe
from pac.training import distributed
from pac.training.distributed import ProcessGroup
from pac.training.logging import make_console
from pac.training.run_dir import COLLECTED, CONFIG, RunDirectory
from pac.training.setup import check_learnable, choose_device
from pac.training.trainer import Evaluator, Trainer

Collector = Callable[[CollectConfig, Path, Console], None]  # collects the missing data of a recipe in a folder

# Sections that a resume may change. Any other change would make it another run under the name of the first.
CHANGEABLE = ("length", "checkpoint", "evaluation", "machine")


def train_in(
    folder: Path,
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    data: Sequence[str] = (),
    **options: Any,
) -> Trainer:
    """Read a recipe, or make one for `data`, and train it in `folder`. `options` are those of `perform`.

    `pac train` and `pac.train` call it, so both give the same numbers.
    """
    with distributed.report_errors_once():
        config = load_recipe(recipe, overrides, data=data, collected=folder / COLLECTED)
        with distributed.processes(choose_device(config.machine.device)) as processes:
            try:
                return perform(config, folder, processes, **options)
            except (RuntimeError, OSError) as error:
                if text := explain(error, folder):
                    raise ValueError(text) from error
                raise


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
    if any(kind.__module__.startswith("torch._dynamo") for kind in type(error).__mro__):
        found = f"machine.compile: expected PyTorch's compiler to work here, found {reason}"
        fix = "Install a C++ compiler, such as g++, or set machine.compile=false, and continue with --resume."
        return f"{found}. {fix}"
    return None


def perform(
    config: RunConfig,
    folder: Path,
    processes: ProcessGroup,
    *,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "",
    evaluator: Evaluator | None = None,
    collect: Collector | None = None,
    before_start: Callable[[Trainer], None] | None = None,
) -> Trainer:
    """Train in `folder` to the end, or to a signal. A finished run is left unchanged.

    A recipe with evaluation tasks needs `evaluator`, one with a [collect] section needs `collect`. The main process
    calls `before_start` before the first update.
    """
    directory = RunDirectory(folder)
    processes.on_main(lambda: directory.open(resume=resume, overwrite=overwrite))
    try:
        before = processes.on_main(lambda: read_config(directory.path)) if resume else None
        config = config if before is None else continued(config, before["config"])
        model = None if before is None else parse_model(before["model"])
        if section := config.collect:
            assert collect is not None
            processes.on_main(lambda: collect(section, directory.path / COLLECTED, make_console()))
        run = Trainer(config, directory, processes, evaluator=evaluator, model=model)
        processes.on_main(run.check_disk)
        if before is None:
            check_learnable(config, run.sampler)
    except BaseException:
        if processes.is_main:
            directory.abandon()
        raise
    if before is not None:
        processes.on_main(lambda: _compare(before, run))
    resumed = resume and run.resume()
    if resumed and run.finished:
        run.console.print(f"{folder} is finished: {run.state.step:,} steps. A longer `length` would continue it.")
        return run
    if processes.is_main:
        directory.begin(run.describe() | {"command": command})
        if before_start is not None:
            before_start(run)
        first = f"from step {run.state.step:,} " if resumed else ""
        run.console.print(
            f"{config.method}, size {run.size}, {count_parameters(run.state.target) / 1e6:.2f}M parameters, "
            f"{run.steps:,} steps {first}on {processes.device} x {processes.size}, "
            f"target every {run.target_period} -> {folder}"
        )
    run.train()
    if run.interrupted is not None:
        run.console.print(f"Stopped at step {run.state.step:,}; everything is saved. Continue with --resume.")
    return run


def read_config(path: Path) -> dict[str, Any] | None:
    """Return config.json of the run in a folder under the present names, or None if there is no run yet."""
    file = path / CONFIG
    return rename_run_config(json.loads(file.read_text())) if file.exists() else None


def _compare(before: dict[str, Any], run: Trainer) -> None:
    """Raise if the folder has another run. Print each setting that changed and may change."""
    place = run.directory.path
    now = json.loads(json.dumps(run.describe(), default=str))
    for name, old, new in differences(before["config"], now["config"]):
        text = f"{name}: {json.dumps(old)} before, {json.dumps(new)} now"
        if name.split(".")[0] not in CHANGEABLE:
            fix = "Resume with the settings it began with, replace it with --overwrite (in Python overwrite=True), or "
            fix += "choose another folder; --start fine-tunes there."
            raise problem(place, expected="the settings that the run began with", found=text, fix=fix)
        run.console.print(f"[bold]Continuing with another {text}.")
    old_data, new_data = ({name: found[name] for name in ("mixture", "value_scales")} for found in (before, now))
    for name, old, new in differences(old_data, new_data):
        text = f"{name}: {old} before, {new} now"
        fix = "Restore it, replace the run with --overwrite (in Python overwrite=True), or choose another folder."
        raise problem(place, expected="the data that the run began with", found=text, fix=fix)


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield name, old value and new value of the settings that differ between two runs.

    Paths are left out, since folders may move. So are options at their defaults that an older PAC did not have yet.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{name}.{key}".lstrip(".")
            if key not in ("path", "more_paths") and (key in old or not _is_default(place, new[key])):
                yield from differences(old.get(key), new.get(key), place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{name}.{i}")
    elif old != new:
        yield name, old, new


def _is_default(name: str, value: Any) -> bool:
    """Return whether an option, such as objective.discount, has the value that a run meant by leaving it out."""
    *places, option = name.removeprefix("recipe.").split(".")
    kinds = {"objective": ObjectiveConfig, "schedules": Schedules, **SECTIONS, "mixture": Mixture, "": RunConfig}
    section = places[0] if places else ""
    if section not in kinds:
        return False
    kind = DatasetConfig if "datasets" in places else kinds[section]
    usual = {field.name: field.default for field in dataclasses.fields(kind)}
    key = f"{section}.{option}"
    before = MEANING_BEFORE[key] if key in MEANING_BEFORE else usual.get(option, dataclasses.MISSING)
    return before is not dataclasses.MISSING and json.loads(json.dumps(before, default=str)) == value
