"""The shape of a model: `ModelConfig`, and the table of sizes.

Paper symbols stand in the comments. Derived values are properties.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from pac.bins import Bins
from pac.config import check_types, override, suggest


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
        check_types(self, "model")
        zero_allowed = {"num_cameras", "num_goal_images", "num_text_tokens"}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < (0 if field.name in zero_allowed else 1):
                raise ValueError(f"model.{field.name}: expected a positive whole number, found {value}.")
        if self.latent_width % self.num_heads:
            raise ValueError(
                f"model: expected latent_width to be a multiple of num_heads, found {self.latent_width} and "
                f"{self.num_heads}. Change either."
            )
        if not self.gains or min(self.gains) <= 0:
            raise ValueError(f"model.gains: expected at least one gain, all positive, found {self.gains}.")
        if self.mu_law_mu <= 0 or self.mu_law_range <= 0 or self.mu_law_bins < 2:
            raise ValueError(
                "model: expected mu_law_mu and mu_law_range positive and mu_law_bins at least 2, found "
                f"{self.mu_law_mu}, {self.mu_law_range} and {self.mu_law_bins}."
            )
        if self.initial_value is not None and not self.value_min <= self.initial_value <= self.value_max:
            raise ValueError(
                f"model.initial_value: expected a value in [{self.value_min}, {self.value_max}], found "
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
