"""Intervals: Wilson's to the digit of the paper's tables, and every one of them covers what it says, by simulation."""

import math
from pathlib import Path

import numpy as np
import pytest

from pac.evaluation.intervals import (
    EVERYTHING,
    Z,
    episodes_for,
    mean_interval,
    paired_difference,
    pairs_for,
    stratified_bootstrap,
    stratified_mean,
    t_quantile,
    wilson,
)

PRINTED = [  # successes, episodes, interval in percent
    (427, 700, 57.3, 64.5),
    (499, 700, 67.8, 74.5),
    (1946, 3000, 63.1, 66.6),
    (239, 300, 74.8, 83.8),
    (17, 100, 10.9, 25.5),
    (11, 100, 6.3, 18.6),
    (55, 100, 45.2, 64.4),
    (52, 100, 42.3, 61.5),
    (83, 100, 74.5, 89.1),
    (206, 400, 46.6, 56.4),
    (376, 400, 91.2, 95.9),
    (388, 400, 94.8, 98.3),
    (1397, 2000, 67.8, 71.8),
    (1694, 2000, 83.1, 86.2),
    (1864, 2000, 92.0, 94.2),
    (305, 400, 71.8, 80.2),
]


@pytest.mark.parametrize(("successes", "episodes", "low", "high"), PRINTED)
def test_the_papers_intervals(successes: int, episodes: int, low: float, high: float) -> None:
    assert [round(100 * end, 1) for end in wilson(successes, episodes)] == [low, high]


def test_ends() -> None:
    assert wilson(0, 0) == (0, 1)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)


@pytest.mark.parametrize(("rate", "low", "high"), [(0.908, 87.6, 93.3), (0.762, 71.8, 80.1)])
def test_the_papers_intervals_of_rounded_rates(rate: float, low: float, high: float) -> None:
    """The second is 80.2 in another table of the paper, from the count 305 of 400."""
    assert [round(100 * end, 1) for end in wilson(rate * 400, 400)] == [low, high]


def covers(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


def assert_covers(hits: list[bool]) -> None:
    assert 0.93 <= np.mean(hits) <= 0.97, f"{np.mean(hits):.3f} of {len(hits)}"


def test_coverage_of_wilson() -> None:
    random = np.random.default_rng(0)
    rates = np.linspace(0.1, 0.9, 9)
    hits = [[covers(wilson(int(k), 100), p) for k in random.binomial(100, p, 2000)] for p in rates]
    assert_covers([hit for row in hits for hit in row])
    assert all(0.925 <= np.mean(row) <= 0.975 for row in hits)


def test_pooled_wilson_is_cautious_when_tasks_differ() -> None:
    """It assumes one rate for all episodes. Tasks of known, unequal rates vary less."""
    random = np.random.default_rng(0)
    rates = np.array([0.05, 0.3, 0.7, 0.95])
    hits = [covers(wilson(int(random.binomial(50, rates).sum()), 200), rates.mean()) for _ in range(2000)]
    assert np.mean(hits) > 0.97


@pytest.mark.parametrize("tasks", [4, 10, 29, 30, 32, 100])
def test_coverage_of_the_standard_error_over_tasks(tasks: int) -> None:
    random = np.random.default_rng(tasks)
    assert_covers([covers(mean_interval(random.normal(80, 15, tasks)), 80) for _ in range(3000)])


def test_coverage_of_the_standard_error_over_tasks_that_are_skewed() -> None:
    """Percent of expert as it looks: most tasks near 100, some far below."""
    random = np.random.default_rng(0)
    assert_covers([covers(mean_interval(100 * random.beta(4, 1.2, 32)), 100 * 4 / 5.2) for _ in range(3000)])


def test_1_96_is_too_short_for_few_tasks() -> None:
    """Why fewer than 30 tasks get Student's t."""
    random = np.random.default_rng(0)
    values = random.normal(0, 1, (3000, 5))
    hits = np.abs(values.mean(1)) <= Z * values.std(1, ddof=1) / math.sqrt(5)
    assert np.mean(hits) < 0.9


def drawn(random: np.random.Generator, episodes: int) -> list[np.ndarray]:
    """Returns of five tasks: steady, skewed, two-valued, noisy, rarely anything."""
    return [
        random.normal(900, 20, episodes),
        1000 * random.beta(5, 1, episodes),
        1000.0 * (random.random(episodes) < 0.6),
        random.normal(400, 150, episodes),
        800.0 * (random.random(episodes) < 0.1),
    ]


TRUTH = (900 + 1000 * 5 / 6 + 600 + 400 + 80) / 5


@pytest.mark.parametrize("episodes", [10, 30, 100])
def test_coverage_of_the_stratified_mean(episodes: int) -> None:
    random = np.random.default_rng(episodes)
    assert_covers([covers(stratified_mean(drawn(random, episodes)), TRUTH) for _ in range(2000)])


@pytest.mark.parametrize("episodes", [10, 30, 100])
def test_coverage_of_the_stratified_bootstrap(episodes: int) -> None:
    random = np.random.default_rng(episodes)
    intervals = (stratified_bootstrap(drawn(random, episodes), resamples=400, seed=seed) for seed in range(1500))
    assert_covers([covers(interval, TRUTH) for interval in intervals])


def test_coverage_of_the_stratified_bootstrap_of_success() -> None:
    """Where Wilson's pooled interval is too cautious: tasks of very different rates."""
    random = np.random.default_rng(0)
    rates = (0.05, 0.3, 0.7, 0.95)
    draws = ([random.random(50) < p for p in rates] for _ in range(1500))
    hits = [covers(stratified_bootstrap(draw, resamples=400, seed=i), 0.5) for i, draw in enumerate(draws)]
    assert_covers(hits)


@pytest.mark.parametrize(("first", "second"), [(0.05, 0.05), (0.2, 0.1), (0.3, 0.05), (0.5, 0.2)])
@pytest.mark.parametrize("pairs", [50, 100, 700])
def test_coverage_of_the_paired_difference(first: float, second: float, pairs: int) -> None:
    random = np.random.default_rng(pairs)
    counts = random.multinomial(pairs, [first, second, 1 - first - second], size=2000)
    assert_covers([covers(paired_difference(int(b), int(c), pairs), first - second) for b, c, _ in counts])


def test_coverage_of_the_paired_difference_pooled_over_tasks() -> None:
    """Ten tasks of 50 pairs: the first policy gains in some, loses in others."""
    random = np.random.default_rng(0)
    first, second = random.uniform(0.02, 0.4, 10), random.uniform(0.02, 0.2, 10)
    hits = []
    for _ in range(2000):
        b = random.binomial(50, first)
        c = random.binomial(50 - b, second / (1 - first))
        hits.append(covers(paired_difference(int(b.sum()), int(c.sum()), 500), (first - second).mean()))
    assert_covers(hits)


@pytest.mark.parametrize(("b", "c", "n"), [(9, 3, 44), (0, 0, 30), (5, 0, 12), (12, 12, 40), (0, 7, 7)])
def test_tango_against_a_search_over_what_is_fitted(b: int, c: int, n: int) -> None:
    """At each end the score of the most likely pair of rates with that difference is 1.96."""
    for end, sign in zip(paired_difference(b, c, n), (1, -1), strict=True):
        if abs(end) > 1 - 1e-9:
            continue
        second = np.linspace(max(0.0, -end), (1 - end) / 2, 2_000_001)[1:-1]
        first = second + end
        with np.errstate(divide="ignore", invalid="ignore"):
            likelihood = b * np.log(first) + c * np.log(second) + (n - b - c) * np.log(1 - first - second)
        best = second[np.nanargmax(likelihood)]
        score = (b - c - n * end) / math.sqrt(n * (2 * best + end * (1 - end)))
        assert score == pytest.approx(sign * Z, abs=2e-3)


def test_the_paired_difference_mirrors() -> None:
    low, high = paired_difference(9, 3, 44)
    assert paired_difference(3, 9, 44) == (pytest.approx(-high), pytest.approx(-low))
    assert paired_difference(0, 0, 0) == (-1, 1)
    assert paired_difference(10, 0, 10)[1] == pytest.approx(1)


def test_the_bootstrap_is_repeatable_and_agrees_with_the_standard_error() -> None:
    groups = drawn(np.random.default_rng(1), 200)
    interval = stratified_bootstrap(groups, seed=3)
    assert interval == stratified_bootstrap(groups, seed=3)
    assert interval == pytest.approx(stratified_mean(groups), abs=3)


def test_the_bootstrap_weighs_groups() -> None:
    assert stratified_bootstrap([[1.0, 1.0], [0.0, 0.0]], weights=[3, 1]) == (0.75, 0.75)


def test_nothing_is_claimed_from_one_value() -> None:
    assert mean_interval([]) == mean_interval([3.0]) == EVERYTHING
    assert stratified_mean([[1.0, 2.0], [3.0]]) == stratified_bootstrap([[1.0, 2.0], [3.0]]) == EVERYTHING
    assert mean_interval([3.0, 3.0]) == (3, 3)


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (29, 2.0452)])
def test_students_t(degrees: int, value: float) -> None:
    assert t_quantile(degrees) == pytest.approx(value, abs=1e-4)


def test_how_many_episodes() -> None:
    assert (episodes_for(0.05), episodes_for(0.1)) == (381, 93)
    assert episodes_for(0.05, 0.9) < episodes_for(0.05)
    low, high = wilson(0.5 * 381, 381)
    assert (high - low) / 2 <= 0.05


def test_how_many_pairs_show_a_difference() -> None:
    """A normal difference of 0.1 with a spread of 1 needs (2.80 / 0.1)^2 pairs for a power of 80%."""
    half = Z / math.sqrt(100)
    assert pairs_for(0.1, (0.1 - half, 0.1 + half), 100) == pytest.approx(785, abs=1)
    assert pairs_for(0.0, (-0.1, 0.1), 100) is None
    assert pairs_for(1.0, EVERYTHING, 1) is None


def documented(header: str) -> list[list[float]]:
    """The numbers of a table in docs/evaluation.md."""
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    lines = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[float(cell.replace(",", "")) for cell in line.strip("|").split("|")] for line in lines]


def test_the_documented_widths() -> None:
    for episodes, *widths in documented("| episodes, pooled |"):
        ends = [wilson(rate * episodes, int(episodes)) for rate in (0.5, 0.8, 0.95)]
        assert [round(50 * (high - low), 1) for low, high in ends] == widths


def test_the_documented_numbers_of_pairs() -> None:
    for points, *pairs in documented("| true difference, points |"):
        difference = points / 100
        spreads = [math.sqrt(disagree - difference**2) for disagree in (0.1, 0.2, 0.4)]
        needed = [pairs_for(difference, (difference - Z * s, difference + Z * s), 1) for s in spreads]
        assert needed == pairs
