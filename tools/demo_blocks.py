"""Blocks of a page that are made from `pac demo`: the table of several seeds, their cost, a drawing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pac.evaluation import Estimate, best
from pac.evaluation.intervals import mean_interval, stratified_mean, wilson
from pac.evaluation.tables import Cell, Grid, markdown, show
from tools.archive import Document, Folder, read_document
from tools.episode_blocks import PageBlock, drawn, panel

DEMO = "demo.json"
DATA = "the data"  # episodes of the dataset: the table shows them, but they do not compete


@dataclass(frozen=True, kw_only=True, eq=False)
class Demo:
    """`demo.json` of several seeds. An episode scores 100 or 0 for success, or its percent of expert."""

    documents: dict[int, Document]  # by seed
    experts: Mapping[str, float]

    @property
    def methods(self) -> list[str]:
        return list(next(iter(self.documents.values()))["scores"])

    def scores(self, method: str, seeds: Iterable[int] | None = None) -> dict[str, np.ndarray]:
        """Return the scores of a method by task, over some seeds or all."""
        each = [self.documents[seed]["scores"][method] for seed in seeds or self.documents]
        return {task: np.concatenate([np.array(one[task], np.float64) for one in each]) for task in each[0]}

    def rows(self, scores: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
        """Return an estimate of each task and of all. Tasks weigh the same where they are pooled."""
        made = {task: self._task(task, values) for task, values in scores.items()}
        name = f"pooled, {len(scores)} tasks"
        return made | ({name: _stratified(list(scores.values()))} if len(scores) > 1 else {})

    def _task(self, task: str, values: np.ndarray) -> Estimate:
        mean = float(values.mean())
        if task in self.experts:
            low, high = mean_interval(values)
            return Estimate(mean=mean, low=low, high=high, n=len(values), method="standard error over episodes")
        low, high = (100 * end for end in wilson(int((values > 50).sum()), len(values)))
        return Estimate(mean=mean, low=low, high=high, n=len(values), method="Wilson")


def _stratified(groups: Sequence[np.ndarray]) -> Estimate:
    low, high = stratified_mean(groups)
    mean = float(np.mean([group.mean() for group in groups]))
    return Estimate(mean=mean, low=low, high=high, n=sum(map(len, groups)), method="standard error over episodes")


def read_demo(paths: Sequence[Path]) -> Demo:
    """Read several seeds of the demo, each from its `demo.json` or from the Parquet file that holds it."""
    documents, kinds = dict[int, Document](), []
    for path in paths:
        document = Folder(path).read(DEMO) if path.suffix == ".parquet" else read_document(path)
        try:
            seed, shape = document["settings"]["seed"], {m: list(t) for m, t in document["scores"].items()}
            kinds.append(({**document["settings"], "seed": None}, document["experts"], shape))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: expected the demo.json of `pac demo`, found {error!r}.") from error
        if seed in documents:
            raise ValueError(f"{path}: expected another seed than in the files before it, found {seed} again.")
        if kinds[-1] != kinds[0]:
            raise ValueError(f"{path}: expected a demo of the settings and methods of {paths[0]}, found others.")
        documents[seed] = document
    return Demo(documents=documents, experts=document["experts"])


def table(found: Demo) -> str:
    """Return four tables: tasks over all seeds, seeds over all tasks, tasks by seed, and differences by seed."""
    title = "Success, or percent of expert (95%: Wilson; standard error over episodes)"
    every = {method: found.rows(found.scores(method)) for method in found.methods}
    lines = [_line(place, {method: rows[place] for method, rows in every.items()}) for place in every["PAC"]]
    last = next(reversed(every["PAC"]))
    each = []
    for seed in found.documents:
        rows = {method: found.rows(found.scores(method, [seed])) for method in found.methods}
        each.append(_line(f"seed {seed}", {method: made[last] for method, made in rows.items()}))
    pairs = [(a, b) for a in ("PAC", "PAC+V") for b in ("filtered BC", "BC+Q")]
    apart: list[list[Cell]] = []
    for seed in found.documents:
        cells = [difference(found.scores(a, [seed]), found.scores(b, [seed])) for a, b in pairs]
        apart.append([(f"seed {seed}", False), *((show(e), e.low > 0 or e.high < 0) for e in cells)])
    names = [f"{a} - {b}" for a, b in pairs]
    count = len(found.documents)
    return markdown(
        [
            Grid(f"{title}, {count} seed{'s' * (count != 1)} pooled", ["task", *found.methods], lines, 1),
            Grid(f"{last}, seed by seed", ["", *found.methods], each),
            _means(found),
            Grid("Paired differences, pooled over tasks; bold where the interval excludes 0", ["", *names], apart),
        ]
    )


def _means(found: Demo) -> Grid:
    """Return a table of the means of each task and of suites with several tasks. A cell has one mean per seed."""
    scores = {method: [found.scores(method, [seed]) for seed in found.documents] for method in found.methods}
    tasks = list(scores["PAC"][0])
    suites = list(dict.fromkeys(task.partition("/")[0] for task in tasks))
    places = {task: [task] for task in tasks}
    places |= {f"pooled, {suite}": [task for task in tasks if task.startswith(f"{suite}/")] for suite in suites}
    lines: list[list[Cell]] = []
    for place, some in places.items():
        if place in tasks or len(some) > 1:
            each = [
                [np.mean([one[task].mean() for task in some]) for one in scores[method]] for method in found.methods
            ]
            lines.append([(place, False), *((" / ".join(f"{mean:.0f}" for mean in means), False) for means in each)])
    title = f"Means by task, seeds {' / '.join(map(str, found.documents))}"
    return Grid(title, ["task", *found.methods], lines)


def _line(name: str, estimates: Mapping[str, Estimate]) -> list[Cell]:
    top = best({method: entry for method, entry in estimates.items() if method != DATA})
    return [(name, False), *((show(entry), method in top) for method, entry in estimates.items())]


def difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Estimate:
    """Return the difference of two methods over the same initial states. Tasks weigh the same."""
    return _stratified([first[task] - second[task] for task in first])


def cost(found: Demo) -> str:
    """Return a table of the minutes that each seed took, and the commands."""
    header = ["", "episodes a task", "updates", "evaluation episodes a task"]
    header += [f"minutes: {part}" for part in ("data", "training", "evaluation")]
    lines, commands = list[list[Cell]](), []
    for seed, document in found.documents.items():
        counts = [f"{count:,}" if isinstance(count, int) else count for count in _counts(document["settings"])]
        seconds = document["seconds"]
        spent = (seconds["data"], seconds["training"], seconds.get("evaluation", seconds.get("trials")))
        cells = [f"seed {seed}", *counts, *(f"{part / 60:.1f}" for part in spent)]
        lines.append([(text, False) for text in cells])
        commands.append(document["command"])
    title = "Cost: work that an earlier call had done is not counted"
    return markdown([Grid(title, header, lines)], command="\n".join(commands))


def _counts(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the collected episodes, the updates and the evaluation episodes, each per task but the updates."""
    if "trials" in settings:  # a demo of an earlier version
        return settings["episodes"], settings["steps"], settings["trials"]
    return settings["collected_episodes"], str(settings["length"]).removesuffix(" steps"), settings["episodes"]


def bars(found: Demo, path: str, *, only_pooled: bool = False) -> PageBlock:
    """Draw bars of each method: a panel for all tasks, then one a task."""
    every = {method: found.rows(found.scores(method)) for method in found.methods}
    each = [{m: found.rows(found.scores(m, [seed])) for m in found.methods} for seed in found.documents]
    panels = []
    *tasks, whole = every["PAC"]
    for place in [whole] if only_pooled else [whole, *tasks]:
        unit = "% of expert" if place in found.experts else "success, %" if "/" in place else "success or % of expert"
        estimates = {method: rows[place] for method, rows in every.items()}
        dots = {method: [one[method][place].mean for one in each] for method in found.methods}
        panels.append(panel(f"{place}: {unit}", estimates, dots, 1.0, (0.0, 100.0)))
    return drawn(path, panels)
