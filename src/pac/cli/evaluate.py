"""`pac evaluate`: let actors act, and say what that shows.

Every actor plays the same trials: trial i of a task starts from the state given by (task, seed, i). With --json each
finished trial is kept at once; after Ctrl-C the same command goes on, and a larger --trials adds to what is there.
"""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pac.evaluation import experts, tables, video
from pac.evaluation.plan import SAMPLINGS, SHOWS, Actor, expand_tasks, parse_actors
from pac.evaluation.play import key, make_videos, play
from pac.evaluation.records import Journal, partial_path, write_text
from pac.evaluation.report import EvaluationReport, EvaluationRequest
from pac.rollout import Job, make_jobs

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
    actors = parse_actors(args.actor, **choices)
    tasks = expand_tasks(args.tasks)
    _check(args)
    jobs, report, code = make_jobs(tasks, args.trials, args.seed), EvaluationReport(request(args), actors, tasks), 0
    with Journal(args.json, report.settings) as journal:
        _nothing_unasked(journal, jobs, actors, args)
        try:
            kept = play(actors, jobs, journal, args)
            complaints = make_videos(actors, jobs, journal, kept, args) if args.videos else []
        except KeyboardInterrupt:
            complaints, code = [_interrupted(journal, len(jobs) * len(actors))], INTERRUPTED
        complaints += [note for actor in actors for note in actor.notes()]
        order = [key(actor.label, job) for actor in actors for job in jobs]
        _tell(report, journal, order, complaints, markdown=args.markdown, finished=code == 0)
    return code


def request(args: argparse.Namespace) -> EvaluationRequest:
    """What of a command line the numbers depend on."""
    given: dict[str, Any] = {field.name: getattr(args, field.name) for field in dataclasses.fields(EvaluationRequest)}
    frozen: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    return EvaluationRequest(**frozen)


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


def _nothing_unasked(journal: Journal, jobs: Sequence[Job], actors: Sequence[Actor], args: argparse.Namespace) -> None:
    """A file is not replaced by one that holds less."""
    if extra := journal.records.keys() - {key(actor.label, job) for actor in actors for job in jobs}:
        raise ValueError(
            f"{args.json} holds {len(extra):,} trials that this command does not ask for. Expected --trials "
            f"{1 + max(place[3] for place in extra)} or more, found {args.trials}. Or name another --json file."
        )


def _interrupted(journal: Journal, total: int) -> str:
    done = f"Interrupted: {len(journal.records):,} of {total:,} trials were finished"
    if journal.path is None:
        return f"{done}. With --json FILE they would be kept."
    return f"{done} and are in {partial_path(journal.path)}; the same command goes on from there."


def _tell(
    report: EvaluationReport,
    journal: Journal,
    order: Sequence[Any],
    complaints: Sequence[str],
    *,
    markdown: Path | None,
    finished: bool,
) -> None:
    """Tables of what is done; files only when all is."""
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=200)
    records = [journal.records[place] for place in order if place in journal.records]
    if records:
        result = report.build(records, complaints)
        complaints = result.notes
        tables.print_grids(result.grids, console)
        if finished:
            journal.finish(result.document)
        if finished and markdown is not None:
            write_text(markdown, tables.markdown(result.grids, result.notes, result.document["command"]))
    for note in complaints:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
