"""On a GPU alone: PyTorch has no such product on a CPU."""

import pytest
import torch

from pac.model.kernels.split import split_bf16_matmul

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("bins", [101, 104, 1])
def test_it_is_the_product_in_float32(bins: int) -> None:
    """The weights of a head, of which bfloat16 alone would lose a four-hundredth; gradients to bfloat16's rounding."""
    x = torch.randn(37, 21, 768, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(bins, 768, device="cuda").mul(0.1).requires_grad_()
    pull = torch.randn(37, 21, bins, device="cuda")
    expected = torch.nn.functional.linear(x.double(), weight.double())
    found = split_bf16_matmul(x, weight)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-4 * expected.std()
    wanted = torch.autograd.grad(expected, (x, weight), pull.double())
    for name, value, exact in zip(("x", "weight"), torch.autograd.grad(found, (x, weight), pull), wanted, strict=True):
        assert (value - exact).norm() < 4e-3 * exact.norm(), name


def test_the_operator_passes_opcheck() -> None:
    x, weight = torch.randn(7, 64, device="cuda").bfloat16(), torch.randn(5, 64, device="cuda", requires_grad=True)
    torch.library.opcheck(torch.ops.pac.split_bf16_matmul.default, (x, weight))
