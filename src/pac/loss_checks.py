"""Checks of a model and a batch before their loss is computed (`pac.objectives`)."""

import math

import torch

from pac.config import LARGEST_DISCOUNT, ObjectiveConfig
from pac.model import PAC
from pac.types import Batch


def check_objective(model: PAC, config: ObjectiveConfig) -> None:
    """Raise if the model lacks a head that the objective trains."""
    needed = {"q": ["q_head"], "v": ["v_head"], "none": []}[config.critic]
    if config.critic == "v" and config.behaviour == "learned":
        needed = [*needed, "behaviour_head"]
    for head in needed:
        if not getattr(model.config, head):
            raise ValueError(
                f"Objective with critic={config.critic!r} and behaviour={config.behaviour!r}: expected a model with "
                f"{head}=true, found {head}=false. Set it in the model's configuration."
            )


def check_batch(batch: Batch) -> None:
    """Raise on numbers out of range, which would be clipped in silence. Values are checked on the CPU only."""
    if batch.action.device.type != "cpu" or torch.compiler.is_compiling():
        return
    every = torch.ones_like(batch.imitation_weight, dtype=torch.bool)
    limits = {
        "action": (batch.action_mask, -1.0 - 1e-4, 1.0 + 1e-4, "Normalise actions by their bounds."),
        "reward": (batch.mask, -math.inf, math.inf, "Remove or repair the episode."),
        "discount": (batch.mask, 0.0, 1.0, "It is 0 at a termination and 1 elsewhere, without gamma."),
        "imitation_weight": (every, 0.0, 1.0, "It is alpha, 1 for behaviour cloning and 0 for RL."),
        "critic_weight": (every, 0.0, math.inf, "It is beta, the weight of the critic's loss."),
        "gamma": (every, 0.0, LARGEST_DISCOUNT, "It is the discount factor of the dataset."),
        "return_to_go": (every, -math.inf, math.inf, "Remove or repair the episode."),
        "return_to_go_weight": (every, 0.0, 1.0, "It is the share of the future that the data holds."),
    }
    for name, (mask, low, high, fix) in limits.items():
        values = getattr(batch, name)
        wrong = mask & ~((values >= low) & (values <= high) & values.isfinite())
        if wrong.any():
            where = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"Batch.{name}: expected finite values from {low:.4g} to {high:.4g}, found {values[where].item():.6g} "
                f"at index {where}. {fix}"
            )
