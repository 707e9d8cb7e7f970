"""Tokens: what encoders hand to the input cross-attention. They travel with their mask."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """Embeddings, one a token."""

    embedding: Float[Tensor, "batch token width"]
    mask: Bool[Tensor, "batch token"]

    def __getitem__(self, rows: Any) -> "Tokens":
        return Tokens(self.embedding[rows], self.mask[rows])

    def dense(self) -> "Tokens":
        return self


@dataclass(frozen=True, eq=False)
class ScalarTokens:
    """Tokens that differ between rows in one number each: embedding = scalar * direction + offset.

    The structure survives as far as `input_attention.py`, which uses it: directions and offsets are the same for the
    whole batch, so that keys and values need not be projected row by row.
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
