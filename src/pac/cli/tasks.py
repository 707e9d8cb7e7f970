"""`pac tasks`: which tasks there are, and what each gives."""

import argparse
import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from pac.envs import TASKS, spec
from pac.envs.tasks import known_cameras
from pac.types import TaskSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="only tasks with this in their name, or a gym/<id>")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    named = [word for word in args.words if word.startswith("gym/")]
    words = [word for word in args.words if word not in named]
    names = [name for name in TASKS if not args.words or any(word in name for word in words)] + named
    if not names:
        raise ValueError(f"no task has {' or '.join(words)} in its name. Without words, all {len(TASKS)} are listed.")
    specs = [spec(name) for name in names]
    if args.json:
        print(json.dumps([describe(task) for task in specs], indent=1))
    else:
        _show(specs)
    return 0


def describe(task: TaskSpec) -> dict[str, Any]:
    """A task as JSON; its cameras are all that may be asked for."""
    return dataclasses.asdict(task) | {"cameras": list(known_cameras(task.name))}


def _show(specs: list[TaskSpec]) -> None:
    table = Table(box=None)
    table.add_column("task", no_wrap=True)
    for heading in ("state", "actions", "steps", "Hz"):
        table.add_column(heading, justify="right")
    table.add_column("success")
    table.add_column("cameras", no_wrap=True, overflow="ellipsis")
    for task in specs:
        rate = "" if task.control_rate is None else f"{task.control_rate:.3g}"
        sizes = (str(task.state_dim), str(len(task.action_low)), str(task.max_steps))
        cameras = ", ".join(known_cameras(task.name))
        table.add_row(task.name, *sizes, rate, "yes" if task.has_success else "", cameras)
    console = Console()
    console.width = console.width if console.is_terminal else 160
    console.print(table)
