"""Confidence intervals: no success rate is shown without one."""

import math


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a success rate, 95% unless told otherwise; all of [0, 1] without trials."""
    if trials == 0:
        return 0.0, 1.0
    p, spread = successes / trials, z**2 / trials
    centre = (p + spread / 2) / (1 + spread)
    half = z * math.sqrt(p * (1 - p) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
