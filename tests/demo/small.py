"""A small demo: the recipe with fewer updates and episodes."""

import signal
import sys
from pathlib import Path

from rich.console import Console

from pac.cli.demo import make
from pac.recipe import read_recipe
from pac.study.folder import StudyFolder
from pac.study.plan import parse_study

EPISODES, EVALUATION_EPISODES, SEED = 6, 1, 3


def small(path: Path, **changes: object) -> StudyFolder:
    """Return the folder of a small demo. `changes` are keys of the recipe."""
    table, root = read_recipe("demo")
    table |= {"length": "20 steps", **changes}
    table["study"] |= {"seeds": [SEED], "episodes": EVALUATION_EPISODES}
    table["mixture"]["batch_size"] = 16
    for collection in table["study"]["data"]:
        collection |= {"seed": SEED, "episodes": EPISODES}
    return StudyFolder(path, parse_study(table, root, path, name="demo"))


def run(path: Path) -> None:
    make(small(path), Console(width=200), command="pac demo")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background processes ignore it
    run(Path(sys.argv[1]))
