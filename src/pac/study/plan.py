"""From a study file to the training runs that it asks for. Everything is checked before anything runs.

A study is a training recipe (docs/training.md) with a table [study]. `rows` are the settings to compare: each has a
name and values that replace those of the recipe. `each` gives every task a model of its own: its entries replace
{each} in all texts of the recipe. Data that the study collects lies in {data}/NAME.
"""

import copy
import dataclasses
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pac.config import CollectConfig, EvaluationConfig, check_types
from pac.evaluation.plan import SHOWS, expand_tasks
from pac.recipe import RunConfig, parse_recipe, parse_section, read_recipe
from pac.resources import find_recipe

DATA, EACH = "{data}", "{each}"
DOMAIN_KEYS = ("tasks", "max_steps", "stop_at_success", "sampling")


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """The table [study], without its rows, data and domains."""

    seeds: tuple[int, ...] = (0, 1, 2)
    each: tuple[str, ...] = ("",)  # one model per entry; by default one model for everything
    episodes: int = 100  # evaluation episodes per task, after training
    shows: tuple[str, ...] = ()  # ways to give the task, each evaluated; empty: the way of the training mixture
    experts: Literal["table", "data"] = "table"  # 100%: the best behaviour that was measured, or the best of the data
    poor: tuple[str, ...] = ()  # names in study.data whose episodes should succeed in 10 to 40%; tables mark the others
    about: str = ""  # a sentence for the page: the question, and which settings were tuned on which data

    def __post_init__(self) -> None:
        check_types(self, "study")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"study.seeds: expected different numbers of 0 or more, found {list(self.seeds)}.")
        if not self.each or len(set(self.each)) < len(self.each):
            raise ValueError(f"study.each: expected different words, found {list(self.each)}.")
        if self.episodes < 1:
            raise ValueError(f"study.episodes: expected 1 or more, found {self.episodes}.")
        if not set(self.shows) <= set(SHOWS) or len(set(self.shows)) < len(self.shows):
            raise ValueError(f"study.shows: expected some of {', '.join(SHOWS)}, each once, found {list(self.shows)}.")


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One training run of a study, and the evaluation that follows it."""

    row: str
    each: str
    seed: int
    config: RunConfig
    domains: Mapping[str, EvaluationConfig]  # tasks that are pooled, with their limits; without domains one named ""
    shows: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        words = (self.row, self.each, f"seed {self.seed}")
        return "-".join(re.sub(r"[^a-z0-9.+]+", "-", word.lower()).strip("-") for word in words if word)

    @property
    def labels(self) -> dict[str | None, tuple[str, str]]:
        """The row of the tables and the actor of the episodes, by the way to give the task. None: as in training.

        Models of different tasks and the same seed are one actor.
        """
        rows: dict[str | None, str] = {show: f"{self.row}, {show}" for show in self.shows} or {None: self.row}
        return {show: (row, f"{row}, seed {self.seed}") for show, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A checked study."""

    name: str
    config: StudyConfig
    collections: Mapping[str, CollectConfig]  # data to collect first, by the name of its folder
    runs: Sequence[StudyRun]

    @property
    def rows(self) -> list[str]:
        """The rows that are trained."""
        return list(dict.fromkeys(run.row for run in self.runs))

    @property
    def actors(self) -> dict[str, dict[int, str]]:
        """The rows that are evaluated: row of the tables -> seed -> actor of the evaluation episodes."""
        found: dict[str, dict[int, str]] = {}
        for run in self.runs:
            for row, label in run.labels.values():
                found.setdefault(row, {})[run.seed] = label
        return found

    @property
    def whole_tasks(self) -> list[str]:
        """The tasks whose episodes run to their own end, so that returns compare with an expert's."""
        domains = [domain for run in self.runs for domain in run.domains.values()]
        whole = [domain.tasks for domain in domains if domain.max_steps is None and not domain.stop_at_success]
        return list(dict.fromkeys(task for tasks in whole for task in tasks))


def load_study(name: str | Path, overrides: Sequence[str], folder: Path, *, domains: Collection[str] = ()) -> Study:
    """Read and check a study. `folder` will hold its data and runs. `domains` limits the evaluation to these."""
    table, root = read_recipe(name, overrides)
    try:
        return parse_study(table, root, folder, name=find_recipe(name).stem, only_domains=domains)
    except ValueError as error:
        raise ValueError(f"{find_recipe(name)}: {error}") from error


def parse_study(
    table: Mapping[str, Any], root: Path, folder: Path, *, name: str, only_domains: Collection[str] = ()
) -> Study:
    """Return the study in the tables of a recipe. `root` is where relative paths of the mixture begin."""
    recipe = copy.deepcopy(dict(table))
    section = recipe.pop("study", None)
    if not isinstance(section, dict):
        raise ValueError("Expected a table [study] in the file, found none. A recipe without one is for `pac train`.")
    if "collect" in recipe or "seed" in recipe:
        found = "collect" if "collect" in recipe else "seed"
        raise ValueError(f"Expected no {found!r} in a study. Use [[study.data]] and study.seeds.")
    rows, collections, domains = (section.pop(key, None) for key in ("rows", "data", "domains"))
    if not isinstance(rows, dict) or not rows or not all(isinstance(row, dict) for row in rows.values()):
        raise ValueError('Expected [study.rows."NAME"] tables in the study, found none.')
    config = parse_section(StudyConfig, section, "study")
    collected = _collections(collections or [])
    if unknown := sorted(set(config.poor) - set(collected)):
        raise ValueError(f"study.poor: expected names in study.data ({', '.join(collected)}), found {unknown[0]!r}.")
    words, runs = {DATA: str((folder / "data").resolve())}, list[StudyRun]()
    for row, each, seed in itertools.product(rows, config.each, config.seeds):
        words[EACH] = each
        try:
            run = parse_recipe(_fill(_join(recipe, rows[row]), words) | {"seed": seed}, root)
        except ValueError as error:
            raise ValueError(f"row {row!r}{f', {each}' if each else ''}: {error}") from error
        chosen = _domains(_fill(domains, words), run.evaluation, only_domains)
        tasks = tuple(task for domain in chosen.values() for task in domain.tasks)
        run = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, tasks=tasks))
        runs.append(StudyRun(row=row, each=each, seed=seed, config=run, domains=chosen, shows=config.shows))
    if len({run.name for run in runs}) < len(runs):
        raise ValueError("Expected names of rows that differ in letters and digits: folders are named after them.")
    return Study(name=name, config=config, collections=collected, runs=runs)


def _domains(tables: Any, evaluation: EvaluationConfig, only: Collection[str]) -> dict[str, EvaluationConfig]:
    """Return the domains in `only`, or all. Each has tasks, and may have limits that differ from `evaluation`."""
    found = _parse_domains(tables, evaluation) if tables else {"": evaluation}
    if unknown := sorted(set(only) - set(found)):
        known = ", ".join(filter(None, found)) or "none"
        raise ValueError(f"--domain: expected domains of the study, found {unknown[0]!r}. Domains: {known}.")
    chosen = {name: domain for name, domain in found.items() if not only or name in only}
    if not any(domain.tasks for domain in chosen.values()):
        raise ValueError("Expected evaluation.tasks in a study, found none: nothing would be compared.")
    return {name: dataclasses.replace(x, tasks=tuple(expand_tasks(x.tasks))) for name, x in chosen.items()}


def _parse_domains(tables: Any, evaluation: EvaluationConfig) -> dict[str, EvaluationConfig]:
    if not isinstance(tables, dict) or not all(isinstance(x, dict) and "tasks" in x for x in tables.values()):
        raise ValueError('Expected [study.domains."NAME"] tables with tasks, found something else.')
    if evaluation.tasks:
        raise ValueError("Expected tasks in study.domains or in [evaluation], found both. Leave evaluation.tasks out.")
    found = {}
    for name, table in tables.items():
        if other := sorted(set(table) - set(DOMAIN_KEYS)):
            raise ValueError(f"Unknown key {other[0]!r} in study.domains. Known: {', '.join(DOMAIN_KEYS)}.")
        found[name] = dataclasses.replace(evaluation, **table | {"tasks": tuple(table["tasks"])})
    tasks = [task for domain in found.values() for task in domain.tasks]
    if twice := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ValueError(f"study.domains: expected each task in one domain, found {twice[0]} in two.")
    return found


def _collections(tables: Any) -> dict[str, CollectConfig]:
    if not isinstance(tables, list | tuple) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("Expected [[study.data]] tables, each a collection with a name.")
    found: dict[str, CollectConfig] = {}
    for table in tables:
        settings = dict(table)
        name = settings.pop("name", None)
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name in found:
            raise ValueError(f'study.data: expected a name of its own for each, such as "poor", found {name!r}.')
        collection = parse_section(CollectConfig, settings, f"study.data: {name}")
        found[name] = dataclasses.replace(collection, tasks=tuple(expand_tasks(collection.tasks)))
    return found


def _join(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with `changes` applied section by section. A list is replaced, or joined by names."""
    joined = dict(table)
    for key, value in changes.items():
        before = joined.get(key)
        if isinstance(value, dict) and isinstance(before, list):
            value = _join_named(before, value, key)
        elif isinstance(value, dict) and isinstance(before, dict):
            value = _join(before, value)
        joined[key] = value
    return joined


def _join_named(tables: Sequence[dict[str, Any]], changes: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the tables with changes by name: `mixture.groups.poor.imitation_weight = 0.25` changes group "poor"."""
    names = [table.get("name") for table in tables]
    for name, change in changes.items():
        if name not in names or not isinstance(change, dict):
            raise ValueError(f"{key}: expected settings by name ({', '.join(map(str, names))}), found {name!r}.")
    return [_join(table, changes.get(str(table.get("name")), {})) for table in tables]


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    """Return a copy of `value` with the marks in all its texts replaced by their words."""
    if isinstance(value, str):
        for mark, word in words.items():
            value = value.replace(mark, word)
        return value
    if isinstance(value, dict):
        return {key: _fill(item, words) for key, item in value.items()}
    return [_fill(item, words) for item in value] if isinstance(value, list) else value
