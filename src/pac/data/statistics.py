"""Statistics per dimension (count, mean, variance, min, max), and the scaling that follows from them.

Statistics are plain tables, as committed.json stores them. Sums are in double precision.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Float32

Statistics = dict[str, Any]

# Standardising divides by at least this, absolute and relative to the mean. Without it a joint that never moved in the
# data would turn a millimetre of movement into thousands.
SCALE_FLOOR = 1e-3


def no_statistics(dims: int) -> Statistics:
    """Return the statistics of no data."""
    return {"count": 0} | {key: [0.0] * dims for key in ("mean", "variance", "min", "max")}


def statistics_of(values: np.ndarray) -> Statistics:
    """Return the statistics of `values` (steps, dims)."""
    mean = values.mean(0, dtype=np.float64)
    centred = values - mean
    variance = np.einsum("td,td->d", centred, centred) / len(values)
    table = {"mean": mean, "variance": variance, "min": values.min(0), "max": values.max(0)}
    return {"count": len(values)} | {name: array.tolist() for name, array in table.items()}


def merge_statistics(before: Statistics, new: Statistics) -> Statistics:
    """Return the statistics of two sets of data together (Chan et al., 1979)."""
    if not before["count"] or not new["count"]:
        return new if new["count"] else before
    count = before["count"] + new["count"]
    share, mean, variance = new["count"] / count, np.array(before["mean"]), np.array(before["variance"])
    shift = np.array(new["mean"]) - mean
    table = {
        "mean": mean + share * shift,
        "variance": (1 - share) * variance + share * np.array(new["variance"]) + share * (1 - share) * shift**2,
        "min": np.minimum(before["min"], new["min"]),
        "max": np.maximum(before["max"], new["max"]),
    }
    return {"count": count} | {name: array.tolist() for name, array in table.items()}


def pool_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of all parts together."""
    return reduce(merge_statistics, parts)


def scale_of(statistics: Statistics) -> Float32[np.ndarray, " proprio"]:
    """Return standard deviations, with a floor for dimensions that hardly move."""
    floor = SCALE_FLOOR * np.maximum(1, np.abs(statistics["mean"]))
    scale: np.ndarray = np.maximum(np.sqrt(np.array(statistics["variance"])), floor)
    return scale.astype(np.float32)


def normalise_action(
    action: Float32[np.ndarray, "*shape action"],
    low: Float32[np.ndarray, " action"],
    high: Float32[np.ndarray, " action"],
) -> Float32[np.ndarray, "*shape action"]:
    """Map actions from [low, high] to [-1, 1]. A dimension with equal bounds becomes 0."""
    half = (high - low) / 2
    normalised: np.ndarray = np.clip((action - (low + high) / 2) / np.where(half > 0, half, 1), -1, 1)
    return normalised.astype(np.float32, copy=False)
