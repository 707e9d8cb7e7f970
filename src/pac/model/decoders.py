"""Decoders: queries -> cross-attention into the latents -> bin logits (paper, Policy and Value Decoding).

A decoder has no residual and no MLP (docs/paper.md): its queries see the latents and nothing else, so that one queried
action cannot affect another's value.
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
        # bfloat16 would round a logit of 8 by 0.03, and so a value by as much as one action is worth more than another.
        with full_precision(output):
            if output.is_cuda and output.dtype == torch.bfloat16:
                return split_bf16_matmul(output, self.head.weight.float()) + self.head.bias.float()
            return F.linear(output.float(), self.head.weight.float(), self.head.bias.float())


class LearnedQueries(nn.Module):
    """A decoder whose queries are parameters: one an action dimension for a policy, one for a state's value."""

    def __init__(self, config: ModelConfig, num_queries: int, num_bins: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(num_queries, config.query_width))
        self.decoder = Decoder(config, num_bins)

    def forward(
        self, latents: Float[Tensor, "batch latent width"], num_queries: int | None = None
    ) -> Float[Tensor, "batch query bins"]:
        return self.decoder(self.queries[None, :num_queries], latents)


class ActionEncoder(nn.Module):
    """phi^A: an action -> one query vector.

    The paper's two linear maps with a pooling between them (docs/paper.md). A sum over tokens forgets which
    dimension a number came from, and *adding* a token embedding before the sum does not help: it moves the result by
    a constant. So each token's embedding multiplies its content: as many parameters, and a linear map of all tokens.
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
        if isinstance(self.numbers, MultiScaleEncoder):  # sum_i m_i (t_i w + b) * e_i, without making the tokens
            scalars = self.numbers.scalars(actions).to(identity.dtype) * present[:, None]
            bias = self.numbers.linear.bias * (present @ identity)
            pooled = (scalars @ identity) * self.numbers.direction + bias[:, None]
        else:
            content = self.numbers(actions) * present[:, None, :, None]
            pooled = torch.einsum("bsiw,iw->bsw", content, identity)
        count = present.sum(-1).clamp(min=1)
        return self.mix(pooled * count.rsqrt()[:, None, None])


class ActionQueries(nn.Module):
    """The Q decoder: the action is the query, and any number of actions may ask the same latents."""

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
