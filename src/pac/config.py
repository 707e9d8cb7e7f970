"""Settings of a run: frozen dataclasses that check themselves, durations, schedules, and overrides of fields.

`pac.recipe` puts the sections together. A test compares the table of keys in docs/training.md with this file.
Comments give the paper's symbols. Nothing is rewritten after parsing; derived values are properties.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from pac.bins import Projection
from pac.types import Sampling

T = TypeVar("T")

Schedule = tuple[tuple[float, float], ...]  # (step, value), ascending

DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+\.)\s*([kMG]?)\s*(steps?|epochs?|flops?)\s*")
LARGEST_DISCOUNT = 1 - 1e-6  # float32 cannot tell a larger one from 1
MOST_STEPS = 1e12  # more than a machine ever does
FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """How a batch becomes a loss. Alpha, beta and gamma of the datasets are in the `Batch`."""

    critic: Literal["q", "v", "none"] = "q"  # PAC's Q, PAC+V's V, or cloning alone
    improve: bool = True  # False leaves out the RL term: filtered BC and BC+Q, where alpha is 1 everywhere
    discount: float = 0.99  # gamma of datasets without one of their own; the paper does not state it
    reward_scale: float | None = None  # None: the largest possible value of each dataset fills the bins
    projection: Projection = "two-hot"
    # Rewards in a target before it bootstraps. None: all rewards of the window. The paper reads windows of five steps
    # and does not say what for. With 1 the critic's overestimation adds up step by step (docs/log).
    num_steps: int | None = None
    # How the target goes on after a window. 0: bootstrap from the critic, as in the paper. 1: the return-to-go in the
    # data, as far as it is known. Better if a fault lasts an episode, worse if faults change within it (docs/log).
    monte_carlo_weight: float = 0.0
    num_samples: int = 10  # N: actions drawn from the reference policy
    # PAC: share of the improvement term that weighs actions in the data by exp(advantage / eta). The rest weighs
    # sampled actions, as in the paper. A sampled action may mix parts of different actions in the data. Its value is
    # a guess, which an action in the data does not need.
    logged_share: float = 0.0
    # The critic sees parts of actions. In a share `hidden_rows` of the states it does not see a dimension with
    # probability `hidden_dims`. Then it knows the value of the visible dimensions if the data's behaviour chooses the
    # others, and cannot rest on the dimension that is easiest to read. Samples count in visible dimensions alone.
    hidden_dims: float = 0.0
    hidden_rows: float = 1.0
    hidden_bootstrap: bool = True  # the bootstrap value is of the visible dimensions too; False: of whole actions
    # eta. None: chosen for each batch. For sampled actions MPO's dual makes the weights' mean KL to uniform `epsilon`.
    # For actions in the data it is `advantage_temperature` standard deviations of the advantages. The paper gives 1e-4
    # for PAC+V and nothing for PAC.
    temperature: float | None = None
    epsilon: float = 0.1
    advantage_temperature: float = 0.5
    max_weight: float = 20.0  # bound on exp(advantage / eta), which overflows float32 otherwise
    behaviour: Literal["constant", "learned"] = "constant"  # PAC+V: b(a|s) of the importance ratio pi/b
    max_ratio: float = 1.0  # PAC+V: bound on pi/b

    def __post_init__(self) -> None:
        check_types(self, "objective")
        if not 0 <= self.discount <= LARGEST_DISCOUNT:
            raise ValueError(f"objective.discount: expected a number in [0, 1), found {self.discount}.")
        if not 0 <= (weight := self.monte_carlo_weight) <= 1:
            raise ValueError(f"objective.monte_carlo_weight: expected a number in [0, 1], found {weight}.")
        for name in ("logged_share", "hidden_rows"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"objective.{name}: expected a share in [0, 1], found {share}.")
        if not 0 <= (hidden := self.hidden_dims) < 1:
            raise ValueError(f"objective.hidden_dims: expected a probability in [0, 1), found {hidden}.")
        check_least(self, "objective", num_samples=1, num_steps=1)
        positive = ("reward_scale", "temperature", "epsilon", "advantage_temperature", "max_weight", "max_ratio")
        check_positive(self, "objective", *positive)
        if self.improve and self.critic == "none":
            raise ValueError("objective: improve=true needs a critic; set critic to 'q' or 'v', or improve=false.")


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """AdamW with warm-up and cosine decay."""

    peak_rate: float | None = None  # None: the paper's for the model's size
    initial_rate: float | None = None  # at the start of warm-up; None: the paper's
    final_share: float = 0.1  # last rate / peak rate
    decay: Literal["cosine", "constant"] = "cosine"
    warmup: str = "auto"  # a duration; auto: a twentieth of the run, at most the paper's 15k steps
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 1e-3
    # None: no clipping. Adam bounds a step by itself. The norms of our gradients lie far above 1, and clipping there
    # slows the critic, because few batches have rewards (docs/log).
    clip_norm: float | None = None
    target_period: int | None = None  # updates between copies to the target network; None: 1/200 of the run, 10 to 100

    def __post_init__(self) -> None:
        check_types(self, "optimiser")
        check_positive(self, "optimiser", "peak_rate", "clip_norm", "target_period")
        check_least(self, "optimiser", initial_rate=0, weight_decay=0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optimiser.{name}: expected a number in [0, 1), found {getattr(self, name)}.")
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"optimiser.final_share: expected a share in [0, 1], found {self.final_share}.")
        if self.warmup != "auto":
            check_duration(self.warmup, "optimiser.warmup")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save checkpoints, and which to keep."""

    every: str = "1k steps"
    keep_last: int = 2
    keep_every: str | None = None  # keep one for good that often; a multiple of `every`

    def __post_init__(self) -> None:
        check_types(self, "checkpoint")
        check_duration(self.every, "checkpoint.every")
        if self.keep_every is not None:
            check_duration(self.keep_every, "checkpoint.keep_every")
        check_least(self, "checkpoint", keep_last=1)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation during training. Without tasks there is none."""

    tasks: tuple[str, ...] = ()
    every: str | None = None  # a duration; None: at the end only
    episodes: int = 20  # per task
    workers: int = 2  # processes; 0: none beside the run's own
    max_steps: int | None = None  # per episode, in place of the task's own
    stop_at_success: bool = False
    sampling: Sampling = "sample"
    seed: int = 10_000  # of the initial states; those of training data are others

    def __post_init__(self) -> None:
        check_types(self, "evaluation")
        if self.every is not None:
            check_duration(self.every, "evaluation.every")
        check_least(self, "evaluation", episodes=1, workers=0, max_steps=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """Data that a recipe collects in the run's folder. `{collected}` in a dataset's path is that folder."""

    tasks: tuple[str, ...]
    behaviour: str  # as for `pac collect --behaviour`
    episodes: int = 100  # per task
    max_steps: int | None = None  # per episode, in place of the task's own
    stop_at_success: bool = False
    cameras: tuple[str, ...] | None = None  # rendered into every observation
    seed: int = 0
    workers: int = 0  # processes; 0: none beside the run's own

    def __post_init__(self) -> None:
        check_types(self, "collect")
        if not self.tasks:
            raise ValueError("collect.tasks: expected at least one task, found none. `pac tasks` lists them.")
        check_least(self, "collect", episodes=1, workers=0, max_steps=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """How the run uses its machine. It changes the precision of sums and nothing else that is computed.

    `accumulate` is the exception: a temperature that is chosen for each batch is then chosen for each micro-batch.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 products on a GPU
    compile: bool = False  # torch.compile the loss; pays off on a GPU from a few thousand updates on
    graphs: Literal["auto", "on", "off"] = "auto"  # whole-update CUDA graphs; auto: on a GPU, without sharding
    accumulate: int = 1  # micro-batches per update
    recompute: bool = False  # activation checkpointing: less memory, a third more work
    data: Literal["auto", "gpu", "stream"] = "auto"  # auto: on the GPU if it takes less than a third of it
    workers: int = 2  # threads that prepare streamed batches
    log_every: int = 50  # steps
    on_nonfinite: Literal["stop", "skip"] = "stop"  # after an update that was refused
    wandb: str | None = None  # Weights & Biases project to log to as well

    def __post_init__(self) -> None:
        check_types(self, "machine")
        check_least(self, "machine", accumulate=1, log_every=1, workers=0)


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Values that change during the run, for all datasets. None: those of the datasets and the objective."""

    imitation_weight: Schedule | None = None  # alpha
    critic_weight: Schedule | None = None  # beta
    temperature: Schedule | None = None  # eta
    learning_rate: Schedule | None = None  # in place of warm-up and decay

    def __post_init__(self) -> None:
        for name in (f.name for f in dataclasses.fields(self)):
            points = getattr(self, name)
            if points is None:
                continue
            steps = [step for step, _ in points]
            if not (points and all(0 <= step < math.inf for step in steps) and all(a < b for a, b in pairwise(steps))):
                raise ValueError(
                    f"schedules.{name}: expected points [step, value] with ascending steps from 0 on, found {points}."
                )
            low = 1e-12 if name == "temperature" else 0.0
            high = 1.0 if name == "imitation_weight" else 1e12
            for _, value in points:
                if not low <= value <= high:
                    raise ValueError(f"schedules.{name}: expected values in [{low:g}, {high:g}], found {value}.")


def parse_duration(text: str, *, epoch_steps: int, update_flops: float) -> int:
    """Return the number of steps in `"200k steps"`, `"3 epochs"` or `"1e19 flops"`."""
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    amount = float(match[1]) * FACTORS[match[2]] if match else 0.0
    if not match or not 0 < amount < math.inf:
        raise ValueError(f"expected a duration such as '200k steps', '3 epochs' or '1e19 flops', found {text!r}.")
    unit = match[3].rstrip("s")
    steps = amount * {"step": 1, "epoch": epoch_steps, "flop": 1 / update_flops}[unit]
    if steps < 1 and unit == "step":
        raise ValueError(f"expected a duration of at least one step, found {text!r}.")
    if steps > MOST_STEPS:
        raise ValueError(f"expected a duration of at most {MOST_STEPS:.0e} steps, found {text!r}: {steps:.3g} steps.")
    return max(1, round(steps))


def check_duration(text: str, where: str) -> None:
    """Raise an error that names the key unless the text is a duration."""
    try:
        parse_duration(text, epoch_steps=1, update_flops=1e30)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def interpolate(points: Schedule, step: int) -> float:
    """Return the value of a schedule: straight lines between its points, constant before and after them."""
    for (left, a), (right, b) in pairwise(points):
        if step < right:
            return a if step <= left else a + (b - a) * (step - left) / (right - left)
    return points[-1][1]


def override(config: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of `config` with fields replaced. The error about an unknown field suggests the nearest one."""
    known = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            raise ValueError(f"{type(config).__name__} has no field {name!r}.{suggest(name, known)}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def parse_overrides(assignments: list[str]) -> dict[str, Any]:
    """Return the values in `["latent_width=512", "number_encoder='linear'"]`, read as TOML or as bare words."""
    changes = {}
    for assignment in assignments:
        name, found, text = assignment.partition("=")
        if not found:
            raise ValueError(f"Expected an override of the form field=value, found {assignment!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        changes[name.strip()] = tuple(value) if isinstance(value, list) else value
    return changes


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Choose from: {', '.join(choices)}."


def read_toml(path: Path, kind: str) -> dict[str, Any]:
    """Read a TOML file. `kind` names it in the error."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"Expected {kind} in TOML, found none that can be read at {path}: {error}.") from error


def check_keys(table: Any, known: Iterable[str], where: str, required: Iterable[str] = ()) -> None:
    """Raise unless `table` is a table with known keys, and with all that are required."""
    if not isinstance(table, Mapping):
        raise ValueError(f"Expected a table for {where}, found {table!r}.")
    for key in table:
        if key not in known:
            raise ValueError(f"Unknown key {key!r} in {where}.{suggest(key, known)}")
    for key in required:
        if key not in table:
            raise ValueError(f"Expected {key!r} in {where}, found {sorted(table)}. Add it.")


def check_types(config: Any, section: str) -> None:
    """Raise if a field of a config dataclass does not have the type of its annotation."""
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not _has_type(value, hint):
            raise ValueError(f"{section}.{name}: expected {_plain(hint)}, found {value!r} ({type(value).__name__}).")


def _plain(hint: Any) -> str:
    """Return how an error speaks of a type."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, choices))
    if origin is tuple:
        return f"a list of {_plain(choices[0]).removeprefix('a ')}s"
    if choices:  # a union
        return " or ".join(map(_plain, choices))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "None"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def _has_type(value: Any, hint: Any) -> bool:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in choices)
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(item, choices[0]) for item in value)
    if choices:  # a union
        return any(_has_type(value, choice) for choice in choices)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is int if hint is int else isinstance(value, hint)


def check_least(config: Any, section: str, **bounds: int) -> None:
    """Raise unless each of these fields is None or at least its bound."""
    for name, least in bounds.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{section}.{name}: expected at least {least}, found {value}.")


def check_positive(config: Any, section: str, *names: str) -> None:
    """Raise unless each of these fields is None or positive."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ValueError(f"{section}.{name}: expected a positive number, found {value}.")
