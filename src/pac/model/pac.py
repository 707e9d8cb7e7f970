"""PAC: one Perceiver with a policy and a critic. An observation is encoded once, then decoded as often as needed.

encoded = model.encode(observation)
model.policy_logits(encoded)                    # (batch, action, bins)
model.q_logits(encoded, actions, action_mask)   # (batch, sample, bins), any number of actions per row
model.v_logits(encoded)                         # (batch, bins), with v_head
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pac.model.attention import LatentBlock
from pac.model.config import ModelConfig
from pac.model.decoders import ActionQueries, LearnedQueries
from pac.model.encoders import InputEncoder, MultiScaleEncoder, number_encoder, number_tokens
from pac.model.input_attention import InputAttention
from pac.model.pretrained import load_config, load_weights, write_pretrained
from pac.model.tokens import AnyTokens
from pac.types import Observation, expect_shape


@dataclass(frozen=True, eq=False)
class Encoded:
    """Latents of an encoded batch of observations. The decoders attend to them."""

    latents: Float[Tensor, "batch latent width"]
    tokens: tuple[AnyTokens, ...] = ()  # kept if actions are an input: they are encoded again with each action


class ActionInput(nn.Module):
    """Ablation: the action as additional input tokens, and one learned query for its value."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.numbers = number_encoder(config, config.token_width)
        self.positions = nn.Parameter(torch.empty(config.num_actions * config.num_gains, config.token_width))
        self.value = LearnedQueries(config, 1, config.num_value_bins)
        self.num_gains = config.num_gains

    def tokens(self, actions: Float[Tensor, "batch action"], mask: Bool[Tensor, "batch action"]) -> AnyTokens:
        return number_tokens(self.numbers, actions, mask, self.positions[: mask.shape[1] * self.num_gains])


class PAC(nn.Module):
    """The Perceiver-Actor-Critic."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.inputs = InputEncoder(config)
        self.latents = nn.Parameter(torch.empty(config.num_latents, config.latent_width))
        self.input_attention = InputAttention(config)
        self.blocks = nn.ModuleList(LatentBlock(config) for _ in range(config.num_blocks))
        self.policy = LearnedQueries(config, config.num_actions, config.num_action_bins)
        if config.q_head:
            self.q = ActionInput(config) if config.action_as == "input" else ActionQueries(config)
        if config.v_head:
            self.v = LearnedQueries(config, 1, config.num_value_bins)
        if config.behaviour_head:
            self.behaviour = LearnedQueries(config, config.num_actions, config.num_action_bins)
        initialise(self)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "PAC":
        """Return the model in a run, a checkpoint, or a folder of `save_pretrained`."""
        model = cls(load_config(path)["model"])
        load_weights(model, path)
        return model.eval()

    def save_pretrained(self, path: str | Path, **extra: Any) -> None:
        """Write config.json and model.safetensors into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: x.detach().cpu().contiguous() for name, x in self.state_dict().items()}
        write_pretrained(weights, folder, self.config, extra)

    def encode(self, observation: Observation) -> Encoded:
        tokens = tuple(self.inputs(observation))
        latents = self._latent_blocks(tokens, len(observation.proprio))
        return Encoded(latents, tokens if self.config.action_as == "input" else ())

    def policy_logits(self, encoded: Encoded, num_actions: int | None = None) -> Float[Tensor, "batch action bins"]:
        """Return the logits of each action dimension, or of the first `num_actions` dimensions."""
        self._check_num_actions(num_actions)
        return self.policy(encoded.latents, num_actions)

    def behaviour_logits(self, encoded: Encoded, num_actions: int | None = None) -> Float[Tensor, "batch action bins"]:
        self._check_head("behaviour_head")
        self._check_num_actions(num_actions)
        return self.behaviour(encoded.latents, num_actions)

    def q_logits(
        self,
        encoded: Encoded,
        actions: Float[Tensor, "batch sample action"],
        mask: Bool[Tensor, "batch action"],
    ) -> Float[Tensor, "batch sample bins"]:
        """Return the logits of each action's value. It does not depend on the other actions."""
        self._check_head("q_head")
        self._check_num_actions(actions.shape[-1])
        rows, num_actions = len(encoded.latents), actions.shape[-1]
        expect_shape("PAC.q_logits, actions (batch, sample, action)", actions, (rows, actions.shape[1], num_actions))
        expect_shape("PAC.q_logits, mask (batch, action)", mask, (rows, num_actions))
        if isinstance(self.q, ActionQueries):
            return self.q(encoded.latents, actions, mask)
        samples = actions.shape[1]
        row = torch.arange(rows, device=actions.device).repeat_interleave(samples)
        tokens = [group[row] for group in encoded.tokens]
        tokens.append(self.q.tokens(actions.flatten(0, 1), mask[row]))
        latents = self._latent_blocks(tuple(tokens), rows * samples)
        return self.q.value(latents).view(rows, samples, -1)

    def v_logits(self, encoded: Encoded) -> Float[Tensor, "batch bins"]:
        self._check_head("v_head")
        return self.v(encoded.latents)[:, 0]

    def _latent_blocks(self, tokens: tuple[AnyTokens, ...], num_rows: int) -> Float[Tensor, "batch latent width"]:
        latents: Tensor = self.input_attention(self.latents, tokens, num_rows)
        for block in self.blocks:
            latents = block(latents)
        return latents

    def _check_head(self, name: str) -> None:
        if not getattr(self.config, name):
            raise ValueError(f"This model has no {name.replace('_', ' ')}. Build it with {name}=True.")

    def _check_num_actions(self, found: int | None) -> None:
        if found is not None and not 0 < found <= self.config.num_actions:
            raise ValueError(
                f"PAC: expected from 1 to {self.config.num_actions} action dimensions, found {found}. Build the model "
                f"with num_actions={found}, or cut the padding."
            )


QUERY_GAIN = 3.0  # about the standard deviation of a latent's initial scores for the input tokens
EMBEDDING_STD = 0.02
NUMBER_STD = 0.06


def initialise(model: PAC) -> None:
    """Draw initial weights with which training starts fast (docs/log.md measures each choice).

    - The token of a number t is t * w + c. w starts larger than c, because a layer norm follows and would hide t.
    - Biases start at zero, so that tokens differ from the start.
    - Embeddings that a norm follows start small: their direction then changes fast.
    - The queries of the latents are scaled up, so that each attends to a few tokens, not to the average of all.
    - Heads start almost uniform. Value heads start near `initial_value`.
    """
    config = model.config
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD)
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last in ("positions", "queries", "latents"):
            nn.init.normal_(parameter, std=EMBEDDING_STD)
        elif last == "identity":  # multiplies content: see ActionEncoder
            nn.init.normal_(parameter)
    for name, module in model.named_modules():
        if isinstance(module, MultiScaleEncoder):
            nn.init.normal_(module.linear.weight, std=1.0 if name == "q.action.numbers" else NUMBER_STD)
    depth_scale = (2 * config.num_blocks) ** -0.5
    with torch.no_grad():
        model.input_attention.attention.query.weight.mul_(QUERY_GAIN)
        for name, module in model.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            if name.startswith("blocks.") and name.endswith(("attention.out", "mlp.2")):
                module.weight.mul_(depth_scale)
            elif name.endswith("decoder.head"):
                module.weight.mul_(0.01)
                if name.startswith(("q.", "v.")) and config.initial_value is not None:
                    module.bias.copy_(config.value_bins.logits_near(config.initial_value))


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
