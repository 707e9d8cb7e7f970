"""The input attention that writes no number's token gives what the one that writes them all gives."""

import copy
from collections.abc import Sequence

import pytest
import torch
from factories import small_config
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pac.model.input_attention import InputAttention
from pac.model.pac import PAC
from pac.model.tokens import AnyTokens, ScalarTokens, Tokens

WIDTH = small_config().token_width
KINDS = ["numbers", "numbers numbers", "numbers dense", "dense", "dense numbers dense"]
seeds = st.integers(0, 10_000)


def attention(seed: int = 0) -> InputAttention:
    """In float64, with every bias and norm away from its start."""
    torch.manual_seed(seed)
    layer = PAC(small_config()).input_attention.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    layer.by_tables = True
    return layer


def make_groups(kinds: str, num_rows: int, seed: int, hidden: float = 0.0) -> tuple[list[AnyTokens], list[Tensor]]:
    """Random groups and the tensors in them that want gradients. The first row is empty, the second lacks one group;
    masked numbers are `hidden`.
    """
    g = torch.Generator().manual_seed(seed)
    groups: list[AnyTokens] = []
    leaves: list[Tensor] = []

    def leaf(*shape: int) -> Tensor:
        leaves.append(torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_())
        return leaves[-1]

    names = kinds.split()
    for place, kind in enumerate(names):
        num_tokens = int(torch.randint(1, 12, (), generator=g))
        mask = torch.rand(num_rows, num_tokens, generator=g) < 0.6
        mask[0] = False
        mask[1] = place != seed % len(names)
        if kind == "dense":
            groups.append(Tokens(leaf(num_rows, num_tokens, WIDTH), mask))
        else:
            scalar = torch.tanh(leaf(num_rows, num_tokens)).masked_fill(~mask, hidden)
            groups.append(ScalarTokens(scalar, leaf(WIDTH), leaf(num_tokens, WIDTH), mask))
    return groups, leaves


def results(
    layer: InputAttention, latents: Tensor, groups: Sequence[AnyTokens], leaves: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Output, and gradients of everything under a random objective."""
    output = layer(latents, groups, len(groups[0].mask))
    pull = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(output.dtype)
    gradients = torch.autograd.grad((output * pull).sum(), [latents, *layer.parameters(), *leaves])
    return output.detach(), list(gradients)


@pytest.mark.parametrize("kinds", KINDS)
@given(seed=seeds)
def test_it_equals_dense_attention(kinds: str, seed: int) -> None:
    """Masks of all kinds, empty rows, and NaN in padding, which the dense path is spared."""
    layer = attention(seed)
    latents = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
    groups, leaves = make_groups(kinds, 4, seed)
    expected = results(layer, latents, [group.dense() for group in groups], leaves)
    groups, leaves = make_groups(kinds, 4, seed, hidden=float("nan"))
    torch.testing.assert_close(results(layer, latents, groups, leaves), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kinds", KINDS)
def test_a_row_without_tokens_attends_to_nothing(kinds: str) -> None:
    layer = attention()
    latents = torch.randn(4, 16, dtype=torch.float64)
    groups, _ = make_groups(kinds, 3, 0)
    blank = latents + layer.attention.out.bias
    torch.testing.assert_close(layer(latents, groups, 3)[0], blank + layer.mlp(layer.mlp_norm(blank)))


def narrowed(groups: Sequence[AnyTokens]) -> list[AnyTokens]:
    return [
        ScalarTokens(x.scalar.float(), x.direction.float(), x.offset.float(), x.mask)
        if isinstance(x, ScalarTokens)
        else Tokens(x.embedding.float(), x.mask)
        for x in groups
    ]


def single(layer: InputAttention, latents: Tensor, kinds: str, seed: int, *, dense: bool, bf16: bool) -> list[Tensor]:
    """Output and gradients in float32, or under bf16 autocast."""
    groups, leaves = make_groups(kinds, 16, seed)
    groups = narrowed(groups)
    layer, latents = copy.deepcopy(layer).float(), latents.detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        output, gradients = results(layer, latents, [x.dense() for x in groups] if dense else groups, leaves)
    return [output, *gradients]


def exact(kinds: str, seed: int) -> tuple[InputAttention, Tensor, list[Tensor]]:
    layer, latents = attention(seed), torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
    groups, leaves = make_groups(kinds, 16, seed)
    output, gradients = results(layer, latents, [group.dense() for group in groups], leaves)
    return layer, latents, [output, *gradients]


@pytest.mark.parametrize("kinds", KINDS)
@given(seed=seeds)
def test_in_float32(kinds: str, seed: int) -> None:
    """To 1e-5 of the output, and of the largest gradient: some are zero but for rounding."""
    layer, latents, wanted = exact(kinds, seed)
    found = single(layer, latents, kinds, seed, dense=False, bf16=False)
    assert (found[0] - wanted[0]).abs().max() <= 1e-5 * wanted[0].abs().max()
    largest = max(gradient.abs().max() for gradient in wanted[1:])
    for gradient, expected in zip(found[1:], wanted[1:], strict=True):
        assert (gradient - expected).abs().max() <= 1e-5 * largest


@pytest.mark.parametrize("kinds", KINDS)
def test_bf16_is_as_accurate_as_dense_attention(kinds: str) -> None:
    """Errors of output and gradients, averaged over a few draws, are no more than half above the dense attention's."""
    errors: dict[bool, list[Tensor]] = {False: [], True: []}
    for seed in range(8):
        layer, latents, wanted = exact(kinds, seed)
        for dense, so_far in errors.items():
            found = single(layer, latents, kinds, seed, dense=dense, bf16=True)
            so_far.append(torch.stack([(x - y).norm().double() for x, y in zip(found, wanted, strict=True)]))
    ours, theirs = (torch.stack(errors[dense]).mean(0) for dense in (False, True))
    assert (ours <= 1.5 * theirs + 1e-6).all(), (ours / theirs, theirs)


def test_a_number_far_from_its_scale_is_finite() -> None:
    """Where t * w and c_i cancel, the variance is all rounding."""
    layer = attention().float()
    direction = torch.full((WIDTH,), 30.0).mul_(torch.arange(WIDTH)).requires_grad_()
    offset = (-0.5 * direction.detach()).expand(3, WIDTH).clone().requires_grad_()
    tokens = ScalarTokens(torch.full((2, 3), 0.5), direction, offset, torch.ones(2, 3, dtype=torch.bool))
    output = layer(torch.randn(4, 16), [tokens], 2)
    output.sum().backward()
    assert output.isfinite().all()
    assert direction.grad is not None
    assert direction.grad.isfinite().all()


def test_tokens_of_numbers_are_never_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, _ = make_groups("numbers dense", 4, 0)
    monkeypatch.setattr(ScalarTokens, "dense", None)
    assert attention()(torch.randn(4, 16, dtype=torch.float64), groups, 4).shape == (4, 4, 16)
