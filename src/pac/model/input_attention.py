"""Input cross-attention (XATTN_IN in the paper): the learned latents attend to the tokens of one time step.

Two exact rewrites make it cheap. First, all rows share their queries. A score is then the product of a token with a
probe, which is the query multiplied by the key projection. Second, the token of a number t is t * w + c_i. Its layer
norm is s * (t * w0 + c0_i) * weight + bias, where w0 and c0_i are centred and s depends on t alone. Scores and values
are sums over tables that the whole batch shares:

    score = s (t A + B_i) + constant        value = s (t Vw + Vc_i) + constant

So tokens of numbers are never written to memory. Images and text take ordinary attention, and `merge` joins the two
softmaxes. `ScalarAttention` is the reference, and runs on CPUs. On GPUs kernels/scalar.py computes the same.
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

KERNELS = importlib.util.find_spec("triton") is not None  # PyTorch for CPUs lacks it. Benchmarks turn kernels off
if KERNELS:
    from pac.model.kernels import scalar as scalar_kernels

TABLES_PAY = 150  # nano has 32 and micro 96: projecting is faster. tiny has 192 and XXS 768
NOTHING = -1e30  # log of zero attention. It is finite: the difference of two is not NaN


Latents = Float[Tensor, "latent width"]
LatentBatch = Float[Tensor, "batch latent width"]
Probe = Float[Tensor, "head query token_width"]
Shift = Float[Tensor, "head query"]
TokenScalars = Float[Tensor, "batch token"]


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """Output of attention to some of the tokens, and the log of their unnormalised attention."""

    value: Float[Tensor, "batch query head width"]
    log_mass: Float[Tensor, "batch query head"]


class InputAttention(nn.Module):
    """Cross-attention from the latents to all tokens, then an MLP."""

    fast = True  # as in `Attention`

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.latent_width
        self.query_norm = nn.LayerNorm(width)
        self.source_norm = nn.LayerNorm(config.token_width)
        self.attention = Attention(width, config.token_width, width, config.num_heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, config.widening)
        # Tables save two projections per token and cost a few passes over its scores: small models lose time.
        saved, spent = config.token_width * width, config.num_heads * config.num_latents
        self.by_tables = saved >= TABLES_PAY * spent

    def forward(self, latents: Latents, groups: Sequence[AnyTokens], num_rows: int) -> LatentBatch:
        if not self.by_tables:
            groups = [group.dense() for group in groups]
        scalars = [group for group in groups if isinstance(group, ScalarTokens)]
        dense = [group for group in groups if isinstance(group, Tokens)]
        output = self._attend(latents, scalars, dense) if scalars else self._attend_dense(latents, dense, num_rows)
        latents = cast_residual(latents + output) if self.fast else latents + output
        return latents + self.mlp(self.mlp_norm(latents))

    def _attend_dense(self, latents: Latents, groups: Sequence[Tokens], num_rows: int) -> LatentBatch:
        """Return ordinary attention to tokens that are all written out."""
        token_width = self.source_norm.normalized_shape[0]
        source = [group.embedding for group in groups] or [latents.new_zeros(num_rows, 0, token_width)]
        mask = [group.mask for group in groups] or [latents.new_zeros(num_rows, 0, dtype=torch.bool)]
        query = self.query_norm(latents)[None]
        return self.attention(query, self.source_norm(torch.cat(source, 1)), torch.cat(mask, 1))

    def _attend(self, latents: Latents, scalars: Sequence[ScalarTokens], dense: Sequence[Tokens]) -> LatentBatch:
        probe, shift = self._make_probe(latents)
        results = [self._attend_scalars(group, probe, shift) for group in scalars]
        if dense:
            tokens = Tokens(torch.cat([g.embedding for g in dense], 1), torch.cat([g.mask for g in dense], 1))
            results.append(self._attend_tokens(tokens, probe, shift))
        return self.attention.out(merge(results).flatten(2))

    def _make_probe(self, latents: Latents) -> tuple[Probe, Shift]:
        """Return (probe, shift). The scaled score of a normalised token y is probe . y + shift."""
        split = (self.attention.num_heads, -1)
        query = self.query_norm(latents)
        heads = self.attention.query(query).unflatten(-1, split).transpose(0, 1)
        with full_precision(query):
            heads = widened(heads) * heads.shape[-1] ** -0.5
            key = widened(self.attention.key.weight).unflatten(0, split)
            bias = widened(self.attention.key.bias).unflatten(0, (*split, 1))
            return heads @ key, (heads @ bias)[..., 0]

    def _attend_tokens(self, tokens: Tokens, probe: Probe, shift: Shift) -> AttentionResult:
        """Attend to tokens of any kind. Scores come from the probe, and each value is projected."""
        extra = -tokens.mask.shape[1] % 8 if tokens.mask.is_cuda else 0  # GPUs are fast at multiples of 8
        embedding, mask = F.pad(tokens.embedding, (0, 0, 0, extra)), F.pad(tokens.mask, (0, extra))[:, None, None]
        source = self.source_norm(embedding)
        value = self.attention.value(source).unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2)
        score = F.linear(source, probe.flatten(0, 1).to(source.dtype)).mT.unflatten(1, probe.shape[:2])
        score = (widened(score) + shift[..., None]).masked_fill(~mask, NOTHING)
        log_mass = score.logsumexp(-1, keepdim=True)
        weight = (score - log_mass).exp() * mask  # a row without tokens gives zeros
        output = weight.to(value.dtype) @ value
        return AttentionResult(output.transpose(1, 2), log_mass[..., 0].transpose(1, 2))

    def _attend_scalars(self, tokens: ScalarTokens, probe: Probe, shift: Shift) -> AttentionResult:
        """Attend to tokens of numbers. What depends on the width of a token is computed once, not once per row."""
        heads, norm = (self.attention.num_heads, -1), self.source_norm
        with full_precision(probe):
            direction, offset = centred(tokens.direction), centred(tokens.offset)
            scalar = tokens.scalar.to(direction.dtype).masked_fill(~tokens.mask, 0)
            scale = norm_scale(scalar, direction, offset, norm.eps).masked_fill(~tokens.mask, 0)
            direction, offset = direction * norm.weight, offset * norm.weight
            direction_score, offset_score = probe @ direction, probe @ offset.T
            shift = shift + probe @ widened(norm.bias)
        weight = self.attention.value.weight
        direction_value = F.linear(direction.to(weight.dtype), weight).unflatten(0, heads)
        offset_value = F.linear(offset.to(weight.dtype), weight).unflatten(-1, heads).transpose(0, 1)
        # Without other tokens the shift cancels in the softmax. An optimiser needs a gradient of zero, not none.
        constant = self.attention.value(norm.bias).unflatten(0, heads) + 0 * shift.sum()
        tables = direction_score, offset_score, direction_value, offset_value
        attend = scalar_kernels.attend_scalars if use_kernels(offset_value) else ScalarAttention.apply
        output, log_mass = attend(scale, scalar, *tables)
        some = tokens.mask.any(-1)[:, None, None, None]
        log_mass = (log_mass + shift[:, None]).permute(1, 2, 0)
        return AttentionResult(output.permute(1, 2, 0, 3) + constant * some, log_mass)


def use_kernels(like: Tensor) -> bool:
    """Return whether kernels/scalar.py replaces `ScalarAttention`."""
    known = like.is_cuda and like.dtype in (torch.bfloat16, torch.float32)
    return KERNELS and known and has_large_smem(like.device.index)


def norm_scale(
    scalar: TokenScalars, direction: Float[Tensor, " width"], offset: Float[Tensor, "token width"], eps: float
) -> TokenScalars:
    """Return the factor s of the layer norm, 1 / sqrt(variance + eps). The variance is quadratic in t."""
    square, cross, constant_term = direction.square().mean(), (offset * direction).mean(-1), offset.square().mean(-1)
    variance = (scalar * square + 2 * cross) * scalar + constant_term
    return (variance.clamp(min=0) + eps).rsqrt()  # rounding may leave less than 0


def merge(results: Sequence[AttentionResult]) -> Float[Tensor, "batch query head width"]:
    """Return one softmax over all tokens from softmaxes over some, each weighted by its share of the mass."""
    if len(results) == 1:
        return results[0].value
    share = torch.stack([result.log_mass for result in results]).softmax(0)
    total = sum(part[..., None] * result.value for part, result in zip(share, results, strict=True))
    return total.to(results[0].value.dtype)


class ScalarAttention(torch.autograd.Function):
    """Attention to tokens with scores s (t A + B_i) and values s (t Vw + Vc_i). It returns output and log mass.

    Only arrays with all four axes cost time: with 512 windows of the largest inputs, one has 10^9 entries. Each pass
    writes one, in the dtype of the values: p s forward, dL/d(p s) backward. Scores and softmax are float32. Compiled,
    they exist in fused loops only, because the backward pass computes them again from the tables for each of its sums.
    `s` is 0 where a token is masked.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scale: TokenScalars,
        scalar: TokenScalars,
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
    """Return s (t A + B) where s is positive. With the mask as a fifth array, the compiler would store the scores."""
    return torch.where(s > 0, s * (t * a + b), NOTHING)


@dataclass(frozen=True, eq=False)
class ScalarBackward:
    """Sums of the backward pass, over arrays that broadcast to (head, batch, query, token).

    Each sum has its own order of axes. With one order, the compiler would find common parts, such as the attention
    weights, and write them to memory. With different orders it computes them again, and a sum reads `pull` alone.
    """

    s: Float[Tensor, "1 batch 1 token"]
    t: Float[Tensor, "1 batch 1 token"]
    a: Float[Tensor, "head 1 query 1"]
    b: Float[Tensor, "head 1 query token"]
    log_mass: Float[Tensor, "head batch query 1"]
    pull: Float[Tensor, "head batch query token"]  # dL/d(p s), without the part of t Vw
    drift_pull: Float[Tensor, "head batch query 1"]  # that part divided by t
    mean_pull: Float[Tensor, "head batch query 1"]  # sum of p dL/dp, less dL/d(log mass)

    def token_gradients(self, with_scalar: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of s and, if asked, of t."""
        s, t, a, b, drift_pull, weight, worth, change = self._in_order(1, 0, 2, 3)
        grad_scale = (weight * (change * (t * a + b) + worth)).sum((1, 2))
        if not with_scalar:
            return grad_scale, None
        return grad_scale, s[:, 0, 0] * (weight * (change * a + drift_pull)).sum((1, 2))

    def direction_gradient(self) -> Tensor:
        """Return the gradient of A."""
        s, t, _, _, _, weight, _, change = self._in_order(0, 2, 1, 3)
        return (s * t * weight * change).sum((2, 3))

    def offset_gradient(self) -> Tensor:
        """Return the gradient of B."""
        s, _, _, _, _, weight, _, change = self._in_order(0, 1, 2, 3)
        return (s * weight * change).sum(1)

    def _in_order(self, *axes: int) -> list[Tensor]:
        """Return s, t, A, B, `drift_pull`, and the three arrays of `score_gradient`, with their axes in this order."""
        if torch.compiler.is_compiling():
            moved = [x.permute(axes) for x in self._arrays]
            return [*moved[:5], *score_gradient(*moved)]
        return [x.permute(axes) for x in (*self._arrays[:5], *self._shared)]

    @property
    def _arrays(self) -> tuple[Tensor, ...]:
        return self.s, self.t, self.a, self.b, self.drift_pull, self.log_mass, self.pull, self.mean_pull

    @functools.cached_property
    def _shared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Uncompiled, everything is written to memory: compute it once."""
        return score_gradient(*self._arrays)


def score_gradient(
    s: Tensor, t: Tensor, a: Tensor, b: Tensor, drift_pull: Tensor, log_mass: Tensor, pull: Tensor, mean_pull: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, dL/d(p s), and dL/dscore divided by p."""
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
    """Return the tensor, written to memory. The compiler would compute tanh and rsqrt again per head and query."""
    return _keep(x) if torch.compiler.is_compiling() else x


def centred(x: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
    x = widened(x)
    return x - x.mean(-1, keepdim=True)


def widened(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return x in float32, or in its dtype if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
