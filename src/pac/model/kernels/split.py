"""A linear map of bfloat16 inputs in nearly float32, by bfloat16 products, which are far faster on GPUs.

A weight is split into its rounding and the rounding of the remainder, 16 bits in all. One product multiplies both and
sums in float32. Gradients are rounded to bfloat16 once, as everywhere else in the model.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

ALIGNED = 8  # GPUs multiply fast if rows have a multiple of this length


def split_bf16_matmul(
    x: Float[Tensor, "batch query width"], weight: Float[Tensor, "out width"]
) -> Float[Tensor, "batch query out"]:
    """Return x @ weight.T. `x` is bfloat16 on a GPU. Weight and result are float32."""
    return _product(x.flatten(0, 1), weight).unflatten(0, x.shape[:2])


def _padded(rows: Tensor) -> Tensor:
    return F.pad(rows, (0, 0, 0, -len(rows) % ALIGNED))


@torch.library.custom_op("pac::split_bf16_matmul", mutates_args=())
def _product(x: Tensor, weight: Tensor) -> Tensor:
    rounded = weight.bfloat16()
    lost = (weight - rounded.float()).bfloat16()
    both = torch.mm(x, torch.cat([_padded(rounded), _padded(lost)]).T, out_dtype=torch.float32).chunk(2, -1)
    return both[0][:, : len(weight)] + both[1][:, : len(weight)]


@_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((len(x), len(weight)), dtype=torch.float32)


@torch.library.custom_op("pac::split_bf16_matmul_backward", mutates_args=())
def _gradients(x: Tensor, weight: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    return pull @ _padded(weight.bfloat16()), torch.mm(pull.T, x, out_dtype=torch.float32)[: len(weight)]


@_gradients.register_fake
def _(x: Tensor, weight: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, pull: Tensor) -> tuple[Tensor, Tensor]:
    grad_x, grad_weight = _gradients(*ctx.saved_tensors, F.pad(pull.bfloat16(), (0, -pull.shape[-1] % ALIGNED)))
    return grad_x, grad_weight


_product.register_autograd(_differentiate, setup_context=_save)
