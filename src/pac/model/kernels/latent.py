"""Attention among few tokens as Triton kernels, for GPUs: one program has all of a head, and nothing is read twice.

Latents are 32, and the tiles of PyTorch's kernels are made for thousands. Here the heads of a row are read from the
projections as they lie, (batch, token, head * width), and the output and all gradients are written so: no copies
around it. The backward pass makes the attention anew from queries and keys; nothing else is saved. So a layer reads
three arrays and writes one, and backward reads four and writes three, each once: 0.12 and 0.21 ms for 2,560 rows of
XXS, 126 MB an array, at 4.2 TB/s. Queries, keys and values may lie side by side in one array, and then so do their
gradients: latents that attend to each other are projected, and pulled back, by one product in place of three.

Tiles are powers of two, and 96, the width of XXS' heads, is not: a head is cut into parts along its width, 3 of 32.
There are no atomic operations: the same input gives the same bits. Scores are in bits (times log2 e), as exp2 wants.
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
MOST_BYTES = 2**17  # of a head's queries, keys, values and gradient, padded: they are on the chip together


@dataclass(frozen=True)
class Tiles:
    part: int  # of a head's width: a power of two, 16 at least
    heads: int  # of a row that a program walks, at most
    warps: int  # up to 32 tokens; 4 at least for more
    stages: int  # with 2 or more, and several heads, the next one is loaded meanwhile


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
    """Tiles of a head, (token, PART) each; `at` is where each token's begins."""
    parts = ()
    for start in tl.static_range(0, D, PART):
        width = start + tl.arange(0, PART)
        parts += (tl.load(source + at[:, None] + width[None], mask=real[:, None] & (width < D)[None], other=0.0),)
    return parts


@triton.jit
@no_type_check
def _products(left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """Of each token on the left with each on the right."""
    total = tl.zeros([LEFT, RIGHT], tl.float32)
    for i in tl.static_range(len(left)):
        total = tl.dot(left[i], tl.trans(right[i]), total, input_precision=PRECISION)
    return total


@triton.jit
@no_type_check
def _write(target, at, real, weight, parts, D: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr):
    """Sums of the parts by weights, which are rounded to the type of the parts."""
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
    """Attention is (token, query): of the three sums two are then over its columns, and one needs it turned."""
    program = tl.program_id(0)
    row, first = (program // (H // HEADS)).to(tl.int64), program % (H // HEADS) * HEADS
    line, token = tl.arange(0, QUERIES), tl.arange(0, TOKENS)
    for head in range(first, first + HEADS):
        at_line, at_token = (row * Q + line) * STEP_Q + head * D, (row * T + token) * STEP_T + head * D
        at_output = (row * Q + line) * (H * D) + head * D
        k, q = _parts(key, at_token, token < T, D, PART), _parts(query, at_line, line < Q, D, PART)
        v, g = _parts(value, at_token, token < T, D, PART), _parts(pull, at_output, line < Q, D, PART)
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
    """As (batch, token, head * width); queries that all rows share come with a batch axis of 1."""
    num_queries, num_tokens, width = query.shape[1], key.shape[1], query.shape[2] // num_heads
    num_bytes = 2 * (_padded(num_queries) + _padded(num_tokens)) * width * query.dtype.itemsize
    few = min(num_queries, num_tokens) >= 1 and max(num_queries, num_tokens) <= MOST_TOKENS
    small = width <= MOST_WIDTH and num_bytes <= MOST_BYTES
    return few and small and len(query) in (1, len(key)) and query.dtype in DTYPES


def _launch(kernel: Any, backward: bool, arrays: list[Tensor], num_heads: int) -> None:
    """Of all arrays the first has the queries' shape, and the second the keys'; each may be a part of a wider one, and
    their gradients then too.
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
        PRECISION="ieee" if full else "tf32",  # which means nothing to bfloat16
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
    """What `perceiver.attend` gives without a mask, of heads that are not yet split, and joined again."""
    return _attend(query.expand(len(key), -1, -1), key, value, num_heads)


def attend_together(
    packed: Float[Tensor, "batch token three_widths"], num_heads: int
) -> Float[Tensor, "batch token width"]:
    """The same of tokens that attend to each other; their queries, keys and values lie side by side."""
    return _attend_together(packed, num_heads)
