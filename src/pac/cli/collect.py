"""`pac collect`: episodes of any task by any behaviour, into the episode store.

A dataset holds episodes 0, 1, 2, ... of one task under one seed. A second run of the same command goes on at the first
episode that is missing. `collect.json` keeps the settings.
"""

import argparse
import os
from pathlib import Path

from rich.console import Console

from pac.collection import CollectionFolder, CollectionSettings, collect, folder_name, load_actors, summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", nargs="+", help="such as control/walker.walk, metaworld/drawer-open, gym/Pendulum-v1")
    parser.add_argument(
        "--behaviour",
        action="append",
        required=True,
        metavar="SPEC[@WEIGHT]",
        help="who acts: random, scripted+faults, planner:samples=64, a checkpoint's folder; several: one an episode",
    )
    parser.add_argument("--episodes", type=int, default=100, help="of each task, in all (default: 100)")
    parser.add_argument("--out", type=Path, help="dataset; of several tasks, the folder of theirs (default: data/TASK)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cameras", nargs="+", default=[], help="rendered into every observation (default: none)")
    parser.add_argument("--max-steps", type=int, help="time limit, instead of the task's own")
    parser.add_argument("--stop-at-success", action="store_true", help="the first success terminates an episode")
    add_worker_options(parser)


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Where a rollout runs; none of these changes what it gives."""
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; 0: this one alone")
    parser.add_argument("--envs-per-worker", type=int, help="environments each (default: 16 for a policy, else 2)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a silent worker is replaced")
    parser.add_argument("--ray", metavar="ADDRESS", help="run the workers on a Ray cluster, or 'local'")


def run(args: argparse.Namespace) -> None:
    if args.episodes < 1:
        raise ValueError(f"--episodes: expected 1 or more, found {args.episodes}.")
    tasks = list(dict.fromkeys(args.task))
    actor, names, weights = load_actors(args.behaviour)
    common = {"cameras": tuple(args.cameras), "max_steps": args.max_steps, "stop_at_success": args.stop_at_success}
    where = {"workers": args.workers, "envs_per_worker": args.envs_per_worker, "timeout": args.timeout, "ray": args.ray}
    places = {task: (args.out or Path("data")) / folder_name(task) for task in tasks}
    if len(tasks) == 1 and args.out:
        places[tasks[0]] = args.out
    folders = [
        CollectionFolder(
            path, CollectionSettings(task=task, behaviours=names, weights=weights, seed=args.seed, **common)
        )
        for task, path in places.items()
    ]
    console = Console()
    try:
        redone = collect(folders, actor, args.episodes, console=console, **where)
    except KeyboardInterrupt:
        console.print("Stopped. Finished episodes are kept; the same command goes on from there.")
        raise
    if redone:
        console.print(f"Workers were lost: {redone} episodes were begun again. The result is the same.")
    for folder in folders:
        console.print(summary(folder.path), soft_wrap=True, markup=False, highlight=False)
