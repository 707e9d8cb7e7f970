"""Recipes: a TOML file plus dotted overrides -> a `RunConfig`, checked before anything is built.

    seed = 0
    length = "20k steps"                  # or "3 epochs", or "1e17 flops"
    mixture = "mixture.toml"              # or the same keys inline, under [mixture]
    [model]
    size = "micro"                        # and any field of ModelConfig; what the data decides is read from the data
    [objective]
    method = "pac"                        # bc, filtered-bc, bc+q, pac, pac+v; and any field of ObjectiveConfig
    [optimiser]                           # OptimiserConfig, CheckpointConfig, EvaluationConfig, MachineConfig below
    [schedules]
    imitation_weight = [[0, 1.0], [5000, 1.0], [10000, 0.3]]   # straight lines between (step, value)

`pac train recipe.toml --out runs/a seed=3 objective.discount=0.97 mixture.defaults.imitation_weight=0.5`
"""

import dataclasses
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from pac.config import SIZES, ObjectiveConfig, check_types, model_config, parse_overrides, suggest
from pac.data.mixture import Mixture, parse_mixture
from pac.resources import find_recipe

T = TypeVar("T")
Schedule = tuple[tuple[float, float], ...]  # (step, value), ascending

# What each method of the paper's comparison is, in terms of the objective and of what the mixture takes by default.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bc": ({"critic": "none", "improve": False}, {"imitation_weight": 1.0}),
    "filtered-bc": ({"critic": "none", "improve": False}, {"imitation_weight": 1.0, "success_only": True}),
    "bc+q": ({"critic": "q", "improve": False}, {"imitation_weight": 1.0}),
    "pac": ({"critic": "q", "improve": True}, {}),
    "pac+v": ({"critic": "v", "improve": True}, {"imitation_weight": 0.0}),
}

# The paper's first and highest learning rate by size; small models of ours take what the studies in docs/log.md used.
RATES = {"XXS": (1e-6, 1e-4), "XS": (1e-6, 1e-4), "S": (1e-7, 5e-5), "M": (1e-7, 3e-5), "L": (1e-7, 3e-5)}
SMALL_RATES = (1e-6, 3e-4)
PAPER_WARMUP, PAPER_TARGET_PERIOD = 15_000, 100


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """AdamW with warm-up and cosine decay."""

    peak_rate: float | None = None  # None: the paper's for the model's size
    initial_rate: float | None = None  # where warm-up begins; None: the paper's
    final_share: float = 0.1  # last rate over peak
    decay: Literal["cosine", "constant"] = "cosine"
    warmup: str = "auto"  # a duration; auto: a twentieth of the run, at most the paper's 15k steps
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 1e-3
    clip_norm: float | None = None  # None: no clipping. Adam bounds a step by itself, and the norms of our gradients
    # lie far above 1: clipping there slows the critic, whose rewards are in few batches (docs/log.md)
    target_period: int | None = None  # updates between copies to the target network; None: 1/200 of the run, 10 to 100

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("peak_rate", "clip_norm", "target_period"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"optimiser.{name}: expected a positive number, found {value}.")
        for name in ("beta1", "beta2", "final_share"):
            if not 0 <= getattr(self, name) <= (1 if name == "final_share" else 1 - 1e-9):
                raise ValueError(f"optimiser.{name}: expected a number in [0, 1), found {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: str = "1k steps"
    keep_last: int = 2
    keep_every: str | None = None  # also keep one each so often, for good

    def __post_init__(self) -> None:
        check_types(self)
        if self.keep_last < 1:
            raise ValueError(f"checkpoint.keep_last: expected at least 1, found {self.keep_last}.")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Trials during training; none without tasks."""

    tasks: tuple[str, ...] = ()
    every: str | None = None  # a duration; None: at the end only
    trials: int = 20  # a task
    workers: int = 2
    max_steps: int | None = None
    stop_at_success: bool = False
    sampling: Literal["sample", "mode"] = "sample"
    seed: int = 10_000  # of the initial states: those of training data are others

    def __post_init__(self) -> None:
        check_types(self)
        if self.trials < 1 or self.workers < 0:
            raise ValueError(
                f"evaluation: expected at least one trial and no negative workers, found {self.trials} and "
                f"{self.workers}."
            )


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """How the run uses its machine. None of it changes what is computed, beyond the precision of sums."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 products on a GPU
    compile: bool = False  # torch.compile the loss: pays off on a GPU from a few thousand updates on
    graphs: Literal["auto", "on", "off"] = "auto"  # whole-update CUDA graphs; auto: on a GPU, without sharding
    accumulate: int = 1  # micro-batches an update
    recompute: bool = False  # activation checkpointing: less memory, a third more work
    data: Literal["auto", "resident", "stream"] = "auto"  # auto: on the GPU if it takes less than a third of it
    workers: int = 2  # threads that prepare streamed batches
    log_every: int = 50
    on_nonfinite: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("accumulate", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"machine.{name}: expected at least 1, found {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Values that change during the run, for all datasets alike. None: as the datasets and the objective say."""

    imitation_weight: Schedule | None = None  # alpha
    critic_weight: Schedule | None = None  # beta
    temperature: Schedule | None = None  # eta
    learning_rate: Schedule | None = None  # in place of warm-up and decay

    def __post_init__(self) -> None:
        for name in (f.name for f in dataclasses.fields(self)):
            points = getattr(self, name)
            if points is not None and not (points and all(a[0] < b[0] for a, b in pairwise(points))):
                raise ValueError(
                    f"schedules.{name}: expected points (step, value) with ascending steps, found {points}."
                )
            low, high = (0, 1) if name == "imitation_weight" else (0, float("inf"))
            for _, value in points or ():
                if not low <= value <= high:
                    raise ValueError(f"schedules.{name}: expected values in [{low}, {high}], found {value}.")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run; where and when it runs is not in it."""

    mixture: Mixture
    method: str = "pac"
    seed: int = 0
    length: str = "20k steps"
    start: str | None = None  # a checkpoint to fine-tune from
    proprio_noise: float = 0.0  # Gaussian noise on proprioception, in units of each dimension's spread: against
    # memorising a small dataset (S4RL, Sinha et al., 2021)
    model: dict[str, Any] = field(default_factory=dict)  # size, and fields of ModelConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedules: Schedules = field(default_factory=Schedules)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)

    @property
    def size(self) -> str:
        return str(self.model.get("size", "micro"))

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe and apply `section.key=value` overrides."""
    path = find_recipe(name)
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"Expected a recipe in TOML, found none that can be read at {path}: {error}.") from error
    root = path.parent
    mixture = _dotted(table, overrides, "mixture")
    if isinstance(mixture, str):
        found = find_recipe(root / mixture if (root / mixture).exists() else mixture)
        table["mixture"], root = tomllib.loads(found.read_text()), found.parent
    for key, value in parse_overrides(list(overrides)).items():
        if key != "mixture":
            _assign(table, key, value)
    try:
        return parse_recipe(table, root)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_recipe(table: Mapping[str, Any], root: Path = Path()) -> RunConfig:
    """A recipe as nested tables -> RunConfig; `root` is where the mixture's relative paths begin."""
    known = {f.name for f in dataclasses.fields(RunConfig)} - {"method"}
    for key in table:
        if key not in known:
            raise ValueError(f"Unknown key {key!r} in the recipe.{suggest(key, known)}")
    if "mixture" not in table:
        raise ValueError('Expected a mixture in the recipe, found none. Add mixture = "FILE" or a [mixture] table.')
    objective = dict(table.get("objective", {}))
    method = objective.pop("method", "pac")
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r} in [objective].{suggest(str(method), METHODS)}")
    of_objective, of_mixture = METHODS[method]
    mixture = dict(table["mixture"])
    mixture["defaults"] = of_mixture | dict(mixture.get("defaults", {}))
    config = RunConfig(
        mixture=parse_mixture(mixture, root),
        method=method,
        objective=_section(ObjectiveConfig, of_objective | objective, "objective"),
        schedules=_section(Schedules, _pairs(table.get("schedules", {})), "schedules"),
        **{
            name: _section(kind, table[name], name)
            for name, kind in {
                "optimiser": OptimiserConfig,
                "checkpoint": CheckpointConfig,
                "evaluation": EvaluationConfig,
                "machine": MachineConfig,
            }.items()
            if name in table
        },
        **{name: table[name] for name in ("seed", "length", "start", "proprio_noise", "model") if name in table},
    )
    _check_run(config)
    return config


def _check_run(config: RunConfig) -> None:
    """What can be wrong between sections."""
    if type(config.seed) is not int or config.seed < 0:
        raise ValueError(f"seed: expected a whole number of 0 or more, found {config.seed!r}.")
    if config.size not in SIZES and config.start is None:
        raise ValueError(f"model.size: unknown size {config.size!r}.{suggest(config.size, SIZES)}")
    if config.start is None:
        model_config(config.size, **{k: v for k, v in config.model.items() if k != "size"})  # raises on unknown fields
    if type(config.proprio_noise) not in (int, float) or config.proprio_noise < 0:
        raise ValueError(f"proprio_noise: expected a number of 0 or more, found {config.proprio_noise!r}.")
    parse_duration(config.length, epoch_steps=1, update_flops=1.0)
    cloned = not config.objective.improve
    alphas = {dataset.imitation_weight for dataset in config.mixture.datasets}
    if cloned and (alphas - {1.0} or config.schedules.imitation_weight is not None):
        raise ValueError(
            f"Method {config.method!r} clones: expected imitation_weight 1 for every dataset and no schedule of it, "
            f"found {sorted(alphas)}. Take imitation_weight out of the mixture's groups and datasets, or choose pac."
        )


DURATION = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kMG]?)\s*(steps?|epochs?|flops?)\s*")
FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def parse_duration(text: str, *, epoch_steps: int, update_flops: float) -> int:
    """`"200k steps"`, `"3 epochs"` or `"1e19 flops"` -> steps."""
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise ValueError(f"Expected a duration such as '200k steps', '3 epochs' or '1e19 flops', found {text!r}.")
    amount, unit = float(match[1]) * FACTORS[match[2]], match[3].rstrip("s")
    steps = amount * {"step": 1, "epoch": epoch_steps, "flop": 1 / update_flops}[unit]
    if steps < 1 and unit != "flop":
        raise ValueError(f"Expected a duration of at least one step, found {text!r}.")
    return max(1, round(steps))


def interpolate(points: Schedule, step: int) -> float:
    """The value of a schedule: straight lines between its points, constant before and after them."""
    for (left, a), (right, b) in pairwise(points):
        if step < right:
            return a if step <= left else a + (b - a) * (step - left) / (right - left)
    return points[-1][1]


def _section(kind: type[T], table: Any, name: str) -> T:
    if not isinstance(table, Mapping):
        raise ValueError(f"Expected a table [{name}], found {table!r}.")
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise ValueError(f"Unknown key {key!r} in [{name}].{suggest(key, hints)}")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})


def _pairs(table: Any) -> Any:
    """Lists of pairs as tuples of pairs."""
    if not isinstance(table, Mapping):
        return table
    pairs = {}
    for key, points in table.items():
        fits = isinstance(points, Sequence) and all(isinstance(p, Sequence) and len(p) == 2 for p in points)
        if not fits:
            raise ValueError(f"schedules.{key}: expected a list of [step, value], found {points!r}.")
        pairs[key] = tuple((float(step), float(value)) for step, value in points)
    return pairs


def _dotted(table: dict[str, Any], overrides: Sequence[str], key: str) -> Any:
    """The value of one key after the overrides."""
    return parse_overrides(list(overrides)).get(key, table.get(key))


def _assign(table: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ValueError(f"Override {dotted!r}: expected {section!r} to be a section, found {table!r}.")
    table[last] = value
