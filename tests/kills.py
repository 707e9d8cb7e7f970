"""Kill a training run again and again: `python kills.py RECIPE FOLDER KILLS SEED`.

Run as a process of its own, without threads, so that it may fork: a child takes no time to start. The kills come, in
turn, soon after a temporary checkpoint folder has appeared, after a random number of updates, and while a run is being
built. FOLDER/whole is never killed, FOLDER/killed is. Every child notes which batches it was given, step and checksum.
"""

import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pac.cli import main
from pac.training.step import TrainStep
from pac.types import Batch


def note_batches(file: Path) -> None:
    update = TrainStep.__call__

    def noting(self: TrainStep, batch: Batch, schedule: Any) -> None:
        total = 0
        for tensor in batch.tensors():
            total = zlib.crc32(tensor.contiguous().numpy().tobytes(), total)
        with file.open("a") as notes:
            notes.write(f"{self.state.step} {total}\n")
        update(self, batch, schedule)

    TrainStep.__call__ = noting  # type: ignore[method-assign]


def start(recipe: str, out: Path) -> int:
    child = os.fork()
    if child:
        return child
    note_batches(Path(f"{out}.batches"))
    again = ["--resume"] if out.exists() else []
    os._exit(main(["train", recipe, "--out", str(out), *again]))


def wait(child: int, come: Callable[[], bool]) -> None:
    """Until something has come about; the child must not have ended by then."""
    while not come():
        if os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit("the run ended before it could be killed: make it longer")
        time.sleep(0.0005)


def kill(recipe: str, out: Path, mode: int, chance: random.Random) -> None:
    notes = Path(f"{out}.batches")
    size = notes.stat().st_size if notes.exists() else 0
    child, updates = start(recipe, out), chance.randrange(1, 9)
    if mode == 0:
        wait(child, lambda: any(out.glob("checkpoints/.0*")))
        time.sleep(chance.random() * 0.04)
    elif mode == 1:
        wait(child, lambda: notes.exists() and notes.stat().st_size > size + 12 * updates)  # 12: about a line
        time.sleep(chance.random() * 0.02)
    else:
        time.sleep(chance.random() * 0.3)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("the run ended before it could be killed: make it longer")


def run(recipe: str, folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(kills):
        kill(recipe, folder / "killed", number % 3, chance)
    for name in ("killed", "whole"):
        _, status = os.waitpid(start(recipe, folder / name), 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"the run {name} failed with {status}")


if __name__ == "__main__":
    name, folder, count, seed = sys.argv[1:]
    run(name, Path(folder), int(count), int(seed))
