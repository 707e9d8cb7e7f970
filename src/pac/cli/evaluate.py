"""`pac evaluate`: play evaluation episodes with policies and behaviours, and compare them.

Episode i of a task starts from the state that (task, seed, i) gives. So all actors play the same episodes. With --json
each finished episode is kept at once. After Ctrl-C the same command continues. A larger --episodes adds to the file.
"""

import argparse
import dataclasses
import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pac.cli.next_step import Step, print_next, report_command
from pac.cli.tables import print_grids
from pac.evaluation import Actor, Evaluation, EvaluationInterruptedError, evaluate, experts, tables, video
from pac.evaluation.compare import FEW_EPISODES, HALF_WIDTH
from pac.evaluation.intervals import episodes_for
from pac.evaluation.plan import SAMPLINGS, SHOWS, expand_tasks, make_actors
from pac.evaluation.records import partial_path
from pac.files import progress_bar, write_atomically, write_json

# Options that decide the numbers, with their defaults. None: the command in the document always names the option.
DEFAULTS: dict[str, Any] = {"tasks": None, "episodes": None, "seed": None, "sampling": ["sample"], "best_of": [1]}
DEFAULTS |= {
    "instruction": None,
    "goals": [],
    "show": [],
    "cameras": [],
    "max_steps": None,
    "stop_at_success": False,
    "bootstrap": False,
}
DEFAULTS |= {"any_instruction": False, "experts": experts.TABLE}
INTERRUPTED = 130
BOTH = ("sample", "mode")  # of --sampling both: sampled actions, and the most likely ones
MOST_EPISODES = 1000  # per task that a next command asks for
MOST_TIMES = 10  # as many episodes as before
LABELLED = re.compile(r"([^:(/=]+)=(.+)")  # the = of a behaviour's option comes after a : or a (


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("actor", nargs="+", metavar="ACTOR", help="behaviour or folder of a checkpoint; LABEL=ACTOR names it")
    add("--tasks", nargs="+", required=True, help="names, suites (control, metaworld) or globs ('metaworld/*open*')")
    add("--episodes", type=int, default=100, help="evaluation episodes per task (default: 100)")
    add("--seed", type=int, default=0, help="seed of the initial states (default: 0)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    add("--ray", metavar="ADDRESS", help="run the workers on a Ray cluster ('local' or its address)")
    add("--max-steps", type=int, help="end episodes earlier; percent of expert is not shown then")
    add("--stop-at-success", action="store_true", help="end episodes at success; percent of expert is not shown then")
    add("--cameras", nargs="+", default=[], help="cameras to render (default: those of the policy)")
    add("--instruction", metavar="TEXT", help="for checkpoints: show this text in place of that of every task")
    add("--any-instruction", action="store_true", help="do not refuse instructions that a policy never saw")
    add(
        "--sampling",
        nargs="+",
        default=["sample"],
        metavar="HOW",
        help=f"for checkpoints: {', '.join(SAMPLINGS)}, or both",
    )
    add("--best-of", nargs="+", type=int, default=[1], metavar="N", help="for checkpoints: the critic picks one of N")
    add("--goals", nargs="+", default=[], metavar="DATASET", help="for checkpoints: datasets with goal images")
    add("--show", nargs="+", default=[], metavar="WHAT", help=f"for checkpoints: {', '.join(SHOWS)}")
    add("--bootstrap", action="store_true", help="make all intervals by resampling episodes within each task")
    add("--experts", type=Path, default=experts.TABLE, help="table of the returns that count as 100%%")
    add("--json", type=Path, metavar="FILE", help="write all episodes, settings and summaries; can be continued")
    add("--markdown", type=Path, metavar="FILE", help="write the tables")
    add("--videos", type=Path, metavar="DIR", help="write videos of some episodes, with the critic's value")
    add("--video-episodes", type=int, nargs="+", default=[0], metavar="I", help="which of each task (default: 0)")


def run(args: argparse.Namespace) -> int:
    choices = {"samplings": args.sampling, "best_of": args.best_of, "shows": args.show, "goals": args.goals}
    actors, tasks = parse_actors(args.actor, **choices), expand_tasks(args.tasks)
    actors = [dataclasses.replace(x, instruction=args.instruction) if x.checkpoint else x for x in actors]
    _check(args)
    options = ("workers", "max_steps", "stop_at_success", "cameras", "any_instruction", "ray")
    limits = {name: getattr(args, name) for name in options}
    interrupted = list[str]()
    total = args.episodes * len(tasks)
    try:
        with progress_bar(Console(stderr=True)) as bars:
            lines = {actor.label: bars.add_task(escape(actor.label), total=total) for actor in actors}
            result = evaluate(
                actors,
                tasks,
                args.episodes,
                **limits,
                seed=args.seed,
                experts=experts.load(args.experts),
                bootstrap=args.bootstrap,
                journal=args.json,
                command=command(args),
                progress=lambda label, done, _: bars.update(lines[label], completed=done),
            )
    except EvaluationInterruptedError as stopped:
        result = stopped.evaluation
        done = f"Interrupted: {len(result.records):,} of {total * len(actors):,} episodes were finished"
        interrupted = [f"{done}. With --json FILE they would be kept."]
        if args.json:
            interrupted = [f"{done} and are in {partial_path(args.json)}. The same command continues there."]
    if args.videos and not interrupted:
        try:
            if notes := video.film(actors, result.records, args.video_episodes, args.videos, **limits):
                result = result.with_notes(notes)
                if args.json:
                    write_json(args.json, result.document)
        except KeyboardInterrupt:
            interrupted = ["Interrupted while videos were made. The same command makes all of them."]
    _print(result.with_notes(interrupted), markdown=None if interrupted else args.markdown)
    made = f"{args.json}: {len(result.records):,} episodes." if args.json and not interrupted else ""
    print_next(Console(), made, *next_steps(args, actors, result, interrupted=bool(interrupted)))
    return INTERRUPTED if interrupted else 0


def next_steps(
    args: argparse.Namespace, actors: Sequence[Actor], result: Evaluation, *, interrupted: bool
) -> list[Step]:
    """Return how to go on: the same command, more episodes, a page, and the other way to act."""

    def again(*options: str | Path, **changes: Any) -> list[str | Path]:
        return [*shlex.split(command(argparse.Namespace(**vars(args) | changes))), *options]

    file, videos = args.json or _new_file("evaluation.json"), ["--videos", args.videos] if args.videos else []
    if interrupted:
        return [("to continue", again("--json", file, *videos))] if args.json else []
    steps: list[Step] = []
    if (more := needed_episodes(result, args.episodes)) is not None:
        steps.append(("for narrower intervals", again("--json", file, episodes=more)))
    elif args.json is None:
        steps.append(("to keep the episodes", again("--json", file)))
    else:
        steps.append(("", report_command([file], file.with_suffix(".html"))))
    if any(actor.checkpoint for actor in actors) and not set(BOTH) <= set(expand_samplings(args.sampling)):
        steps.append(("to compare sampled and most likely actions", again(sampling=["both"])))
    return steps


def needed_episodes(result: Evaluation, episodes: int) -> int | None:
    """Return how many episodes per task make wide intervals narrow; None if there are enough, or far too few."""
    factors = [1.0, 2 * FEW_EPISODES / episodes if episodes < FEW_EPISODES else 1.0]
    for summary in result.summaries.values():
        success = summary.overall.success
        if success is not None and success.half_width > HALF_WIDTH:
            rate = min(max(0.5, success.low), success.high)
            factors.append(episodes_for(HALF_WIDTH, rate) / success.n)
    needed = math.ceil(episodes * min(max(factors), MOST_TIMES) / 10) * 10
    return needed if episodes < needed <= MOST_EPISODES else None


def expand_samplings(names: Sequence[str]) -> list[str]:
    """Return the ways to act, with `both` in full and each once."""
    return list(dict.fromkeys(one for name in names for one in (BOTH if name == "both" else (name,))))


def _new_file(name: str) -> Path:
    """Return the name, with a number if there is such a file already."""
    path = Path(name)
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(found for found in itertools.chain([path], numbered) if not found.exists())


def parse_actors(
    texts: Sequence[str],
    *,
    samplings: Sequence[str] = ("sample",),
    best_of: Sequence[int] = (1,),
    shows: Sequence[str] = (),
    goals: Sequence[str] = (),
) -> list[Actor]:
    """Return the actors of texts such as `random`, `runs/walker` and `ours=runs/walker`.

    A checkpoint is returned once for each combination of the other choices.
    """
    samplings = expand_samplings(samplings)
    for option, found, known in (("--sampling", samplings, SAMPLINGS), ("--show", shows, SHOWS)):
        if unknown := [name for name in found if name not in known]:
            raise ValueError(f"{option}: expected {', '.join(known)}, found {unknown[0]!r}.")
    if min(best_of) < 1:
        raise ValueError(f"--best-of: expected numbers of 1 or more, found {min(best_of)}.")
    if not goals and (needy := [name for name in shows if "goal" in name]):
        raise ValueError(f"--show {needy[0]}: expected --goals with a dataset that has goal images, found none.")
    choices: dict[str, Sequence[Any]] = {"sampling": samplings, "best_of": best_of}
    choices["show"] = shows or (["text+goal"] if goals else [None])
    actors = [one for text in texts for one in _variants(_parse_actor(text), choices, tuple(goals))]
    labels = [actor.label for actor in actors]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"Expected a label of its own for each actor, found {twice[0]!r} twice. Write LABEL=ACTOR.")
    return actors


def _parse_actor(text: str) -> Actor:
    named = None if Path(text).is_dir() else LABELLED.fullmatch(text)
    label, spec = (named[1].strip(), named[2].strip()) if named else (text, text)
    is_path = "/" in re.split(r"[:(]", spec)[0]  # in a behaviour's options a / comes after a :
    if not Path(spec).is_dir() and (is_path or Path(spec).exists()):
        raise ValueError(f"{spec}: expected the folder of a checkpoint or a behaviour, found no such folder.")
    return make_actors({label: spec})[0]


def _variants(actor: Actor, choices: Mapping[str, Sequence[Any]], goals: tuple[str, ...]) -> Iterator[Actor]:
    """Yield a checkpoint for each combination of choices. Its label names those of several options."""
    if actor.checkpoint is None:
        yield actor
        return
    for values in itertools.product(*choices.values()):
        choice = dict(zip(choices, values, strict=True))
        words = choice | {"best_of": f"best of {choice['best_of']}"}
        differing = ", ".join(words[name] for name in choices if len(choices[name]) > 1)
        label = f"{actor.label} ({differing})" if differing else actor.label
        yield dataclasses.replace(actor, label=label, goals=goals, **choice)


def command(args: argparse.Namespace) -> str:
    """Return the shortest command line that gives the same numbers."""
    words = ["pac", "evaluate", *args.actor]
    for name, default in DEFAULTS.items():
        value = getattr(args, name)
        if value != default:
            values = value if isinstance(value, list) else () if value is True else (value,)
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def _check(args: argparse.Namespace) -> None:
    """Raise for options that would fail only after the episodes."""
    if args.episodes < 1:
        raise ValueError(f"--episodes: expected 1 or more, found {args.episodes}.")
    outside = [index for index in args.video_episodes if not 0 <= index < args.episodes]
    if args.videos is not None and outside:
        raise ValueError(f"--video-episodes: expected numbers from 0 to {args.episodes - 1}, found {outside[0]}.")
    if args.videos is not None:
        video.packages()
    for folder in [args.videos] * (args.videos is not None) + [args.markdown and args.markdown.parent]:
        try:
            Path(folder or ".").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{folder}: expected a folder to write to, found {error}. Name another.") from error


def _print(result: Evaluation, *, markdown: Path | None) -> None:
    """Print the tables and notes, and write them to a file."""
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=200)
    grids = tables.grids(result.summaries, result.differences)
    print_grids(grids, console)
    if markdown is not None:
        write_atomically(markdown, tables.markdown(grids, result.notes, result.document["command"]))
    for note in result.notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
