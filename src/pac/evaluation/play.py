"""Trials of the actors, and films of some of them."""

import argparse
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pac.evaluation import video
from pac.evaluation.plan import Actor
from pac.evaluation.records import Journal, Key, record
from pac.rollout import EpisodeResult, Job, rollout

Kept = dict[tuple[str, Job], EpisodeResult]  # label of the actor, job


def key(label: str, job: Job) -> Key:
    """Of the job's record."""
    return label, job.task, job.seed, job.index


def options(args: argparse.Namespace) -> dict[str, Any]:
    """What is handed on to `rollout`."""
    names = ("workers", "max_steps", "stop_at_success", "cameras", "ray")
    return {name: getattr(args, name) for name in names}


def play(actors: Sequence[Actor], jobs: Sequence[Job], journal: Journal, args: argparse.Namespace) -> Kept:
    """Play what is not in the journal yet; returns the trials that are to be filmed."""
    kept: Kept = {}
    with _progress() as progress:
        for actor in actors:
            todo = [job for job in jobs if key(actor.label, job) not in journal.records]
            bar = progress.add_task(escape(actor.label), total=len(jobs), completed=len(jobs) - len(todo))
            discount = actor.discounts()
            with closing(trials_of(actor, todo, options(args))) as trials:
                for trial in trials:
                    journal.append(record(trial, actor.label, discount(trial.spec)))
                    if args.videos is not None and trial.index in args.video_trials:
                        kept[actor.label, trial.job] = trial
                    progress.advance(bar)
    return kept


def trials_of(actor: Actor, jobs: Sequence[Job], settings: Mapping[str, Any]) -> Generator[EpisodeResult, None, None]:
    """Of one actor; its workers end with the iteration, however that ends."""
    if not jobs:
        return
    loaded = actor.load()
    cameras = settings["cameras"] or tuple(getattr(loaded, "cameras", ()))
    trials = rollout(loaded, jobs, **{**settings, "cameras": cameras})
    with closing(cast(Generator[EpisodeResult, None, None], trials)) as running:
        yield from running


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True)


def make_videos(
    actors: Sequence[Actor], jobs: Sequence[Job], journal: Journal, kept: Kept, args: argparse.Namespace
) -> list[str]:
    """Film the chosen trials; those that were finished earlier are played once more. Returns what did not agree."""
    complaints, taken = list[str](), list[str]()
    chosen = [job for job in jobs if job.index in args.video_trials]
    for actor in actors:
        missing = [job for job in chosen if (actor.label, job) not in kept]
        with closing(trials_of(actor, missing, options(args))) as again:
            trials = {trial.job: trial for trial in again}
        for job in chosen:
            trial = kept.get((actor.label, job)) or trials[job]
            before, now = journal.records[key(actor.label, job)], record(trial, actor.label)
            if before != now:
                complaints.append(f"{actor.label}, {job}: a return of {now.total:.6g}, but {before.total:.6g} before.")
            taken.append(video.file_name(actor.label, job.task, job.index, taken))
            note = video.film(trial, args.videos / taken[-1], actor=actor.label, max_steps=args.max_steps)
            complaints += [note] if note else []
    return complaints
