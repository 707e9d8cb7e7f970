"""The numbers under the drawings."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.reading import Page

from pac.report import charts


def series(x: list[float], y: list[float], **given: object) -> charts.Series:
    return charts.Series(name="a", index=0, x=np.array(x), y=np.array(y), **given)  # type: ignore[arg-type]


def test_smoothing_ignores_gaps_and_keeps_them() -> None:
    found = charts.smooth(np.array([1.0, math.nan, 3.0, 5.0, 7.0]), 3)
    np.testing.assert_allclose(found, [1.0, math.nan, 4.0, 5.0, 6.0])
    assert charts.smooth(np.array([1.0, 9.0]), 3).tolist() == [1.0, 9.0]


def test_thinning_keeps_the_mean() -> None:
    x, y = charts.thin(np.arange(1000.0), np.arange(1000.0), most=100)
    assert len(x) == 100
    np.testing.assert_allclose(x, y)
    assert y.mean() == pytest.approx(499.5)
    gappy = np.where(np.arange(1000) < 500, math.nan, 1.0)
    assert np.isnan(charts.thin(np.arange(1000.0), gappy, most=100)[1]).sum() == 50


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, width: float) -> None:
    high = low + width
    if high - low < 1e-9 * max(abs(low), 1):
        return
    found = charts.ticks(low, high)
    assert 1 <= len(found) <= 6
    slack = 1e-6 * (high - low) + 1e-9 * abs(low)
    assert all(low - slack <= tick <= high + slack for tick in found)


def test_a_plot_holds_the_numbers_it_was_given() -> None:
    page = Page(charts.lines("t", [series([0, 10, 20], [1.5, math.nan, 3.25])], x_name="updates").figure())
    assert page.plots["t"]["series"] == [{"name": "a", "x": [0, 10, 20], "y": [1.5, None, 3.25]}]


def test_nothing_to_draw_is_no_chart_and_one_point_is_one() -> None:
    assert charts.lines("t", [series([1, 2], [math.nan, math.nan])], x_name="updates").figure() == ""
    one = charts.lines("t", [series([5], [0.0])], x_name="updates").svg
    assert "nan" not in one
    assert "h0.01" in one


def test_a_level_is_within_the_axes() -> None:
    drawn = charts.lines("t", [series([0, 1], [1.0, 2.0])], x_name="round", line=("expert", 100.0)).svg
    assert "expert" in drawn
    assert ">100<" in drawn


def test_a_range_is_never_empty() -> None:
    for values in ([], [0.0], [0.0, 0.0], [3.0, 3.0], [math.nan], [-2.0]):
        for zero in (False, True):
            low, high = charts.span(np.array(values), zero=zero)
            assert low < high
            assert all(low <= value <= high for value in values if math.isfinite(value))


def test_bars_without_an_interval_have_no_whisker() -> None:
    bar = charts.Bar(name="a", index=0, value=3.0, low=-math.inf, high=math.inf, text="3.0 [?]")
    drawn = charts.bars("t", [bar]).figure("return")
    assert "inf" not in drawn
    assert "nan" not in drawn
    assert "<path" not in drawn
