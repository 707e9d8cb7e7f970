"""Improve in a folder: read the recipe, open the folder, run the rounds. `pac improve` and `Agent.improve` call it."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from pac.improve.folder import ImproveFolder
from pac.improve.loop import Loop, signals
from pac.improve.settings import describe, load
from pac.old_names import rename_recipe
from pac.rollout import PersistentWorkers
from pac.training.run_dir import COLLECTED, CONFIG


def improve_in(
    out: Path,
    recipe: str | Path,
    overrides: Sequence[str],
    console: Console,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> tuple[str, ImproveFolder]:
    """Run the rounds that are not finished in the folder `out`. Return how they ended, and the folder.

    A signal raises `StoppedError`. Everything that was finished is kept.
    """
    before = None
    if resume and (out / CONFIG).exists():
        before = rename_recipe(json.loads((out / CONFIG).read_text())["recipe"], warn=False)
    loaded = load(recipe, overrides, out / COLLECTED, before=before)
    folder = ImproveFolder(out)
    for note in folder.open(describe(loaded), resume=resume, overwrite=overwrite):
        console.print(note, markup=False, highlight=False)
    with PersistentWorkers() as workers:
        loop = Loop(loaded, folder, console, workers)
        try:
            with signals():
                return loop.run(), folder
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"Out of GPU memory: {str(error).splitlines()[0]} Lower mixture.batch_size or raise "
                "machine.accumulate, then begin again; or continue on another machine with --resume."
            ) from error
        except OSError as error:
            raise ValueError(
                f"{out}: expected to read the data and write the rounds, found {error}. Free some space or repair "
                "the disk, then continue with --resume."
            ) from error
