"""The Perceiver: attention, and the blocks on the latents. `input_attention.py` has what reads the input.

Pre-normalised blocks as in Perceiver IO (Jaegle et al., 2022), with key and value width equal to the latents'
(docs/paper.md). Queries that are the same for every row come with a batch axis of 1 and are projected once.
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

    fast = True  # kernels and products of our own, where they pay; benchmarks/plain.py does without

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
            # One product for all three, and one for the gradient of the source.
            parts = self.query, self.key, self.value
            packed = F.linear(source, torch.cat([x.weight for x in parts]), torch.cat([x.bias for x in parts]))
            query, key, value = packed.chunk(3, -1)
            if fast and use_kernels(query, key, self.num_heads):
                return self.out(latent_kernels.attend_together(packed, self.num_heads))
        else:
            query, key, value = self.query(query), self.key(source), self.value(source)
            if fast and use_kernels(query, key, self.num_heads):
                return self.out(latent_kernels.attend_latents(query, key, value, self.num_heads))
        heads = [self._split(x) for x in (query, key, value)]
        heads[0] = heads[0].expand(len(source), -1, -1, -1)
        return self.out(attend(heads[0], heads[1], heads[2], mask).transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch head token head_width"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def attend(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch head token width"],
    value: Float[Tensor, "batch head token width"],
    mask: Bool[Tensor, "batch token"] | None,
) -> Float[Tensor, "batch head query width"]:
    """Softmax attention over the real tokens; a row without any gives zeros, not an average of padding."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    if mask.shape[1] == 0:
        return torch.zeros_like(query)
    some = mask.any(-1, keepdim=True)
    result = F.scaled_dot_product_attention(query, key, value, attn_mask=(mask | ~some)[:, None, None, :])
    return result * some[:, :, None, None]


def on_gpu(x: Tensor) -> bool:
    """On a CPU one product for three gains little, and rounds otherwise than runs did before."""
    return x.is_cuda


def use_kernels(query: Tensor, key: Tensor, num_heads: int) -> bool:
    """`latent_kernels.py` in place of `attend`: for few tokens, on a GPU with room for them, in bfloat16."""
    fast = KERNELS and TRITON and query.is_cuda and query.dtype == torch.bfloat16
    return fast and has_large_smem(query.device.index) and latent_kernels.fits(query, key, num_heads)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def has_large_smem(card: int) -> bool:
    """Whether a card has the memory on its chip that our kernels' tiles were chosen for: an H100's kind, or a B200's.
    Others take PyTorch's kernels.
    """
    return torch.cuda.get_device_capability(card)[0] in (9, 10)


def cast_residual(latents: Tensor) -> Tensor:
    """What the blocks add to, in the precision of their products: autocast would carry it in float32, which costs
    twice the bytes at every norm and sum and loses little less to rounding (docs/performance.md).
    """
    kind = latents.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return latents
    return latents.to(torch.get_autocast_dtype(kind))


class MLP(nn.Sequential):
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
    """Without autocast: for what is small, and what much depends on."""
    kind = like.device.type
    if kind == "meta":
        return contextlib.nullcontext()
    return torch.autocast(kind, enabled=False)
