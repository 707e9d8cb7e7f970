"""Uniform bins: actions and values as categorical distributions.

Targets, samples and queries share this definition, so the action that is evaluated is the action that is taken.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Projection = Literal["two-hot", "nearest"]

SPREAD = 0.02  # share of a critic's initial distribution that is uniform


@dataclass(frozen=True)
class Bins:
    """Evenly spaced points, `count` of them from `low` to `high`. Each represents the interval around it."""

    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        if not (self.count >= 2 and self.low < self.high):
            raise ValueError(f"Bins: expected low < high and count >= 2, found {self}.")

    @classmethod
    def cells(cls, low: float, high: float, count: int) -> "Bins":
        """Return bins that tile [low, high]. The points are their centres, half a step inside."""
        half = (high - low) / count / 2
        return cls(low + half, high - half, count)

    @property
    def step(self) -> float:
        return (self.high - self.low) / (self.count - 1)

    def points(self, like: Tensor) -> Float[Tensor, " bins"]:
        """Return the points, with the device and dtype of `like`."""
        return torch.linspace(self.low, self.high, self.count, device=like.device, dtype=like.dtype)

    def encode(self, value: Float[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Return the index of the nearest point. Values outside the range go to its ends."""
        return ((value - self.low) / self.step).round().clamp(0, self.count - 1).long()

    def decode(self, index: Int64[Tensor, "*shape"], like: Tensor) -> Float[Tensor, "*shape"]:
        return self.points(like)[index]

    def mean(self, logits: Float[Tensor, "*shape bins"]) -> Float[Tensor, "*shape"]:
        """Return the mean of the categorical distribution with these logits."""
        probs = logits.softmax(-1)
        return probs @ self.points(probs)

    def median(self, logits: Float[Tensor, "*shape bins"]) -> Float[Tensor, "*shape"]:
        """Return the median. The probability of each point is spread evenly over its interval."""
        probs = logits.softmax(-1)
        below = probs.cumsum(-1)
        index = (below < 0.5).sum(-1, keepdim=True).clamp(max=self.count - 1)
        share = probs.gather(-1, index)
        within = (0.5 - (below.gather(-1, index) - share)) / share - 0.5
        return (self.low + self.step * (index + within)).clamp(self.low, self.high)[..., 0]

    def project(
        self,
        probs: Float[Tensor, "*shape bins"],
        shift: Float[Tensor, "*shape"],
        scale: Float[Tensor, "*shape"],
        kind: Projection = "two-hot",
    ) -> Float[Tensor, "*shape bins"]:
        """Return the distribution of `shift + scale * q`, q ~ probs, on the points. Mass outside goes to the ends.

        "two-hot" is that of C51 (Bellemare et al., 2017), which keeps the mean inside the range. "nearest" is the
        indicator in the paper's text. It rounds, so shifts under half a step are lost.
        """
        moved = shift[..., None] + scale[..., None] * self.points(probs)
        if kind == "nearest":
            return torch.zeros_like(probs).scatter_add(-1, self.encode(moved), probs)
        place = ((moved - self.low) / self.step).clamp(0, self.count - 1)
        below = place.floor()
        to_above = probs * (place - below)
        index = below.long()
        kept = torch.zeros_like(probs).scatter_add(-1, index, probs - to_above)
        return kept.scatter_add(-1, (index + 1).clamp(max=self.count - 1), to_above)

    def logits_near(self, value: float) -> Float[Tensor, " bins"]:
        """Return logits of a distribution around `value`, mixed with a little of the uniform distribution.

        The uniform part bounds the loss at far points. Without it the first rewards give a loss in the hundreds, and
        the critic is slow to recover (docs/log.md).
        """
        if not self.low <= value <= self.high:
            raise ValueError(f"Expected an initial value inside [{self.low}, {self.high}], found {value}.")
        certain = torch.nn.functional.one_hot(torch.tensor(0), self.count).double()
        nearly = self.project(certain, torch.tensor(value - self.low).double(), torch.tensor(1.0).double())
        return ((1 - SPREAD) * nearly + SPREAD / self.count).log().float()
