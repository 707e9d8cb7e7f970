"""Uniform bins: how PAC turns actions and values into categorical distributions and back.

One definition serves targets, samples and queries, so that an action that was scored is the action that is tried.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Projection = Literal["two-hot", "nearest"]

SPREAD = 0.02  # of a critic's first guess: the share of it that lies anywhere


@dataclass(frozen=True)
class Bins:
    """`count` points from `low` to `high`, evenly spaced; each stands for the interval around it."""

    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        if not (self.count >= 2 and self.low < self.high):
            raise ValueError(f"Bins: expected low < high and count >= 2, found {self}.")

    @classmethod
    def cells(cls, low: float, high: float, count: int) -> "Bins":
        """Bins that tile [low, high]; the points are their centres, half a step inside, as for actions."""
        half = (high - low) / count / 2
        return cls(low + half, high - half, count)

    @property
    def step(self) -> float:
        return (self.high - self.low) / (self.count - 1)

    def points(self, like: Tensor) -> Float[Tensor, " bins"]:
        """The points, with the device and dtype of `like`."""
        return torch.linspace(self.low, self.high, self.count, device=like.device, dtype=like.dtype)

    def encode(self, value: Float[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Index of the nearest point; values outside the range go to its ends."""
        return ((value - self.low) / self.step).round().clamp(0, self.count - 1).long()

    def decode(self, index: Int64[Tensor, "*shape"], like: Tensor) -> Float[Tensor, "*shape"]:
        return self.points(like)[index]

    def mean(self, logits: Float[Tensor, "*shape bins"]) -> Float[Tensor, "*shape"]:
        """Expected value of the categorical distribution with these logits."""
        probs = logits.softmax(-1)
        return probs @ self.points(probs)

    def median(self, logits: Float[Tensor, "*shape bins"]) -> Float[Tensor, "*shape"]:
        """The value with half of the distribution on either side, each point's share spread evenly around it."""
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
        """Distribution of `shift + scale * q` with q ~ probs, put back on the points; mass outside goes to the ends.

        "two-hot" is C51's (Bellemare et al., 2017) and keeps the mean inside the range. "nearest" is the indicator
        of the paper's text; it rounds, so that shifts under half a step are lost.
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
        """Logits of a distribution around `value`: nearly all on the points beside it, the rest spread over all points.

        The rest bounds what a far point costs: without it (logits that fall by 2.4 a point, say) the first reward lands
        where the loss is in the hundreds, and a critic spends its youth climbing out (docs/log.md).
        """
        if not self.low <= value <= self.high:
            raise ValueError(f"Expected an initial value inside [{self.low}, {self.high}], found {value}.")
        certain = torch.nn.functional.one_hot(torch.tensor(0), self.count).double()
        nearly = self.project(certain, torch.tensor(value - self.low).double(), torch.tensor(1.0).double())
        return ((1 - SPREAD) * nearly + SPREAD / self.count).log().float()
