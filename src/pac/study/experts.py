"""What counts as 100% in a study: the table that ships with PAC, or the best that the study's own data kept up."""

from collections import Counter
from pathlib import Path

import numpy as np

from pac import envs
from pac.data.concat import open_dataset
from pac.data.relabel import episode_returns
from pac.evaluation import experts
from pac.study.plan import Study, whole_tasks
from pac.study.runner import trained


def experts_path(study: Study, folder: Path) -> Path:
    return experts.TABLE if study.config.experts == "table" else folder / "experts.json"


def write_experts(study: Study, folder: Path) -> None:
    """Measure them in the data, which need not be here any more once all is trained."""
    path = experts_path(study, folder)
    if study.config.experts == "table" or (path.exists() and trained(study, folder)):
        return
    found = from_data(study)
    path.unlink(missing_ok=True)  # `save` would add to it
    experts.save(found, path)


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
    return {task: expert for task, expert in found.items() if round(expert.mean, 2) > 0}
