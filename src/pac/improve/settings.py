"""The section [improve] of a recipe, and what it makes of the rest of the recipe.

docs/improve.md has a table of the keys, which a test holds against this file.
"""

import copy
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pac.behaviours import make as make_behaviour
from pac.config import check_duration, check_types
from pac.evaluation.plan import expand_tasks
from pac.recipe import RunConfig, parse_recipe, parse_section, read_recipe
from pac.resources import find_recipe
from pac.types import Sampling

MOST_ROUNDS = 10_000  # seeds of rounds lie between those of runs
SEEDS = 1_000_000  # collections of round r start from states of seed (1 + seed) x this + r: evaluation's are others
STAND_IN = "stand-in"  # a group for recipes without data, until there is some


@dataclass(frozen=True, kw_only=True)
class ImproveConfig:
    """Rounds of collecting, training and evaluating."""

    tasks: tuple[str, ...]  # to get better at: names, suites or globs
    others: tuple[str, ...] = ()  # not to be forgotten: evaluated, never collected
    rounds: int = 10  # at most
    episodes: int = 10  # collected a task and round
    steps: str = "1k steps"  # of training in a round: a duration
    first_steps: str | None = None  # of round 0, on the recipe's own data, say; None: as every round
    trials: int = 20  # of each task in an evaluation, from the same initial states in every round
    mastery: float = 0.9  # of each target: success rate, or share of the expert's return. All reach it: done
    tolerance: float = 0.0  # how much worse, as a share, a round may surely be than the promoted one
    collect: Literal["policy", "none"] = "policy"  # none: people put datasets into the folder's inbox
    first: str | None = None  # behaviour that collects for round 0 where there is no checkpoint to start from
    first_episodes: int | None = None  # its episodes a task; None: as every round
    weight: float = 1.0  # of the group of collected data, beside the mixture's own groups
    imitation_weight: float | None = None  # alpha of collected data; None: as mixture.defaults say
    statistics: Literal["first", "all"] = "first"  # what inputs are standardised with: data of round 0, or all so far
    sampling: Sampling = "sample"  # of the policy that collects; evaluation.sampling is the other's
    max_steps: int | None = None  # of an episode, instead of the task's own
    stop_at_success: bool = False  # the first success ends an episode
    workers: int = 2  # processes with simulators; 0: none beside this one
    envs_per_worker: int | None = None  # None: 16 for a policy, 2 for a behaviour
    ray: str | None = None  # address of a Ray cluster for the workers, or "local"
    seed: int = 0  # of the collected episodes

    def __post_init__(self) -> None:
        check_types(self)
        if not self.tasks:
            raise ValueError("improve.tasks: expected at least one task, found none. `pac tasks` lists them.")
        if both := sorted(set(self.tasks) & set(self.others)):
            raise ValueError(f"improve.others: expected other tasks than the targets, found {both[0]!r} in both.")
        least = {"rounds": 1, "episodes": 1, "trials": 1, "first_episodes": 1, "max_steps": 1, "workers": 0, "seed": 0}
        least |= {"envs_per_worker": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"improve.{name}: expected {low} or more, found {value}.")
        if self.rounds > MOST_ROUNDS:
            raise ValueError(f"improve.rounds: expected at most {MOST_ROUNDS:,}, found {self.rounds:,}.")
        if self.weight <= 0:
            raise ValueError(f"improve.weight: expected a positive number, found {self.weight}.")
        if self.mastery <= 0:
            raise ValueError(f"improve.mastery: expected a positive share, found {self.mastery}.")
        for name in ("tolerance", "imitation_weight"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise ValueError(f"improve.{name}: expected a share in [0, 1], found {getattr(self, name)}.")
        check_duration(self.steps, "improve.steps")
        check_duration(self.first_steps or self.steps, "improve.first_steps")
        if self.first is not None:
            make_behaviour(self.first)

    @property
    def all_tasks(self) -> tuple[str, ...]:
        return (*self.tasks, *self.others)


@dataclass(frozen=True)
class Recipe:
    """A recipe for improvement: the tables of its training part, and [improve]."""

    improve: ImproveConfig
    table: dict[str, Any]
    root: Path
    collected: Path  # where [collect] puts its data

    @property
    def has_data(self) -> bool:
        return bool(self.table["mixture"].get("groups"))

    def config(self, groups: Sequence[dict[str, Any]] = (), **changes: Any) -> RunConfig:
        """The recipe with more groups in its mixture and other fields of a `RunConfig`."""
        table = copy.deepcopy(self.table)
        table["mixture"]["groups"] = [*table["mixture"].get("groups", []), *groups]
        return dataclasses.replace(parse_recipe(table, self.root, collected=self.collected), **changes)

    def plain(self) -> RunConfig:
        """The recipe before any data was collected; where it has none of its own, with a group in its place."""
        stand_in = {"name": STAND_IN, "weight": 1.0, "datasets": [{"name": STAND_IN, "path": STAND_IN}]}
        return self.config(() if self.has_data else [stand_in])


def load(name: str | Path, overrides: Sequence[str], collected: Path) -> Recipe:
    """Read and check a recipe for improvement."""
    table, root = read_recipe(name, overrides)
    where = find_recipe(name)
    try:
        return parse(table, root, collected)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def parse(table: dict[str, Any], root: Path, collected: Path) -> Recipe:
    table = copy.deepcopy(table)
    section = table.pop("improve", None)
    if not isinstance(section, dict):
        raise ValueError(
            "Expected a section [improve] with `tasks` in the recipe, found none. Add it, or use `pac train`."
        )
    if isinstance(table.get("start"), str):  # from the root: our own checkpoints are named from the folder
        table["start"] = str(Path(table["start"]).expanduser().resolve())
    mixture = table.setdefault("mixture", {})
    if not isinstance(mixture, dict):
        raise ValueError(f"Expected a table [mixture], found {mixture!r}.")
    if mixture.get("groups") == []:
        del mixture["groups"]
    section = dict(section)
    for key in ("tasks", "others"):
        if isinstance(section.get(key), list | tuple) and all(isinstance(task, str) for task in section[key]):
            section[key] = expand_tasks(section[key])
    improve = parse_section(ImproveConfig, section, "improve")
    recipe = Recipe(improve, table, root, collected)
    _check(recipe)
    return recipe


def _check(recipe: Recipe) -> None:
    """What can be wrong between [improve] and the rest."""
    config, improve = recipe.plain(), recipe.improve
    if config.evaluation.seed // SEEDS == 1 + improve.seed:
        raise ValueError(
            f"evaluation.seed: expected one outside [{(1 + improve.seed) * SEEDS:,}, {(2 + improve.seed) * SEEDS:,}), "
            f"whose states collected episodes start from, found {config.evaluation.seed:,}."
        )
    if not recipe.has_data and config.start is None and improve.first is None and improve.collect == "policy":
        raise ValueError(
            "Expected something to begin with: data in [mixture], a checkpoint (--start), or a behaviour that collects "
            'the first episodes. Found none of them. Set improve.first = "random", say.'
        )


def describe(recipe: Recipe) -> dict[str, Any]:
    """What config.json holds: enough to tell one improvement from another."""
    table = {"improve": dataclasses.asdict(recipe.improve), "recipe": recipe.plain().as_json()}
    found: dict[str, Any] = json.loads(json.dumps(table, default=str))
    return found
