"""Train in a folder: open it, collect the recipe's data, build the run, resume if asked to, train.

`pac train`, `pac study` and tests call `perform`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from pac.config import CollectConfig, ObjectiveConfig, Schedules
from pac.files import problem
from pac.model.pac import count_parameters
from pac.old_names import rename_run_config
from pac.recipe import SECTIONS, RunConfig
from pac.training.distributed import ProcessGroup
from pac.training.logging import make_console
from pac.training.run_dir import COLLECTED, CONFIG, RunDirectory
from pac.training.setup import check_learnable
from pac.training.trainer import Evaluator, Trainer

Collector = Callable[[CollectConfig, Path, Console], None]  # collects the missing data of a recipe in a folder

# Sections that a resume may change. Any other change would make it another run under the name of the first.
CHANGEABLE = ("length", "checkpoint", "evaluation", "machine")


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
        if section := config.collect:
            assert collect is not None
            processes.on_main(lambda: collect(section, directory.path / COLLECTED, make_console()))
        run = Trainer(config, directory, processes, evaluator=evaluator)
        processes.on_main(run.check_disk)
        if not (resume and (directory.path / CONFIG).exists()):
            check_learnable(config, run.sampler)
    except BaseException:
        if processes.is_main:
            directory.abandon()
        raise
    if resume and (directory.path / CONFIG).exists():
        processes.on_main(lambda: _compare(json.loads((directory.path / CONFIG).read_text()), run))
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


def _compare(before: dict[str, Any], run: Trainer) -> None:
    """Raise if the folder has another run. Print each setting that changed and may change."""
    before, place = rename_run_config(before), run.directory.path
    now = json.loads(json.dumps(run.describe(), default=str))
    for name, old, new in differences(before["config"], now["config"]):
        text = f"{name}: {json.dumps(old)} before, {json.dumps(new)} now"
        if name.split(".")[0] not in CHANGEABLE:
            fix = "Resume with the same recipe and overrides, or fine-tune into another folder with --start."
            raise problem(place, expected="the settings that the run began with", found=text, fix=fix)
        run.console.print(f"[bold]Continuing with another {text}.")
    old_data, new_data = ({name: found[name] for name in ("mixture", "value_scales")} for found in (before, now))
    for name, old, new in differences(old_data, new_data):
        text, fix = f"{name}: {old} before, {new} now", "Restore it, or fine-tune into another folder with --start."
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
    """Return whether an option of a section, such as objective.discount, has its default."""
    section, _, option = name.removeprefix("recipe.").partition(".")
    kinds = {"objective": ObjectiveConfig, "schedules": Schedules, **SECTIONS}
    usual = {field.name: field.default for field in dataclasses.fields(kinds[section])} if section in kinds else {}
    return option in usual and json.loads(json.dumps(usual[option], default=str)) == value
