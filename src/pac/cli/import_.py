"""`pac import`: bring datasets of other formats into an episode store.

An import is all or nothing. After an error, nothing is added.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pac.cli.next_step import print_next
from pac.data.store import Dataset
from pac.formats import FORMATS
from pac.formats.checks import check
from pac.formats.options import ImportOptions
from pac.formats.transfer import SourceSummary, import_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "\n\n".join(f"--format {name}: {module.__doc__}" for name, module in FORMATS.items())
    parser.add_argument(
        "--formats", action="version", version=about, help="describe each format and its time alignment"
    )
    parser.add_argument(
        "source",
        nargs="+",
        help="file, folder, Minari id or hf://OWNER/NAME; several append to one dataset",
    )
    parser.add_argument("--out", type=Path, required=True, help="dataset to create or to append to")
    parser.add_argument("--format", default="auto", choices=["auto", *FORMATS], help="default: detect the format")
    parser.add_argument(
        "--keys",
        action="extend",
        nargs="+",
        default=[],
        metavar="FEATURE=KEY[,KEY]",
        help="keys of the source for observation.state, observation.images.CAMERA, action, reward or instruction",
    )
    parser.add_argument("--instruction", help="task text of every episode, instead of the source's")
    parser.add_argument("--fps", type=float, help="control rate in Hz, instead of the source's")
    parser.add_argument("--split", help="a part of the source: robomimic filter key, LeRobot or RLDS split")
    parser.add_argument("--cameras", nargs="*", metavar="NAME", help="cameras to keep; no name: none; default: all")
    parser.add_argument("--episodes", metavar="0:80,100", help="indices of episodes in the source; default: all")
    parser.add_argument(
        "--missing",
        default="refuse",
        choices=["refuse", "skip-episodes", "skip-features"],
        help="if files are missing: read the episodes that are whole, or all episodes without those cameras",
    )
    parser.add_argument(
        "--reward", help="sparse-success (1 at the end), time-to-go (-1 per step), or a further reward of the source"
    )
    parser.add_argument("--task", help="tdmpc2: one task, without padding")
    parser.add_argument("--max-episode-steps", type=int, help="d4rl: time limit, for files without timeouts")
    parser.add_argument(
        "--last-step",
        default="auto",
        choices=["auto", "observation", "transition"],
        help="rlds: whether the last step of an episode has an action and a reward",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> None:
    names = ("instruction", "fps", "split", "episodes", "missing", "task", "max_episode_steps", "last_step", "reward")
    chosen = {name: getattr(args, name) for name in names}
    cameras = None if args.cameras is None else tuple(args.cameras)
    options = ImportOptions(keys=parse_keys(args.keys), cameras=cameras, **chosen)
    console = Console(stderr=True)
    summaries = import_dataset(args.source, args.out, format=args.format, options=options, console=console)
    if args.json:
        print(json.dumps([dataclasses.asdict(summary) for summary in summaries], indent=2))
    else:
        print_summary(summaries, args.out, Console())
        print_next(Console(), "", ("", ["pac", "inspect", args.out]))


def parse_keys(assignments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse `["observation.state=joint_pos,gripper"]` to features and their keys."""
    keys = {}
    for assignment in assignments:
        feature, equals, names = assignment.partition("=")
        check(equals, "--keys", "FEATURE=KEY[,KEY...]", repr(assignment), "Write observation.state=KEY.")
        keys[feature.strip()] = tuple(name.strip() for name in names.split(",") if name.strip())
    return keys


def print_summary(summaries: Sequence[SourceSummary], out: Path, console: Console) -> None:
    """Print the imported keys, the ends of episodes, and what a source does not tell."""

    def line(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    for summary in summaries:
        line(f"{summary.path} ({summary.format}): {summary.episodes:,} episodes, {summary.steps:,} steps")
        line(f"  ends: {summary.terminated:,} terminal, {summary.truncated:,} time limits")
        line(f"  success: {'unknown' if summary.successes is None else f'{summary.successes:,} episodes'}")
        for feature, keys in summary.keys.items():
            line(f"  {feature} <- {', '.join(keys)}")
        tasks = [repr(text) for text in list(summary.instructions)[:3]]
        line(f"  tasks: {len(summary.instructions):,} ({', '.join(tasks)}{', ...' * (len(summary.instructions) > 3)})")
        for note in summary.notes:
            line(f"  note: {note}")
    data = Dataset(out)
    origin = "measured in the data" if data.bounds_are_measured else "given"
    line(f"{out}: {len(data):,} episodes, {data.num_steps:,} steps; action bounds {origin}.")
    if data.bounds_are_measured:
        low, high = (", ".join(f"{value:.4g}" for value in bound) for bound in (data.action_low, data.action_high))
        line(f"  low {low}; high {high}")
