"""Encoders: an `Observation` -> tokens and masks for each modality (paper, Observation Encoding).

Masked inputs become zero before anything is computed from them, so not even a NaN gets through.
"""

import itertools
import math

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pac.model.config import ModelConfig
from pac.model.tokens import AnyTokens, ScalarTokens, Tokens
from pac.types import Observation


class MultiScaleEncoder(nn.Module):
    """The paper's multi-scale normaliser: tanh(gain * x) for each gain, then one shared Linear(1 -> width)."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, width)
        self.register_buffer("gains", torch.tensor(config.gains, dtype=torch.float32), persistent=False)
        self.gains: Tensor

    @property
    def direction(self) -> Float[Tensor, " width"]:
        return self.linear.weight[:, 0]

    def scalars(self, values: Float[Tensor, "*shape number"]) -> Float[Tensor, "*shape token"]:
        """Return one scalar per token, ordered by number, then gain. They are float32: 1e-4 and 1e3 both matter."""
        return torch.tanh(values.float()[..., None] * self.gains.float()).flatten(-2)


class LinearEncoder(nn.Module):
    """Ablation: Linear(1 -> width) and a layer norm for each number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, values: Float[Tensor, "*shape number"]) -> Float[Tensor, "*shape number width"]:
        return self.norm(self.linear(values.to(self.linear.weight.dtype)[..., None]))


class MuLawEncoder(nn.Module):
    """Ablation: mu-law companding into bins, each with a learned embedding (Reed et al., 2022)."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(config.mu_law_bins, width)
        self.mu, self.largest = config.mu_law_mu, config.mu_law_range

    def bins(self, values: Float[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Return the bin of sign(x) log(1 + mu |x|) / log(1 + mu range), clipped to [-1, 1]."""
        values = values.float()
        squashed = values.sign() * torch.log1p(self.mu * values.abs()) / math.log1p(self.mu * self.largest)
        count = self.table.num_embeddings
        return ((squashed.clamp(-1, 1) + 1) / 2 * count).long().clamp(max=count - 1)

    def forward(self, values: Float[Tensor, "*shape number"]) -> Float[Tensor, "*shape number width"]:
        return self.table(self.bins(values))


Numbers = Float[Tensor, "batch number"]
NumberMask = Bool[Tensor, "batch number"]
Positions = Float[Tensor, "token width"]
NumberEncoder = MultiScaleEncoder | LinearEncoder | MuLawEncoder


def number_encoder(config: ModelConfig, width: int) -> NumberEncoder:
    if config.number_encoder == "multiscale":
        return MultiScaleEncoder(config, width)
    return LinearEncoder(width) if config.number_encoder == "linear" else MuLawEncoder(config, width)


def number_tokens(encoder: NumberEncoder, values: Numbers, mask: NumberMask, positions: Positions) -> AnyTokens:
    """Return the tokens of numbers. `positions` are learned embeddings, one per number and gain."""
    values = values.masked_fill(~mask, 0)
    if isinstance(encoder, MultiScaleEncoder):
        mask = mask.repeat_interleave(len(encoder.gains), dim=-1)
        return ScalarTokens(encoder.scalars(values), encoder.direction, encoder.linear.bias + positions, mask)
    return Tokens(encoder(values) + positions, mask)


IMAGE_STD = 0.05  # of an image token's entries


class ImageEncoder(nn.Module):
    """ResNet of IMPALA (Espeholt et al., 2018) without its last layer. Each position of the last map is a token.

    Feature maps are large and grow in training. Position embeddings, which tell cameras and places apart, would not
    matter beside them. So tokens are normalised to about the size of an embedding (docs/log.md).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        channels = (3, *config.image_channels)
        self.stages = nn.ModuleList(
            Stage(inner, outer, config.image_blocks) for inner, outer in itertools.pairwise(channels)
        )
        self.project = nn.Linear(channels[-1], config.token_width)

    def forward(self, images: UInt8[Tensor, "image rows columns 3"]) -> Float[Tensor, "image token width"]:
        features = images.permute(0, 3, 1, 2).to(self.project.weight.dtype) / 127.5 - 1
        for stage in self.stages:
            features = stage(features)
        tokens = self.project(F.relu(features).flatten(2).transpose(1, 2))
        return F.layer_norm(tokens, tokens.shape[-1:]) * IMAGE_STD


class Stage(nn.Module):
    """Stage of the ResNet: a convolution, pooling that halves both sides, residual blocks."""

    def __init__(self, inner: int, outer: int, num_blocks: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(outer, outer, 3, padding=1), nn.ReLU(), nn.Conv2d(outer, outer, 3, padding=1)
            )
            for _ in range(num_blocks)
        )

    def forward(self, features: Float[Tensor, "image inner h w"]) -> Float[Tensor, "image outer h2 w2"]:
        features = F.max_pool2d(self.conv(features), 3, stride=2, padding=1)
        for block in self.blocks:
            features = features + block(features)
        return features


class InputEncoder(nn.Module):
    """Encoders of all modalities, with a learned position embedding per token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.token_width
        self.proprio = number_encoder(config, width)
        self.image = ImageEncoder(config)
        self.text = nn.Embedding(config.vocabulary_size, width)
        self.num_tokens = [  # proprioception, cameras, goal images, text
            config.num_proprio * config.num_gains,
            config.num_cameras * config.tokens_per_image,
            config.num_goal_images * config.tokens_per_image,
            config.num_text_tokens,
        ]
        self.positions = nn.Parameter(torch.empty(sum(self.num_tokens), width))

    def forward(self, observation: Observation) -> list[AnyTokens]:
        check_observation(observation, self.config)
        proprio, cameras, goals, text = self.positions.split(self.num_tokens)
        groups = [
            self.proprio_tokens(observation, proprio),
            self.image_tokens(observation.images, observation.camera_slots, observation.camera_mask, cameras),
            self.image_tokens(observation.goal_images, observation.goal_slots, observation.goal_mask, goals),
            self.text_tokens(observation, text),
        ]
        return [group for group in groups if group.mask.shape[1]]

    def proprio_tokens(self, observation: Observation, positions: Positions) -> AnyTokens:
        values = observation.proprio
        if self.config.proprio_scaling != "raw":
            values = values - observation.proprio_centre
        if self.config.proprio_scaling == "standardise":
            values = values / observation.proprio_scale
        used = positions[: values.shape[1] * self.config.num_gains]
        return number_tokens(self.proprio, values, observation.proprio_mask, used)

    def image_tokens(
        self,
        images: UInt8[Tensor, "batch image rows columns 3"],
        slots: Int64[Tensor, "batch image"],
        mask: Bool[Tensor, "batch image"],
        positions: Positions,
    ) -> Tokens:
        batch, count = mask.shape
        per_image, width = self.config.tokens_per_image, self.config.token_width
        if count == 0:
            return Tokens(positions.new_zeros(batch, 0, width), mask)
        places = positions.view(-1, per_image, width)[slots.masked_fill(~mask, 0)]
        embedded = self.image(images.flatten(0, 1)).view(batch, count, per_image, width) + places
        return Tokens(embedded.flatten(1, 2), mask.repeat_interleave(per_image, dim=1))

    def text_tokens(self, observation: Observation, positions: Positions) -> Tokens:
        mask = observation.text_mask
        embedded = self.text(observation.text.masked_fill(~mask, 0)) + positions[: mask.shape[1]]
        return Tokens(embedded, mask)


def check_observation(observation: Observation, config: ModelConfig) -> None:
    """Raise if an observation does not fit the model. Values are checked on the CPU only."""
    if len(observation.batch_shape) != 1:
        raise ValueError(
            "PAC.encode: expected one batch axis, found leading axes "
            f"{tuple(observation.batch_shape)}. Call observation.flatten() first."
        )
    limits = {
        "proprio": (observation.proprio, torch.float32, "num_proprio"),
        "images": (observation.images, torch.uint8, "num_cameras"),
        "goal_images": (observation.goal_images, torch.uint8, "num_goal_images"),
        "text": (observation.text, torch.int64, "num_text_tokens"),
    }
    for name, (values, dtype, option) in limits.items():
        if values.dtype != dtype:
            raise ValueError(f"Observation.{name}: expected dtype {dtype}, found {values.dtype}.")
        if values.shape[1] > getattr(config, option):
            raise ValueError(
                f"Observation.{name}: expected at most {getattr(config, option)} entries per row, found "
                f"{values.shape[1]}. Build the model with {option}={values.shape[1]}, or leave out what no row uses."
            )
    for name, images in {"images": observation.images, "goal_images": observation.goal_images}.items():
        expected, found = (config.image_height, config.image_width), tuple(images.shape[2:4])
        if images.shape[1] and found != expected:
            raise ValueError(
                f"Observation.{name}: expected images of {expected[0]}x{expected[1]}, found {found[0]}x{found[1]}. "
                "Resize them, or build the model with image_height and image_width to match."
            )
    if observation.proprio.device.type != "cpu" or torch.compiler.is_compiling():
        return
    ids_of = {
        "text": (observation.text, observation.text_mask, "vocabulary_size"),
        "camera_slots": (observation.camera_slots, observation.camera_mask, "num_cameras"),
        "goal_slots": (observation.goal_slots, observation.goal_mask, "num_goal_images"),
    }
    for name, (ids, mask, option) in ids_of.items():
        count = getattr(config, option)
        wrong = mask & ((ids < 0) | (ids >= count))
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"Observation.{name}: expected ids from 0 to {count - 1} ({option}={count}), found "
                f"{int(ids[row, column])} in row {row}, column {column}."
            )
