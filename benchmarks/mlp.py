"""Train an MLP in place of the Perceiver, to tell what the architecture contributes.

    python benchmarks/mlp.py study/poor --out runs/mlp        # any study of `pac study`, with its options

It reads standardised proprioception as it is, and its critic reads state and action side by side. One task a model
(`study.each`), no images, no language. The runs' checkpoints are the MLP's: `pac evaluate` cannot load them.
"""

import sys

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import pac.training.trainer
from pac import cli
from pac.model import Encoded
from pac.model.config import ModelConfig
from pac.types import Observation

HIDDEN = 256


def small_net(inputs: int, outputs: int) -> nn.Sequential:
    net = nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, outputs)
    )
    with torch.no_grad():
        net[-1].weight.mul_(0.01)  # type: ignore[operator]
        net[-1].bias.zero_()  # type: ignore[operator]
    return net


class MLPActorCritic(nn.Module):
    """Policy, Q and V. Each is a network with two hidden layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.policy = small_net(config.num_proprio, config.num_actions * config.num_action_bins)
        self.q = small_net(config.num_proprio + config.num_actions, config.num_value_bins)
        self.v = small_net(config.num_proprio, config.num_value_bins)
        if config.initial_value is not None:
            with torch.no_grad():
                for net in (self.q, self.v):
                    net[-1].bias.copy_(config.value_bins.logits_near(config.initial_value))  # type: ignore[operator]

    def encode(self, observation: Observation) -> Encoded:
        values = (observation.proprio - observation.proprio_centre) / observation.proprio_scale
        return Encoded(values.masked_fill(~observation.proprio_mask, 0).clamp(-10, 10)[:, None])

    def policy_logits(self, encoded: Encoded, num_actions: int | None = None) -> Float[Tensor, "batch action bins"]:
        logits: Tensor = self.policy(encoded.latents[:, 0])
        return logits.float().unflatten(-1, (-1, self.config.num_action_bins))[:, :num_actions]

    def q_logits(
        self, encoded: Encoded, actions: Float[Tensor, "batch sample action"], mask: Bool[Tensor, "batch action"]
    ) -> Float[Tensor, "batch sample bins"]:
        state = encoded.latents.expand(-1, actions.shape[1], -1)
        logits: Tensor = self.q(torch.cat([state, actions.masked_fill(~mask[:, None], 0)], -1))
        return logits.float()

    def v_logits(self, encoded: Encoded) -> Float[Tensor, "batch bins"]:
        logits: Tensor = self.v(encoded.latents[:, 0])
        return logits.float()


if __name__ in ("__main__", "__mp_main__"):  # the second in the processes of the runs, which load this file again
    vars(pac.training.trainer)["PAC"] = MLPActorCritic
if __name__ == "__main__":
    sys.exit(cli.main(["study", *sys.argv[1:]]))
