"""XATTN_IN: the learned latents read the tokens of one instant.

Two facts make it cheap, and neither is an approximation. The queries are the same for every row, so a score is one
product of a token with a *probe*, the query taken back through the key projection. And a number's token is
t * w + c_i: its layer norm is s * (t * w0 + c0_i) * weight + bias, with w0 and c0_i centred and s from a quadratic in
t, so its score and its value are sums of entries of tables that the whole batch shares:

    score = s (t A + B_i) + constant        value = s (t Vw + Vc_i) + constant

No token of that kind is ever written out. Pictures and text go the ordinary way; `merge` joins the two softmaxes. On a
GPU `scalar_kernels.py` does what `ScalarAttention` does here, which remains the reference and the way on CPUs.
"""

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pac.model.attention import MLP, Attention, cast_residual, full_precision, has_large_smem
from pac.model.config import ModelConfig
from pac.model.tokens import AnyTokens, ScalarTokens, Tokens

KERNELS = importlib.util.find_spec("triton") is not None  # PyTorch for CPUs lacks it; a benchmark may turn them off
if KERNELS:
    from pac.model.kernels import scalar as scalar_kernels

TABLES_PAY = 150  # nano 32, micro 96: projecting is faster (docs/log.md); tiny 192, XXS 768
NOTHING = -1e30  # log of no attention at all: finite, so that differences of two such are not NaN


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """What latents read in some of the tokens, and the log of those tokens' unnormalised attention."""

    value: Float[Tensor, "batch query head width"]
    log_mass: Float[Tensor, "batch query head"]


class InputAttention(nn.Module):
    """The latents read all tokens, then think about them once."""

    fast = True  # as in `Attention`

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.latent_width
        self.query_norm = nn.LayerNorm(width)
        self.source_norm = nn.LayerNorm(config.token_width)
        self.attention = Attention(width, config.token_width, width, config.num_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, config.widening)
        # Tables save a token's two projections and cost a few passes over its scores: small models lose by them.
        saved, spent = config.token_width * width, config.num_heads * config.num_latents
        self.by_tables = saved >= TABLES_PAY * spent

    def forward(
        self, latents: Float[Tensor, "latent width"], groups: Sequence[AnyTokens], num_rows: int
    ) -> Float[Tensor, "batch latent width"]:
        if not self.by_tables:
            groups = [group.dense() for group in groups]
        scalars = [group for group in groups if isinstance(group, ScalarTokens)]
        dense = [group for group in groups if isinstance(group, Tokens)]
        output = self._attend(latents, scalars, dense) if scalars else self._attend_dense(latents, dense, num_rows)
        latents = cast_residual(latents + output) if self.fast else latents + output
        return latents + self.mlp(self.mlp_norm(latents))

    def _attend_dense(
        self, latents: Float[Tensor, "latent width"], groups: Sequence[Tokens], num_rows: int
    ) -> Float[Tensor, "batch latent width"]:
        """Attention as everyone writes it."""
        token_width = self.source_norm.normalized_shape[0]
        source = [group.embedding for group in groups] or [latents.new_zeros(num_rows, 0, token_width)]
        mask = [group.mask for group in groups] or [latents.new_zeros(num_rows, 0, dtype=torch.bool)]
        return self.attention(
            self.query_norm(latents)[None], self.source_norm(torch.cat(source, 1)), torch.cat(mask, 1)
        )

    def _attend(
        self, latents: Float[Tensor, "latent width"], scalars: Sequence[ScalarTokens], dense: Sequence[Tokens]
    ) -> Float[Tensor, "batch latent width"]:
        probe, shift = make_probe(self.query_norm(latents), self.attention)
        results = [attend_to_scalars(group, probe, shift, self.source_norm, self.attention) for group in scalars]
        if dense:
            tokens = Tokens(torch.cat([g.embedding for g in dense], 1), torch.cat([g.mask for g in dense], 1))
            results.append(attend_tokens(tokens, probe, shift, self.source_norm, self.attention))
        return self.attention.out(merge(results).flatten(2))


def make_probe(
    query: Float[Tensor, "query query_width"], attention: Attention
) -> tuple[Float[Tensor, "head query token_width"], Float[Tensor, "head query"]]:
    """(probe, shift) such that a normalised token y scores probe . y + shift with a query, scale included."""
    heads = attention.query(query).unflatten(-1, (attention.num_heads, -1)).transpose(0, 1)
    with full_precision(query):
        heads = widened(heads) * heads.shape[-1] ** -0.5
        key = widened(attention.key.weight).unflatten(0, (attention.num_heads, -1))
        bias = widened(attention.key.bias).unflatten(0, (attention.num_heads, -1, 1))
        return heads @ key, (heads @ bias)[..., 0]


def attend_tokens(
    tokens: Tokens,
    probe: Float[Tensor, "head query token_width"],
    shift: Float[Tensor, "head query"],
    norm: nn.LayerNorm,
    attention: Attention,
) -> AttentionResult:
    """Tokens of any kind: scores from the probe, values projected one by one."""
    extra = -tokens.mask.shape[1] % 8 if tokens.mask.is_cuda else 0  # GPUs multiply by eights
    embedding, mask = F.pad(tokens.embedding, (0, 0, 0, extra)), F.pad(tokens.mask, (0, extra))[:, None, None]
    source = norm(embedding)
    value = attention.value(source).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    score = F.linear(source, probe.flatten(0, 1).to(source.dtype)).mT.unflatten(1, probe.shape[:2])
    score = (widened(score) + shift[..., None]).masked_fill(~mask, NOTHING)
    log_mass = score.logsumexp(-1, keepdim=True)
    weight = (score - log_mass).exp() * mask  # a row without any token reads nothing, not an average of padding
    output = weight.to(value.dtype) @ value
    return AttentionResult(output.transpose(1, 2), log_mass[..., 0].transpose(1, 2))


def attend_to_scalars(
    tokens: ScalarTokens,
    probe: Float[Tensor, "head query token_width"],
    shift: Float[Tensor, "head query"],
    norm: nn.LayerNorm,
    attention: Attention,
) -> AttentionResult:
    """Numbers: everything that depends on the width of a token is computed once, not once a row."""
    heads = (attention.num_heads, -1)
    with full_precision(probe):
        direction, offset = centred(tokens.direction), centred(tokens.offset)
        scalar = tokens.scalar.to(direction.dtype).masked_fill(~tokens.mask, 0)
        scale = norm_scale(scalar, direction, offset, norm.eps).masked_fill(~tokens.mask, 0)
        direction, offset = direction * norm.weight, offset * norm.weight
        direction_score, offset_score = probe @ direction, probe @ offset.T
        shift = shift + probe @ widened(norm.bias)
    weight = attention.value.weight
    direction_value = F.linear(direction.to(weight.dtype), weight).unflatten(0, heads)
    offset_value = F.linear(offset.to(weight.dtype), weight).unflatten(-1, heads).transpose(0, 1)
    # Alone, a shift cancels in the softmax: its gradient is zero, not absent, which an optimiser would tell apart.
    constant = attention.value(norm.bias).unflatten(0, heads) + 0 * shift.sum()
    tables = direction_score, offset_score, direction_value, offset_value
    attend = scalar_kernels.attend_scalars if use_kernels(offset_value) else ScalarAttention.apply
    output, log_mass = attend(scale, scalar, *tables)
    some = tokens.mask.any(-1)[:, None, None, None]
    log_mass = (log_mass + shift[:, None]).permute(1, 2, 0)
    return AttentionResult(output.permute(1, 2, 0, 3) + constant * some, log_mass)


def use_kernels(like: Tensor) -> bool:
    return (
        KERNELS and like.is_cuda and like.dtype in (torch.bfloat16, torch.float32) and has_large_smem(like.device.index)
    )


def norm_scale(
    scalar: Float[Tensor, "batch token"],
    direction: Float[Tensor, " width"],
    offset: Float[Tensor, "token width"],
    eps: float,
) -> Float[Tensor, "batch token"]:
    """What the layer norm multiplies t * w0 + c0_i by: 1 / sqrt(variance + eps), the variance a quadratic in t."""
    square, cross, constant_term = direction.square().mean(), (offset * direction).mean(-1), offset.square().mean(-1)
    variance = (scalar * square + 2 * cross) * scalar + constant_term
    return (variance.clamp(min=0) + eps).rsqrt()  # where the terms cancel, rounding may leave less than 0


def merge(results: Sequence[AttentionResult]) -> Float[Tensor, "batch query head width"]:
    """One softmax over all tokens from softmaxes over some: each counts by its share of the mass."""
    if len(results) == 1:
        return results[0].value
    share = torch.stack([result.log_mass for result in results]).softmax(0)
    total = sum(part[..., None] * result.value for part, result in zip(share, results, strict=True))
    return total.to(results[0].value.dtype)


class ScalarAttention(torch.autograd.Function):
    """Attention to tokens with scores s (t A + B_i) and values s (t Vw + Vc_i): what was read, and the log mass.

    Only arrays with all four axes cost anything: at 512 windows of the largest inputs one has 10^9 entries. There is
    one each way, in the dtype of the values (bfloat16 under autocast): p s forward, dL/d(p s) backward. Scores and
    softmax are float32 and, compiled, exist within fused loops only: the backward pass makes them anew from the tables
    rather than read them, once for each of its sums. `s` is 0 where a token is masked.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scale: Float[Tensor, "batch token"],
        scalar: Float[Tensor, "batch token"],
        direction_score: Float[Tensor, "head query"],
        offset_score: Float[Tensor, "head query token"],
        direction_value: Float[Tensor, "head width"],
        offset_value: Float[Tensor, "head token width"],
    ) -> tuple[Float[Tensor, "head batch query width"], Float[Tensor, "head batch query"]]:
        scale, scalar = keep(scale), keep(scalar)
        s, t, a, b = scale[:, None], scalar[:, None], direction_score[:, None, :, None], offset_score[:, None]
        score = masked_scores(s, t, a, b)
        top = score.amax(-1, keepdim=True)
        log_mass = top + (score - top).exp().sum(-1, keepdim=True).log()
        weight = ((score - log_mass).exp() * s).to(offset_value.dtype)
        drift = (weight * t).sum(-1)
        output = (weight.flatten(1, 2) @ offset_value).unflatten(1, drift.shape[1:])
        output = (output + drift[..., None] * direction_value[:, None, None]).to(offset_value.dtype)
        tables = direction_score, offset_score, direction_value, offset_value
        ctx.save_for_backward(scale, scalar, *tables, weight, drift, output, log_mass)
        return output, log_mass[..., 0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, scalar, a, b, direction_value, offset_value, weight, drift, output, log_mass = ctx.saved_tensors
        grad_output, grad_mass = gradients[0].to(output.dtype), gradients[1]
        flat = grad_output.flatten(1, 2)
        given = ScalarBackward(
            scale[None, :, None],
            scalar[None, :, None],
            a[:, None, :, None],
            b[:, None],
            log_mass,
            (flat @ offset_value.mT).unflatten(1, drift.shape[1:]),
            (widened(grad_output) * direction_value[:, None, None]).sum(-1, keepdim=True),
            (widened(grad_output) * output - grad_mass[..., None] / output.shape[-1]).sum(-1, keepdim=True),
        )
        grad_scale, grad_scalar = given.token_gradients(ctx.needs_input_grad[1])
        grad_direction = (drift.flatten(1)[:, None].to(flat.dtype) @ flat)[:, 0]
        grad_offset = weight.flatten(1, 2).mT @ flat
        return grad_scale, grad_scalar, given.direction_gradient(), given.offset_gradient(), grad_direction, grad_offset


def masked_scores(s: Tensor, t: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """s (t A + B) where s is positive. The mask is read off s so that four arrays make a score: with a fifth the
    compiler would write scores to memory rather than make them again.
    """
    return torch.where(s > 0, s * (t * a + b), NOTHING)


@dataclass(frozen=True, eq=False)
class ScalarBackward:
    """The sums of the backward pass, over arrays that broadcast to (head, batch, query, token).

    Each sum takes the axes in an order of its own. In the same order the compiler would see common parts, such as the
    attention weights, and write them to memory; so it makes them again, and all that a sum reads is `pull`.
    """

    s: Float[Tensor, "1 batch 1 token"]
    t: Float[Tensor, "1 batch 1 token"]
    a: Float[Tensor, "head 1 query 1"]
    b: Float[Tensor, "head 1 query token"]
    log_mass: Float[Tensor, "head batch query 1"]
    pull: Float[Tensor, "head batch query token"]  # dL/d(p s), but for the part of t Vw
    drift_pull: Float[Tensor, "head batch query 1"]  # times t that part
    mean_pull: Float[Tensor, "head batch query 1"]  # sum of p dL/dp, less dL/d(log mass)

    def token_gradients(self, with_scalar: bool) -> tuple[Tensor, Tensor | None]:
        """Of s and, if asked, of t."""
        s, t, a, b, drift_pull, weight, worth, change = self._in_order(1, 0, 2, 3)
        grad_scale = (weight * (change * (t * a + b) + worth)).sum((1, 2))
        if not with_scalar:
            return grad_scale, None
        return grad_scale, s[:, 0, 0] * (weight * (change * a + drift_pull)).sum((1, 2))

    def direction_gradient(self) -> Tensor:
        """Of A."""
        s, t, _, _, _, weight, _, change = self._in_order(0, 2, 1, 3)
        return (s * t * weight * change).sum((2, 3))

    def offset_gradient(self) -> Tensor:
        """Of B."""
        s, _, _, _, _, weight, _, change = self._in_order(0, 1, 2, 3)
        return (s * weight * change).sum(1)

    def _in_order(self, *axes: int) -> list[Tensor]:
        """s, t, A, B, the pull of t Vw, p, dL/d(p s), and what times p is dL/dscore."""
        given = self.s, self.t, self.a, self.b, self.drift_pull, self.log_mass, self.pull, self.mean_pull
        if torch.compiler.is_compiling():
            moved = [x.permute(axes) for x in given]
            return [*moved[:5], *score_gradient(*moved)]
        return [x.permute(axes) for x in (*given[:5], *self._shared)]

    @functools.cached_property
    def _shared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Uncompiled, everything is written to memory anyway: make it once."""
        given = self.s, self.t, self.a, self.b, self.drift_pull, self.log_mass, self.pull, self.mean_pull
        return score_gradient(*given)


def score_gradient(
    s: Tensor, t: Tensor, a: Tensor, b: Tensor, drift_pull: Tensor, log_mass: Tensor, pull: Tensor, mean_pull: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    weight = (masked_scores(s, t, a, b) - log_mass).exp()
    worth = pull + t * drift_pull
    return weight, worth, s * worth - mean_pull


@torch.library.custom_op("pac::keep", mutates_args=())
def _keep(x: Tensor) -> Tensor:
    return x.clone()


@_keep.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def keep(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same tensor, written to memory: the compiler would take tanh and rsqrt again for every head and query."""
    return _keep(x) if torch.compiler.is_compiling() else x


def centred(x: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
    x = widened(x)
    return x - x.mean(-1, keepdim=True)


def widened(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
