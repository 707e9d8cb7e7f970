"""The section [improve] of a recipe, checked together with the rest of the recipe.

docs/improve.md has a table of the keys. A test compares it with this file.
"""

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pac.behaviours import make as make_behaviour
from pac.config import check_duration, check_types
from pac.evaluation.plan import expand_tasks
from pac.recipe import RunConfig, continued, parse_recipe, parse_section, read_recipe, recipe_place
from pac.types import Sampling

MOST_ROUNDS = 10_000  # round r of a run with seed s trains with seed s x MOST_ROUNDS + r
SEEDS = 1_000_000  # round r collects with seed (1 + improve.seed) x SEEDS + r; evaluation has seeds outside this range
STAND_IN = "stand-in"  # a group for recipes without data, until there is some


@dataclass(frozen=True, kw_only=True)
class ImproveConfig:
    """Settings of the rounds."""

    tasks: tuple[str, ...]  # the targets: names, suites or patterns
    others: tuple[str, ...] = ()  # tasks that must not get worse: evaluated, never collected
    rounds: int = 10  # at most
    episodes: int = 10  # to collect per task and round
    steps: str = "1k steps"  # of training per round: a duration
    first_steps: str | None = None  # of training in round 0; None: as in every round
    evaluation_episodes: int = 20  # per task and round, from the same initial states in every round
    mastery: float = 0.9  # the loop ends when all targets reach this success rate, or share of the expert's return
    tolerance: float = 0.0  # a round is refused if it is significantly worse than the promoted one by this share
    collect: Literal["policy", "none"] = "policy"  # none: people put datasets into the folder's inbox
    first: str | None = None  # behaviour that collects for round 0 where there is no checkpoint to start from
    first_episodes: int | None = None  # episodes of `first` per task; None: as in every round
    weight: float = 1.0  # of the group of collected data, beside the mixture's own groups
    imitation_weight: float | None = None  # alpha of collected data; None: that of mixture.defaults
    statistics: Literal["first", "all"] = "first"  # inputs are standardised with data of round 0, or with all data
    sampling: Sampling = "sample"  # of the policy that collects; evaluation.sampling is for evaluation
    max_steps: int | None = None  # of an episode, instead of the task's own
    stop_at_success: bool = False  # the first success ends an episode
    workers: int = 2  # processes with simulators; 0: simulators run in the main process
    envs_per_worker: int | None = None  # None: 16 for a policy, 2 for a behaviour
    ray: str | None = None  # address of a Ray cluster for the workers, or "local"
    seed: int = 0  # of the collected episodes

    def __post_init__(self) -> None:
        check_types(self, "improve")
        if not self.tasks:
            raise ValueError("improve.tasks: expected at least one task, found none. `pac tasks` lists them.")
        if both := sorted(set(self.tasks) & set(self.others)):
            raise ValueError(f"improve.others: expected other tasks than the targets, found {both[0]!r} in both.")
        least = {"rounds": 1, "episodes": 1, "evaluation_episodes": 1, "first_episodes": 1, "max_steps": 1}
        least |= {"workers": 0, "seed": 0, "envs_per_worker": 1}
        for name, low in least.items():
            if (value := getattr(self, name)) is not None and value < low:
                raise ValueError(f"improve.{name}: expected {low} or more, found {value}.")
        if self.rounds > MOST_ROUNDS:
            raise ValueError(f"improve.rounds: expected at most {MOST_ROUNDS:,}, found {self.rounds:,}.")
        for name in ("weight", "mastery"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"improve.{name}: expected a number above 0, found {value}.")
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
    """A recipe for improvement: [improve] and the tables of the training run."""

    improve: ImproveConfig
    table: dict[str, Any]
    root: Path
    collected: Path  # folder of the data that [collect] makes
    before: Mapping[str, Any] | None = None  # the training run's settings when the improvement began, if it is resumed

    @property
    def has_data(self) -> bool:
        return bool(self.table["mixture"].get("groups"))

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that the mixture asks for, for behaviours that collect."""
        return tuple(self.table["mixture"].get("defaults", {}).get("cameras") or ())

    def config(self, groups: Sequence[dict[str, Any]] = (), **changes: Any) -> RunConfig:
        """Return the training run with more groups in its mixture, and with other fields of `RunConfig`."""
        table = copy.deepcopy(self.table)
        table["mixture"]["groups"] = [*table["mixture"].get("groups", []), *groups]
        config = parse_recipe(table, self.root, collected=self.collected)
        return dataclasses.replace(config if self.before is None else continued(config, self.before), **changes)

    def plain(self) -> RunConfig:
        """Return the training run before any data was collected. A group stands in where the recipe has no data."""
        stand_in = {"name": STAND_IN, "weight": 1.0, "datasets": [{"name": STAND_IN, "path": STAND_IN}]}
        return self.config(() if self.has_data else [stand_in])


def load(
    name: str | Path, overrides: Sequence[str], collected: Path, *, before: Mapping[str, Any] | None = None
) -> Recipe:
    """Read and check a recipe for improvement. `before` are the settings with which a resumed improvement began.

    With the folder of a run in place of a recipe, the rounds start from its last checkpoint and keep its data.
    """
    table, root = read_recipe(name, overrides)
    if Path(name).is_dir():
        table = {key: value for key, value in table.items() if key != "model"} | {
            "start": table.get("start", str(name))
        }
    try:
        return parse(table, root, collected, before=before)
    except ValueError as error:
        raise ValueError(f"{recipe_place(name)}: {error}") from error


def parse(table: dict[str, Any], root: Path, collected: Path, *, before: Mapping[str, Any] | None = None) -> Recipe:
    """Return the checked recipe in the tables of a file. `root` is where relative paths of the mixture begin."""
    table = copy.deepcopy(table)
    section = table.pop("improve", None)
    if not isinstance(section, dict):
        raise ValueError(
            "Expected a section [improve] with `tasks` in the recipe, found none. Add it, or use `pac train`."
        )
    if isinstance(table.get("start"), str):  # absolute: relative ones are checkpoints of our rounds
        table["start"] = str(Path(table["start"]).expanduser().resolve())
    mixture = table.setdefault("mixture", {})
    if not isinstance(mixture, dict):
        raise ValueError(f"Expected a table [mixture], found {mixture!r}.")
    if mixture.get("groups") == []:
        del mixture["groups"]
    section = dict(section)
    for key in ("steps", "first_steps"):
        section |= {key: f"{section[key]} steps"} if type(section.get(key)) is int else {}
    for key in ("tasks", "others"):
        section |= {key: [section[key]]} if isinstance(section.get(key), str) else {}
        if isinstance(section.get(key), list | tuple) and all(isinstance(task, str) for task in section[key]):
            section[key] = expand_tasks(section[key])
    improve = parse_section(ImproveConfig, section, "improve")
    recipe = Recipe(improve, table, root, collected, before)
    config = recipe.plain()
    if config.evaluation.seed // SEEDS == 1 + improve.seed:
        raise ValueError(
            f"evaluation.seed: expected a seed outside [{(1 + improve.seed) * SEEDS:,}, "
            f"{(2 + improve.seed) * SEEDS:,}), found {config.evaluation.seed:,}. Collected episodes have these seeds."
        )
    if not recipe.has_data and config.start is None and improve.first is None and improve.collect == "policy":
        raise ValueError(
            "Expected data in [mixture], a checkpoint (--start), or a behaviour that collects the first episodes. "
            'Found none of them. Set improve.first, for example to "random".'
        )
    return recipe


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return the content of config.json: all settings of the improvement."""
    table = {"improve": dataclasses.asdict(recipe.improve), "recipe": recipe.plain().as_json()}
    found: dict[str, Any] = json.loads(json.dumps(table, default=str))
    return found
