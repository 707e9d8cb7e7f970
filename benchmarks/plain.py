"""The plain baseline: a padded PAC update as one would write it in an afternoon, to divide our times by.

Every batch is padded to the largest inputs (223 numbers, that is 1,784 tokens, 50 of text, 38 action dimensions, and
all 8 images if it holds any); each token is written out, normalised and projected to its key and value; attention
is PyTorch's, with a mask, and autocast decides what is computed in which precision. Weights, heads, objective,
optimiser and compilation are ours, so that what differs is what is measured, and the loss of a batch is the same
(`tests/test_plain.py`).
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from pac.config import ObjectiveConfig
from pac.model import PAC
from pac.model.attention import Attention
from pac.model.config import ModelConfig
from pac.model.input_attention import InputAttention
from pac.model.tokens import AnyTokens
from pac.objectives import loss
from pac.types import Batch, Observation


class PlainPAC(PAC):
    """The same model without shared tables, kernels or reduced precision of ours."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        for module in self.modules():
            if isinstance(module, (Attention, InputAttention)):
                module.fast = False

    def _latent_blocks(self, tokens: tuple[AnyTokens, ...], num_rows: int) -> Float[Tensor, "batch latent width"]:
        return super()._latent_blocks(tuple(group.dense() for group in tokens), num_rows)


def pad(batch: Batch, config: ModelConfig) -> Batch:
    """Return the batch padded to the model's largest sizes. Padding is masked."""
    return dataclasses.replace(
        batch,
        observation=pad_observation(batch.observation, config),
        action=lengthened(batch.action, config.num_actions),
        action_mask=lengthened(batch.action_mask, config.num_actions),
    )


def pad_observation(seen: Observation, config: ModelConfig) -> Observation:
    numbers = ("proprio", "proprio_mask", "proprio_centre", "proprio_scale")
    sizes = dict.fromkeys(numbers, config.num_proprio) | dict.fromkeys(("text", "text_mask"), config.num_text_tokens)
    if seen.images.shape[-4] or seen.goal_images.shape[-4]:
        sizes |= dict.fromkeys(("camera_slots", "camera_mask"), config.num_cameras)
        sizes |= dict.fromkeys(("goal_slots", "goal_mask"), config.num_goal_images)
        seen = dataclasses.replace(
            seen,
            images=padded_images(seen.images, config, "camera"),
            goal_images=padded_images(seen.goal_images, config, "goal"),
        )
    fields = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    return Observation(**fields | {name: lengthened(fields[name], size) for name, size in sizes.items()})


def lengthened(values: Shaped[Tensor, "*shape entry"], size: int) -> Shaped[Tensor, "*shape padded"]:
    return F.pad(values, (0, size - values.shape[-1]))


def padded_images(
    given: Shaped[Tensor, "*shape image rows columns 3"], config: ModelConfig, kind: str
) -> Shaped[Tensor, "*shape padded height width 3"]:
    """Append black images. A batch without images gets the size of the model."""
    count = config.num_cameras if kind == "camera" else config.num_goal_images
    if not given.shape[-4]:
        return given.new_zeros(*given.shape[:-4], count, config.image_height, config.image_width, 3)
    return F.pad(given, (0, 0, 0, 0, 0, 0, 0, count - given.shape[-4]))


def precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


def make_update(model: PAC, batch: Batch, objective: ObjectiveConfig, *, compiled: bool) -> Callable[[], Tensor]:
    """Return one update of a model: loss with its target network, backward, AdamW. It returns the mean loss."""
    target = copy.deepcopy(model).requires_grad_(False)
    device = batch.action.device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    function = torch.compile(loss, fullgraph=True) if compiled else loss

    def update() -> Tensor:
        with precision(device):
            per_example, _ = function(model, target, batch, objective)
        mean = per_example.sum() / batch.mask.sum().clamp(min=1)
        mean.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return mean.detach()

    return update


def plain_update(
    config: ModelConfig, objective: ObjectiveConfig, batch: Batch, *, compiled: bool = True
) -> Callable[[], Tensor]:
    """Return the baseline's update of a new model, on the device of the batch."""
    model = PlainPAC(config).to(batch.action.device)
    return make_update(model, pad(batch, config), objective, compiled=compiled)
