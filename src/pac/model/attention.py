"""Multi-head attention, and the self-attention blocks on the latents.

Blocks are pre-normalised as in Perceiver IO (Jaegle et al., 2022). Keys and values are as wide as the latents
(docs/paper.md). Queries that all rows share have a batch axis of 1 and are projected once.
"""

import contextlib
import importlib.util
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pac.model.config import ModelConfig

TRITON = importlib.util.find_spec("triton") is not None  # PyTorch for CPUs lacks it
if TRITON:
    from pac.model.kernels import latent as latent_kernels

KERNELS = True  # a benchmark or a test may turn them off


class Attention(nn.Module):
    """Multi-head attention from `query` to `source`, without normalisation or residual."""

    fast = True  # use our kernels and fused products; benchmarks/plain.py does not

    def __init__(self, query_width: int, source_width: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(query_width, width)
        self.key = nn.Linear(source_width, width)
        self.value = nn.Linear(source_width, width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        query: Float[Tensor, "#batch query query_width"],
        source: Float[Tensor, "batch token source_width"],
        mask: Bool[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch query width"]:
        fast = self.fast and mask is None
        if query is source and self.fast and on_gpu(source):
            # One matrix product in place of three, and one for the gradient of the source.
            parts = self.query, self.key, self.value
            packed = F.linear(source, torch.cat([x.weight for x in parts]), torch.cat([x.bias for x in parts]))
            query, key, value = packed.chunk(3, -1)
            if fast and use_kernels(query, key, self.num_heads):
                return self.out(latent_kernels.attend_together(packed, self.num_heads))
        else:
            query, key, value = self.query(query), self.key(source), self.value(source)
            if fast and use_kernels(query, key, self.num_heads):
                return self.out(latent_kernels.attend_latents(query, key, value, self.num_heads))
        heads = [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (query, key, value)]
        heads[0] = heads[0].expand(len(source), -1, -1, -1)
        return self.out(attend(heads[0], heads[1], heads[2], mask).transpose(1, 2).flatten(2))


def attend(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch head token width"],
    value: Float[Tensor, "batch head token width"],
    mask: Bool[Tensor, "batch token"] | None,
) -> Float[Tensor, "batch head query width"]:
    """Return softmax attention over the real tokens. A row without any gives zeros, not an average of padding."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    if mask.shape[1] == 0:
        return torch.zeros_like(query)
    some = mask.any(-1, keepdim=True)
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=(mask | ~some)[:, None, None, :])
    return result * some[:, :, None, None]


def on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU. On CPUs a fused product gains little, and would change the rounding."""
    return x.is_cuda


def use_kernels(query: Tensor, key: Tensor, num_heads: int) -> bool:
    """Return whether kernels/latent.py replaces `attend`: few tokens, bfloat16, and a GPU with large shared memory."""
    fast = KERNELS and TRITON and query.is_cuda and query.dtype == torch.bfloat16
    return fast and has_large_smem(query.device.index) and latent_kernels.fits(query, key, num_heads)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def has_large_smem(card: int) -> bool:
    """Return whether a GPU has the shared memory that our tiles need, as an H100 or a B200 does."""
    return torch.cuda.get_device_capability(card)[0] in (9, 10)


def cast_residual(latents: Tensor) -> Tensor:
    """Return the residual stream in the dtype of autocast's products.

    Autocast would keep float32, which doubles the bytes of each norm and sum for little accuracy (docs/performance.md).
    """
    kind = latents.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return latents
    return latents.to(torch.get_autocast_dtype(kind))


class MLP(nn.Sequential):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, widening: int) -> None:
        super().__init__(nn.Linear(width, widening * width), nn.GELU(), nn.Linear(widening * width, width))


class LatentBlock(nn.Module):
    """Self-attention among the latents, then an MLP."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.latent_width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, width, width, config.num_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, config.widening)

    def forward(self, latents: Float[Tensor, "batch latent width"]) -> Float[Tensor, "batch latent width"]:
        normed = self.attention_norm(latents)
        latents = latents + self.attention(normed, normed)
        return latents + self.mlp(self.mlp_norm(latents))


def full_precision(like: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Turn autocast off, for small products whose accuracy matters."""
    kind = like.device.type
    if kind == "meta":
        return contextlib.nullcontext()
    return torch.autocast(kind, enabled=False)
