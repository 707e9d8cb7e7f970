"""Blocks of a page that are made from evaluation episodes: Markdown tables and drawings. `refresh` puts them in place.

Every number is computed here from single episodes. Sums in a file are not read, so a page can be checked against them.
"""

import dataclasses
import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pac.evaluation import Estimate, Summary, best, warnings
from pac.evaluation.experts import load as load_experts
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.summary import ALL
from pac.evaluation.tables import METRICS, Cell, Grid, grids, markdown, show
from pac.report import charts
from pac.study.data import from_json, pool_poor, with_data
from tools.drawings import sheet
from tools.results import Results

UNITS = {"success": "success, %", "percent": "% of expert", "return": "return"}
METHODS = ("filtered BC", "BC+Q", "PAC", "PAC+V", "the data", "alpha-PAC")  # have the same colour in every drawing
MOST_PANELS = 9  # a drawing of more tasks shows their pooled result alone


@dataclass(frozen=True, kw_only=True)
class PageBlock:
    """The text between the marks of a block, and the files that it shows."""

    text: str
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # by their path below the page's folder


def metrics_of(summaries: Mapping[str, Summary]) -> list[str]:
    """Return success and percent of expert. Add the return where a task has neither."""
    rows = [row for summary in summaries.values() for row in summary.tasks.values()]
    known = [name for name in ("success", "percent") if any(METRICS[name][1](row) for row in rows)]
    return known + (["return"] if any(row.success is None and row.percent is None for row in rows) else [])


def table(found: Results) -> str:
    """Return a table with a line a task, a column a row of the study, and pooled lines below. Notes name weak spots."""
    made: list[Grid] = []
    qualities = from_json({row: x for document in found.documents for row, x in document.get("data", {}).items()})
    for domain in found.domains:
        summaries = found.summaries(domain)
        groups = {row: _of_row(found, row, domain) for row in found.members}
        plain = [with_data(grid, qualities) for grid in grids(summaries, metrics=metrics_of(summaries))]
        made += [_titled(found, domain, pool_poor(grid, groups, qualities)) for grid in plain]
    notes = [note for document in found.documents for note in document.get("notes", [])]
    return markdown(made, list(dict.fromkeys([*_counts(found), *warnings(found.summaries(), []), *notes])))


def _of_row(found: Results, row: str, domain: str) -> list[EpisodeRecord]:
    """Return a row's episodes of all seeds, under its name."""
    entries = [entry for part in found.members[row].values() for entry in part if entry.task in found.domains[domain]]
    return [dataclasses.replace(entry, actor=row) for entry in entries]


def returns(found: Results) -> str:
    """Return a table of mean returns, with a line a task."""
    summaries = {domain: found.summaries(domain) for domain in found.domains}
    made = [_titled(found, d, grid) for d, each in summaries.items() for grid in grids(each, metrics=["return"])]
    return markdown(made, _counts(found))


def _counts(found: Results) -> list[str]:
    """Return a note on the evaluation episodes of each training seed, where all have the same number."""
    each = Counter(
        (row, seed, entry.task) for row, parts in found.members.items() for seed in parts for entry in parts[seed]
    )
    numbers, seeds = set(each.values()), {len(parts) for parts in found.members.values()}
    if len(numbers) > 1 or len(seeds) > 1 or seeds == {1}:
        return []
    return [f"{numbers.pop():,} episodes per task and method for each of {seeds.pop()} training seeds."]


def _titled(found: Results, domain: str, grid: Grid) -> Grid:
    """Return a table whose title names its domain, where there are several."""
    return dataclasses.replace(grid, title=f"{domain}: {grid.title}") if len(found.domains) > 1 else grid


def pooled(found: Results) -> str:
    """Return a table with a line per method: its result, its tasks, episodes and seeds."""
    made = []
    for domain in found.domains:
        summaries = found.summaries(domain)
        title, pick, scale = METRICS[metrics_of(summaries)[0]]
        estimates = {row: pick(summary.overall) for row, summary in summaries.items()}
        top, methods = best(estimates), dict.fromkeys(entry.method for entry in estimates.values() if entry)
        lines: list[list[Cell]] = []
        for row, summary in summaries.items():
            counts = f"{summary.overall.tasks:,}", f"{summary.overall.episodes:,}", f"{len(found.members[row]):,}"
            cells = [*counts, *_size(found, row)]
            lines.append([(row, False), (show(estimates[row], scale), row in top), *((text, False) for text in cells)])
        where = f", {domain}" if len(found.domains) > 1 else ""
        header = ["", title, "tasks", "episodes", "seeds", "size", "parameters", "updates"]
        made.append(Grid(f"{title}{where}, pooled over tasks and seeds (95%: {'; '.join(methods)})", header, lines))
    return markdown(made)


def _size(found: Results, row: str) -> list[str]:
    """Return the model's size, its parameters and the updates."""
    runs, parameters = found.runs(row), found.parameters(row)
    sizes = _several(run["size"] for run in runs if run.get("size"))
    return [sizes, _millions(parameters), _several(f"{run['steps']:,}" for run in runs if "steps" in run)]


def _several(values: Iterable[Any]) -> str:
    return " / ".join(dict.fromkeys(map(str, values))) or "-"


def _millions(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f}M"


def seeds(found: Results) -> str:
    """Return a table of the first metric, pooled over tasks, with a line a seed."""
    made = []
    for domain in found.domains:
        title, pick, scale = METRICS[metrics_of(found.summaries(domain))[0]]
        lines: list[list[Cell]] = []
        for seed in found.seeds:
            summaries = found.of_seed(seed, domain)
            each = {row: pick(summaries[row].overall) if row in summaries else None for row in found.members}
            lines.append([(f"seed {seed}", False), *((show(entry, scale), False) for entry in each.values())])
        where = f", {domain}" if len(found.domains) > 1 else ""
        made.append(Grid(f"{title}{where}, seed by seed", ["", *found.members], lines))
    return markdown(made)


def differences(found: Results) -> str:
    """Return a table of all pairs of rows, over episodes from the same initial state and trainings of the same seed."""
    tables: list[Grid] = []
    for domain in found.domains:
        made, complaints = found.comparison(domain).differences()
        if complaints:
            raise ValueError(complaints[0])
        metrics = metrics_of(found.summaries(domain))
        made = [d for d in made if d.metric in metrics and d.where == ALL]
        if not made:
            raise ValueError("expected rows with the same initial states, found no pair.")
        (grid,) = grids({}, made)
        named = [(f"`{d.first}` minus `{d.second}`", False) for d in made]  # rows may be called 1, or 0.25
        rows = [[name, *row[1:]] for name, row in zip(named, grid.rows, strict=True)]
        header = ["", "metric", *grid.header[2:]]
        if not any(row[-1][0] for row in rows):  # every difference is shown, so no pair is needed
            header, rows = header[:-1], [row[:-1] for row in rows]
        title = grid.title.replace("Differences over the same initial states", "Paired differences")
        tables.append(_titled(found, domain, dataclasses.replace(grid, title=title, header=header, rows=rows)))
    return markdown(tables)


def experts(found: Results) -> str:
    """Return a table of the return that counts as 100% of each task, its source, and our best behaviour's return."""
    known = {task: about for document in found.documents for task, about in document.get("experts", {}).items()}
    if not known:
        raise ValueError("expected tasks with an expert, found none.")
    shipped = load_experts()
    lines: list[list[Cell]] = []
    for task, about in known.items():
        other = shipped.get(task)
        cells = [f"{about['mean']:.1f}", f"{about['n']:,}", about["source"], f"{other.mean:.1f}" if other else "-"]
        lines.append([(task, False), *((text, False) for text in cells)])
    header = ["task", "return", "mean of episodes", "from", "our best behaviour's"]
    return markdown([Grid("Expert: the return that counts as 100%", header, lines)])


def cost(found: Results) -> str:
    """Return a table of the time that each row took, and the commands."""
    header = ["", "runs", "size", "parameters", "updates", "training minutes per run", "evaluation minutes per run"]
    lines: list[list[Cell]] = []
    for row in dict.fromkeys(map(found.training, found.members)):
        runs = found.runs(row)
        times = [_minutes([run[name] for run in runs if name in run]) for name in ("seconds", "evaluation_seconds")]
        lines.append([(text, False) for text in (row, f"{len(runs):,}", *_size(found, row), *times)])
    parts = [markdown([Grid("Cost: mean (least to most)", header, lines)]).rstrip("\n")]
    for document in found.documents:
        versions = document["settings"].get("versions", {})
        words = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts += [f"```\n{document['command']}\n```", f"Made {document['created'][:10]} with {words}."]
    return "\n\n".join(parts) + "\n"


def _minutes(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    mean, low, high = (value / 60 for value in (sum(seconds) / len(seconds), min(seconds), max(seconds)))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


# ----------------------------------------------------------------------------------------------------------- drawings


def bars(found: Results, path: str, *, only_pooled: bool = False) -> PageBlock:
    """Draw bars of the first metric: a panel for each domain, and one for each task where these are few."""
    panels: list[charts.Drawing] = []
    for domain in found.domains:
        summaries = found.summaries(domain)
        metric = metrics_of(summaries)[0]
        _, pick, scale = METRICS[metric]
        tasks = list(dict.fromkeys(task for summary in summaries.values() for task in summary.tasks))
        where = f"{domain}, " if len(found.domains) > 1 else "pooled, "
        places = {ALL: f"{where}{len(tasks)} tasks" if len(tasks) > 1 else tasks[0]}
        has_panels = 1 < len(tasks) < MOST_PANELS and len(found.domains) == 1 and not only_pooled
        places |= {task: task for task in tasks} if has_panels else {}
        each = [found.of_seed(seed, domain) for seed in found.seeds]
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
            panels.append(panel(f"{title}: {UNITS[metric]}", estimates, dots, scale, limits))
    return drawn(path, panels)


def panel(
    title: str,
    estimates: Mapping[str, Estimate | None],
    dots: Mapping[str, Sequence[float]],
    scale: float,
    limits: tuple[float, float] | None,
) -> charts.Drawing:
    """Draw one panel of bars. Rows that are no known method take colours in order."""
    unknown = not any(name in METHODS for name in estimates)
    made = [
        charts.Bar(
            name=name,
            index=i if unknown else METHODS.index(name) if name in METHODS else len(METHODS) + i,
            value=scale * entry.mean,
            low=scale * entry.low,
            high=scale * entry.high,
            text=show(entry, scale),
            parts=tuple(dots[name]) if len(dots[name]) > 1 else (),
        )
        for i, (name, entry) in enumerate(estimates.items())
        if entry is not None
    ]
    return charts.bars(title, made, limits)


def drawn(path: str, panels: Sequence[charts.Drawing]) -> PageBlock:
    """Return an image of panels, and the file it is in."""
    titles = ", ".join(panel.title for panel in panels)
    words = f"Bars with 95% intervals, one dot per seed: {titles}"
    return PageBlock(text=f'<img src="{path}" alt="{html.escape(words)}">\n', files={path: sheet(words, panels)})
