"""A study file -> the runs it asks for.

A study is a training recipe (`docs/training.md`) with a table [study]: rows to compare, each a name and the settings
that join the recipe, seeds, and, where every task gets a model of its own, `each`, whose entries take the place of
{each} in every text of the recipe. Data that the study makes lies in {data}/NAME. All of it is checked before
anything runs.
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
RULES = ("tasks", "max_steps", "stop_at_success", "sampling")  # of a domain


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """The table [study], without its rows and data."""

    seeds: tuple[int, ...] = (0, 1, 2)
    each: tuple[str, ...] = ("",)  # one model for each; by default one for everything
    trials: int = 100  # of each task, after training
    shows: tuple[str, ...] = ()  # what tells a policy its task, each in turn; none: what its mixture shows
    experts: Literal["table", "data"] = "table"  # what 100% is: a good behaviour's, or the best in the data
    about: str = ""  # a sentence for the page: what is asked, and what was tuned on what

    def __post_init__(self) -> None:
        check_types(self)
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"study.seeds: expected different numbers of 0 or more, found {list(self.seeds)}.")
        if not self.each or len(set(self.each)) < len(self.each):
            raise ValueError(f"study.each: expected different words, found {list(self.each)}.")
        if self.trials < 1:
            raise ValueError(f"study.trials: expected 1 or more, found {self.trials}.")
        if not set(self.shows) <= set(SHOWS) or len(set(self.shows)) < len(self.shows):
            raise ValueError(f"study.shows: expected some of {', '.join(SHOWS)}, each once, found {list(self.shows)}.")


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One training run of a study, and the trials that follow it."""

    row: str
    each: str
    seed: int
    config: RunConfig
    domains: Mapping[str, EvaluationConfig]  # tasks that are pooled, and the rules of their trials; often "" alone
    shows: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its folder."""
        words = (self.row, self.each, f"seed {self.seed}")
        return "-".join(re.sub(r"[^a-z0-9.+]+", "-", word.lower()).strip("-") for word in words if word)

    @property
    def labels(self) -> dict[str | None, tuple[str, str]]:
        """What is shown -> row of the tables, and its trials' actor; None: what was shown in training. Models of
        different tasks and the same seed are one contestant.
        """
        rows: dict[str | None, str] = {show: f"{self.row}, {show}" for show in self.shows} or {None: self.row}
        return {show: (row, f"{row}, seed {self.seed}") for show, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A checked study."""

    name: str
    config: StudyConfig
    collections: Mapping[str, CollectConfig]  # what is made first, by the folder's name
    runs: Sequence[StudyRun]

    @property
    def rows(self) -> list[str]:
        """As they are trained."""
        return list(dict.fromkeys(run.row for run in self.runs))

    @property
    def contestants(self) -> dict[str, dict[int, str]]:
        """As they are tried: row of the tables -> seed -> actor of the trials."""
        found: dict[str, dict[int, str]] = {}
        for run in self.runs:
            for row, label in run.labels.values():
                found.setdefault(row, {})[run.seed] = label
        return found


def load_study(name: str | Path, overrides: Sequence[str], folder: Path, *, domains: Collection[str] = ()) -> Study:
    """Read and check a study; `folder` is where its data and runs will be. With `domains`, trials of those alone."""
    table, root = read_recipe(name, overrides)
    try:
        return parse_study(table, root, folder, name=find_recipe(name).stem, wanted=domains)
    except ValueError as error:
        raise ValueError(f"{find_recipe(name)}: {error}") from error


def parse_study(
    table: Mapping[str, Any], root: Path, folder: Path, *, name: str, wanted: Collection[str] = ()
) -> Study:
    recipe = copy.deepcopy(dict(table))
    section = recipe.pop("study", None)
    if not isinstance(section, dict):
        raise ValueError("Expected a table [study] in the file, found none. A recipe without one is for `pac train`.")
    if "collect" in recipe or "seed" in recipe:
        found = "collect" if "collect" in recipe else "seed"
        raise ValueError(f"Expected no {found!r} in a study. Use [[study.data]] and study.seeds.")
    rows, collections, domains = (section.pop(name, None) for name in ("rows", "data", "domains"))
    if not isinstance(rows, dict) or not rows or not all(isinstance(row, dict) for row in rows.values()):
        raise ValueError('Expected [study.rows."NAME"] tables in the study, found none.')
    config = parse_section(StudyConfig, section, "study")
    runs = []
    for (row, changes), each, seed in itertools.product(rows.items(), config.each, config.seeds):
        settings = _fill(_join(recipe, changes), {EACH: each, DATA: str((folder / "data").resolve())})
        try:
            run = parse_recipe(settings | {"seed": seed}, root)
        except ValueError as error:
            raise ValueError(f"row {row!r}{f', {each}' if each else ''}: {error}") from error
        places = _domains(_fill(domains, {EACH: each}), run.evaluation) if domains else {"": run.evaluation}
        if unknown := sorted(set(wanted) - set(places)):
            known = ", ".join(filter(None, places)) or "none"
            raise ValueError(f"--domain: expected domains of the study, found {unknown[0]!r}. Domains: {known}.")
        places = {name: rules for name, rules in places.items() if not wanted or name in wanted}
        places = {name: dataclasses.replace(x, tasks=tuple(expand_tasks(x.tasks))) for name, x in places.items()}
        tasks = tuple(task for rules in places.values() for task in rules.tasks)
        run = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, tasks=tasks))
        runs.append(StudyRun(row=row, each=each, seed=seed, config=run, domains=places, shows=config.shows))
        if not tasks:
            raise ValueError("Expected evaluation.tasks in a study, found none: nothing would be compared.")
    if len({run.name for run in runs}) < len(runs):
        raise ValueError("Expected names of rows that differ in letters and digits: folders are named after them.")
    return Study(name=name, config=config, collections=_collections(collections or []), runs=runs)


def _domains(tables: Any, rules: EvaluationConfig) -> dict[str, EvaluationConfig]:
    """Trials of each domain, which may have limits of its own."""
    if not isinstance(tables, dict) or not all(isinstance(x, dict) and "tasks" in x for x in tables.values()):
        raise ValueError('Expected [study.domains."NAME"] tables with tasks, found something else.')
    if rules.tasks:
        raise ValueError("Expected tasks in study.domains or in [evaluation], found both. Leave evaluation.tasks out.")
    made = {}
    for name, table in tables.items():
        if other := sorted(set(table) - set(RULES)):
            raise ValueError(f"Unknown key {other[0]!r} in study.domains. Known: {', '.join(RULES)}.")
        made[name] = dataclasses.replace(rules, **table | {"tasks": tuple(table["tasks"])})
    tasks = [task for domain in made.values() for task in domain.tasks]
    if twice := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ValueError(f"study.domains: expected each task in one domain, found {twice[0]} in two.")
    return made


def _collections(tables: Any) -> dict[str, CollectConfig]:
    if not isinstance(tables, list | tuple) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("Expected [[study.data]] tables, each a collection with a name.")
    made: dict[str, CollectConfig] = {}
    for table in tables:
        given = dict(table)
        name = given.pop("name", None)
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name in made:
            raise ValueError(f'study.data: expected a name of its own for each, such as "poor", found {name!r}.')
        collection = parse_section(CollectConfig, given, f"study.data: {name}")
        made[name] = dataclasses.replace(collection, tasks=tuple(expand_tasks(collection.tasks)))
    return made


def _join(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `table`, section by section; a list of tables is replaced, or joined by the names in it."""
    joined = dict(copy.deepcopy(dict(table)))
    for key, value in changes.items():
        before = joined.get(key)
        if isinstance(value, dict) and isinstance(before, list):
            joined[key] = _join_named(before, value, key)
        else:
            joined[key] = _join(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
    return joined


def _join_named(tables: Sequence[Any], changes: Mapping[str, Any], key: str) -> list[Any]:
    """`mixture.groups.poor.imitation_weight = 0.25`: of the group named so."""
    names = [table.get("name") for table in tables if isinstance(table, dict)]
    for name, change in changes.items():
        if name not in names or not isinstance(change, dict):
            raise ValueError(f"{key}: expected settings by name ({', '.join(map(str, names))}), found {name!r}.")
    return [
        _join(table, changes.get(str(table.get("name")), {})) if isinstance(table, dict) else table for table in tables
    ]


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    """Words in place of their marks, in every text."""
    if isinstance(value, str):
        for mark, word in words.items():
            value = value.replace(mark, word)
        return value
    if isinstance(value, dict):
        return {key: _fill(item, words) for key, item in value.items()}
    return [_fill(item, words) for item in value] if isinstance(value, list) else value


def whole_tasks(study: Study) -> list[str]:
    """Those whose trials run to their own end, so that returns compare with an expert's."""
    places = [place for run in study.runs for place in run.domains.values()]
    whole = [place.tasks for place in places if place.max_steps is None and not place.stop_at_success]
    return list(dict.fromkeys(task for tasks in whole for task in tasks))
