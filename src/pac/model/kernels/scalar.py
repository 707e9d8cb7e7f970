"""`ScalarAttention` of input_attention.py as Triton kernels for GPUs. Scores and weights never reach memory.

Only blocks with real tokens are computed, because up to four fifths of a mixed batch may be padding. Before each
kernel these blocks are listed, in any order of the mask. The programs follow the list: loops have no branches, and the
work is split evenly.

    forward    a program has some rows of one head; it finds the largest score, then the sums
    prepare    computes what backward needs once per row, head and query, and the gradient of Vw
    backward   a program has one block of tokens of one head and a share of the rows; it computes the attention again
               and keeps sums over rows in registers; PyTorch adds the sums of the shares

There are no atomic operations: equal inputs give equal bits. Scores are multiplied by log2 e, since exp2 is fast.
docs/performance.md counts bytes and FLOPs.
"""

import math
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

NOTHING = tl.constexpr(-1e30)  # as in input_attention.py
LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of the tiles: powers of two, at least 16."""

    lines: int  # rows times queries of a forward program, at least one row
    tokens: int
    warps: int
    stages: int
    back_tokens: int
    back_warps: int
    back_stages: int
    splits: int  # shares of the rows in the backward pass; each writes its sums


# By the width of a head, padded to a power of two. FULL is for float32, whose products run on the ordinary cores.
BLOCKS = {
    64: BlockSizes(128, 64, 8, 2, 64, 4, 2, 16),
    128: BlockSizes(64, 64, 4, 2, 64, 4, 1, 16),
    256: BlockSizes(64, 32, 4, 2, 64, 4, 1, 16),
}
FULL = BlockSizes(32, 16, 4, 1, 16, 8, 1, 16)


@triton.jit
@no_type_check
def _scores(scale, scalar, a, offset_score, row, query, token, num_rows, num_tokens, Q: tl.constexpr):
    """Return s, t and the scores as (row, query, token)."""
    at = row.to(tl.int64)[:, None] * num_tokens + token[None]
    real = (row < num_rows)[:, None] & (token < num_tokens)[None]
    s = tl.load(scale + at, mask=real, other=0.0)[:, None]
    t = tl.load(scalar + at, mask=real, other=0.0)[:, None]
    real = (query < Q)[:, None] & (token < num_tokens)[None]
    b = tl.load(offset_score + query[:, None] * num_tokens + token[None], mask=real, other=0.0)[None]
    return s, t, tl.where(s > 0, s * LOG2E * (t * a[None, :, None] + b), NOTHING)


@triton.jit
@no_type_check
def _forward(
    scale, scalar, direction_score, offset_score, direction_value, offset_value, order, count, output, log_mass, drift,
    num_rows, num_steps, num_blocks, STEP: tl.constexpr,
    H: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, head, num_tokens = tl.program_id(0), tl.program_id(1), num_steps * STEP
    row, query, width = group * ROWS + tl.arange(0, ROWS), tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    real_row, real_query, real_width = row < num_rows, query < Q, width < D
    offset_score += head * Q * num_tokens
    offset_value += head * num_tokens * D
    a = tl.load(direction_score + head * Q + query, mask=real_query, other=0.0)
    blocks, num_busy = order + group * num_blocks, tl.load(count + group)

    tops = tl.full([ROWS, QUERIES, TOKENS], NOTHING, tl.float32)
    for k in range(num_busy):
        token = tl.load(blocks + k) * TOKENS + tl.arange(0, TOKENS)
        s, t, score = _scores(scale, scalar, a, offset_score, row, query, token, num_rows, num_tokens, Q)
        tops = tl.maximum(tops, score)
    top = tl.max(tops, 2)

    # Sums are kept for each place in the block. Adding them up once, at the end, is cheaper.
    mass = tl.zeros([ROWS, QUERIES, TOKENS], tl.float32)
    drifts = tl.zeros([ROWS, QUERIES, TOKENS], tl.float32)
    total = tl.zeros([ROWS * QUERIES, WIDTH], tl.float32)
    for k in range(num_busy):
        token = tl.load(blocks + k) * TOKENS + tl.arange(0, TOKENS)
        s, t, score = _scores(scale, scalar, a, offset_score, row, query, token, num_rows, num_tokens, Q)
        real = (token < num_tokens)[:, None] & real_width[None]
        value = tl.load(offset_value + token[:, None] * D + width[None], mask=real, other=0.0)
        weight = tl.exp2(score - top[:, :, None])
        mass += weight
        weight *= s
        drifts += weight * t
        weight = tl.reshape(weight, [ROWS * QUERIES, TOKENS]).to(value.dtype)
        total = tl.dot(weight, value, total, input_precision=PRECISION)

    some = top > NOTHING / 2
    all_mass = tl.where(some, tl.sum(mass, 2), 1.0)
    share = 1 / all_mass
    all_drift = tl.sum(drifts, 2) * share
    at = (head * num_rows + row).to(tl.int64)[:, None] * Q + query[None]
    real = real_row[:, None] & real_query[None]
    tl.store(log_mass + at, tl.where(some, (top + tl.log2(all_mass)) / LOG2E, NOTHING), mask=real)
    tl.store(drift + at, all_drift, mask=real)

    vw = tl.load(direction_value + head * D + width, mask=real_width, other=0.0).to(tl.float32)
    total *= tl.reshape(share, [ROWS * QUERIES])[:, None]
    total += tl.reshape(all_drift, [ROWS * QUERIES])[:, None] * vw[None]
    line = tl.arange(0, ROWS * QUERIES)
    row, query = group * ROWS + line // QUERIES, line % QUERIES
    at = ((row.to(tl.int64) * Q + query) * H + head)[:, None] * D + width[None]
    real = ((row < num_rows) & (query < Q))[:, None] & real_width[None]
    tl.store(output + at, total.to(output.dtype.element_ty), mask=real)


@triton.jit
@no_type_check
def _prepare(
    grad_output, grad_mass, output, drift, direction_value, drift_pull, mean_pull, grad_direction,
    num_lines, H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Compute the two pulls of `ScalarBackward` in input_attention.py. A line is a row and a query."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    line, width = chunk * LINES + tl.arange(0, LINES), tl.arange(0, WIDTH)
    real_line, real_width = line < num_lines, width < D
    at = (line.to(tl.int64) * H + head)[:, None] * D + width[None]
    real = real_line[:, None] & real_width[None]
    g = tl.load(grad_output + at, mask=real, other=0.0).to(tl.float32)
    r = tl.load(output + at, mask=real, other=0.0).to(tl.float32)
    vw = tl.load(direction_value + head * D + width, mask=real_width, other=0.0).to(tl.float32)
    at = head.to(tl.int64) * num_lines + line
    dm = tl.load(grad_mass + at, mask=real_line, other=0.0)
    d = tl.load(drift + at, mask=real_line, other=0.0)
    tl.store(drift_pull + at, tl.sum(g * vw[None], 1), mask=real_line)
    tl.store(mean_pull + at, tl.sum(g * r, 1) - dm, mask=real_line)
    tl.store(grad_direction + (chunk * H + head) * D + width, tl.sum(g * d[:, None], 0), mask=real_width)


@triton.jit
@no_type_check
def _backward(
    scale, scalar, direction_score, offset_score, offset_value, grad_output, log_mass, drift_pull, mean_pull,
    order, count, grad_scale, grad_scalar, grad_a, grad_b, grad_offset,
    num_rows, num_steps, num_blocks, STEP: tl.constexpr,
    H: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, SPLITS: tl.constexpr,
    PRECISION: tl.constexpr, WITH_SCALAR: tl.constexpr,
):  # fmt: skip
    """Compute the gradients. Tiles are (token, query), so each thread adds up its own entries over the rows."""
    split, head, block, num_tokens = tl.program_id(0), tl.program_id(1), tl.program_id(2), num_steps * STEP
    token, query, width = block * TOKENS + tl.arange(0, TOKENS), tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    real_token, real_query, real_width = token < num_tokens, query < Q, width < D
    real_pair = real_token[:, None] & real_query[None]
    real_value = real_token[:, None] & real_width[None]
    real_output = real_query[:, None] & real_width[None]
    a = tl.load(direction_score + head * Q + query, mask=real_query, other=0.0)[None]
    pair = (head * Q + query)[None] * num_tokens + token[:, None]
    b = tl.load(offset_score + pair, mask=real_pair, other=0.0)
    at_value = head * num_tokens * D + token[:, None] * D + width[None]
    value = tl.load(offset_value + at_value, mask=real_value, other=0.0)
    # Adds zero. It puts b into the layout of products, so threads need not exchange what is computed from b.
    nothing = tl.zeros([TOKENS, 16], value.dtype), tl.zeros([16, QUERIES], value.dtype)
    b = tl.dot(nothing[0], nothing[1], b, input_precision=PRECISION)
    at_output = (query[:, None] * H + head) * D + width[None]

    sum_a = tl.zeros([TOKENS, QUERIES], tl.float32)
    sum_b = tl.zeros([TOKENS, QUERIES], tl.float32)
    sum_offset = tl.zeros([TOKENS, WIDTH], tl.float32)
    num_busy = tl.load(count + block)
    for k in range(split, num_busy, SPLITS):
        row = tl.load(order + block * num_rows + k).to(tl.int64)
        line = (head * num_rows + row) * Q + query
        s = tl.load(scale + row * num_tokens + token, mask=real_token, other=0.0)[:, None]
        t = tl.load(scalar + row * num_tokens + token, mask=real_token, other=0.0)[:, None]
        mass = tl.load(log_mass + line, mask=real_query, other=-NOTHING)[None]  # padding has no attention
        pull_t = tl.load(drift_pull + line, mask=real_query, other=0.0)[None]
        mean = tl.load(mean_pull + line, mask=real_query, other=0.0)[None]
        g = tl.load(grad_output + row * (Q * H * D) + at_output, mask=real_output, other=0.0)
        u = t * a + b
        weight = tl.exp2(tl.where(s > 0, s * LOG2E * u - mass * LOG2E, NOTHING))
        worth = tl.dot(value, tl.trans(g), input_precision=PRECISION) + t * pull_t
        change = s * worth - mean
        at = (head * num_rows + row) * num_tokens + token
        tl.store(grad_scale + at, tl.sum(weight * (change * u + worth), 1), mask=real_token)
        weight *= s
        push = weight * change
        if WITH_SCALAR:
            tl.store(grad_scalar + at, tl.sum(push * a + weight * pull_t, 1), mask=real_token)
        sum_a += push * t
        sum_b += push
        sum_offset = tl.dot(weight.to(g.dtype), g, sum_offset, input_precision=PRECISION)

    part = split.to(tl.int64) * H
    tl.store(grad_a + ((part + head) * num_blocks + block) * Q + query, tl.sum(sum_a, 0), mask=real_query)
    tl.store(grad_b + part * Q * num_tokens + pair, sum_b, mask=real_pair)
    tl.store(grad_offset + part * num_tokens * D + at_value, sum_offset, mask=real_value)


def busy_blocks(scale: Float[Tensor, "batch token"], rows: int, tokens: int) -> Bool[Tensor, "row_group token_block"]:
    """Return whether each block of `rows` rows and `tokens` tokens has a real token."""
    padded = F.pad(scale > 0, (0, -scale.shape[1] % tokens, 0, -scale.shape[0] % rows))
    return padded.unflatten(1, (-1, tokens)).any(-1).unflatten(0, (-1, rows)).any(1)


def listed(busy: Bool[Tensor, "list place"]) -> tuple[Int32[Tensor, "list place"], Int32[Tensor, " list"]]:
    """Return the places of the true entries first, in order, and their number."""
    place = torch.arange(busy.shape[1], dtype=torch.int32, device=busy.device)
    order = torch.where(busy, place, busy.shape[1]).sort(-1).values.contiguous()
    return order, busy.sum(-1, dtype=torch.int32)


def _sizes(offset_value: Tensor, num_queries: int) -> tuple[BlockSizes, dict[str, Any]]:
    """Return the tiles, and the constants that the kernels share."""
    num_heads, num_tokens, width = offset_value.shape
    padded, full = max(16, triton.next_power_of_2(width)), offset_value.dtype == torch.float32
    blocks = FULL if full else BLOCKS[min(max(padded, min(BLOCKS)), max(BLOCKS))]
    shared = {"H": num_heads, "Q": num_queries, "D": width, "WIDTH": padded}
    shared["QUERIES"] = max(16, triton.next_power_of_2(num_queries))
    shared["STEP"] = math.gcd(num_tokens, 16)  # rows start at its multiples: loads may be this wide
    shared["PRECISION"] = "ieee" if full else "tf32"  # ignored for bfloat16
    return blocks, shared


@torch.library.custom_op("pac::scalar_attention", mutates_args=())
def _attend(
    scale: Tensor,
    scalar: Tensor,
    direction_score: Tensor,
    offset_score: Tensor,
    direction_value: Tensor,
    offset_value: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    scale, scalar, offset_value = scale.contiguous(), scalar.contiguous(), offset_value.contiguous()
    (num_rows, num_tokens), num_queries = scale.shape, direction_score.shape[1]
    blocks, shared = _sizes(offset_value, num_queries)
    rows = max(1, blocks.lines // shared["QUERIES"])
    busy = busy_blocks(scale, rows, blocks.tokens)
    output, log_mass, drift = _outputs(scale, direction_score, offset_value)
    _forward[len(busy), shared["H"]](
        scale, scalar, direction_score.contiguous(), offset_score.contiguous(), direction_value.contiguous(),
        offset_value, *listed(busy), output, log_mass, drift, num_rows, num_tokens // shared["STEP"], busy.shape[1],
        **shared, ROWS=rows, TOKENS=blocks.tokens,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return output, log_mass, drift


def _outputs(scale: Tensor, direction_score: Tensor, offset_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty outputs: the result as (batch, query, head, width), log mass and drift by head."""
    (num_heads, num_queries), num_rows = direction_score.shape, scale.shape[0]
    output = offset_value.new_empty(num_rows, num_queries, num_heads, offset_value.shape[2])
    log_mass, drift = (scale.new_empty(num_heads, num_rows, num_queries) for _ in range(2))
    return output, log_mass, drift


@_attend.register_fake
def _(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale, _, direction_score, _, _, offset_value = inputs
    return _outputs(scale, direction_score, offset_value)


@torch.library.custom_op("pac::scalar_attention_backward", mutates_args=())
def _gradients(
    tables: list[Tensor], output: Tensor, log_mass: Tensor, drift: Tensor, grad_output: Tensor, grad_mass: Tensor,
    with_scalar: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    scale, scalar, a, b, direction_value, offset_value = (x.contiguous() for x in tables)
    grad_output, grad_mass = grad_output.to(output.dtype).contiguous(), grad_mass.contiguous()
    (num_rows, num_tokens), num_queries = scale.shape, a.shape[1]
    blocks, shared = _sizes(offset_value, num_queries)
    num_heads, width, splits = shared["H"], shared["D"], blocks.splits

    drift_pull, mean_pull = torch.empty_like(drift), torch.empty_like(drift)
    num_lines, lines = num_rows * num_queries, 16384 // shared["WIDTH"]
    num_chunks = triton.cdiv(num_lines, lines)
    grad_direction = scale.new_empty(num_chunks, num_heads, width)
    _prepare[num_chunks, num_heads](
        grad_output, grad_mass, output, drift, direction_value, drift_pull, mean_pull, grad_direction, num_lines,
        H=num_heads, D=width, WIDTH=shared["WIDTH"], LINES=lines, num_warps=8,
    )  # fmt: skip

    busy = busy_blocks(scale, 1, blocks.back_tokens).T
    grad_scale = scale.new_empty(num_heads, num_rows, num_tokens)  # blocks without real tokens stay unset
    grad_scalar = torch.empty_like(grad_scale) if with_scalar else grad_scale
    grad_a = scale.new_empty(splits, num_heads, len(busy), num_queries)
    grad_b = scale.new_empty(splits, num_heads, num_queries, num_tokens)
    grad_offset = scale.new_empty(splits, num_heads, num_tokens, width)
    _backward[splits, num_heads, len(busy)](
        scale, scalar, a, b, offset_value, grad_output, log_mass, drift_pull, mean_pull, *listed(busy),
        grad_scale, grad_scalar, grad_a, grad_b, grad_offset, num_rows, num_tokens // shared["STEP"], len(busy),
        **shared, TOKENS=blocks.back_tokens, SPLITS=splits,
        WITH_SCALAR=with_scalar, num_warps=blocks.back_warps, num_stages=blocks.back_stages,
    )  # fmt: skip

    real = scale > 0
    return (
        torch.where(real, grad_scale.sum(0), 0),
        torch.where(real, grad_scalar.sum(0), 0) if with_scalar else scale.new_empty(0),
        grad_a.sum((0, 2)),
        grad_b.sum(0),
        grad_direction.sum(0).to(direction_value.dtype),
        grad_offset.sum(0).to(offset_value.dtype),
    )


@_gradients.register_fake
def _(
    tables: list[Tensor], output: Tensor, log_mass: Tensor, drift: Tensor, grad_output: Tensor, grad_mass: Tensor,
    with_scalar: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    gradients = [x.new_empty(x.shape) for x in tables]
    if not with_scalar:
        gradients[1] = tables[0].new_empty(0)
    return tuple(gradients)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[2])


def _differentiate(ctx: Any, grad_output: Tensor, grad_mass: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tables, output, log_mass, drift = ctx.saved_tensors
    with_scalar = ctx.needs_input_grad[1]
    gradients = list(_gradients(tables, output, log_mass, drift, grad_output, grad_mass, with_scalar))
    return tuple(None if i == 1 and not with_scalar else x for i, x in enumerate(gradients))


_attend.register_autograd(_differentiate, setup_context=_save)


def attend_scalars(
    scale: Float[Tensor, "batch token"],
    scalar: Float[Tensor, "batch token"],
    direction_score: Float[Tensor, "head query"],
    offset_score: Float[Tensor, "head query token"],
    direction_value: Float[Tensor, "head width"],
    offset_value: Float[Tensor, "head token width"],
) -> tuple[Float[Tensor, "head batch query width"], Float[Tensor, "head batch query"]]:
    """Return what `ScalarAttention.apply` gives."""
    output, log_mass, _ = _attend(scale, scalar, direction_score, offset_score, direction_value, offset_value)
    return output.permute(2, 0, 1, 3), log_mass
