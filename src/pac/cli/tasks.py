"""`pac tasks`: the tasks, with their sizes, time limits and cameras."""

import argparse
import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from pac.cli.next_step import print_next
from pac.envs import TASKS, all_cameras, spec
from pac.types import TaskSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="list tasks with a WORD in their name, or a gym/<id>")
    parser.add_argument("--json", action="store_true", help="print a JSON list with all facts, as the cameras' names")


def run(args: argparse.Namespace) -> int:
    named = [word for word in args.words if word.startswith("gym/")]
    words = [word for word in args.words if word not in named]
    names = [name for name in TASKS if not args.words or any(word in name for word in words)] + named
    if not names:
        raise ValueError(
            f"Expected a word in the name of a task, found {' '.join(words)}. `pac tasks` lists all {len(TASKS)}."
        )
    specs = [spec(name) for name in names]
    if args.json:
        print(json.dumps([describe(task) for task in specs], indent=1))
    else:
        Console().print(table(specs))
        behaviour = "scripted" if names[0].startswith("metaworld/") else "random"
        print_next(Console(), "", ("", ["pac", "collect", names[0], "--behaviour", behaviour, "--episodes", "20"]))
    return 0


def describe(task: TaskSpec) -> dict[str, Any]:
    """Return a task as JSON, with all cameras that it has."""
    return dataclasses.asdict(task) | {"cameras": list(all_cameras(task.name))}


def table(specs: list[TaskSpec]) -> Table:
    """Return a table with one row per task."""
    found = Table("task", box=None, pad_edge=False, collapse_padding=True)
    for heading in ("state", "actions", "steps", "hertz", "cameras"):
        found.add_column(heading, justify="right")
    found.add_column("success")
    for task in specs:
        rate = "" if task.control_rate is None else f"{task.control_rate:.3g}"
        counts = (task.state_dim, len(task.action_low), task.max_steps)
        cameras = str(len(all_cameras(task.name)))
        found.add_row(task.name, *map(str, counts), rate, cameras, "yes" if task.has_success else "")
    return found
