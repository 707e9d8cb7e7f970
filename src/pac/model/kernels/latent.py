"""Attention among few tokens as Triton kernels for GPUs. One program computes a whole head.

PyTorch's kernels have tiles for thousands of tokens, and there are 32 latents. These kernels read the heads of a row
from the projections' layout (batch, token, head * width), and write output and gradients in it: nothing is copied. The
backward pass computes the attention again from queries and keys, so nothing else is saved. Forward reads three arrays
and writes one. Backward reads four and writes three. Each goes through memory once: 0.12 and 0.21 ms for 2,560 rows of
XXS (126 MB per array, 4.2 TB/s). Queries, keys and values may be parts of one array, and so may their gradients: one
matrix product then replaces three in self-attention.

Tiles must be powers of two. A head of XXS is 96 wide, so it is cut along its width into 3 parts of 32. There are no
atomic operations: equal inputs give equal bits. Scores are multiplied by log2 e, since exp2 is fast.
"""

import math
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
DTYPES = (torch.bfloat16, torch.float32)
MOST_TOKENS, MOST_WIDTH = 64, 256
MOST_BYTES = 2**17  # of a head's padded queries, keys, values and gradient, which share the chip's memory


@dataclass(frozen=True)
class Tiles:
    part: int  # of a head's width: a power of two, 16 at least
    heads: int  # heads of a row that one program computes, at most
    warps: int  # up to 32 tokens; 4 at least for more
    stages: int  # with 2 or more, the next head is loaded in advance


# Forward and backward, by the largest width of a head. Compiled for an H200, none spills registers at 32 tokens.
TILES = {
    48: (Tiles(16, 1, 1, 1), Tiles(16, 1, 1, 1)),
    64: (Tiles(64, 1, 1, 1), Tiles(64, 1, 2, 1)),
    96: (Tiles(32, 1, 2, 1), Tiles(128, 8, 4, 2)),
    128: (Tiles(64, 1, 2, 1), Tiles(64, 1, 2, 1)),
    160: (Tiles(32, 1, 2, 1), Tiles(32, 1, 4, 1)),
    256: (Tiles(64, 8, 4, 2), Tiles(64, 1, 4, 1)),
}
FULL = (Tiles(32, 1, 8, 1), Tiles(32, 1, 8, 1))  # float32: its products run on the ordinary cores


@triton.jit
@no_type_check
def _parts(source, at, real, D: tl.constexpr, PART: tl.constexpr):
    """Load the tiles of a head, (token, PART) each. `at` is the first place of each token."""
    parts = ()
    for start in tl.static_range(0, D, PART):
        width = start + tl.arange(0, PART)
        parts += (tl.load(source + at[:, None] + width[None], mask=real[:, None] & (width < D)[None], other=0.0),)
    return parts


@triton.jit
@no_type_check
def _products(left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """Return the product of each token on the left with each on the right."""
    total = tl.zeros([LEFT, RIGHT], tl.float32)
    for i in tl.static_range(len(left)):
        total = tl.dot(left[i], tl.trans(right[i]), total, input_precision=PRECISION)
    return total


@triton.jit
@no_type_check
def _write(target, at, real, weight, parts, D: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr):
    """Write weighted sums of the parts. The weights are rounded to the type of the parts."""
    for i in tl.static_range(len(parts)):
        width = i * PART + tl.arange(0, PART)
        total = tl.dot(weight.to(parts[i].dtype), parts[i], input_precision=PRECISION).to(parts[i].dtype)
        tl.store(target + at[:, None] + width[None], total, mask=real[:, None] & (width < D)[None])


@triton.jit
@no_type_check
def _attention_forward(
    query, key, value, output,
    H: tl.constexpr, Q: tl.constexpr, T: tl.constexpr, D: tl.constexpr, STEP_Q: tl.constexpr, STEP_T: tl.constexpr,
    QUERIES: tl.constexpr, TOKENS: tl.constexpr, PART: tl.constexpr, HEADS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row, first = (program // (H // HEADS)).to(tl.int64), program % (H // HEADS) * HEADS
    line, token = tl.arange(0, QUERIES), tl.arange(0, TOKENS)
    for head in range(first, first + HEADS):
        at_line, at_token = (row * Q + line) * STEP_Q + head * D, (row * T + token) * STEP_T + head * D
        at_output = (row * Q + line) * (H * D) + head * D
        q, k = _parts(query, at_line, line < Q, D, PART), _parts(key, at_token, token < T, D, PART)
        v = _parts(value, at_token, token < T, D, PART)
        score = _products(q, k, QUERIES, TOKENS, PRECISION) * (LOG2E * D**-0.5)
        score = tl.where((token < T)[None], score, float("-inf"))
        weight = tl.exp2(score - tl.max(score, 1)[:, None])
        weight *= (1 / tl.sum(weight, 1))[:, None]
        _write(output, at_output, line < Q, weight, v, D, PART, PRECISION)


@triton.jit
@no_type_check
def _attention_backward(
    query, key, value, pull, grad_query, grad_key, grad_value,
    H: tl.constexpr, Q: tl.constexpr, T: tl.constexpr, D: tl.constexpr, STEP_Q: tl.constexpr, STEP_T: tl.constexpr,
    QUERIES: tl.constexpr, TOKENS: tl.constexpr, PART: tl.constexpr, HEADS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the attention as (token, query): only one of the three sums needs the transpose."""
    program = tl.program_id(0)
    row, first = (program // (H // HEADS)).to(tl.int64), program % (H // HEADS) * HEADS
    line, token = tl.arange(0, QUERIES), tl.arange(0, TOKENS)
    for head in range(first, first + HEADS):
        at_line, at_token = (row * Q + line) * STEP_Q + head * D, (row * T + token) * STEP_T + head * D
        at_pull = (row * Q + line) * (H * D) + head * D
        k, q = _parts(key, at_token, token < T, D, PART), _parts(query, at_line, line < Q, D, PART)
        v, g = _parts(value, at_token, token < T, D, PART), _parts(pull, at_pull, line < Q, D, PART)
        score = _products(k, q, TOKENS, QUERIES, PRECISION) * (LOG2E * D**-0.5)
        score = tl.where((token < T)[:, None], score, float("-inf"))
        weight = tl.exp2(score - tl.max(score, 0)[None])
        weight *= (1 / tl.sum(weight, 0))[None]
        worth = _products(v, g, TOKENS, QUERIES, PRECISION)
        push = weight * (worth - tl.sum(weight * worth, 0)[None]) * D**-0.5
        _write(grad_value, at_token, token < T, weight, g, D, PART, PRECISION)
        _write(grad_key, at_token, token < T, push, q, D, PART, PRECISION)
        _write(grad_query, at_line, line < Q, tl.trans(push), k, D, PART, PRECISION)


def _padded(num_tokens: int) -> int:
    return 16 if num_tokens <= 16 else 32 if num_tokens <= 32 else 64


def fits(query: Tensor, key: Tensor, num_heads: int) -> bool:
    """Return whether the kernels can take these arrays, which are (batch, token, head * width)."""
    num_queries, num_tokens, width = query.shape[1], key.shape[1], query.shape[2] // num_heads
    num_bytes = 2 * (_padded(num_queries) + _padded(num_tokens)) * width * query.dtype.itemsize
    few = min(num_queries, num_tokens) >= 1 and max(num_queries, num_tokens) <= MOST_TOKENS
    small = width <= MOST_WIDTH and num_bytes <= MOST_BYTES
    return few and small and len(query) in (1, len(key)) and query.dtype in DTYPES


def _launch(kernel: Any, backward: bool, arrays: list[Tensor], num_heads: int) -> None:
    """Run a kernel. The first array has the shape of the queries, the second that of the keys.

    Each may be a part of a wider array, as may its gradient.
    """
    (num_rows, num_queries, width), num_tokens = arrays[0].shape, arrays[1].shape[1]
    width //= num_heads
    full = arrays[0].dtype == torch.float32
    tiles = (FULL if full else TILES[min(x for x in TILES if x >= width)])[backward]
    heads, queries, tokens = math.gcd(num_heads, tiles.heads), _padded(num_queries), _padded(num_tokens)
    kernel[(num_rows * num_heads // heads,)](
        *arrays, H=num_heads, Q=num_queries, T=num_tokens, D=width,
        STEP_Q=arrays[0].stride(1), STEP_T=arrays[1].stride(1),
        QUERIES=queries, TOKENS=tokens, PART=tiles.part, HEADS=heads,
        PRECISION="ieee" if full else "tf32",  # ignored for bfloat16
        num_warps=tiles.warps if max(queries, tokens) <= 32 else max(4, tiles.warps), num_stages=tiles.stages,
    )  # fmt: skip


@torch.library.custom_op("pac::latent_attention", mutates_args=())
def _attend(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    output = query.new_empty(query.shape)
    _launch(_attention_forward, False, [*(x.contiguous() for x in (query, key, value)), output], num_heads)
    return output


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.custom_op("pac::latent_attention_backward", mutates_args=())
def _gradients(
    query: Tensor, key: Tensor, value: Tensor, pull: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    query_grad, key_grad, value_grad = (x.new_empty(x.shape) for x in (query, key, value))
    inputs = [x.contiguous() for x in (query, key, value, pull)]
    _launch(_attention_backward, True, [*inputs, query_grad, key_grad, value_grad], num_heads)
    return query_grad, key_grad, value_grad


@_gradients.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, pull: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    *arrays, ctx.num_heads = inputs
    ctx.save_for_backward(*arrays)


def _differentiate(ctx: Any, pull: Tensor) -> tuple[Tensor | None, ...]:
    return *_gradients(*ctx.saved_tensors, pull, ctx.num_heads), None


_attend.register_autograd(_differentiate, setup_context=_save)


@torch.library.custom_op("pac::latent_self_attention", mutates_args=())
def _attend_together(packed: Tensor, num_heads: int) -> Tensor:
    query, key, value = packed.contiguous().chunk(3, -1)
    output = query.new_empty(query.shape)
    _launch(_attention_forward, False, [query, key, value, output], num_heads)
    return output


@_attend_together.register_fake
def _(packed: Tensor, num_heads: int) -> Tensor:
    return packed.new_empty((*packed.shape[:-1], packed.shape[-1] // 3))


@torch.library.custom_op("pac::latent_self_attention_backward", mutates_args=())
def _gradients_together(packed: Tensor, pull: Tensor, num_heads: int) -> Tensor:
    grad = packed.new_empty(packed.shape)
    inputs = [*packed.contiguous().chunk(3, -1), pull.contiguous()]
    _launch(_attention_backward, True, [*inputs, *grad.chunk(3, -1)], num_heads)
    return grad


@_gradients_together.register_fake
def _(packed: Tensor, pull: Tensor, num_heads: int) -> Tensor:
    return packed.new_empty(packed.shape)


def _save_together(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    packed, ctx.num_heads = inputs
    ctx.save_for_backward(packed)


def _differentiate_together(ctx: Any, pull: Tensor) -> tuple[Tensor, None]:
    return _gradients_together(*ctx.saved_tensors, pull, ctx.num_heads), None


_attend_together.register_autograd(_differentiate_together, setup_context=_save_together)


def attend_latents(
    query: Float[Tensor, "#batch query width"],
    key: Float[Tensor, "batch token width"],
    value: Float[Tensor, "batch token width"],
    num_heads: int,
) -> Float[Tensor, "batch query width"]:
    """Return what `attention.attend` gives without a mask. Heads are split and joined here."""
    return _attend(query.expand(len(key), -1, -1), key, value, num_heads)


def attend_together(
    packed: Float[Tensor, "batch token three_widths"], num_heads: int
) -> Float[Tensor, "batch token width"]:
    """Return self-attention. Queries, keys and values stand side by side in one array."""
    return _attend_together(packed, num_heads)
