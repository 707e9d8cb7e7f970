"""What counts as 100% in a study: the table that ships with PAC, the best that the study's own data kept up, or what a
behaviour earns in the same trials.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from pac import envs
from pac.data.joined import open_dataset
from pac.data.relabel import episode_returns
from pac.evaluate import experts
from pac.rollout import jobs_of, rollout
from pac.study.plan import Study, whole_tasks
from pac.study.runner import progress_bar, trained


def experts_path(study: Study, folder: Path) -> Path:
    return experts.TABLE if study.config.experts == "table" else folder / "experts.json"


def write_experts(study: Study, folder: Path, workers: int, console: Console) -> None:
    """Measure them in the data, which need not be here any more once all is trained, or let the behaviour play."""
    path, asked = experts_path(study, folder), study.config.experts
    if asked == "table" or (asked == "data" and path.exists() and trained(study, folder)):
        return
    if asked != "data" and path.exists() and _played(study, experts.load(path)):
        return
    found = from_data(study) if asked == "data" else from_behaviour(study, workers, console)
    path.unlink(missing_ok=True)  # `save` would add to it
    experts.save(found, path)


def _source(study: Study) -> str:
    return f"{study.config.experts} in the same trials"


def _played(study: Study, known: Mapping[str, experts.Expert]) -> bool:
    """Whether this behaviour has played all of these trials."""
    found = {task: (expert.source, expert.n) for task, expert in known.items()}
    return all(found.get(task) == (_source(study), study.config.trials) for task in whole_tasks(study))


def from_behaviour(study: Study, workers: int, console: Console) -> dict[str, experts.Expert]:
    """By task: its mean return from the initial states of the trials, so that no start is luckier for one than for
    the other. Where nothing was ever earned, none.
    """
    rules = study.runs[0].config.evaluation
    jobs = jobs_of(whole_tasks(study), study.config.trials, seed=rules.seed)
    returns = dict[str, list[float]]()
    with progress_bar(console) as progress:
        bar = progress.add_task("experts", total=len(jobs))
        for trial in rollout(study.config.experts, jobs, workers=workers if jobs else 0):
            returns.setdefault(trial.job.task, []).append(float(trial.episode.reward.sum()))
            progress.advance(bar)
    found = {
        task: experts.Expert(mean=float(np.mean(totals)), n=len(totals), source=_source(study))
        for task, totals in returns.items()
    }
    return _sound(found)


def _sound(found: Mapping[str, experts.Expert]) -> dict[str, experts.Expert]:
    return {task: expert for task, expert in found.items() if round(expert.mean, 2) > 0}


def from_data(study: Study) -> dict[str, experts.Expert]:
    """By task; from whole episodes, in the order of folders and of collection, a tenth of all steps at a time. Where
    nothing was ever earned, none.
    """
    returns, steps = dict[str, list[float]](), Counter[str]()
    tasks = {envs.spec(task).instruction: envs.spec(task) for task in whole_tasks(study)}
    read = {(entry.path, entry.more_paths) for run in study.runs for entry in run.config.mixture.datasets if entry.path}
    for path, more in sorted(read):
        dataset = open_dataset(path, more)
        earned, names = episode_returns(dataset, None), dataset.instructions
        for row, total in zip(dataset.index, np.asarray(earned), strict=True):
            task = tasks.get(names[row["instruction"]])
            if task is None or dataset.spec.state_dim != task.state_dim:
                continue
            steps[task.name] += int(row["length"])
            if row["length"] >= task.max_steps:
                returns.setdefault(task.name, []).append(float(total))
    if missing := sorted({task.name for task in tasks.values()} - set(returns)):
        raise ValueError(
            f"study.experts: expected whole episodes of {missing[0]} in the data, whose best are the expert, found "
            'none. Set study.experts = "table".'
        )
    tenths = {task.name: steps[task.name] // task.max_steps // 10 for task in tasks.values()}
    found = {
        task: experts.from_returns(totals, tenths[task], f"best of {len(totals)} episodes")
        for task, totals in returns.items()
    }
    return _sound(found)
