"""The returns that count as 100% in a study: the table that ships with PAC, or the best of the study's own data."""

from collections import Counter
from pathlib import Path

import numpy as np

from pac import envs
from pac.data.concat import open_dataset
from pac.data.relabel import episode_returns
from pac.evaluation import experts
from pac.files import problem
from pac.study.folder import StudyFolder
from pac.study.plan import Study


def experts_path(folder: StudyFolder) -> Path:
    return experts.TABLE if folder.study.config.experts == "table" else folder.experts


def write_experts(folder: StudyFolder) -> None:
    """Measure the experts in the data. Keep an older file once all runs are trained: the data may be gone by then."""
    path = experts_path(folder)
    if folder.study.config.experts == "table" or (path.exists() and not folder.needs_data):
        return
    found = from_data(folder.study)
    path.unlink(missing_ok=True)  # `save` would add to it
    experts.save(found, path)


def from_data(study: Study) -> dict[str, experts.Expert]:
    """Return each task's best mean return over consecutive whole episodes, a tenth of all steps at a time.

    Episodes are in the order of folders and of collection. A task whose best is 0 has no expert.
    """
    returns, steps = dict[str, list[float]](), Counter[str]()
    tasks = {envs.spec(task).instruction: envs.spec(task) for task in study.whole_tasks}
    datasets = [entry for run in study.runs for entry in run.config.mixture.datasets]
    for path, more in sorted({(entry.path, entry.more_paths) for entry in datasets if entry.path}):
        dataset = open_dataset(path, more)
        totals, names = episode_returns(dataset, None), dataset.instructions
        for row, total in zip(dataset.index, np.asarray(totals), strict=True):
            task = tasks.get(names[row["instruction"]])
            if task is None or dataset.spec.state_dim != task.state_dim:
                continue
            steps[task.name] += int(row["length"])
            if row["length"] >= task.max_steps:
                returns.setdefault(task.name, []).append(float(total))
    if missing := sorted({task.name for task in tasks.values()} - set(returns)):
        raise problem(
            "study.experts",
            expected=f"whole episodes of {missing[0]} in the data, whose best are the expert",
            found="none",
            fix='Set study.experts = "table".',
        )
    tenths = {task.name: steps[task.name] // task.max_steps // 10 for task in tasks.values()}
    found = {
        task: experts.from_returns(totals, tenths[task], f"best of {len(totals)} episodes")
        for task, totals in returns.items()
    }
    return {task: expert for task, expert in found.items() if round(expert.mean, 2) > 0}
