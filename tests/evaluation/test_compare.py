"""Differences over the same initial states, and warnings about differences that may be chance."""

import dataclasses

import numpy as np
import pytest
from made import make, outcomes, returns

from pac.evaluation import Difference, EpisodeRecord, compare, summarise, warnings
from pac.evaluation.intervals import mean_interval, paired_difference


def pooled(records: list[EpisodeRecord], metric: str, **given: object) -> Difference:
    return next(d for d in compare(records, **given) if d.metric == metric and d.where == "all")  # type: ignore[arg-type]


def test_returns_are_paired_by_initial_state() -> None:
    """States differ far more than the policies do: only pairs show the difference."""
    random = np.random.default_rng(0)
    hard = random.normal(500, 200, 50)
    gain = random.normal(10, 5, 50)
    ours, theirs = returns("control/a", hard + gain), returns("control/a", hard, "theirs")
    difference = pooled(ours + theirs[::-1], "return")
    assert difference.difference == pytest.approx(gain.mean())
    assert (difference.low, difference.high) == pytest.approx(mean_interval(gain))
    assert difference.shown
    assert (difference.first, difference.second, difference.pairs) == ("ours", "theirs", 50)


def test_success_counts_the_pairs_that_disagree() -> None:
    ours, theirs = outcomes("metaworld/push", 60, 100, seed=1), outcomes("metaworld/push", 40, 100, "theirs", seed=2)
    b = sum(bool(x.success and not y.success) for x, y in zip(ours, theirs, strict=True))
    c = sum(bool(y.success and not x.success) for x, y in zip(ours, theirs, strict=True))
    difference = pooled(ours + theirs, "success")
    assert difference.difference == pytest.approx(0.2)
    assert (difference.low, difference.high) == paired_difference(b, c, 100)


def test_percent_of_expert_weighs_tasks_by_their_experts() -> None:
    ours = returns("control/a", [110.0, 110.0]) + returns("control/b", [10.0, 10.0])
    theirs = returns("control/a", [100.0, 100.0], "theirs") + returns("control/b", [5.0, 5.0], "theirs")
    experts = {"control/a": 1000.0, "control/b": 10.0}
    assert pooled(ours + theirs, "percent", experts=experts).difference == pytest.approx((1 + 50) / 2)
    tasks = {d.where for d in compare(ours + theirs, experts=experts)}
    assert tasks == {"control/a", "control/b", "all"}


def test_other_initial_states_are_refused() -> None:
    with pytest.raises(ValueError, match="the same state, found x and y"):
        compare([make(state="x"), make(state="y", actor="theirs")])


def test_episodes_of_one_actor_alone_are_left_out() -> None:
    ours, theirs = returns("control/a", [1, 2, 3, 4]), returns("control/a", [1, 1], "theirs")
    assert pooled(ours + theirs, "return").pairs == 2
    summaries = {"ours": summarise(ours), "theirs": summarise(theirs)}
    assert any("ours 4, theirs 2" in note for note in warnings(summaries, compare(ours + theirs)))
    assert compare(ours + returns("control/b", [1.0], "theirs")) == []


def test_all_pairs_of_actors_are_compared() -> None:
    records = [entry for actor in "abc" for entry in returns("control/a", [1.0, 2.0], actor)]
    assert [(d.first, d.second) for d in compare(records)] == [("a", "b"), ("a", "c"), ("b", "c")]


def test_the_bootstrap_agrees() -> None:
    ours, theirs = outcomes("metaworld/push", 60, 100, seed=1), outcomes("metaworld/push", 40, 100, "theirs", seed=2)
    plain, drawn = (pooled(ours + theirs, "success", bootstrap=choice) for choice in (False, True))
    assert (drawn.low, drawn.high) == pytest.approx((plain.low, plain.high), abs=0.03)
    assert "bootstrap" in drawn.method


def test_wide_intervals_get_warnings() -> None:
    ours, theirs = outcomes("metaworld/push", 55, 100, seed=1), outcomes("metaworld/push", 50, 100, "theirs", seed=2)
    notes = warnings({"ours": summarise(ours), "theirs": summarise(theirs)}, compare(ours + theirs))
    assert len(notes) == 3
    assert (
        "100 episodes place success between 45.2 and 64.4%. To know it within 5 points takes up to 381 episodes."
        in notes[0]
    )
    assert "not distinguishable in success with 100 pairs. A difference of this size would take about" in notes[2]
    needed = next(d.needed for d in compare(ours + theirs) if d.metric == "success")
    assert needed is not None
    assert 1000 < needed < 2500  # about half of the pairs disagree: (2.8 / 0.05)^2 * 0.5


def test_a_difference_that_holds_gets_no_warning() -> None:
    ours, theirs = outcomes("metaworld/push", 980, 1000, seed=1), outcomes("metaworld/push", 20, 1000, "theirs", seed=2)
    assert warnings({"ours": summarise(ours), "theirs": summarise(theirs)}, compare(ours + theirs)) == []


def test_equal_policies_show_no_difference() -> None:
    ours = outcomes("metaworld/push", 500, 1000)
    theirs = [dataclasses.replace(entry, actor="theirs") for entry in ours]
    notes = warnings({"ours": summarise(ours), "theirs": summarise(theirs)}, compare(ours + theirs))
    assert notes == ["ours and theirs are not distinguishable in success with 1,000 pairs. They did not differ."]


def test_few_episodes_of_a_task_are_noted() -> None:
    assert "a task has 1 episode." in warnings({"ours": summarise([make()])}, [])[0]


def test_returns_that_hardly_vary_are_noted() -> None:
    rare = returns("control/a", [0.0] * 95 + [800.0] * 5)
    assert "most returns are equal in control/a" in warnings({"ours": summarise(rare)}, [])[0]
    assert warnings({"ours": summarise(returns("control/a", [0.0] * 80 + [800.0] * 20))}, []) == []
    assert warnings({"ours": summarise(returns("control/a", range(10)))}, []) == []
