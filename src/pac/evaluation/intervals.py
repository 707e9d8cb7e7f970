"""Confidence intervals: no number is shown without one.

All are 95% unless told otherwise, and `tests/test_intervals.py` checks by simulation that they are: a success rate
(`wilson`), a mean (`mean_interval`), a mean over tasks (`stratified_mean`, `stratified_bootstrap`), the difference of
two success rates over the same initial states (`paired_difference`).
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

Z = 1.959964  # 97.5% of a normal variable lie below
Z_POWER = 0.841621  # 80% do
FEW = 30  # below this many values Student's t; from here on the paper's 1.96
Interval = tuple[float, float]
Values = Sequence[float] | Sequence[int] | np.ndarray
EVERYTHING: Interval = (-math.inf, math.inf)


def wilson(successes: int | float, trials: int, z: float = Z) -> Interval:
    """Wilson's score interval of a success rate; all of [0, 1] without trials."""
    if trials == 0:
        return 0.0, 1.0
    p, spread = successes / trials, z**2 / trials
    centre = (p + spread / 2) / (1 + spread)
    half = z * math.sqrt(p * (1 - p) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def trials_for(half_width: float, rate: float = 0.5) -> int:
    """How many trials make Wilson's interval at most this far on either side; a rate of 0.5 needs the most."""
    low, high = 0, 1
    while _half_width(rate, high) > half_width:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _half_width(rate, middle) <= half_width else (middle, high)
    return high


def _half_width(rate: float, trials: int) -> float:
    low, high = wilson(rate * trials, trials)
    return (high - low) / 2


def mean_interval(values: Values) -> Interval:
    """Mean +- 1.96 standard errors, as in the paper; with fewer than 30 values Student's t takes the place of 1.96.

    Nothing is known of the spread from fewer than two values: the interval is then everything.
    """
    return stratified_mean([values])


def stratified_mean(groups: Sequence[Values]) -> Interval:
    """Of the mean of the groups' means, each group weighing the same: the tasks are given, their trials a sample.

    The standard error adds up those of the groups.
    """
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or min(map(len, arrays)) < 2:
        return EVERYTHING
    mean = float(np.mean([array.mean() for array in arrays]))
    error, factor = _error_and_factor(arrays, np.full(len(arrays), 1 / len(arrays)))
    return mean - factor * error, mean + factor * error


def _error_and_factor(arrays: Sequence[np.ndarray], shares: np.ndarray) -> tuple[float, float]:
    """Standard error of a weighted mean of means, and how many of them reach to either end of the interval.

    The degrees of freedom are Welch and Satterthwaite's: Student's t below 29 of them (30 values), 1.96 from there on.
    """
    variances = shares**2 * np.array([array.var(ddof=1) / len(array) for array in arrays])
    freedom = np.array([len(array) - 1 for array in arrays])
    total = float(variances.sum())
    degrees = total**2 / float((variances**2 / freedom).sum()) if total > 0 else math.inf
    factor = Z if degrees + 1e-9 >= FEW - 1 else t_quantile(math.floor(degrees + 1e-9))
    return math.sqrt(total), factor


@functools.cache
def t_quantile(degrees: int, level: float = 0.95) -> float:
    """The t with `level` of Student's distribution between -t and t, by bisection."""
    low, high = 0.0, 1.0
    while _t_between(high, degrees) < level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_between(middle, degrees) < level else (low, middle)
    return high


def _t_between(t: float, degrees: int) -> float:
    """P(-t < T < t) for a whole number of degrees of freedom: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(degrees // 2):
        total += term
        term *= cosine**2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return (2 / math.pi) * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def stratified_bootstrap(
    groups: Sequence[Values],
    *,
    weights: Values | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of a weighted mean of the groups' means: trials are drawn anew within each group.

    Two corrections for few trials: n - 1 values are drawn from a group of n (Rao and Wu 1988), since with n the
    variance is too small by (n - 1) / n; and the percentiles are those of Student's t (Hesterberg 2015).
    """
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or min(map(len, arrays)) < 2:
        return EVERYTHING
    shares = np.ones(len(arrays)) if weights is None else np.asarray(weights, dtype=np.float64)
    shares = shares / shares.sum()
    random, means = np.random.default_rng(seed), np.zeros(resamples)
    for array, share in zip(arrays, shares, strict=True):
        means += share * array[random.integers(0, len(array), (resamples, len(array) - 1))].mean(1)
    tail = math.erfc(_error_and_factor(arrays, shares)[1] / math.sqrt(2)) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


@functools.lru_cache(maxsize=4096)
def paired_difference(only_first: int, only_second: int, pairs: int, z: float = Z) -> Interval:
    """Tango's score interval of a difference of two success rates measured on the same pairs (Statistics in Medicine
    17, 1998): `only_first` pairs in which the first alone succeeded, `only_second` the second alone.

    It keeps its coverage where the normal interval fails: few pairs, or few that disagree.
    """
    if pairs == 0:
        return -1.0, 1.0
    score = functools.partial(_tango_score, only_first, only_second, pairs)
    difference = (only_first - only_second) / pairs
    return _crossing(score, z, -1.0, difference), _crossing(score, -z, difference, 1.0)


def _tango_score(b: int, c: int, n: int, difference: float) -> float:
    """Standardised distance of what was seen from a true difference, the rest fitted by maximum likelihood."""
    linear = (2 * n - b + c) * difference - b - c
    root = math.sqrt(max(0.0, linear**2 + 8 * n * c * difference * (1 - difference)))
    rate = (root - linear) / (4 * n)  # of pairs in which the second alone succeeds
    variance = n * (2 * rate + difference * (1 - difference))
    distance = b - c - n * difference
    if variance <= 1e-12 * n:
        return 0.0 if abs(distance) < 1e-9 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _crossing(score: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Where a decreasing score passes `level`."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > level else (low, middle)
    return (low + high) / 2


def pairs_for(difference: float, interval: Interval, pairs: int) -> int | None:
    """About how many pairs would show a difference of the size seen, with a chance of 80%; None if none was seen.

    The interval's half-width shrinks with the root of the number of pairs.
    """
    half = (interval[1] - interval[0]) / 2
    if difference == 0 or not math.isfinite(half):
        return None
    return math.ceil(pairs * (half / Z * (Z + Z_POWER) / difference) ** 2)
