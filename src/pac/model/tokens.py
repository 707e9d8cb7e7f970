"""Tokens, which encoders pass to the input cross-attention together with their mask."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """Embeddings, one per token."""

    embedding: Float[Tensor, "batch token width"]
    mask: Bool[Tensor, "batch token"]

    def __getitem__(self, rows: Any) -> "Tokens":
        return Tokens(self.embedding[rows], self.mask[rows])

    def dense(self) -> "Tokens":
        return self


@dataclass(frozen=True, eq=False)
class ScalarTokens:
    """Tokens that each hold one number: embedding = scalar * direction + offset.

    The whole batch shares directions and offsets, so `input_attention.py` need not project keys and values per row.
    """

    scalar: Float[Tensor, "batch token"]
    direction: Float[Tensor, " width"]
    offset: Float[Tensor, "token width"]
    mask: Bool[Tensor, "batch token"]

    def __getitem__(self, rows: Any) -> "ScalarTokens":
        return ScalarTokens(self.scalar[rows], self.direction, self.offset, self.mask[rows])

    def dense(self) -> Tokens:
        scalar = self.scalar.to(self.direction.dtype)[..., None]
        return Tokens(torch.addcmul(self.offset, scalar, self.direction), self.mask)


AnyTokens = Tokens | ScalarTokens
