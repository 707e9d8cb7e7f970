"""The numbers of many datasets on a GPU, end to end: what costs there is the number of launches, not of bytes."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from pac.data.windows import Source


class Column:
    """One array of every dataset, end to end: a few launches gather the rows of all, however many there are. Each
    dataset's own array becomes a part of it.
    """

    def __init__(self, arrays: Sequence[Tensor | None]) -> None:
        some = next(array for array in arrays if array is not None)
        parts = [some.new_empty(0) if array is None else array.reshape(-1) for array in arrays]
        self.values, sizes = torch.cat(parts), [len(part) for part in parts]
        self.parts = [
            None if array is None else part.view(array.shape)
            for array, part in zip(arrays, self.values.split(sizes), strict=True)
        ]
        widths = [0 if array is None else math.prod(array.shape[1:]) for array in arrays]
        self.width, self.start = (torch.tensor(x, device=some.device) for x in (widths, np.cumsum([0, *sizes[:-1]])))

    def take(
        self,
        source: Int64[Tensor, " batch"],
        rows: Int64[Tensor, "batch time"],
        out: Shaped[Tensor, "batch time width"],
    ) -> None:
        """Rows of the datasets named, and zeros where a dataset is narrower than others."""
        width, column = self.width[source][:, None, None], torch.arange(out.shape[-1], device=out.device)
        real = column < width
        place = (self.start[source][:, None, None] + rows[..., None] * width + column).masked_fill(~real, 0)
        out.copy_(self.values[place].masked_fill_(~real, 0))


def join_columns(sources: Sequence[Source]) -> dict[str, Column]:
    """The numbers of all datasets; what each had for itself is now a part of these."""
    made = {}
    for name in ("state", "action", "reward", "terminated", "later"):
        arrays = [getattr(source, name) for source in sources]
        if any(array is not None for array in arrays):
            made[name] = Column(arrays)
            for source, part in zip(sources, made[name].parts, strict=True):
                setattr(source, name, part)
    return made
