"""Rows of studies and evaluations, read from result files: the episodes of each row by the seed of its training."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from pac.config import suggest
from pac.evaluation import EpisodeRecord, Summary, summarise
from pac.evaluation.experts import load as load_experts
from pac.evaluation.plan import SHOWS
from pac.evaluation.records import by_actor
from pac.model import PAC
from pac.model.config import model_config
from pac.model.pac import count_parameters
from pac.report.groups import ComparisonGroup, split_seed
from tools.archive import Document

Records = list[EpisodeRecord]
GOALS = {"text+goal": "text and goal image", "goal": "goal image alone", "text": "text alone", "none": "no goal"}
assert GOALS.keys() == set(SHOWS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """Rows of one or more studies, or actors of an evaluation. A row is a method or a setting."""

    documents: list[Document]
    members: dict[str, dict[int | None, Records]]  # row -> seed of the training -> episodes
    experts: dict[str, float]

    @functools.cached_property
    def domains(self) -> dict[str, set[str]]:
        """The tasks that are pooled: the study's domains, else suites."""
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
        """Return a summary of each row over all its seeds."""
        every = {row: [entry for part in parts.values() for entry in part] for row, parts in self.members.items()}
        return self._summaries(every, domain)

    def of_seed(self, seed: int | None, domain: str) -> dict[str, Summary]:
        """Return a summary of each row for one seed."""
        return self._summaries({row: parts.get(seed, []) for row, parts in self.members.items()}, domain)

    def _summaries(self, rows: Mapping[str, Sequence[EpisodeRecord]], domain: str | None) -> dict[str, Summary]:
        kept = {
            row: [e for e in part if domain is None or e.task in self.domains[domain]] for row, part in rows.items()
        }
        return {row: summarise(part, experts=self.experts) for row, part in kept.items() if part}

    @property
    def seeds(self) -> list[int | None]:
        return list(dict.fromkeys(seed for parts in self.members.values() for seed in parts))

    def comparison(self, domain: str) -> ComparisonGroup:
        """Return the rows as a group whose pairs can be compared."""
        members: dict[str, dict[str, Records]] = {}
        for row, parts in self.members.items():
            for seed, part in parts.items():
                if kept := [entry for entry in part if entry.task in self.domains[domain]]:
                    members.setdefault(row, {})[f"seed {seed}"] = kept
        return ComparisonGroup(members=members, experts=self.experts)

    def training(self, row: str) -> str:
        """Return the row that was trained: one policy may have rows for sampled actions and for kinds of goals."""
        known = {run.get("row") for document in self.documents for run in document.get("runs", [])}
        ways = [row.removesuffix(f", {way}") for way in ("sampled", *GOALS.values()) if row.endswith(f", {way}")]
        return next((name for name in (row, *ways) if name in known), row)

    def runs(self, row: str) -> list[dict[str, Any]]:
        """Return the facts of a row's trainings."""
        name = self.training(row)
        return [run for document in self.documents for run in document.get("runs", []) if run.get("row") == name]

    def parameters(self, row: str) -> int | None:
        """Return the parameters counted in training. Without a count, count the recipe's model, whose inputs differ."""
        name = self.training(row)
        if counted := {int(run["parameters"]) for run in self.runs(row) if "parameters" in run}:
            return max(counted)
        settings: list[dict[str, Any]] = [d["rows"][name] for d in self.documents if name in d.get("rows", {})]
        model = settings[0].get("model") if settings else None
        return _parameters(json.dumps(model)) if model else None


@functools.cache
def _parameters(model: str) -> int:
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(model).items()}
    with torch.device("meta"):
        return count_parameters(PAC(model_config(**settings)))


def read_results(
    documents: Mapping[Path, Document], tasks: Sequence[str] = (), experts_file: Path | None = None
) -> Results:
    """Read the rows of documents, given by the path that errors name.

    With `tasks` (names or patterns such as control/*) all other tasks are left out. `experts_file` replaces the
    returns that count as 100%.
    """
    members: dict[str, dict[int | None, Records]] = {}
    experts: dict[str, float] = {}
    kept: list[Document] = []
    rules: dict[str, Any] = {}
    for path, document in documents.items():
        document, records, found = _read_one(path, document, tasks)
        if experts_file is not None:
            document = document | {"experts": _replaced(document, experts_file, path)}
        known = {task: float(about["mean"]) for task, about in document.get("experts", {}).items()}
        if (rules := rules or found) != found:
            first = next(iter(documents))
            raise ValueError(f"{path}: expected episodes under the rules of {first}, {rules}, found {found}.")
        if other := [task for task, mean in known.items() if experts.setdefault(task, mean) != mean]:
            raise ValueError(f"{path}: expected the experts of the files before it, found another of {other[0]}.")
        rows = {_with_goal(row, document): parts for row, parts in _by_row(path, records).items()}
        if both := sorted(set(rows) & set(members)):
            raise ValueError(f"{path}: expected rows of other names than in the files before it, found {both[0]!r}.")
        members |= rows
        kept.append(document)
    return Results(documents=kept, members=members, experts=experts)


def _read_one(path: Path, document: Document, tasks: Sequence[str]) -> tuple[Document, Records, dict[str, Any]]:
    """Return the document with these tasks alone, its episodes, and the rules they ran under."""
    try:
        records = [EpisodeRecord.from_json(episode) for episode in document["episodes"]]
        played = list(dict.fromkeys(entry.task for entry in records))
        kept = [task for task in played if not tasks or any(fnmatchcase(task, name) for name in tasks)]
        document = _of_tasks(document, kept) if tasks else document
        found = _rules(document)
        _ = [float(about["mean"]) for about in document.get("experts", {}).values()]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected the JSON of `pac study`, `pac evaluate` or benchmarks/peers.py, found {error!r}."
        ) from error
    if lost := [name for name in tasks if not any(fnmatchcase(task, name) for task in played)]:
        raise ValueError(f"{path}: expected episodes of {lost[0]!r}, found none.{suggest(lost[0], played)}")
    records = [entry for entry in records if entry.task in kept]
    if not records:
        raise ValueError(f"{path}: expected episodes, found none.")
    if len({entry.key for entry in records}) < len(records):
        raise ValueError(f"{path}: expected every episode once, found two of the same actor, task and index.")
    return document, records, found


def _of_tasks(document: Document, tasks: Sequence[str]) -> Document:
    """Return a document about some tasks. Its notes are about all tasks, so they go."""
    kept = {name: [t for t in rules["tasks"] if t in tasks] for name, rules in document.get("domains", {}).items()}
    domains = {name: document["domains"][name] | {"tasks": some} for name, some in kept.items() if some}
    return document | {"domains": domains, "notes": []}


def _rules(document: Document) -> dict[str, Any]:
    """Return the rules that the episodes ran under: those of the domains where these agree, else the settings."""
    names, settings = ("max_steps", "stop_at_success"), document["settings"]
    found = [{name: rules[name] for name in names} for rules in document.get("domains", {}).values()]
    same = found and all(rules == found[0] for rules in found)
    return {"seed": settings["seed"]} | (found[0] if same else {name: settings[name] for name in names})


def _replaced(document: Document, experts_file: Path, path: Path) -> dict[str, Any]:
    """Return the experts of another table for the tasks that have one in the document."""
    tasks, others = document.get("experts", {}), load_experts(experts_file)
    if missing := sorted(tasks.keys() - others):
        raise ValueError(f"{experts_file}: expected the experts of {path}, found none of {missing[0]}.")
    return {task: dataclasses.asdict(others[task]) for task in tasks}


def _with_goal(row: str, document: Document) -> str:
    """Return the name of a row with the kind of goal in words: `PAC, goal image alone` for `PAC, goal`."""
    policy, _, show = row.rpartition(", ")
    return f"{policy}, {GOALS[show]}" if show in GOALS and _has_run(document, policy) else row


def _has_run(document: Document, row: str) -> bool:
    return any(run.get("row") == row for run in document.get("runs", []))


def _by_row(path: Path, records: Records) -> dict[str, dict[int | None, Records]]:
    """Return the episodes of actors such as `PAC, seed 3` by row and seed."""
    rows: dict[str, dict[int | None, Records]] = {}
    for label, part in by_actor(records).items():
        row, seed = split_seed(label)
        if seed in rows.setdefault(row, {}):
            raise ValueError(f"{path}: expected one actor that is seed {seed} of {row!r}, found {label!r} as well.")
        rows[row][seed] = [dataclasses.replace(entry, actor=row) for entry in part]
    return rows
