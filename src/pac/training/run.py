"""Train in a folder: open it, make the data that the recipe asks for, build the run, train, or resume.

`pac train`, `pac study` and tests call `perform`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from pac.config import CollectConfig, ObjectiveConfig, Schedules
from pac.model.pac import count_parameters
from pac.old_names import rename_run_config
from pac.recipe import SECTIONS, RunConfig
from pac.training.distributed import ProcessGroup
from pac.training.logging import make_console
from pac.training.run_dir import COLLECTED, CONFIG, RunDirectory
from pac.training.trainer import Evaluator, Trainer

Collector = Callable[[CollectConfig, Path, Console], None]  # makes what is missing of a recipe's data in a folder

# What may differ when a run is resumed; all else would make it another run under the name of the first.
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
    """Train in `folder` to the end, or to a signal. A run that is finished already is left as it is.

    `evaluator` and `collect` are needed if the recipe has evaluation tasks and a [collect] section. `before_start` is
    called by the main process before the first update.
    """
    run = _prepare(config, folder, processes, resume=resume, overwrite=overwrite, evaluator=evaluator, collect=collect)
    resumed = resume and run.resume()
    if resumed and run.finished:
        run.console.print(f"{folder} is finished: {run.state.step:,} steps. A longer `length` would go on from here.")
        return run
    if processes.is_main:
        run.directory.begin(run.describe() | {"command": command})
        if before_start is not None:
            before_start(run)
        begun = f"from step {run.state.step:,} " if resumed else ""
        run.console.print(
            f"{config.method}, size {run.size}, {count_parameters(run.state.target) / 1e6:.2f}M parameters, "
            f"{run.steps:,} steps {begun}on {processes.device} x {processes.size}, "
            f"target every {run.target_period} -> {folder}"
        )
    run.train()
    if run.interrupted is not None:
        run.console.print(f"Stopped at step {run.state.step:,}; everything is saved. Continue with --resume.")
    return run


def _prepare(
    config: RunConfig,
    folder: Path,
    processes: ProcessGroup,
    *,
    resume: bool,
    overwrite: bool,
    evaluator: Evaluator | None,
    collect: Collector | None,
) -> Trainer:
    """Open the folder, make its data if the recipe says so, and build the run."""
    directory = RunDirectory(folder)
    processes.on_main(lambda: directory.open(resume=resume, overwrite=overwrite))
    try:
        if section := config.collect:
            if collect is None:
                raise ValueError(f"{folder}: expected a collector for [collect], found none. Pass `collect`.")
            processes.on_main(lambda: collect(section, directory.path / COLLECTED, make_console()))
        run = Trainer(config, directory, processes, evaluator=evaluator)
        processes.on_main(run.check_disk)
    except BaseException:
        if processes.is_main:
            directory.abandon()
        raise
    if resume and (directory.path / CONFIG).exists():
        processes.on_main(lambda: _compare(json.loads((directory.path / CONFIG).read_text()), run))
    return run


def _compare(before: dict[str, Any], run: Trainer) -> None:
    """Raise if this is not the run that was begun; say what is changed of what may be."""
    before, now = rename_run_config(before), json.loads(json.dumps(run.describe(), default=str))
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
