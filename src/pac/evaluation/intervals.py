"""Confidence intervals of success rates, means and paired differences. All are 95% intervals.

| number | interval |
|---|---|
| success rate | `wilson` |
| mean | `mean_interval` |
| mean of the means of tasks | `stratified_mean`, `stratified_bootstrap` |
| difference of two success rates on the same initial states | `paired_difference` |

tests/evaluation/test_intervals.py checks by simulation that each covers the true value 95 times in 100.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

Z = 1.959964  # 97.5% quantile of the normal distribution
Z_POWER = 0.841621  # its 80% quantile
FEW = 30  # fewer values: Student's t; else 1.96 as in the paper
Interval = tuple[float, float]
Values = Sequence[float] | Sequence[int] | np.ndarray
EVERYTHING: Interval = (-math.inf, math.inf)


def wilson(successes: int | float, number: int, z: float = Z) -> Interval:
    """Return Wilson's score interval of a success rate over `number` episodes; (0, 1) if there are none."""
    if number == 0:
        return 0.0, 1.0
    p, spread = successes / number, z**2 / number
    centre = (p + spread / 2) / (1 + spread)
    half = z * math.sqrt(p * (1 - p) / number + spread / (4 * number)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def episodes_for(half_width: float, rate: float = 0.5) -> int:
    """Return how many episodes bring Wilson's interval to this half-width. A rate of 0.5 needs the most."""
    # (half_width (n + z^2))^2 = z^2 (rate (1 - rate) n + z^2 / 4), solved for n
    square, variance = half_width**2, rate * (1 - rate)
    linear = Z**2 * (2 * square - variance)
    root = math.sqrt(max(0.0, linear**2 - 4 * square * Z**4 * (square - 0.25)))
    return max(1, math.ceil((root - linear) / (2 * square)))


def mean_interval(values: Values) -> Interval:
    """Return the mean +- 1.96 standard errors, as in the paper. Fewer than 30 values use Student's t.

    With fewer than two values the spread is unknown, and the interval is infinite.
    """
    return stratified_mean([values])


def stratified_mean(groups: Sequence[Values]) -> Interval:
    """Return the interval of the mean of the groups' means. Groups weigh the same.

    A group holds the episodes of one task. The tasks are fixed; the episodes of each are a sample. The variances of the
    groups' means add up.
    """
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or min(map(len, arrays)) < 2:
        return EVERYTHING
    mean = float(np.mean([array.mean() for array in arrays]))
    error, factor = _error_and_factor(arrays, np.full(len(arrays), 1 / len(arrays)))
    return mean - factor * error, mean + factor * error


def _error_and_factor(arrays: Sequence[np.ndarray], shares: np.ndarray) -> tuple[float, float]:
    """Return the standard error of a weighted mean of means, and the factor that makes it half of the interval.

    The degrees of freedom are Welch and Satterthwaite's. Below 29 (30 values) the factor is Student's t, else 1.96.
    """
    variances = shares**2 * np.array([array.var(ddof=1) / len(array) for array in arrays])
    freedom = np.array([len(array) - 1 for array in arrays])
    total = float(variances.sum())
    degrees = total**2 / float((variances**2 / freedom).sum()) if total > 0 else math.inf
    factor = Z if degrees + 1e-9 >= FEW - 1 else t_quantile(math.floor(degrees + 1e-9))
    return math.sqrt(total), factor


@functools.cache
def t_quantile(degrees: int, level: float = 0.95) -> float:
    """Return the t that has `level` of Student's distribution between -t and t, by bisection."""
    low, high = 0.0, 1.0
    while _t_between(high, degrees) < level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_between(middle, degrees) < level else (low, middle)
    return high


def _t_between(t: float, degrees: int) -> float:
    """Return P(-t < T < t) for an integer number of degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
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
    """Return the percentile bootstrap of a weighted mean of the groups' means. Episodes are resampled in each group.

    Two corrections serve small groups. n - 1 values are drawn from a group of n, since n values give a variance that is
    too small by (n - 1) / n (Rao and Wu 1988). The percentiles are those of Student's t (Hesterberg 2015).
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
    """Return Tango's score interval of a paired difference of success rates (Statistics in Medicine 17, 1998).

    `only_first` counts the pairs in which the first actor alone succeeded, `only_second` those of the second. The
    coverage holds for few pairs and for few that differ, where that of a normal interval does not.
    """
    if pairs == 0:
        return -1.0, 1.0
    score = functools.partial(_tango_score, only_first, only_second, pairs)
    difference = (only_first - only_second) / pairs
    return _crossing(score, z, -1.0, difference), _crossing(score, -z, difference, 1.0)


def _tango_score(b: int, c: int, n: int, difference: float) -> float:
    """Return the standardised distance of the counts from a true difference. The rates are fitted to it."""
    linear = (2 * n - b + c) * difference - b - c
    root = math.sqrt(max(0.0, linear**2 + 8 * n * c * difference * (1 - difference)))
    rate = (root - linear) / (4 * n)  # estimated share of pairs in which the second alone succeeds
    variance = n * (2 * rate + difference * (1 - difference))
    distance = b - c - n * difference
    if variance <= 1e-12 * n:
        return 0.0 if abs(distance) < 1e-9 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _crossing(score: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Return the point between `low` and `high` where a decreasing score passes `level`."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > level else (low, middle)
    return (low + high) / 2


def pairs_for(difference: float, interval: Interval, pairs: int) -> int | None:
    """Return about how many pairs show a difference of this size with a probability of 80%; None for no difference.

    The half-width of the interval shrinks with the square root of the number of pairs.
    """
    half = (interval[1] - interval[0]) / 2
    if difference == 0 or not math.isfinite(half):
        return None
    return math.ceil(pairs * (half / Z * (Z + Z_POWER) / difference) ** 2)
