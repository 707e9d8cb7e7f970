"""Settings: frozen dataclasses that are checked when made, the table of model sizes, and one way to override a field.

Paper symbols stand in the comments. Nothing is rewritten after parsing; derived values are properties.
"""

import dataclasses
import difflib
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pac.bins import Bins, Projection

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides the shape and the meaning of a PAC model's inputs and outputs."""

    # The three numbers a size of the paper changes (its table of model scales).
    latent_width: int  # D_Z
    num_blocks: int  # M: self-attention blocks
    widening: int  # W: hidden over outer width of the MLPs

    # Largest inputs; a batch may hold less and pays for no more than it holds.
    num_proprio: int = 223  # N^P
    num_cameras: int = 5  # N^V
    num_goal_images: int = 3  # N^V_tau
    num_text_tokens: int = 50  # N^L
    num_actions: int = 38  # N^A: action dimensions
    image_height: int = 80
    image_width: int = 80
    vocabulary_size: int = 32_000  # N_T

    # Widths and counts the paper keeps fixed.
    num_latents: int = 32  # N_Z
    num_heads: int = 8  # not stated in the paper
    token_width: int = 256  # D_I
    query_width: int = 768  # D_O
    image_channels: tuple[int, ...] = (32, 64, 64)  # one ResNet section each, halving height and width
    image_blocks: int = 2  # residual blocks in a section

    # Numbers as tokens: proprioception and, with the same choice, actions.
    number_encoder: Literal["multiscale", "linear", "mu-law"] = "multiscale"
    # The paper's gains are 1e-4 to 1e3, on raw inputs; standardised ones need no such range (docs/log.md).
    gains: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # sigma, N_G of them
    proprio_scaling: Literal["raw", "centre", "standardise"] = "standardise"  # by the dataset's statistics
    mu_law_bins: int = 1024  # Gato's choices (Reed et al., 2022)
    mu_law_mu: float = 100.0
    mu_law_range: float = 256.0  # |x| that reaches the outermost bin

    # Outputs.
    num_action_bins: int = 101  # N_B
    num_value_bins: int = 101  # N_Q
    value_min: float = 0.0
    value_max: float = 1.0
    initial_value: float | None = None  # where the critic starts; None: uniform, in the middle of the range
    action_as: Literal["query", "input"] = "query"  # "input" is the paper's ablation without output action
    q_head: bool = True
    v_head: bool = False  # for PAC+V
    behaviour_head: bool = False  # a cloned policy beside the trained one: PAC+V's learned b(a|s)

    def __post_init__(self) -> None:
        check_types(self)
        zero_allowed = {"num_cameras", "num_goal_images", "num_text_tokens"}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < (0 if field.name in zero_allowed else 1):
                raise ValueError(f"ModelConfig.{field.name}: expected a positive whole number, found {value}.")
        if self.latent_width % self.num_heads:
            raise ValueError(
                f"ModelConfig: expected latent_width to be a multiple of num_heads, found {self.latent_width} and "
                f"{self.num_heads}. Change either."
            )
        if not self.gains or min(self.gains) <= 0:
            raise ValueError(f"ModelConfig.gains: expected at least one gain, all positive, found {self.gains}.")
        if self.mu_law_mu <= 0 or self.mu_law_range <= 0 or self.mu_law_bins < 2:
            raise ValueError(
                "ModelConfig: expected mu_law_mu and mu_law_range positive and mu_law_bins at least 2, found "
                f"{self.mu_law_mu}, {self.mu_law_range} and {self.mu_law_bins}."
            )
        if self.initial_value is not None and not self.value_min <= self.initial_value <= self.value_max:
            raise ValueError(
                f"ModelConfig.initial_value: expected a value in [{self.value_min}, {self.value_max}], found "
                f"{self.initial_value}."
            )
        _ = self.action_bins, self.value_bins  # raises on impossible ranges

    @property
    def action_bins(self) -> Bins:
        return Bins.cells(-1.0, 1.0, self.num_action_bins)

    @property
    def value_bins(self) -> Bins:
        return Bins(self.value_min, self.value_max, self.num_value_bins)

    @property
    def num_gains(self) -> int:
        """N_G: tokens per number."""
        return len(self.gains) if self.number_encoder == "multiscale" else 1

    @property
    def tokens_per_image(self) -> int:
        """N_E: every section of the ResNet halves both sides, rounding up."""
        halvings: int = 2 ** len(self.image_channels)
        return math.ceil(self.image_height / halvings) * math.ceil(self.image_width / halvings)


# A size is a row: overrides of ModelConfig. The paper's five are exact to its counts (docs/paper.md); the three below
# them keep its shape, with narrow tokens, a thin ResNet and a small vocabulary, for CPUs, tests and scaling studies.
_small: dict[str, Any] = {"vocabulary_size": 512, "image_blocks": 1, "gains": (0.25, 0.5, 1.0, 2.0)}
SIZES: dict[str, dict[str, Any]] = {
    "nano": _small
    | {"latent_width": 64, "num_blocks": 2, "widening": 2, "num_heads": 4, "token_width": 32, "query_width": 64}
    | {"num_latents": 16, "image_channels": (8, 16, 16)},
    "micro": _small
    | {"latent_width": 192, "num_blocks": 4, "widening": 2, "num_heads": 4, "token_width": 64, "query_width": 128}
    | {"image_channels": (16, 32, 32)},
    "tiny": _small
    | {"latent_width": 384, "num_blocks": 4, "widening": 2, "token_width": 128, "query_width": 256}
    | {"image_channels": (16, 32, 32)},
    "XXS": {"latent_width": 768, "num_blocks": 4, "widening": 1},
    "XS": {"latent_width": 1024, "num_blocks": 8, "widening": 1},
    "S": {"latent_width": 1280, "num_blocks": 10, "widening": 2},
    "M": {"latent_width": 1536, "num_blocks": 12, "widening": 4},
    "L": {"latent_width": 2048, "num_blocks": 18, "widening": 4},
}


def model_config(size: str, **overrides: Any) -> ModelConfig:
    """The configuration of a size in the table, with any field overridden."""
    if size not in SIZES:
        raise ValueError(f"Unknown model size {size!r}.{suggest(size, SIZES)}")
    return override(ModelConfig(**SIZES[size]), overrides)


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """How a batch becomes a loss. The weights alpha and beta belong to datasets and ride in the `Batch`; so does gamma
    where a dataset has its own.
    """

    critic: Literal["q", "v", "none"] = "q"  # PAC's Q, PAC+V's V, or cloning alone
    improve: bool = True  # False leaves out the RL term: filtered BC and BC+Q, where alpha is 1 everywhere
    discount: float = 0.99  # gamma of datasets that do not give their own; not stated in the paper
    reward_scale: float | None = None  # None: 1 - discount, so that values span the range of the rewards
    projection: Projection = "two-hot"
    # Rewards in a target before the critic's word; None: all that the window holds. The paper reads trajectories of
    # five steps and does not say what for; with 1, what the critic overrates adds up step by step (docs/log.md).
    num_steps: int | None = None
    # What comes after a window: 0 the critic's word, as in the paper; 1 what the log earned there, as far as it is
    # known. Better where a fault lasts an episode, worse where faults change within it (docs/log.md).
    logged_returns: float = 0.0
    num_samples: int = 10  # N: actions drawn from the reference policy
    # eta. None follows the batch: for Q by MPO's dual, so that the weights' mean KL to uniform is `epsilon`; for V
    # half the standard deviation of the advantages. The paper gives 1e-4 for PAC+V and nothing for PAC.
    temperature: float | None = None
    epsilon: float = 0.1
    max_weight: float = 20.0  # PAC+V: bound on exp(advantage / eta), which overflows float32 otherwise
    behaviour: Literal["constant", "learned"] = "constant"  # PAC+V: b(a|s) of the importance ratio pi/b
    max_ratio: float = 1.0  # PAC+V: bound on pi/b

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.discount < 1:
            raise ValueError(f"ObjectiveConfig.discount: expected a number in [0, 1), found {self.discount}.")
        if not 0 <= self.logged_returns <= 1:
            raise ValueError(
                f"ObjectiveConfig.logged_returns: expected a number in [0, 1], found {self.logged_returns}."
            )
        for name in ("num_samples", "num_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"ObjectiveConfig.{name}: expected at least 1, found {value}.")
        for name in ("reward_scale", "temperature", "epsilon", "max_weight", "max_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"ObjectiveConfig.{name}: expected a positive number, found {value}.")
        if self.improve and self.critic == "none":
            raise ValueError(
                "ObjectiveConfig: improve=true needs a critic; set critic to 'q' or 'v', or improve=false."
            )

    @property
    def applied_reward_scale(self) -> float:
        return 1 - self.discount if self.reward_scale is None else self.reward_scale


def override(config: T, changes: Mapping[str, Any]) -> T:
    """A copy of `config` with fields replaced; an unknown field is an error that names the nearest one."""
    known = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            raise ValueError(f"{type(config).__name__} has no field {name!r}.{suggest(name, known)}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def parse_overrides(assignments: list[str]) -> dict[str, Any]:
    """`["latent_width=512", "number_encoder='linear'"]` -> values, each read as TOML, or as a bare word."""
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
    """The end of an error about an unknown name."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Choose from: {', '.join(choices)}."


def check_types(config: Any) -> None:
    """Raise if a field of a config dataclass does not hold what its annotation says."""
    for name, wanted in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not _fits(value, wanted):
            text = getattr(wanted, "__name__", str(wanted)) if not typing.get_args(wanted) else str(wanted)
            raise ValueError(
                f"{type(config).__name__}.{name}: expected {text.replace('typing.', '')}, found {value!r} "
                f"({type(value).__name__})."
            )


def _fits(value: Any, wanted: Any) -> bool:
    origin, choices = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in choices)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, choices[0]) for item in value)
    if choices:  # a union
        return any(_fits(value, choice) for choice in choices)
    if wanted is float:
        return type(value) in (int, float) and math.isfinite(value)
    if wanted is int:
        return type(value) is int
    return isinstance(value, wanted)
