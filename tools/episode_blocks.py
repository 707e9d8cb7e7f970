"""What the blocks of a page hold: files of trials -> Markdown tables and drawings. `refresh` puts them in their place.

Every number is computed here from single trials. What a file says of its trials in sum is not read: so a page can be
checked against them.
"""

import dataclasses
import functools
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from pac.config import suggest
from pac.evaluation import EpisodeRecord, Estimate, Summary, best, summarise, warnings
from pac.evaluation.experts import load as load_experts
from pac.evaluation.plan import SHOWS
from pac.evaluation.records import by_actor
from pac.evaluation.summary import ALL
from pac.evaluation.tables import METRICS, Cell, Grid, grids, markdown, show
from pac.model import PAC
from pac.model.config import model_config
from pac.model.pac import count_parameters
from pac.report import charts
from pac.report.groups import ComparisonGroup, split_seed

UNITS = {"success": "success, %", "percent": "% of expert", "return": "return"}
HOUSE = ("filtered BC", "BC+Q", "PAC", "PAC+V", "the data", "alpha-PAC")  # have the same colour in every drawing
MOST_PANELS = 9  # a drawing of more tasks shows what pools them alone


@dataclass(frozen=True, kw_only=True)
class PageBlock:
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
    members: dict[str, dict[int | None, list[EpisodeRecord]]]  # row -> seed of the training -> trials
    experts: dict[str, float]

    @functools.cached_property
    def domains(self) -> dict[str, set[str]]:
        """Tasks that are pooled: the study's domains, else suites."""
        made: dict[str, set[str]] = {}
        for document in self.documents:
            for name, rules in document.get("domains", {}).items():
                made.setdefault(name, set()).update(rules["tasks"])
        tasks = (entry.task for parts in self.members.values() for part in parts.values() for entry in part)
        for task in dict.fromkeys(tasks):
            if not any(task in members for members in made.values()):
                made.setdefault(task.partition("/")[0], set()).add(task)
        return made

    def summaries(self, domain: str | None = None) -> dict[str, Summary]:
        """Of each row, its seeds together."""
        every = {row: [entry for part in parts.values() for entry in part] for row, parts in self.members.items()}
        return self._summaries(every, domain)

    def of_seed(self, seed: int | None, domain: str) -> dict[str, Summary]:
        return self._summaries({row: parts.get(seed, []) for row, parts in self.members.items()}, domain)

    def _summaries(self, rows: Mapping[str, Sequence[EpisodeRecord]], domain: str | None) -> dict[str, Summary]:
        kept = {
            row: [e for e in part if domain is None or e.task in self.domains[domain]] for row, part in rows.items()
        }
        return {row: summarise(part, experts=self.experts) for row, part in kept.items() if part}

    @property
    def seeds(self) -> list[int | None]:
        return list(dict.fromkeys(seed for parts in self.members.values() for seed in parts))

    def contest(self, domain: str) -> ComparisonGroup:
        """For the differences of pairs."""
        members: dict[str, dict[str, list[EpisodeRecord]]] = {}
        for row, parts in self.members.items():
            for seed, part in parts.items():
                if kept := [entry for entry in part if entry.task in self.domains[domain]]:
                    members.setdefault(row, {})[f"seed {seed}"] = kept
        return ComparisonGroup(rules="", members=members, experts=self.experts, notes=[])

    def training(self, row: str) -> str:
        """Of what a row is: samples of a policy, and a policy under one kind of goals, were trained as the policy."""
        known = {run.get("row") for document in self.documents for run in document.get("runs", [])}
        ways = [row.removesuffix(f", {way}") for way in ("sampled", *SHOWS) if row.endswith(f", {way}")]
        return next((name for name in (row, *ways) if name in known), row)

    def runs(self, row: str) -> list[dict[str, Any]]:
        """What is known of a row's trainings."""
        name = self.training(row)
        return [run for document in self.documents for run in document.get("runs", []) if run.get("row") == name]

    def parameters(self, row: str) -> int | None:
        """As counted in training; else of the recipe's model, whose inputs are not yet the data's."""
        name = self.training(row)
        if counted := {int(run["parameters"]) for run in self.runs(row) if "parameters" in run}:
            return max(counted)
        settings: list[dict[str, Any]] = [d["rows"][name] for d in self.documents if name in d.get("rows", {})]
        model = settings[0].get("model") if settings else None
        return _parameters(json.dumps(model)) if model else None


@functools.cache
def _parameters(model: str) -> int:
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(model).items()}
    with torch.device("meta"):
        return count_parameters(PAC(model_config(**given)))


def read_trials(paths: Sequence[Path], tasks: Sequence[str] = (), measure: Path | None = None) -> Trials:
    """Of these tasks alone, if any are named (or a pattern such as control/*); in parts of what the files call 100%, or
    of the experts in `measure`.
    """
    documents, members, experts = (
        list[dict[str, Any]](),
        dict[str, dict[int | None, list[EpisodeRecord]]](),
        dict[str, float](),
    )
    rules: dict[str, Any] = {}
    for path in paths:
        document = read_json(path)
        try:
            records = [EpisodeRecord.from_json(trial) for trial in document["trials"]]
            played = list(dict.fromkeys(entry.task for entry in records))
            wanted = [task for task in played if not tasks or any(fnmatchcase(task, name) for name in tasks)]
            document = _of_tasks(document, wanted) if tasks else document
            found = _rules(document)
            known = {task: float(about["mean"]) for task, about in document.get("experts", {}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: expected the JSON of `pac study`, `pac evaluate` or benchmarks/peers.py, found {error!r}."
            ) from error
        if lost := [name for name in tasks if not any(fnmatchcase(task, name) for task in played)]:
            raise ValueError(f"{path}: expected trials of {lost[0]!r}, found none.{suggest(lost[0], played)}")
        if measure is not None:
            others = load_experts(measure)
            if missing := sorted(known.keys() - others):
                raise ValueError(f"{measure}: expected the experts of {path}, found none of {missing[0]}.")
            known = {task: others[task].mean for task in known}
            document["experts"] = {task: dataclasses.asdict(others[task]) for task in known}
        records = [entry for entry in records if entry.task in wanted]
        if not records:
            raise ValueError(f"{path}: expected trials, found none.")
        if len({entry.key for entry in records}) < len(records):
            raise ValueError(f"{path}: expected every trial once, found one of the same actor, task and index twice.")
        if (rules := rules or found) != found:
            raise ValueError(f"{path}: expected trials under the rules of {paths[0]}, {rules}, found {found}.")
        if other := [task for task, mean in known.items() if experts.setdefault(task, mean) != mean]:
            raise ValueError(f"{path}: expected the experts of the files before it, found another of {other[0]}.")
        rows = dict[str, dict[int | None, list[EpisodeRecord]]]()
        for label, part in by_actor(records).items():
            row, seed = split_seed(label)
            if seed in rows.setdefault(row, {}):
                raise ValueError(f"{path}: expected one actor that is seed {seed} of {row!r}, found {label!r} as well.")
            rows[row][seed] = [dataclasses.replace(entry, actor=row) for entry in part]
        if both := sorted(set(rows) & set(members)):
            raise ValueError(f"{path}: expected rows of other names than in the files before it, found {both[0]!r}.")
        members |= rows
        documents.append(document)
    return Trials(documents=documents, members=members, experts=experts)


def _of_tasks(document: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """What is said of these tasks; notes are about all of them."""
    kept = {name: [t for t in rules["tasks"] if t in tasks] for name, rules in document.get("domains", {}).items()}
    domains = {name: document["domains"][name] | {"tasks": some} for name, some in kept.items() if some}
    return {**document, "domains": domains, "notes": []}


def _rules(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of the trials: those of its domains, where they have the same."""
    names, settings = ("max_steps", "stop_at_success"), document["settings"]
    found = [{name: rules[name] for name in names} for rules in document.get("domains", {}).values()]
    same = found and all(rules == found[0] for rules in found)
    return {"seed": settings["seed"]} | (found[0] if same else {name: settings[name] for name in names})


def metrics_of(summaries: Mapping[str, Summary]) -> list[str]:
    """Success and percent of expert; the return as well where a task has neither."""
    rows = [row for summary in summaries.values() for row in summary.tasks.values()]
    known = [name for name in ("success", "percent") if any(METRICS[name][1](row) for row in rows)]
    return known + (["return"] if any(row.success is None and row.percent is None for row in rows) else [])


def table(found: Trials) -> str:
    """A row a task, a column a row of the study, pooled below; and what the trials cannot support."""
    made: list[Grid] = []
    for domain in found.domains:
        summaries = found.summaries(domain)
        for grid in grids(summaries, metrics=metrics_of(summaries)):
            where = f"{domain}: " if len(found.domains) > 1 else ""
            made.append(dataclasses.replace(grid, title=where + grid.title))
    told = [note for document in found.documents for note in document.get("notes", [])]
    return markdown(made, list(dict.fromkeys([*warnings(found.summaries(), []), *told])))


def pooled(found: Trials) -> str:
    """A line a row: the number, and how much stands behind it."""
    made = []
    for domain in found.domains:
        summaries = found.summaries(domain)
        title, pick, scale = METRICS[metrics_of(summaries)[0]]
        estimates = {row: pick(summary.overall) for row, summary in summaries.items()}
        top, methods = best(estimates), dict.fromkeys(entry.method for entry in estimates.values() if entry)
        lines: list[list[Cell]] = []
        for row, summary in summaries.items():
            counts = f"{summary.overall.tasks:,}", f"{summary.overall.trials:,}", f"{len(found.members[row]):,}"
            cells = [*counts, *_size(found, row)]
            lines.append([(row, False), (show(estimates[row], scale), row in top), *((text, False) for text in cells)])
        where = f", {domain}" if len(found.domains) > 1 else ""
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


def differences(found: Trials) -> str:
    """Of every pair of rows, over trials from the same initial state and trainings of the same seed."""
    grids_made: list[Grid] = []
    for domain in found.domains:
        made, complaints = found.contest(domain).differences()
        if complaints:
            raise ValueError(complaints[0])
        wanted = metrics_of(found.summaries(domain))
        made = [d for d in made if d.metric in wanted and d.where == ALL]
        if not made:
            raise ValueError("expected rows with the same initial states, found no pair.")
        (grid,) = grids({}, made)
        named = [(f"`{d.first}` minus `{d.second}`", False) for d in made]  # rows may be called 1, or 0.25
        rows = [[name, *row[1:]] for name, row in zip(named, grid.rows, strict=True)]
        title = f"{domain}: {grid.title}" if len(found.domains) > 1 else grid.title
        grids_made.append(dataclasses.replace(grid, title=title, header=["", *grid.header[1:]], rows=rows))
    return markdown(grids_made)


def experts(found: Trials) -> str:
    """What counts as 100% of each task, where it comes from, and our best behaviour beside it."""
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
    return markdown([Grid("100%", header, lines)])


def cost(found: Trials) -> str:
    """What each row took, and the command."""
    header = ["", "runs", "size", "parameters", "updates", "minutes of training a run", "minutes of its trials"]
    lines: list[list[Cell]] = []
    for row in dict.fromkeys(map(found.training, found.members)):
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


def bars(found: Trials, name: str) -> PageBlock:
    panels: list[tuple[str, tuple[str, int]]] = []
    for domain in found.domains:
        summaries = found.summaries(domain)
        metric = metrics_of(summaries)[0]
        _, pick, scale = METRICS[metric]
        tasks = list(dict.fromkeys(task for summary in summaries.values() for task in summary.tasks))
        where = f"{domain}, " if len(found.domains) > 1 else "pooled, "
        places = {ALL: f"{where}{len(tasks)} tasks" if len(tasks) > 1 else tasks[0]}
        places |= {task: task for task in tasks} if 1 < len(tasks) < MOST_PANELS and len(found.domains) == 1 else {}
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
    return drawn(name, panels)


def panel(
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


def drawn(name: str, panels: Sequence[tuple[str, tuple[str, int]]]) -> PageBlock:
    path, titles = f"plots/{name}.svg", ", ".join(title for title, _ in panels)
    words = f"Bars with 95% intervals, a dot a seed: {titles}"
    return PageBlock(text=f'<img src="{path}" alt="{html.escape(words)}">\n', files={path: charts.sheet(words, panels)})
