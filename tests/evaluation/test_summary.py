"""Numbers of one actor: weights, intervals, and numbers that are left out."""

import math

import numpy as np
import pytest
from made import make, outcomes, returns

from pac.evaluation import Estimate, best, summarise
from pac.evaluation.intervals import mean_interval, stratified_mean, wilson


def test_success_is_pooled_over_episodes_as_in_the_paper() -> None:
    episodes = outcomes("metaworld/push", 10, 30) + outcomes("metaworld/reach", 50, 70)
    summary = summarise(episodes)
    success = summary.overall.success
    assert success is not None
    assert (success.mean, success.n) == (0.6, 100)
    assert (success.low, success.high) == wilson(60, 100)
    alone = summary.tasks["metaworld/push"].success
    assert alone is not None
    assert (alone.low, alone.high) == wilson(10, 30)


def test_returns_weigh_tasks_alike() -> None:
    many, few = np.linspace(90, 110, 40), np.linspace(0, 20, 10)
    overall = summarise(returns("control/a", many) + returns("control/b", few)).overall.returns
    assert overall.mean == pytest.approx(55)
    assert (overall.low, overall.high) == stratified_mean([many, few])


def test_percent_of_expert_has_the_standard_error_over_tasks() -> None:
    means = {f"control/{i}": 500 + 10 * i for i in range(32)}
    experts = dict.fromkeys(means, 1000.0)
    episodes = [entry for task, mean in means.items() for entry in returns(task, [mean - 50, mean, mean + 50])]
    percent = summarise(episodes, experts=experts).overall.percent
    assert percent is not None
    shares = [mean / 10 for mean in means.values()]
    half = 1.959964 * np.std(shares, ddof=1) / math.sqrt(32)
    assert (percent.mean, percent.low, percent.n) == (
        pytest.approx(np.mean(shares)),
        pytest.approx(np.mean(shares) - half),
        32,
    )
    assert percent.method == "standard error over tasks, 1.96"
    fewer = [entry for entry in episodes if entry.task < "control/2"]
    percent = summarise(fewer, experts=experts).overall.percent
    assert percent is not None
    assert percent.method == "standard error over tasks, Student's t"


def test_percent_of_one_task_is_its_return_scaled() -> None:
    values = [400.0, 500.0, 450.0, 470.0]
    percent = summarise(returns("control/a", values), experts={"control/a": 900.0}).tasks["control/a"].percent
    assert percent is not None
    assert percent.mean == pytest.approx(100 * np.mean(values) / 900)
    assert percent.low == pytest.approx(100 * mean_interval(values)[0] / 900)


def test_no_percentage_is_invented() -> None:
    summary = summarise(returns("control/a", [1.0, 2.0]) + returns("control/b", [3.0, 4.0]), experts={"control/b": 5.0})
    assert summary.tasks["control/a"].percent is None
    overall = summary.overall.percent
    assert overall is not None
    assert (overall.mean, overall.n) == (pytest.approx(70), 2)  # of the one task that has an expert
    assert summarise(returns("control/a", [1.0, 2.0])).overall.percent is None


def test_tasks_without_success_do_not_count_as_failures() -> None:
    summary = summarise(returns("control/a", [1.0, 2.0]) + outcomes("metaworld/push", 3, 4))
    assert summary.tasks["control/a"].success is None
    success = summary.overall.success
    assert success is not None
    assert (success.mean, success.n) == (0.75, 4)
    assert set(summary.pooled) == {"control", "metaworld", "all"}


def test_suites_are_pooled_only_where_there_are_several() -> None:
    assert list(summarise(returns("control/a", [1.0]) + returns("control/b", [1.0])).pooled) == ["all"]


def test_one_episode_has_no_interval() -> None:
    row = summarise([make(total=5.0)]).overall
    assert (row.returns.mean, row.returns.low, row.returns.high) == (5, -math.inf, math.inf)


def test_the_bootstrap_agrees_and_says_so() -> None:
    random = np.random.default_rng(0)
    episodes = returns("control/a", random.normal(500, 50, 100)) + returns("control/b", random.normal(700, 90, 100))
    plain, drawn = (summarise(episodes, bootstrap=choice).overall.returns for choice in (False, True))
    assert (drawn.low, drawn.high) == pytest.approx((plain.low, plain.high), abs=3)
    assert "bootstrap" in drawn.method
    success = summarise(outcomes("metaworld/push", 10, 10), bootstrap=True).overall.success
    assert success is not None
    assert success.high == 1


def test_several_actors_and_no_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="episodes of one actor"):
        summarise([make(), make(actor="theirs")])
    with pytest.raises(ValueError, match="at least one episode"):
        summarise([])


def estimate(mean: float, low: float) -> Estimate:
    return Estimate(mean=mean, low=low, high=2 * mean - low, n=100, method="")


def test_bold_are_those_within_the_interval_of_the_best() -> None:
    made = {"a": estimate(70.0, 66.0), "b": estimate(66.5, 60.0), "c": estimate(65.0, 50.0), "d": None}
    assert best(made) == {"a", "b"}
    assert best({"a": estimate(70.0, 66.0)}) == set()
    assert best({"a": estimate(70.0, -math.inf), "b": estimate(1.0, 0.0)}) == {"a"}
