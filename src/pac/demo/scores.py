"""What the trials show: one score a trial, so that suites can be pooled, with intervals.

Where a world knows success a trial scores 100 or 0, elsewhere its return in percent of the expert's. Tasks weigh the
same, and intervals are about other trials of these same tasks and trainings, not about another seed.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from pac.collection import folder_name
from pac.data.store import Dataset
from pac.demo.settings import CLONING, LOG, METHODS, PACQ, PACV, WORLDS, Settings
from pac.demo.steps import run_folder, trials_file
from pac.evaluation import EpisodeRecord, Estimate, best
from pac.evaluation.intervals import mean_interval, stratified_mean, wilson
from pac.evaluation.records import by_actor
from pac.evaluation.tables import show
from pac.report import html as look
from pac.report import write_report

Scores = dict[str, np.ndarray]  # by task, a number a trial, in the order of the initial states
EXPERTS = {task: value for world in WORLDS for task, value in world.experts.items()}


def score(task: str, success: bool | None, total: float) -> float:
    return 100 * total / EXPERTS[task] if task in EXPERTS else 100.0 * bool(success)


def score_methods(records: Sequence[EpisodeRecord]) -> dict[str, Scores]:
    """By method. All methods must have started from the same states: that is what makes them comparable."""
    made: dict[str, Scores] = {}
    starts: dict[str, list[tuple[Any, ...]]] = {}
    for method, group in by_actor(records).items():
        group = sorted(group, key=lambda entry: entry.start)
        starts[method] = [(*entry.start, entry.state) for entry in group]
        tasks = dict.fromkeys(entry.task for entry in records)
        made[method] = {
            task: np.array([score(task, e.success, e.total) for e in group if e.task == task]) for task in tasks
        }
    first = next(iter(starts))
    for method in starts:
        if starts[method] != starts[first]:
            raise ValueError(f"Expected {method} to start from the states of {first}, found others. Run the demo anew.")
    return made


def score_data(folder: Path, settings: Settings) -> Scores:
    """Of the logged episodes, which are as long as a trial."""
    made = {}
    for task in (task for world in settings.worlds for task in world.tasks):
        index = Dataset(folder / folder_name(task)).index
        pairs = zip(index["success"], index["return"], strict=True)
        made[task] = np.array([score(task, bool(success > 0), float(total)) for success, total in pairs])
    return made


def rows(scores: Scores) -> dict[str, Estimate]:
    """Each task, each suite, and all of them."""
    made = {task: _task(task, values) for task, values in scores.items()}
    for world in WORLDS:
        known = [scores[task] for task in world.tasks if task in scores]
        made |= {f"pooled, {world.name}": _pooled(known)} if len(known) > 1 else {}
    return made | {"pooled": _pooled(list(scores.values()))}


def _task(task: str, values: np.ndarray) -> Estimate:
    if task in EXPERTS:
        interval, method = mean_interval(values), "standard error over trials"
    else:
        low, high = wilson(int((values > 50).sum()), len(values))
        interval, method = (100 * low, 100 * high), "Wilson"
    return _estimate(float(values.mean()), interval, len(values), method)


def _pooled(groups: Sequence[np.ndarray]) -> Estimate:
    mean = float(np.mean([group.mean() for group in groups]))
    return _estimate(mean, stratified_mean(groups), sum(map(len, groups)), "standard error over trials, stratified")


def _estimate(mean: float, interval: tuple[float, float], n: int, method: str) -> Estimate:
    return Estimate(mean=mean, low=interval[0], high=interval[1], n=n, method=method)


def difference(first: Scores, second: Scores) -> Estimate:
    """Pooled, of trials from the same initial state."""
    return _pooled([first[task] - second[task] for task in first])


def findings(scores: Mapping[str, Scores]) -> list[str]:
    """What the table shows, in words; also where cloning wins."""
    made, lines = {name: rows(values) for name, values in scores.items()}, []
    for method in (PACQ, PACV):
        apart = {other: made[method]["pooled"].low > made[other]["pooled"].high for other in CLONING}
        words = [f"{'above' if above else 'not clearly above'} {other}'s" for other, above in apart.items()]
        paired = [f"{show(difference(scores[method], scores[other]))} to {other}" for other in CLONING]
        lines.append(
            f"{method}: its pooled interval is {' and '.join(words)}. Differences over the same initial states: "
            f"{', '.join(paired)}."
        )
    for task in scores[PACQ]:
        clone = max(CLONING, key=lambda name: made[name][task].mean)
        if made[clone][task].mean > made[PACQ][task].mean:
            sure = "surely" if made[clone][task].low > made[PACQ][task].high else "within the intervals"
            lines.append(f"{task}: {clone} is ahead of PAC, {sure}. {why(task, made[LOG][task].mean)}")
    return lines


def why(task: str, data: float) -> str:
    """What the numbers can say of it; the rest is a guess, and called one."""
    if task in EXPERTS:
        return (
            f"The data itself scores {data:.0f}. A guess: the planner that made it acts with much noise, so that one "
            "action tells little of what follows, and a critic of so few updates errs by more than it can gain."
        )
    return (
        f"{data:.0f}% of its logged episodes succeed. A guess: these hold enough good steps to be cloned, and after so "
        "few updates the critic does not rank actions well enough here."
    )


def table(scores: Mapping[str, Scores], episodes: int, trials: int) -> Table:
    title = f"Success, or percent of expert; mean [95%], {trials} trials a task from the same states, sampled actions"
    made = Table(title=title, title_justify="left")
    for i, name in enumerate(("task", *scores)):
        made.add_column(name, justify="left" if i == 0 else "right")
    cells = grid(scores, lambda text: f"[bold]{text}[/bold]")
    tasks = len(next(iter(scores.values())))
    for i, line in enumerate(cells):
        made.add_row(*[text.replace(" [", " \\[") for text in line], end_section=i == tasks - 1)
    made.caption = f"the data: its {episodes} episodes of each task. Bold: within the interval of the best of the row."
    return made


def grid(scores: Mapping[str, Scores], bold: Callable[[str], str]) -> list[list[str]]:
    """Rows of text; those among the methods that are within the interval of the best are bold."""
    made = {name: rows(values) for name, values in scores.items()}
    lines = []
    for place in made[PACQ]:
        top = best({name: made[name][place] for name in METHODS})
        cells = [(name, show(made[name][place])) for name in made]
        lines.append([place, *(bold(text) if name in top else text for name, text in cells)])
    return lines


def document(settings: Settings, scores: Mapping[str, Scores], command: str, seconds: Mapping[str, float]) -> Any:
    return {
        "command": command,
        "settings": asdict(settings),
        "experts": EXPERTS,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "table": {
            name: {place: asdict(entry) for place, entry in rows(values).items()} for name, values in scores.items()
        },
        "differences": {
            f"{method} - {clone}": asdict(difference(scores[method], scores[clone]))
            for method in (PACQ, PACV)
            for clone in CLONING
        },
        "findings": findings(scores),
        "scores": {name: {task: v.round(3).tolist() for task, v in values.items()} for name, values in scores.items()},
    }


def write_page(settings: Settings, folder: Path, scores: Mapping[str, Scores], command: str) -> Path:
    """The table and what it shows on top; below, what `pac report` makes of trials and runs."""
    cells = grid(scores, lambda text: f"<strong>{text}</strong>")
    pooled = len(cells) - len(scores[PACQ])
    caption = f"Success, or percent of expert <span>{settings.trials} trials a task, mean [95%]</span>"
    shown = look.table(["task", *map(html.escape, scores)], cells, caption=caption, pooled=pooled)
    made = [f"<code>{html.escape(w.behaviour)}</code> ({w.name}, {w.max_steps} steps)" for w in settings.worlds]
    known = ", ".join(f"{task} {value:g}" for task, value in EXPERTS.items())
    intro = (
        f"<p>{settings.episodes} episodes of each task were made by {' and '.join(made)}: the driver does the right "
        "thing for a few steps, then holds the stick the wrong way round, stands still or wants something else. One "
        f"model of size nano a method for all tasks, {settings.steps:,} updates of equal size each. Filtered BC clones "
        "the successes; of tasks without success the best quarter by return. Trials are as long as the logged episodes "
        f"and draw their actions; 100% is the planner's return in that time with all its samples ({known}).</p>{shown}"
        + "".join(f"<p>{html.escape(line)}</p>" for line in findings(scores))
        + '<p class="soft">Tasks weigh the same. Intervals are about other trials of these trainings, not about '
        "another seed. Returns of Meta-World below are of trials that end at success: a smaller one is not a worse one."
        "</p>"
    )
    sources = [trials_file(folder, world) for world in settings.worlds]
    runs = [f"{method}={run_folder(folder, method)}" for method in METHODS]
    return write_report(
        [*sources, *runs], folder / "page.html", title="Learning from poor data", intro_html=intro, command=command
    )
