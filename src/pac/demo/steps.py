"""The steps: collect, train, try. Each takes up what is in the folder already."""

import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pac.config import CollectConfig
from pac.demo.settings import LANES, METHODS, TRIAL_SEED, Settings, World, recipe
from pac.evaluation import EpisodeRecord
from pac.evaluation.plan import Actor
from pac.evaluation.records import Journal, record
from pac.evaluation.report import EvaluationReport, EvaluationRequest
from pac.evaluation.runner import episode_key as key
from pac.evaluation.runner import play_episodes as trials_of
from pac.recipe import parse_recipe
from pac.rollout import PersistentWorkers, make_jobs
from pac.training.logging import make_console
from pac.training.run_dir import CONFIG, RunDirectory, read_metrics
from pac.training.setup import collect_data
from pac.training.trainer import Trainer


def make_data(settings: Settings, folder: Path, console: Console) -> None:
    """`pac collect`; what is there already stays."""
    for world in settings.worlds:
        wanted = CollectConfig(
            tasks=world.tasks,
            behaviour=world.behaviour,
            episodes=settings.episodes,
            max_steps=world.max_steps,
            seed=settings.seed,
        )
        collect_data(wanted, folder, console, workers=2)


def train(settings: Settings, folder: Path, console: Console) -> None:
    """Two processes, each trains its methods one after the other; here we watch."""
    context = mp.get_context("spawn")
    lanes = [context.Process(target=train_lane, args=(lane, settings, folder)) for lane in LANES]
    for lane in lanes:
        lane.start()
    try:
        watch(lanes, settings, folder, console)
    except BaseException:
        for lane in lanes:
            lane.terminate()  # they save first
        raise
    finally:
        for lane in lanes:
            lane.join()
    if any(lane.exitcode for lane in lanes):
        raise ValueError(f"{folder}: training ended early, see above. The same command goes on from where it stopped.")


def watch(lanes: Sequence[Any], settings: Settings, folder: Path, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    live, spoke = console.is_terminal, time.perf_counter()
    with Progress(*columns, console=console, disable=not live) as progress:
        bars = {method: progress.add_task(f"train {method}", total=settings.steps) for method in METHODS}
        while any(lane.is_alive() for lane in lanes):
            lanes[0].join(0.5) if lanes[0].is_alive() else lanes[1].join(0.5)
            done = {method: steps_done(run_folder(folder, method)) for method in METHODS}
            for method, bar in bars.items():
                progress.update(bar, completed=done[method])
            if not live and time.perf_counter() - spoke > 10:
                spoke = time.perf_counter()
                console.print("train: " + ", ".join(f"{m} {n:,}/{settings.steps:,}" for m, n in done.items()))


def steps_done(folder: Path) -> int:
    return max((int(row["step"]) for row in read_metrics(folder)), default=0)


def run_folder(folder: Path, method: str) -> Path:
    return folder / METHODS[method]


def train_lane(methods: Sequence[str], settings: Settings, folder: Path) -> None:
    os.setpgrp()  # Ctrl-C is for who started us: told twice, a run does not save
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    for method in methods:
        if train_one(method, settings, folder).interrupted is not None:
            sys.exit(1)


def end_with_parent() -> None:
    """However that ends: a lane left behind would keep its folder locked."""
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def train_one(method: str, settings: Settings, folder: Path) -> Trainer:
    """`pac train`, or the rest of it."""
    directory = RunDirectory(run_folder(folder, method))
    begun = directory.is_run()
    directory.open(resume=begun, overwrite=False)
    trained = Trainer(parse_recipe(recipe(method, settings), folder / "data"), directory)
    trained.console = make_console(quiet=True)
    if begun:
        trained.resume()
    if not trained.finished:
        directory.write_json(CONFIG, trained.describe())
        trained.train()
    return trained


def try_all(world: World, settings: Settings, folder: Path, console: Console) -> list[EpisodeRecord]:
    """`pac evaluate`: every method from the same initial states; trials that are there already are not made again."""
    actors = [Actor(label=m, checkpoint=str(run_folder(folder, m)), sampling="sample", best_of=1) for m in METHODS]
    request = EvaluationRequest(
        actor=tuple(f"{m}={METHODS[m]}" for m in METHODS),  # as seen from the demo's folder: it may move
        tasks=world.tasks,
        trials=settings.trials,
        seed=TRIAL_SEED,
        max_steps=world.max_steps,
        stop_at_success=world.stop_at_success,
    )
    report, jobs = (
        EvaluationReport(request, actors, world.tasks),
        make_jobs(world.tasks, request.trials, seed=request.seed),
    )
    for label, about in report.settings["actors"].items():
        about["checkpoint"] = METHODS[label]
    options: dict[str, Any] = {
        "workers": 2,
        "max_steps": world.max_steps,
        "stop_at_success": world.stop_at_success,
    }
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Journal(trials_file(folder, world), report.settings) as journal,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        PersistentWorkers() as crew,
    ):
        options |= {"cameras": (), "crew": crew}
        for actor in actors:
            todo = [job for job in jobs if key(actor.label, job) not in journal.records]
            name = f"try {actor.label}, {world.name}"
            bar = progress.add_task(name, total=len(jobs), completed=len(jobs) - len(todo))
            if todo and not console.is_terminal:
                console.print(f"{name}: {len(todo)} trials")
            with closing(trials_of(actor, todo, **options)) as trials:
                for trial, discount in trials:
                    journal.append(record(trial, actor.label, discount))
                    progress.advance(bar)
        records = [journal.records[key(actor.label, job)] for actor in actors for job in jobs]
        journal.finish(report.build(records).document)
    return records


def trials_file(folder: Path, world: World) -> Path:
    return folder / f"{world.name}.json"
