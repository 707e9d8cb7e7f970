"""What the blocks of a page hold: files of trials -> Markdown tables and drawings. `refresh` puts them in their place.

Every number is computed here from single trials. What a file says of its trials in sum is not read: so a page can be
checked against them.
"""

import dataclasses
import functools
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pac.config import model_config
from pac.evaluate import Estimate, Record, Summary, best, summarise, warnings
from pac.evaluate.records import by_actor
from pac.evaluate.summary import ALL
from pac.evaluate.tables import METRICS, Cell, Grid, grids, markdown, show
from pac.intervals import mean_interval, stratified_mean, wilson
from pac.model import PAC
from pac.model.pac import count_parameters
from pac.report import charts
from pac.report.groups import Contest, split_seed

UNITS = {"success": "success, %", "percent": "% of expert", "return": "return"}
HOUSE = ("filtered BC", "BC+Q", "PAC", "PAC+V", "the data")  # have the same colour in every drawing
MOST_PANELS = 9  # a drawing of more tasks shows what pools them alone


@dataclass(frozen=True, kw_only=True)
class Block:
    """What stands between the marks, and the files it shows."""

    text: str
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # below the page's folder


def read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"expected the file {path}, found none. Paths begin at the page's folder.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected JSON, found {error}.") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(document).__name__}.")
    return document


# ------------------------------------------------------------------------------------------------------------- trials


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Rows of a study, of several, or of an evaluation: settings, or methods, each with its seeds."""

    documents: list[dict[str, Any]]
    members: dict[str, dict[int | None, list[Record]]]  # row -> seed of the training -> trials
    experts: dict[str, float]

    @functools.cached_property
    def suites(self) -> list[str]:
        tasks = (entry.task for parts in self.members.values() for part in parts.values() for entry in part)
        return list(dict.fromkeys(task.partition("/")[0] for task in tasks))

    def summaries(self, suite: str | None = None) -> dict[str, Summary]:
        """Of each row, its seeds together."""
        every = {row: [entry for part in parts.values() for entry in part] for row, parts in self.members.items()}
        return self._summaries(every, suite)

    def of_seed(self, seed: int | None, suite: str) -> dict[str, Summary]:
        return self._summaries({row: parts.get(seed, []) for row, parts in self.members.items()}, suite)

    def _summaries(self, rows: Mapping[str, Sequence[Record]], suite: str | None) -> dict[str, Summary]:
        kept = {row: [e for e in part if suite in (None, e.task.partition("/")[0])] for row, part in rows.items()}
        return {row: summarise(part, experts=self.experts) for row, part in kept.items() if part}

    @property
    def seeds(self) -> list[int | None]:
        return list(dict.fromkeys(seed for parts in self.members.values() for seed in parts))

    @property
    def contest(self) -> Contest:
        """For the differences of pairs."""
        members = {row: {f"seed {seed}": part for seed, part in parts.items()} for row, parts in self.members.items()}
        return Contest(rules="", members=members, experts=self.experts, notes=[])

    def runs(self, row: str) -> list[dict[str, Any]]:
        """What is known of a row's trainings. Samples of a policy come from the training of the policy."""
        found = [run for document in self.documents for run in document.get("runs", []) if run.get("row") == row]
        return found or (self.runs(row.removesuffix(", sampled")) if row.endswith(", sampled") else [])

    def parameters(self, row: str) -> int | None:
        settings: list[dict[str, Any]] = [d["rows"][row] for d in self.documents if row in d.get("rows", {})]
        model = settings[0].get("model") if settings else None
        return _parameters(json.dumps(model)) if model else None


@functools.cache
def _parameters(model: str) -> int:
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(model).items()}
    with torch.device("meta"):
        return count_parameters(PAC(model_config(**given)))


def read_trials(paths: Sequence[Path]) -> Trials:
    documents, members, experts = (
        list[dict[str, Any]](),
        dict[str, dict[int | None, list[Record]]](),
        dict[str, float](),
    )
    rules: dict[str, Any] = {}
    for path in paths:
        document = read_json(path)
        try:
            records = [Record.from_json(trial) for trial in document["trials"]]
            found = {name: document["settings"][name] for name in ("seed", "max_steps", "stop_at_success")}
            experts |= {task: float(about["mean"]) for task, about in document.get("experts", {}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: expected the JSON of `pac study`, `pac evaluate` or benchmarks/peers.py, found {error!r}."
            ) from error
        if not records:
            raise ValueError(f"{path}: expected trials, found none.")
        if len({entry.key for entry in records}) < len(records):
            raise ValueError(f"{path}: expected every trial once, found one of the same actor, task and index twice.")
        if (rules := rules or found) != found:
            raise ValueError(f"{path}: expected trials under the rules of {paths[0]}, {rules}, found {found}.")
        rows = dict[str, dict[int | None, list[Record]]]()
        for label, part in by_actor(records).items():
            row, seed = split_seed(label)
            rows.setdefault(row, {})[seed] = [dataclasses.replace(entry, actor=row) for entry in part]
        if both := sorted(set(rows) & set(members)):
            raise ValueError(f"{path}: expected rows of other names than in the files before it, found {both[0]!r}.")
        members |= rows
        documents.append(document)
    return Trials(documents=documents, members=members, experts=experts)


def metrics_of(summaries: Mapping[str, Summary]) -> list[str]:
    """Success and percent of expert; the return as well where a task has neither."""
    rows = [row for summary in summaries.values() for row in summary.tasks.values()]
    known = [name for name in ("success", "percent") if any(METRICS[name][1](row) for row in rows)]
    return known + (["return"] if any(row.success is None and row.percent is None for row in rows) else [])


def table(found: Trials) -> str:
    """A row a task, a column a row of the study, pooled below; and what the trials cannot support."""
    made: list[Grid] = []
    for suite in found.suites:
        summaries = found.summaries(suite)
        made += grids(summaries, metrics=metrics_of(summaries))
    told = [note for document in found.documents for note in document.get("notes", [])]
    return markdown(made, list(dict.fromkeys([*warnings(found.summaries(), []), *told])))


def pooled(found: Trials) -> str:
    """A line a row: the number, and how much stands behind it."""
    made = []
    for suite in found.suites:
        summaries = found.summaries(suite)
        title, pick, scale = METRICS[metrics_of(summaries)[0]]
        estimates = {row: pick(summary.overall) for row, summary in summaries.items()}
        top, methods = best(estimates), dict.fromkeys(entry.method for entry in estimates.values() if entry)
        lines: list[list[Cell]] = []
        for row, summary in summaries.items():
            counts = f"{summary.overall.tasks:,}", f"{summary.overall.trials:,}", f"{len(found.members[row]):,}"
            cells = [*counts, *_size(found, row)]
            lines.append([(row, False), (show(estimates[row], scale), row in top), *((text, False) for text in cells)])
        where = f", {suite}" if len(found.suites) > 1 else ""
        header = ["", title, "tasks", "trials", "seeds", "size", "parameters", "updates"]
        made.append(Grid(f"{title}{where}, pooled over tasks and seeds (95%: {'; '.join(methods)})", header, lines))
    return markdown(made)


def _size(found: Trials, row: str) -> list[str]:
    """Name, parameters, updates."""
    runs, parameters = found.runs(row), found.parameters(row)
    sizes = _several(run["size"] for run in runs if run.get("size"))
    return [sizes, _millions(parameters), _several(f"{run['steps']:,}" for run in runs if "steps" in run)]


def _several(values: Iterable[Any]) -> str:
    return " / ".join(dict.fromkeys(map(str, values))) or "-"


def _millions(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f}M"


def seeds(found: Trials) -> str:
    """The first of the metrics, pooled over tasks, a line a seed."""
    made = []
    for suite in found.suites:
        title, pick, scale = METRICS[metrics_of(found.summaries(suite))[0]]
        lines: list[list[Cell]] = []
        for seed in found.seeds:
            summaries = found.of_seed(seed, suite)
            each = {row: pick(summaries[row].overall) if row in summaries else None for row in found.members}
            lines.append([(f"seed {seed}", False), *((show(entry, scale), False) for entry in each.values())])
        where = f", {suite}" if len(found.suites) > 1 else ""
        made.append(Grid(f"{title}{where}, seed by seed", ["", *found.members], lines))
    return markdown(made)


def differences(found: Trials) -> str:
    """Of every pair of rows, over trials from the same initial state and trainings of the same seed."""
    made, complaints = found.contest.differences()
    if complaints:
        raise ValueError(complaints[0])
    wanted = metrics_of(found.summaries())
    made = [d for d in made if d.metric in wanted and d.where == ALL]
    if not made:
        raise ValueError("expected rows with the same initial states, found no pair.")
    (grid,) = grids({}, made)
    named = [(f"`{d.first}` minus `{d.second}`", False) for d in made]  # rows may be called 1, or 0.25
    rows = [[name, *row[1:]] for name, row in zip(named, grid.rows, strict=True)]
    return markdown([dataclasses.replace(grid, header=["", *grid.header[1:]], rows=rows)])


def cost(found: Trials) -> str:
    """What each row took, and the command."""
    header = ["", "runs", "size", "parameters", "updates", "minutes of training a run", "minutes of its trials"]
    lines: list[list[Cell]] = []
    for row in found.members:
        if row.endswith(", sampled") and found.runs(row) == found.runs(row.removesuffix(", sampled")):
            continue
        runs = found.runs(row)
        times = [_minutes([run[name] for run in runs if name in run]) for name in ("seconds", "trial_seconds")]
        lines.append([(text, False) for text in (row, f"{len(runs):,}", *_size(found, row), *times)])
    parts = [markdown([Grid("Cost: mean (least to most)", header, lines)]).rstrip("\n")]
    for document in found.documents:
        versions = document["settings"].get("versions", {})
        words = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts += [f"```\n{document['command']}\n```", f"Made {document['created'][:10]}; {words}."]
    return "\n\n".join(parts) + "\n"


def _minutes(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    mean, low, high = (value / 60 for value in (sum(seconds) / len(seconds), min(seconds), max(seconds)))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def bars(found: Trials, name: str) -> Block:
    panels: list[tuple[str, tuple[str, int]]] = []
    for suite in found.suites:
        summaries = found.summaries(suite)
        metric = metrics_of(summaries)[0]
        _, pick, scale = METRICS[metric]
        tasks = list(dict.fromkeys(task for summary in summaries.values() for task in summary.tasks))
        places = {ALL: f"pooled, {len(tasks)} tasks" if len(tasks) > 1 else tasks[0]}
        places |= {task: task for task in tasks} if 1 < len(tasks) < MOST_PANELS else {}
        each = [found.of_seed(seed, suite) for seed in found.seeds]
        for place, title in places.items():
            rows = {row: summary.rows[place] for row, summary in summaries.items() if place in summary.rows}
            estimates = {row: pick(entry) for row, entry in rows.items()}
            dots = {
                row: [
                    scale * e.mean for s in each if row in s and place in s[row].rows if (e := pick(s[row].rows[place]))
                ]
                for row in rows
            }
            limits = (0.0, 100.0) if metric == "success" else None
            panels.append(_panel(f"{title}: {UNITS[metric]}", estimates, dots, scale, limits))
    return _drawn(name, panels)


def _panel(
    title: str,
    estimates: Mapping[str, Estimate | None],
    dots: Mapping[str, Sequence[float]],
    scale: float,
    limits: tuple[float, float] | None,
) -> tuple[str, tuple[str, int]]:
    strange = not any(name in HOUSE for name in estimates)
    made = [
        charts.Bar(
            name=name,
            index=number if strange else HOUSE.index(name) if name in HOUSE else len(HOUSE) + number,
            value=scale * entry.mean,
            low=scale * entry.low,
            high=scale * entry.high,
            text=show(entry, scale),
            parts=tuple(dots[name]) if len(dots[name]) > 1 else (),
        )
        for number, (name, entry) in enumerate(estimates.items())
        if entry is not None
    ]
    return title, charts.draw_bars(title, made, limits)


def _drawn(name: str, panels: Sequence[tuple[str, tuple[str, int]]]) -> Block:
    path, titles = f"plots/{name}.svg", ", ".join(title for title, _ in panels)
    words = f"Bars with 95% intervals, a dot a seed: {titles}"
    return Block(text=f'<img src="{path}" alt="{html.escape(words)}">\n', files={path: charts.sheet(words, panels)})


# --------------------------------------------------------------------------------------------------------------- demo


@dataclass(frozen=True, kw_only=True, eq=False)
class Demo:
    """`demo.json` of several seeds: a score a trial, 100 or 0 where a world knows success, else percent of expert."""

    documents: dict[int, dict[str, Any]]  # by seed
    experts: Mapping[str, float]

    @property
    def methods(self) -> list[str]:
        return list(next(iter(self.documents.values()))["scores"])

    def scores(self, method: str, seeds: Iterable[int] | None = None) -> dict[str, np.ndarray]:
        """By task, of these seeds or of all together."""
        each = [self.documents[seed]["scores"][method] for seed in seeds or self.documents]
        return {task: np.concatenate([np.array(one[task], np.float64) for one in each]) for task in each[0]}

    def rows(self, scores: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
        """As `pac demo` counts: tasks weigh the same where they are pooled."""
        made = {task: self._task(task, values) for task, values in scores.items()}
        name = f"pooled, {len(scores)} tasks"
        return made | ({name: _stratified(list(scores.values()))} if len(scores) > 1 else {})

    def _task(self, task: str, values: np.ndarray) -> Estimate:
        mean = float(values.mean())
        if task in self.experts:
            low, high = mean_interval(values)
            return Estimate(mean=mean, low=low, high=high, n=len(values), method="standard error over trials")
        low, high = (100 * end for end in wilson(int((values > 50).sum()), len(values)))
        return Estimate(mean=mean, low=low, high=high, n=len(values), method="Wilson")


def _stratified(groups: Sequence[np.ndarray]) -> Estimate:
    low, high = stratified_mean(groups)
    mean = float(np.mean([group.mean() for group in groups]))
    return Estimate(mean=mean, low=low, high=high, n=sum(map(len, groups)), method="standard error over trials")


def read_demo(paths: Sequence[Path]) -> Demo:
    documents, kinds = dict[int, dict[str, Any]](), list[Any]()
    for path in paths:
        document = read_json(path)
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


def demo_table(found: Demo) -> str:
    """Tasks over all seeds, then all tasks seed by seed, then differences of pairs seed by seed."""
    title = "Success, or percent of expert (95%: Wilson; standard error over trials)"
    every = {method: found.rows(found.scores(method)) for method in found.methods}
    lines = [_demo_line(place, {method: rows[place] for method, rows in every.items()}) for place in every["PAC"]]
    last = next(reversed(every["PAC"]))
    each = []
    for seed in found.documents:
        rows = {method: found.rows(found.scores(method, [seed])) for method in found.methods}
        each.append(_demo_line(f"seed {seed}", {method: made[last] for method, made in rows.items()}))
    pairs = [(a, b) for a in ("PAC", "PAC+V") for b in ("filtered BC", "BC+Q")]
    apart: list[list[Cell]] = []
    for seed in found.documents:
        cells = [_apart(found.scores(a, [seed]), found.scores(b, [seed])) for a, b in pairs]
        apart.append([(f"seed {seed}", False), *((show(e), e.low > 0 or e.high < 0) for e in cells)])
    names = [f"{a} - {b}" for a, b in pairs]
    return markdown(
        [
            Grid(f"{title}, {_plural(len(found.documents), 'seed')} together", ["task", *found.methods], lines, 1),
            Grid(f"{last}, seed by seed", ["", *found.methods], each),
            Grid("Differences over the same initial states, pooled; bold where 0 is outside", ["", *names], apart),
        ]
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _demo_line(name: str, estimates: Mapping[str, Estimate]) -> list[Cell]:
    """The data itself is no contestant."""
    top = best({method: entry for method, entry in estimates.items() if method != "the data"})
    return [(name, False), *((show(entry), method in top) for method, entry in estimates.items())]


def _apart(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Estimate:
    return _stratified([first[task] - second[task] for task in first])


def demo_cost(found: Demo) -> str:
    header = [
        "",
        "episodes a task",
        "updates",
        "trials a task",
        *(f"minutes: {k}" for k in ("data", "training", "trials")),
    ]
    lines, commands = list[list[Cell]](), []
    for seed, document in found.documents.items():
        about, seconds = document["settings"], document["seconds"]
        counts = [f"{about[name]:,}" for name in ("episodes", "steps", "trials")]
        times = [f"{seconds[name] / 60:.1f}" for name in ("data", "training", "trials")]
        lines.append([(text, False) for text in (f"seed {seed}", *counts, *times)])
        commands.append(document["command"])
    return markdown(
        [Grid("Cost: what was made already is not counted again", header, lines)], command="\n".join(commands)
    )


def demo_bars(found: Demo, name: str) -> Block:
    every = {method: found.rows(found.scores(method)) for method in found.methods}
    each = [{m: found.rows(found.scores(m, [seed])) for m in found.methods} for seed in found.documents]
    panels = []
    *tasks, whole = every["PAC"]
    for place in [whole, *tasks]:
        unit = "% of expert" if place in found.experts else "success, %" if "/" in place else "success or % of expert"
        estimates = {method: rows[place] for method, rows in every.items()}
        dots = {method: [one[method][place].mean for one in each] for method in found.methods}
        panels.append(_panel(f"{place}: {unit}", estimates, dots, 1.0, (0.0, 100.0)))
    return _drawn(name, panels)


# -------------------------------------------------------------------------------------------------------------- paper


def paper(document: Mapping[str, Any], key: str, where: Path) -> str:
    """The paper's numbers, as printed."""
    known = document.get("numbers", {})
    if key not in known:
        raise ValueError(f"expected a key of {where}, found {key!r}. Keys: {', '.join(known)}.")
    about = known[key]
    lines: list[list[Cell]] = []
    for entry in about["entries"]:
        ends = "" if entry.get("interval") is None else " [{:.1f}, {:.1f}]".format(*entry["interval"])
        lines.append([(entry["name"], False), (f"{entry['value']:.1f}{ends}", False), (entry["from"], False)])
    grid = Grid(f"The paper: {about['about']}", [about["rows"], about["unit"], "printed in"], lines)
    return markdown([grid], about.get("notes", []))


# -------------------------------------------------------------------------------------------------------------- kinds


def _name(words: Sequence[str]) -> str:
    """Of a drawing: from the paths as they were given."""
    bare = [re.sub(r"\.json$", "", word) for word in words]
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-") for word in bare)


class Shelf:
    """The page's folder. What several blocks name is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trials: dict[tuple[Path, ...], Trials] = {}
        self._demos: dict[tuple[Path, ...], Demo] = {}

    def paths(self, words: Sequence[str]) -> tuple[Path, ...]:
        """A pattern stands for all files it fits, in order."""
        if not words:
            raise ValueError("expected a file after the block's kind, found none.")
        found: list[Path] = []
        for word in words:
            fits = sorted(self.folder.glob(word)) if any(mark in word for mark in "*?[") else [self.folder / word]
            if not fits:
                raise ValueError(f"expected files that fit {word!r} in {self.folder}, found none.")
            found += fits
        return tuple(found)

    def trials(self, words: Sequence[str]) -> Trials:
        paths = self.paths(words)
        if paths not in self._trials:
            self._trials[paths] = read_trials(paths)
        return self._trials[paths]

    def demo(self, words: Sequence[str]) -> Demo:
        paths = self.paths(words)
        if paths not in self._demos:
            self._demos[paths] = read_demo(paths)
        return self._demos[paths]

    def holds_demo(self, words: Sequence[str]) -> bool:
        paths = self.paths(words)
        return paths in self._demos or (paths not in self._trials and "scores" in read_json(paths[0]))


def _of_trials(make: Callable[[Trials], str]) -> Callable[[Shelf, Sequence[str]], Block]:
    return lambda shelf, words: Block(text=make(shelf.trials(words)))


def _demo(shelf: Shelf, words: Sequence[str]) -> Block:
    return Block(text=demo_table(shelf.demo(words)))


def _cost(shelf: Shelf, words: Sequence[str]) -> Block:
    return Block(text=demo_cost(shelf.demo(words)) if shelf.holds_demo(words) else cost(shelf.trials(words)))


def _bars(shelf: Shelf, words: Sequence[str]) -> Block:
    name = _name(words)
    return demo_bars(shelf.demo(words), name) if shelf.holds_demo(words) else bars(shelf.trials(words), name)


def _paper(shelf: Shelf, words: Sequence[str]) -> Block:
    if len(words) != 1:
        raise ValueError(f"expected one key of paper.json, found {len(words)}.")
    where = shelf.folder / "paper.json"
    return Block(text=paper(read_json(where), words[0], where))


KINDS: dict[str, Callable[[Shelf, Sequence[str]], Block]] = {
    "table": _of_trials(table),
    "pooled": _of_trials(pooled),
    "seeds": _of_trials(seeds),
    "differences": _of_trials(differences),
    "cost": _cost,
    "bars": _bars,
    "demo": _demo,
    "paper": _paper,
}
