"""Runs of a study, several at a time, each in a process of its own.

`DIR/data` holds what was collected, `DIR/runs/NAME` ordinary runs, `DIR/trials/NAME.json` what each did afterwards,
`DIR/logs/NAME.txt` what it said. A run whose trials are there is done; all else begins, or goes on, when the same
command is given again; with a larger `study.trials` what is there is added to.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing as mp
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pac.config import EvaluationConfig
from pac.evaluation.plan import versions
from pac.evaluation.records import EpisodeRecord, Key, record
from pac.evaluation.runner import episode_key as key
from pac.files import write_json
from pac.policy import ROWS, Policy
from pac.policy import load as load_policy
from pac.rollout import EpisodeResult, make_jobs, rollout
from pac.study.plan import Study, StudyRun
from pac.training import distributed
from pac.training import run as training_run
from pac.training.run_dir import CONFIG, SUMMARY, RunDirectory
from pac.training.setup import choose_device, collect_data


def make_data(study: Study, folder: Path, workers: int, console: Console) -> None:
    """What [[study.data]] asks for, or what is still missing of it; nothing where all is trained."""
    if trained(study, folder):
        return
    _check_data(study, folder)
    for name, wanted in study.collections.items():
        collect_data(wanted, folder / "data" / name, console, workers)


def _check_data(study: Study, folder: Path) -> None:
    """Raise, before minutes of collecting, if data is missing that [[study.data]] does not make."""
    made = {(folder / "data" / name).resolve() for name in study.collections}
    datasets = [entry for run in study.runs for entry in run.config.mixture.datasets]
    for path in (Path(name) for entry in datasets for name in (entry.path, *entry.more_paths) if name):
        if not path.exists() and made.isdisjoint(path.resolve().parents):
            raise ValueError(
                f"{path}: expected a dataset there, which the study does not make itself, found none. Make it "
                "first: the file of a study that ships with PAC opens with the commands (recipes/study)."
            )


def trained(study: Study, folder: Path) -> bool:
    """Whether no run needs the data any more."""
    return all(tried(folder, run, study.config.trials) or finished(folder, run) for run in study.runs)


def tried(folder: Path, run: StudyRun, trials: int) -> bool:
    path = trials_path(folder, run)
    return path.exists() and json.loads(path.read_text())["settings"]["trials"] >= trials


def trials_path(folder: Path, run: StudyRun) -> Path:
    return folder / "trials" / f"{run.name}.json"


def read_trials(folder: Path, run: StudyRun) -> tuple[dict[str, Any], list[EpisodeRecord]]:
    """What is known of a finished run beside its trials, and these; older files do not say with which versions."""
    content = json.loads(trials_path(folder, run).read_text())
    del content["settings"]
    return content, [EpisodeRecord.from_json(values) for values in content.pop("trials")]


def check_same(study: Study, folder: Path) -> None:
    """Raise if a run was finished with other settings: its trials would stand under a name that is not theirs."""
    for run in study.runs:
        if not trials_path(folder, run).exists():
            continue
        before = json.loads(trials_path(folder, run).read_text())["settings"]
        now = json.loads(json.dumps(_settings(run, study.config.trials), default=str))
        before["trials"] = max(before["trials"], now["trials"])  # more of the same are welcome
        for name, old, new in training_run.differences(before, now):
            raise ValueError(
                f"{trials_path(folder, run)}: expected trials of the same settings, found {name} {json.dumps(old)}, "
                f"not {json.dumps(new)}. Repeat the study as it was begun, or name another --out."
            )


def _settings(run: StudyRun, trials: int) -> dict[str, Any]:
    """What decides a run's trials; how it uses its machine does not."""
    config = run.config.as_json()
    kept = {name: value for name, value in config.items() if name not in ("machine", "checkpoint")}
    places = {"domains": {name: dataclasses.asdict(rules) for name, rules in run.domains.items()}}
    shows = {"shows": run.shows} if run.shows else {}
    return kept | {"trials": trials} | (places if set(run.domains) != {""} else {}) | shows


def finished(folder: Path, run: StudyRun) -> bool:
    """Trained to its end with these settings, here or elsewhere: its checkpoint is all that its trials need."""
    path, now = folder / "runs" / run.name, json.loads(json.dumps(run.config.as_json()))
    try:
        before = json.loads((path / CONFIG).read_text())["config"]
    except (OSError, ValueError, KeyError):
        return False
    changed = {name.split(".")[0] for name, _, _ in training_run.differences(before, now)}
    return (path / SUMMARY).exists() and changed <= {"machine", "checkpoint", "evaluation"}


def perform_all(study: Study, folder: Path, processes: int, console: Console) -> list[str]:
    """Do what is not done yet; returns the names of runs that failed."""
    todo = [run for run in study.runs if not tried(folder, run, study.config.trials)]
    failed, done = list[str](), len(study.runs) - len(todo)
    for name in ("runs", "trials", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with _progress(console) as progress, _pool(processes, len(todo)) as pool:
        bar = progress.add_task("runs", total=len(study.runs), completed=done)
        jobs = {pool.submit(perform, run, folder, study.config.trials): run for run in todo}
        try:
            for job in as_completed(jobs):
                if not _tell(job, jobs[job], folder, progress.console):
                    failed.append(jobs[job].name)
                progress.advance(bar)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def _pool(processes: int, jobs: int) -> ProcessPoolExecutor:
    """A fresh process a run: nothing of one is left to the next."""
    return ProcessPoolExecutor(max(1, min(processes, jobs)), mp.get_context("spawn"), max_tasks_per_child=1)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True)


def _tell(job: Future[dict[str, Any]], run: StudyRun, folder: Path, console: Console) -> bool:
    """One line about a run that ended; False if it failed."""
    try:
        found = job.result()
    except Exception as error:
        log = folder / "logs" / f"{run.name}.txt"
        console.print(f"[bold red]{run.name} failed: {error}. {log} has more; the others go on.", soft_wrap=True)
        return False
    means = ", ".join(f"{task} {mean}" for task, mean in found["means"].items())
    console.print(f"{run.name}: {found['seconds']:.0f} s, {means}", highlight=False, soft_wrap=True)
    return True


def perform(run: StudyRun, folder: Path, trials: int) -> dict[str, Any]:
    """Train if that is not done, then try; in a process of its own, whose words go to a file."""
    with _said_to(folder / "logs" / f"{run.name}.txt"):
        try:
            torch.set_num_threads(1)
            return _perform(run, folder, trials)
        except BaseException:
            traceback.print_exc()
            raise


def _perform(run: StudyRun, folder: Path, trials: int) -> dict[str, Any]:
    rules, path = run.config.evaluation, folder / "runs" / run.name
    options: dict[str, Any] = {"values": run.config.objective.critic != "none"}
    with distributed.processes(choose_device(run.config.machine.device)) as processes:
        make: Callable[..., Policy] = functools.partial(load_policy, path, device=str(processes.device))
        seconds, known = _earlier(run, folder)
        if not finished(folder, run) or any(robot.goal_cameras for robot in make().interface.robots):  # of the data
            config = dataclasses.replace(run.config, evaluation=EvaluationConfig())  # the trials come after
            trained = training_run.perform(config, path, processes, resume=RunDirectory(path).is_run())
            if trained.interrupted is not None:
                raise KeyboardInterrupt
            make = trained.policy
        summary, began = json.loads((path / SUMMARY).read_text()), time.time()
        made = list[EpisodeRecord]()
        for (show, (_, label)), domain in itertools.product(run.labels.items(), run.domains.values()):
            policy = _told(functools.partial(make, sampling=domain.sampling, **options), show, run)
            jobs = make_jobs(domain.tasks, trials, seed=rules.seed)
            missing = [job for job in jobs if key(label, job) not in known]
            played = rollout(
                policy,
                missing,
                workers=rules.workers,
                envs_per_worker=3 * ROWS if rules.workers == 0 else None,  # full batches
                cameras=policy.cameras,
                max_steps=domain.max_steps,
                stop_at_success=domain.stop_at_success,
            )
            for trial in _counted(played, len(missing), label):
                entry = record(trial, label, policy.interface.discount_at(trial.spec))
                known[entry.key] = entry
            made += [known[key(label, job)] for job in jobs]
    facts = {"run": run.name, "row": run.row, "each": run.each, "seed": run.seed, "seconds": summary["seconds"]}
    facts |= {"trial_seconds": seconds + time.time() - began, "size": summary["size"], "steps": summary["steps"]}
    facts |= {"parameters": summary["parameters"], "versions": versions()}
    kept = {"settings": _settings(run, trials), "trials": [entry.as_json() for entry in made]}
    write_json(trials_path(folder, run), facts | kept)
    return facts | {"means": _means(made)}


def _earlier(run: StudyRun, folder: Path) -> tuple[float, dict[Key, EpisodeRecord]]:
    """Trials that a run's checkpoint has played already, and how long they took."""
    if not trials_path(folder, run).exists() or not finished(folder, run):
        return 0.0, {}
    about, records = read_trials(folder, run)
    return about["trial_seconds"], {entry.key: entry for entry in records}


def _counted(played: Iterator[EpisodeResult], total: int, label: str) -> Iterator[EpisodeResult]:
    """The trials, and now and then a word on how many there were: those of many tasks take minutes."""
    said = 0.0
    for count, trial in enumerate(played, 1):
        yield trial
        if count == total or time.monotonic() - said > 10:
            said = time.monotonic()
            print(f"{label}: {count:,} of {total:,} trials", flush=True)


def _told(make: Callable[..., Policy], show: str | None, run: StudyRun) -> Policy:
    """The policy, told its tasks by what a study shows. What its mixture never shows, it is not shown either."""
    policy = make()
    if show is None:
        return policy
    if "goal" in show and not policy.goals and any(dataset.keep_goal > 0 for dataset in run.config.mixture.datasets):
        raise ValueError(
            f"study.shows: expected goal pictures in the data, to show {show!r}, found none. Collect with cameras, and "
            'set goals = "success" in the mixture, or leave goals out of study.shows.'
        )
    return make(text="text" in show, goals=(policy.goals or {}) if "goal" in show else {})


def _means(records: Sequence[EpisodeRecord]) -> dict[str, str]:
    """By task: success, or the return where the world knows none."""
    found: dict[str, list[EpisodeRecord]] = {}
    for entry in records:
        found.setdefault(entry.task, []).append(entry)
    return {
        task: f"{sum(map(bool, (r.success for r in group)))} of {len(group)}"
        if group[0].success is not None
        else f"{sum(r.total for r in group) / len(group):.4g}"
        for task, group in found.items()
    }


@contextlib.contextmanager
def _said_to(path: Path) -> Iterator[None]:
    """Everything that this process says, and those it starts, goes to a file."""
    kept = [os.dup(number) for number in (1, 2)]
    with path.open("a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)
