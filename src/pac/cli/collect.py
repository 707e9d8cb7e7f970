"""`pac collect`: episodes of any task by any behaviour, into the episode store.

The same command continues at the first missing episode.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from pac.cli.next_step import print_next
from pac.collection import CollectionFolder, CollectionSettings, collect, folder_name, load_actors, summary
from pac.evaluation.runner import cameras_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", nargs="+", help="for example control/walker.walk, metaworld/drawer-open or gym/Pendulum-v1"
    )
    parser.add_argument(
        "--behaviour",
        action="append",
        required=True,
        metavar="SPEC[@WEIGHT]",
        help="actor: random, scripted+faults, planner:samples=64, or a checkpoint; of several one is drawn per episode",
    )
    parser.add_argument("--episodes", type=int, default=100, help="in total per task (default: 100)")
    parser.add_argument(
        "--out", type=Path, help="dataset; for several tasks, the folder of their datasets (default: data/TASK)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the initial states and all random numbers")
    parser.add_argument(
        "--cameras", nargs="+", default=[], help="cameras in every observation (default: those of the policy)"
    )
    parser.add_argument("--max-steps", type=int, help="time limit of an episode (default: the task's)")
    parser.add_argument("--stop-at-success", action="store_true", help="end an episode at its first success")
    parser.add_argument(
        "--any-instruction", action="store_true", help="do not refuse instructions that a policy never saw"
    )
    add_worker_options(parser)


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of workers. None of them changes an episode."""
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; 0: only this one")
    parser.add_argument(
        "--envs-per-worker", type=int, help="environments per worker (default: 16 for a policy, else 2)"
    )
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds until a silent worker is replaced")
    parser.add_argument("--ray", metavar="ADDRESS", help="run the workers on a Ray cluster, or 'local'")


def run(args: argparse.Namespace) -> None:
    if args.episodes < 1:
        raise ValueError(f"--episodes: expected 1 or more, found {args.episodes}.")
    tasks = list(dict.fromkeys(args.task))
    actor, names, weights = load_actors(args.behaviour)
    own = cameras_of(actor, tasks, args.max_steps, args.any_instruction)
    common: dict[str, Any] = {"max_steps": args.max_steps, "stop_at_success": args.stop_at_success}
    common |= {"any_instruction": args.any_instruction, "behaviours": names, "weights": weights, "seed": args.seed}
    where = {"workers": args.workers, "envs_per_worker": args.envs_per_worker, "timeout": args.timeout, "ray": args.ray}
    places = {task: (args.out or Path("data")) / folder_name(task) for task in tasks}
    if len(tasks) == 1 and args.out:
        places[tasks[0]] = args.out
    folders = [
        CollectionFolder(path, CollectionSettings(task=task, cameras=tuple(args.cameras) or own[task], **common))
        for task, path in places.items()
    ]
    console = Console()
    try:
        restarts = collect(folders, actor, args.episodes, console=console, **where)
    except KeyboardInterrupt:
        console.print("Stopped. Finished episodes are kept. Repeat the command to continue.")
        raise
    if restarts:
        console.print(f"Workers were lost. {restarts} episodes started again. The result is the same.")
    for folder in folders:
        console.print(summary(folder.path), soft_wrap=True, markup=False, highlight=False)
    print_next(console, "", ("", ["pac", "inspect", folders[0].path]))
