"""`pac evaluate`: let actors act, and say what that shows.

Every actor plays the same trials: trial i of a task starts from the state given by (task, seed, i). With --json each
finished trial is kept at once; after Ctrl-C the same command goes on, and a larger --trials adds to what is there.
"""

import argparse
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from pac.evaluation import Actor, Evaluation, EvaluationInterruptedError, evaluate, experts, record, tables, video
from pac.evaluation.plan import SAMPLINGS, SHOWS, expand_tasks, parse_actors
from pac.evaluation.records import partial_path
from pac.evaluation.runner import episode_key, play_episodes
from pac.files import progress_bar, write_json
from pac.files import write_atomically as write_text
from pac.rollout import EpisodeResult, Job, make_jobs

# Options that the numbers depend on, with their defaults; None where a command always names the option.
USUAL: dict[str, Any] = {"tasks": None, "trials": None, "seed": None, "sampling": ["sample"], "best_of": [1]}
USUAL |= {"goals": [], "show": [], "cameras": [], "max_steps": None, "stop_at_success": False, "bootstrap": False}
USUAL |= {"experts": experts.TABLE}
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("actor", nargs="+", metavar="ACTOR", help="behaviour or folder of a checkpoint; LABEL=ACTOR names it")
    add("--tasks", nargs="+", required=True, help="names, suites (control, metaworld) or globs ('metaworld/*open*')")
    add("--trials", type=int, default=100, help="of each task (default: 100)")
    add("--seed", type=int, default=0, help="of the evaluation: which initial states (default: 0)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    add("--ray", metavar="ADDRESS", help="run the workers on a Ray cluster ('local' or its address)")
    add("--max-steps", type=int, help="end episodes earlier; percent of expert is not shown then")
    add("--stop-at-success", action="store_true", help="end episodes at success; nor is it then")
    add("--cameras", nargs="+", default=[], help="for policies that see; default: those the policy names")
    add("--sampling", nargs="+", default=["sample"], metavar="HOW", help=f"of checkpoints: {', '.join(SAMPLINGS)}")
    add("--best-of", nargs="+", type=int, default=[1], metavar="N", help="of checkpoints: the critic picks among N")
    add("--goals", nargs="+", default=[], metavar="DATASET", help="of checkpoints: whose goal pictures they are shown")
    add("--show", nargs="+", default=[], metavar="WHAT", help=f"of checkpoints: {', '.join(SHOWS)}")
    add("--bootstrap", action="store_true", help="intervals by stratified bootstrap: trials drawn anew within tasks")
    add("--experts", type=Path, default=experts.TABLE, help="table of the returns that count as 100%%")
    add("--json", type=Path, metavar="FILE", help="every trial, settings and summary; resumable")
    add("--markdown", type=Path, metavar="FILE", help="the tables")
    add("--videos", type=Path, metavar="DIR", help="mp4 of chosen trials, with the critic's value")
    add("--video-trials", type=int, nargs="+", default=[0], metavar="I", help="which of each task (default: 0)")


def run(args: argparse.Namespace) -> int:
    choices = {"samplings": args.sampling, "best_of": args.best_of, "shows": args.show, "goals": args.goals}
    actors, tasks = parse_actors(args.actor, **choices), expand_tasks(args.tasks)
    _check(args)
    jobs = make_jobs(tasks, args.trials, args.seed)
    chosen, interrupted = Chosen(args.video_trials if args.videos else []), list[str]()
    try:
        with _progress_of(actors) as progress:
            result = evaluate(
                actors,
                tasks,
                args.trials,
                **limits(args),
                seed=args.seed,
                experts=experts.load(args.experts),
                bootstrap=args.bootstrap,
                journal=args.json,
                command=command(args),
                progress=progress,
                on_episode=chosen.keep,
            )
    except EvaluationInterruptedError as stopped:
        result = stopped.evaluation
        interrupted = [_interrupted(args.json, len(result.records), len(jobs) * len(actors))]
    if args.videos and not interrupted:
        try:
            result = _with_videos(result, actors, jobs, chosen, args)
        except KeyboardInterrupt:
            interrupted = ["Interrupted while videos were made; the same command makes those that are missing."]
    _tell(result.with_notes(interrupted), markdown=None if interrupted else args.markdown)
    return INTERRUPTED if interrupted else 0


def limits(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `evaluate` that are also options of the command."""
    return {name: getattr(args, name) for name in ("workers", "max_steps", "stop_at_success", "cameras", "ray")}


def command(args: argparse.Namespace) -> str:
    """Return the shortest command line that asks for the same numbers."""
    words = ["pac", "evaluate", *args.actor]
    for name, usual in USUAL.items():
        value = getattr(args, name)
        if value != usual:
            values = value if isinstance(value, list) else () if value is True else (value,)
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


@contextlib.contextmanager
def _progress_of(actors: Sequence[Actor]) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar per actor while episodes are played."""
    with progress_bar(Console(stderr=True)) as bars:
        tasks = dict[str, TaskID]()

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(escape(label), total=total)
            bars.update(tasks[label], completed=done)

        yield show


@dataclasses.dataclass
class Chosen:
    """The episodes that videos are made of, as far as they were played now."""

    indices: Sequence[int]
    played: dict[tuple[str, Job], EpisodeResult] = dataclasses.field(default_factory=dict)

    def keep(self, label: str, result: EpisodeResult) -> None:
        if result.index in self.indices:
            self.played[label, result.job] = result


def _with_videos(
    result: Evaluation, actors: Sequence[Actor], jobs: Sequence[Job], chosen: Chosen, args: argparse.Namespace
) -> Evaluation:
    """Make videos of the chosen episodes. Those that were finished earlier are played once more, and compared."""
    complaints, taken = list[str](), list[str]()
    records = {record.key: record for record in result.records}
    jobs = [job for job in jobs if job.index in chosen.indices]
    for actor in actors:
        missing = [job for job in jobs if (actor.label, job) not in chosen.played]
        with contextlib.closing(play_episodes(actor, missing, **limits(args))) as again:
            replayed = {played.job: played for played, _ in again}
        for job in jobs:
            played = chosen.played.get((actor.label, job)) or replayed[job]
            before, now = records[episode_key(actor.label, job)], record(played, actor.label)
            if before != now:
                complaints.append(f"{actor.label}, {job}: a return of {now.total:.6g}, but {before.total:.6g} before.")
            taken.append(video.file_name(actor.label, job.task, job.index, taken))
            note = video.film(played, args.videos / taken[-1], actor=actor.label, max_steps=args.max_steps)
            complaints += [note] if note else []
    result = result.with_notes(complaints)
    if complaints and args.json:
        write_json(args.json, result.document)
    return result


def _check(args: argparse.Namespace) -> None:
    if args.trials < 1:
        raise ValueError(f"--trials: expected 1 or more, found {args.trials}.")
    outside = [index for index in args.video_trials if not 0 <= index < args.trials]
    if args.videos is not None and outside:
        raise ValueError(f"--video-trials: expected numbers from 0 to {args.trials - 1}, found {outside[0]}.")
    if args.videos is not None:
        video.check()
    for folder in [args.videos] * (args.videos is not None) + [args.markdown and args.markdown.parent]:
        try:
            Path(folder or ".").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{folder}: expected a folder to write to, found {error}. Name another.") from error


def _interrupted(path: Path | None, played: int, total: int) -> str:
    done = f"Interrupted: {played:,} of {total:,} episodes were finished"
    if path is None:
        return f"{done}. With --json FILE they would be kept."
    return f"{done} and are in {partial_path(path)}; the same command goes on from there."


def _tell(result: Evaluation, *, markdown: Path | None) -> None:
    """Print the tables and notes, and write them to a file."""
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=200)
    grids = tables.grids(result.summaries, result.differences)
    tables.print_grids(grids, console)
    if markdown is not None:
        write_text(markdown, tables.markdown(grids, result.notes, result.document["command"]))
    for note in result.notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
