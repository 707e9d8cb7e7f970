"""Wilson's interval, to the digit of the paper's tables."""

import pytest

from pac.intervals import wilson

PRINTED = [  # successes, trials, interval in percent
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


@pytest.mark.parametrize(("successes", "trials", "low", "high"), PRINTED)
def test_the_papers_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert [round(100 * end, 1) for end in wilson(successes, trials)] == [low, high]


def test_ends() -> None:
    assert wilson(0, 0) == (0, 1)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)
