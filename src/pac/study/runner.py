"""Run a study: collect its data, then train and evaluate every run, several at a time.

Each run is a process of its own. A run that has its evaluation is finished. The same command continues everything
else. A larger `study.episodes` adds episodes to those that are there.
"""

import contextlib
import dataclasses
import functools
import json
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from pac.collection import collect_data
from pac.config import EvaluationConfig
from pac.evaluation.plan import Actor, versions
from pac.evaluation.records import EpisodeRecord, partial_path
from pac.evaluation.runner import evaluate
from pac.files import problem, progress_bar
from pac.policy import ROWS, Policy
from pac.policy import load as load_policy
from pac.recipe import continued
from pac.study.experts import write_experts
from pac.study.folder import RESULTS, RunEvaluation, StudyFolder
from pac.study.plan import StudyRun
from pac.training import distributed
from pac.training import run as training_run
from pac.training.logging import QUIET_SECONDS
from pac.training.run_dir import SUMMARY, RunDirectory
from pac.training.setup import choose_device


def run_study(folder: StudyFolder, processes: int, console: Console) -> list[str]:
    """Do everything that is not finished yet. Return the names of the runs that failed. 0 processes train nothing."""
    if restored := folder.restore():
        _print(console, f"{restored} runs are finished in {folder.path / RESULTS}.")
    folder.check_settings()
    if not processes:
        return []
    make_data(folder, processes, console)
    write_experts(folder)
    return perform_all(folder, processes, console)


def make_data(folder: StudyFolder, workers: int, console: Console) -> None:
    """Collect the episodes of [[study.data]] that are missing. Do nothing if all runs are trained."""
    if not folder.needs_data:
        return
    collected = {(folder.data / name).resolve() for name in folder.study.collections}
    datasets = [entry for run in folder.study.runs for entry in run.config.mixture.datasets]
    for path in (Path(name) for entry in datasets for name in (entry.path, *entry.more_paths) if name):
        if not path.exists() and collected.isdisjoint(path.resolve().parents):
            raise problem(
                path,
                expected="a dataset there, which the study does not make itself",
                found="none",
                fix="Make it first. The file of a study that ships with PAC opens with the commands (recipes/study).",
            )
    for name, collection in folder.study.collections.items():
        collect_data(collection, folder.data / name, console, workers)


# -------------------------------------------------------------------------------------------------------- processes


class _Child:
    """The process of one run."""

    def __init__(self, folder: StudyFolder, run: StudyRun) -> None:
        self.run, self.log = run, folder.log_path(run)
        self.log_start = self.log.stat().st_size if self.log.exists() else 0  # what follows is of this process
        self.process = mp.get_context("spawn").Process(target=_perform_in_process, args=(folder, run), name=run.name)
        self.process.start()

    @property
    def last_line(self) -> str:
        """The newest line of the run's log."""
        lines = list[str]()
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.log_start, self.log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "starts"


def perform_all(folder: StudyFolder, processes: int, console: Console) -> list[str]:
    """Train and evaluate the runs that are not finished. Return the names of those that failed."""
    waiting = [run for run in folder.study.runs if not folder.is_evaluated(run)]
    children, failed, last_print = list[_Child](), list[str](), time.monotonic()
    folder.make()
    with progress_bar(console) as progress:
        total = len(folder.study.runs)
        whole = progress.add_task("runs", total=total, completed=total - len(waiting))
        bars: dict[str, Any] = {}
        try:
            while waiting or children:
                while waiting and len(children) < processes:
                    children.append(child := _Child(folder, waiting.pop(0)))
                    bars[child.run.name] = progress.add_task(child.run.name, total=None)
                wait([child.process.sentinel for child in children], timeout=0.5)
                for child in children:
                    progress.update(bars[child.run.name], description=escape(f"{child.run.name}: {child.last_line}"))
                if not console.is_terminal and time.monotonic() - last_print > QUIET_SECONDS * len(children):
                    last_print = time.monotonic()
                    for child in children:
                        _print(console, f"{child.run.name}: {child.last_line}")
                for child in [child for child in children if child.process.exitcode is not None]:
                    children.remove(child)
                    progress.remove_task(bars[child.run.name])
                    progress.advance(whole)
                    failed += [] if _report(child, folder, progress.console) else [child.run.name]
        finally:
            for child in children:
                child.process.terminate()  # a run in training saves before it ends
            for child in children:
                child.process.join()
    return failed


def _report(child: _Child, folder: StudyFolder, console: Console) -> bool:
    """Print one line about a run that ended. Return whether it succeeded."""
    name = child.run.name
    if child.process.exitcode != 0:
        text = f"{name} failed: {child.last_line}. {child.log} has more; the other runs continue."
        console.print(f"[bold red]{escape(text)}", soft_wrap=True)
        return False
    found = folder.read_evaluation(child.run)
    _print(console, f"{name}: {found.facts['seconds']:.0f} s, {found.means()}")
    return True


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _perform_in_process(folder: StudyFolder, run: StudyRun) -> None:
    """Perform a run in the process that was started for it. The output goes to the run's log."""
    os.setpgrp()  # Ctrl-C reaches the parent alone, which ends its runs. A second signal would keep them from saving.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with folder.log_path(run).open("a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    perform(folder, run)


def _end_with_parent() -> None:
    """End this process when its parent is gone, even if it was killed. Otherwise the run's folder would stay locked."""
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


# --------------------------------------------------------------------------------------------------------- one run


def perform(folder: StudyFolder, run: StudyRun) -> None:
    """Train a run if that is not done, then evaluate it and write the evaluation."""
    path = folder.run_path(run)
    if before := training_run.read_config(path):
        run = dataclasses.replace(run, config=continued(run.config, before["config"]))
    with distributed.processes(choose_device(run.config.machine.device)) as processes:
        load: Callable[..., Policy] = functools.partial(load_policy, path, device=str(processes.device))
        trained = folder.is_trained(run)
        earlier = folder.read_evaluation(run) if trained and folder.evaluation_path(run).exists() else None
        # Goal images of the data are in no checkpoint: the trainer is built again, to read them.
        if not trained or any(dataset.goal_cameras for dataset in load().metadata.embodiments):
            config = dataclasses.replace(run.config, evaluation=EvaluationConfig())  # no evaluation during training
            trainer = training_run.perform(config, path, processes, resume=RunDirectory(path).is_run())
            if trainer.interrupted is not None:
                raise KeyboardInterrupt
            load = trainer.policy
        began = time.time()
        records = _evaluate(folder, run, load, earlier.records if earlier else [], fresh=not trained)
    summary = json.loads((path / SUMMARY).read_text())
    facts = {"run": run.name, "row": run.row, "each": run.each, "seed": run.seed, "seconds": summary["seconds"]}
    facts["evaluation_seconds"] = (earlier.facts["evaluation_seconds"] if earlier else 0.0) + time.time() - began
    facts |= {name: summary[name] for name in ("size", "steps", "parameters")} | {"versions": versions()}
    folder.write_evaluation(run, RunEvaluation(facts=facts, settings=folder.settings(run), records=records))
    for journal in _journals(folder, run):
        journal.unlink(missing_ok=True)


def _evaluate(
    folder: StudyFolder, run: StudyRun, load: Callable[..., Policy], known: list[EpisodeRecord], *, fresh: bool
) -> list[EpisodeRecord]:
    """Return the evaluation episodes of all domains. `fresh`: the weights are new, so older journals are not theirs."""
    rules, found = run.config.evaluation, list[EpisodeRecord]()
    values = run.config.objective.critic != "none"
    for journal, domain in zip(_journals(folder, run), run.domains.values(), strict=True):
        if fresh:
            journal.unlink(missing_ok=True)
            partial_path(journal).unlink(missing_ok=True)
        make = functools.partial(load, sampling=domain.sampling, values=values)
        actors = [
            Actor(
                label=label,
                checkpoint=str(folder.run_path(run)),
                sampling=domain.sampling,
                policy=functools.partial(_load, make, show, run),
            )
            for show, (_, label) in run.labels.items()
        ]
        found += evaluate(
            actors,
            domain.tasks,
            folder.study.config.episodes,
            seed=rules.seed,
            max_steps=domain.max_steps,
            stop_at_success=domain.stop_at_success,
            workers=rules.workers,
            envs_per_worker=3 * ROWS if rules.workers == 0 else None,  # full batches
            journal=journal,
            known=known,
            progress=_Progress(),
        ).records
    return found


def _journals(folder: StudyFolder, run: StudyRun) -> list[Path]:
    """Return the files that hold finished episodes of a run, one per domain, until its evaluation is written."""
    path = folder.evaluation_path(run)
    return [path.with_name(f".{path.stem}.{i}.json") for i in range(len(run.domains))]


class _Progress:
    """Lines in a run's log on how many evaluation episodes are finished, one each ten seconds."""

    def __init__(self) -> None:
        self.last_print = 0.0

    def __call__(self, label: str, done: int, total: int) -> None:
        if done == total or time.monotonic() - self.last_print > QUIET_SECONDS:
            self.last_print = time.monotonic()
            print(f"{label}: {done:,} of {total:,} episodes", flush=True)


def _load(load: Callable[..., Policy], show: str | None, run: StudyRun) -> Policy:
    """Return the policy with the task given in one way. What its mixture never shows it is not shown here either."""
    policy = load()
    if show is None:
        return policy
    if "goal" in show and not policy.goals and any(dataset.keep_goal > 0 for dataset in run.config.mixture.datasets):
        raise ValueError(
            f"study.shows: expected goal images in the data, to show {show!r}, found none. Collect with cameras, and "
            'set goals = "success" in the mixture, or leave goals out of study.shows.'
        )
    return load(text="text" in show, goals=(policy.goals or {}) if "goal" in show else {})
