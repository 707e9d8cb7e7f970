"""Decoders: queries -> cross-attention to the latents -> bin logits (paper, Policy and Value Decoding).

A decoder has no residual and no MLP (docs/paper.md). A query attends to the latents alone, so one queried action
cannot affect the value of another.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pac.model.attention import Attention, full_precision
from pac.model.config import ModelConfig
from pac.model.encoders import MultiScaleEncoder, number_encoder
from pac.model.kernels.split import split_bf16_matmul


class Decoder(nn.Module):
    """Cross-attention from queries to the latents, and a linear head."""

    def __init__(self, config: ModelConfig, num_bins: int) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(config.query_width)
        self.source_norm = nn.LayerNorm(config.latent_width)
        self.attention = Attention(config.query_width, config.latent_width, config.latent_width, config.num_heads)
        self.head = nn.Linear(config.latent_width, num_bins)

    def forward(
        self, query: Float[Tensor, "#batch query query_width"], latents: Float[Tensor, "batch latent width"]
    ) -> Float[Tensor, "batch query bins"]:
        output = self.attention(self.query_norm(query), self.source_norm(latents))
        # bfloat16 rounds a logit of 8 by up to 0.03. Values of two actions may differ by less.
        with full_precision(output):
            if output.is_cuda and output.dtype == torch.bfloat16:
                return split_bf16_matmul(output, self.head.weight.float()) + self.head.bias.float()
            return F.linear(output.float(), self.head.weight.float(), self.head.bias.float())


class LearnedQueries(nn.Module):
    """Decoder with learned queries: one per action dimension for a policy, one for the value of a state."""

    def __init__(self, config: ModelConfig, num_queries: int, num_bins: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(num_queries, config.query_width))
        self.decoder = Decoder(config, num_bins)

    def forward(
        self, latents: Float[Tensor, "batch latent width"], num_queries: int | None = None
    ) -> Float[Tensor, "batch query bins"]:
        return self.decoder(self.queries[None, :num_queries], latents)


class ActionEncoder(nn.Module):
    """Action encoder (phi^A): an action -> one query vector.

    The paper has two linear maps with a pooling between them (docs/paper.md). A sum over tokens loses the dimension of
    each number. Adding a token embedding first would only add a constant to the sum. So the embedding multiplies the
    token: the result is a linear map of all tokens with as many parameters.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.query_width
        self.num_gains = config.num_gains
        self.numbers = number_encoder(config, width)
        self.identity = nn.Parameter(torch.empty(config.num_actions * config.num_gains, width))
        self.mix = nn.Linear(width, width)

    def forward(
        self, actions: Float[Tensor, "batch sample action"], mask: Bool[Tensor, "batch action"]
    ) -> Float[Tensor, "batch sample query_width"]:
        actions = actions.masked_fill(~mask[:, None], 0)
        identity = self.identity[: actions.shape[-1] * self.num_gains]
        present = mask.to(identity.dtype).repeat_interleave(self.num_gains, dim=-1)
        if isinstance(self.numbers, MultiScaleEncoder):  # sum_i m_i (t_i w + b) * e_i without the tokens
            scalars = self.numbers.scalars(actions).to(identity.dtype) * present[:, None]
            bias = self.numbers.linear.bias * (present @ identity)
            pooled = (scalars @ identity) * self.numbers.direction + bias[:, None]
        else:
            content = self.numbers(actions) * present[:, None, :, None]
            pooled = torch.einsum("bsiw,iw->bsw", content, identity)
        count = present.sum(-1).clamp(min=1)
        return self.mix(pooled * count.rsqrt()[:, None, None])


class ActionQueries(nn.Module):
    """Decoder of Q values. Each action is a query, and any number of actions may query the same latents."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.action = ActionEncoder(config)
        self.decoder = Decoder(config, config.num_value_bins)

    def forward(
        self,
        latents: Float[Tensor, "batch latent width"],
        actions: Float[Tensor, "batch sample action"],
        mask: Bool[Tensor, "batch action"],
    ) -> Float[Tensor, "batch sample bins"]:
        return self.decoder(self.action(actions, mask), latents)
