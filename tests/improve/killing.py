"""Kill an improvement repeatedly: `python killing.py RECIPE FOLDER KILLS SEED`.

This process has no threads, so it may fork and children start fast. FOLDER/whole is never killed. FOLDER/killed is, at
random moments.
"""

import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from pac.cli import main


def start(recipe: str, out: Path) -> int:
    child = os.fork()
    if child:
        return child
    again = ["--resume"] if out.exists() else []
    os._exit(main(["improve", recipe, "--out", str(out), *again]))


def ended(child: int, seconds: float) -> bool:
    """Return whether a child ended by itself within the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            if status:
                raise SystemExit(f"the improvement failed: {status}")
            return True
        time.sleep(0.002)
    return False


def rounds(out: Path) -> int:
    file = out / "improve.json"
    return len(json.loads(file.read_text())["rounds"]) if file.exists() else 0


if __name__ == "__main__":
    recipe, folder, kills, chance = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), random.Random(int(sys.argv[4]))
    modules = ("torch.utils.tensorboard", "torch.distributed.checkpoint", "gymnasium", "rollout.environments")
    for module in (*modules, "pac.cli.improve"):  # else each child would spend its time on these imports
        importlib.import_module(module)
    began = time.monotonic()
    if not ended(start(recipe, folder / "whole"), 600):
        raise SystemExit("the improvement takes too long")
    whole, found = time.monotonic() - began, list[int]()
    while len(found) < kills:
        child = start(recipe, folder / "killed")
        if ended(child, (0.05 + 0.35 * chance.random()) * whole):
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found.append(rounds(folder / "killed"))
    if not ended(start(recipe, folder / "killed"), 600):
        raise SystemExit("the improvement takes too long")
    print(json.dumps(found))
