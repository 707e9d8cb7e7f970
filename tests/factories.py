"""Small models and random observations for the tests."""

from typing import Any

import torch
from torch import Tensor

from pac.model import PAC
from pac.model.config import ModelConfig, model_config
from pac.types import Batch, Observation

SMALL: dict[str, Any] = {
    "latent_width": 16,
    "num_blocks": 1,
    "num_heads": 2,
    "num_latents": 4,
    "token_width": 8,
    "query_width": 16,
    "num_proprio": 6,
    "num_cameras": 3,
    "num_goal_images": 2,
    "num_text_tokens": 5,
    "num_actions": 4,
    "vocabulary_size": 20,
    "image_height": 16,
    "image_width": 16,
    "image_channels": (4, 4),
    "num_action_bins": 11,
    "num_value_bins": 21,
    "v_head": True,
    "behaviour_head": True,
}


def small_config(**overrides: Any) -> ModelConfig:
    return model_config("nano", **(SMALL | overrides))


def small_model(seed: int = 0, **overrides: Any) -> PAC:
    """A little model whose heads are not almost flat, so that differences show."""
    torch.manual_seed(seed)
    model = PAC(small_config(**overrides))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "head.weight" in name:
                parameter.normal_()
    return model.double() if overrides.pop("double", False) else model


def random_mask(*shape: int, generator: torch.Generator | None = None) -> Tensor:
    return torch.rand(*shape, generator=generator) < 0.6


def random_observation(config: ModelConfig, *batch: int, seed: int = 0, masks: bool = True) -> Observation:
    """Fully padded, with random masks; what is masked holds garbage."""
    g = torch.Generator().manual_seed(seed)
    size = (config.image_height, config.image_width, 3)

    def pictures(count: int) -> Tensor:
        return torch.randint(0, 256, (*batch, count, *size), generator=g).to(torch.uint8)

    given = {}
    if masks:
        given = {
            "proprio_mask": random_mask(*batch, config.num_proprio, generator=g),
            "camera_mask": random_mask(*batch, config.num_cameras, generator=g),
            "goal_mask": random_mask(*batch, config.num_goal_images, generator=g),
            "text_mask": random_mask(*batch, config.num_text_tokens, generator=g),
        }
    proprio = torch.randn(*batch, config.num_proprio, generator=g)
    return Observation.of(
        proprio,
        images=pictures(config.num_cameras),
        goal_images=pictures(config.num_goal_images),
        text=torch.randint(0, config.vocabulary_size, (*batch, config.num_text_tokens), generator=g),
        proprio_centre=torch.randn(*batch, config.num_proprio, generator=g),
        proprio_scale=torch.rand(*batch, config.num_proprio, generator=g) + 0.5,
        **given,
    )


def random_batch(config: ModelConfig, batch: int = 3, time: int = 2, seed: int = 0, **given: Tensor) -> Batch:
    g = torch.Generator().manual_seed(seed + 1)
    shape = (batch, time, config.num_actions)
    fields = {
        "observation": random_observation(config, batch, time + 1, seed=seed),
        "action": torch.rand(shape, generator=g) * 2 - 1,
        "action_mask": torch.ones(shape, dtype=torch.bool),
        "reward": torch.rand(batch, time, generator=g) * 0.01,  # its returns lie in [0, 1]
        "discount": torch.ones(batch, time),
        "mask": torch.ones(batch, time, dtype=torch.bool),
        "imitation_weight": torch.full((batch,), 0.5),
        "critic_weight": torch.full((batch,), 2.0),
        "gamma": torch.full((batch,), 0.99),
        "row": torch.arange(batch),
        "return_to_go": torch.zeros(batch),
        "return_to_go_weight": torch.zeros(batch),
    }
    return Batch(**(fields | given))


def trim(observation: Observation) -> Observation:
    """Drop what no row holds: dimensions and text past the last real one, images past the fullest row.

    Each row's images move to the front and keep their slots.
    """
    width, length = used(observation.proprio_mask), used(observation.text_mask)
    cameras, goals = real_first(observation.camera_mask), real_first(observation.goal_mask)
    changed = {n: getattr(observation, n)[..., :width] for n in vars(observation) if n.startswith("proprio")}
    changed |= {name: getattr(observation, name)[..., :length] for name in ("text", "text_mask")}
    for images, kind, index in (("images", "camera", cameras), ("goal_images", "goal", goals)):
        values = getattr(observation, images)
        size = values.shape[-3:]
        changed[images] = values.gather(-4, index[..., None, None, None].expand(*index.shape, *size))
        for name in (f"{kind}_slots", f"{kind}_mask"):
            changed[name] = getattr(observation, name).gather(-1, index)
    return Observation(**changed)


def used(mask: Tensor) -> int:
    """Return the length up to and including the last entry that is real in any row."""
    present = mask.reshape(-1, mask.shape[-1]).any(0).nonzero()
    return int(present[-1, 0]) + 1 if len(present) else 0


def real_first(mask: Tensor) -> Tensor:
    """Return indices that move each row's real entries to the front, cut at the fullest row."""
    kept = int(mask.sum(-1).max()) if mask.numel() else 0
    return torch.argsort(~mask, dim=-1, stable=True)[..., :kept]
