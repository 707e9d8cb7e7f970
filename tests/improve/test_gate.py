"""Promotion, refusal and mastery, decided from made-up evaluation episodes."""

import numpy as np
import pytest
from evaluation.made import make, outcomes, returns

from pac.evaluation import EpisodeRecord
from pac.improve import gate

DRAWER, BUTTON, WALKER, REACHER = (
    "metaworld/drawer-open",
    "metaworld/push",
    "control/walker.walk",
    "control/reacher.easy",
)


def judge(
    new: list[EpisodeRecord], old: list[EpisodeRecord], tolerance: float = 0.0, **scopes: list[str]
) -> gate.Verdict:
    given = scopes or {"targets": sorted({entry.task for entry in new})}
    return gate.judge(new, old, given, experts={WALKER: 1000.0, REACHER: 100.0}, tolerance=tolerance)


def test_better_and_equal_rounds_are_promoted() -> None:
    old = outcomes(DRAWER, 10, 50, "old")
    better = judge(outcomes(DRAWER, 30, 50), old)
    assert better.promoted
    assert "targets significantly better: +40.0" in better.reason
    same = judge(outcomes(DRAWER, 10, 50), old)
    assert same.promoted
    assert "not significantly worse" in same.reason


def test_a_significantly_worse_round_is_refused() -> None:
    verdict = judge(outcomes(DRAWER, 20, 50), outcomes(DRAWER, 40, 50, "old"))
    assert not verdict.promoted
    assert "targets significantly worse: -40.0" in verdict.reason


def test_a_round_may_be_worse_by_the_tolerance() -> None:
    """-40 points with 50 pairs: the interval ends near -25."""
    new, old = outcomes(DRAWER, 20, 50), outcomes(DRAWER, 40, 50, "old")
    assert not judge(new, old, tolerance=0.2).promoted
    assert judge(new, old, tolerance=0.35).promoted


@pytest.mark.parametrize("episodes", [1, 2, 3, 4])
def test_a_small_loss_in_few_episodes_is_not_refused(episodes: int) -> None:
    """One success less is not significant."""
    for successes in range(1, episodes + 1):
        assert judge(outcomes(DRAWER, successes - 1, episodes), outcomes(DRAWER, successes, episodes, "old")).promoted
    assert judge(returns(WALKER, range(episodes)), returns(WALKER, range(1, episodes + 1), "old"), 0.01).promoted


def test_a_total_loss_is_refused_with_ten_episodes() -> None:
    assert not judge(outcomes(DRAWER, 0, 10), outcomes(DRAWER, 9, 10, "old")).promoted
    assert not judge(returns(WALKER, range(10)), returns(WALKER, range(700, 710), "old")).promoted


def test_a_round_that_forgets_another_task_is_refused() -> None:
    new = [*outcomes(DRAWER, 45, 50), *outcomes(BUTTON, 5, 50)]
    old = [*outcomes(DRAWER, 10, 50, "old"), *outcomes(BUTTON, 40, 50, "old")]
    verdict = judge(new, old, targets=[DRAWER], others=[BUTTON])
    assert not verdict.promoted
    assert "targets significantly better" in verdict.reason
    assert "others significantly worse" in verdict.reason
    assert judge(new, old, targets=[DRAWER], others=[]).promoted


def test_targets_are_pooled() -> None:
    """A gain at one target may outweigh a loss at another."""
    new = [*outcomes(DRAWER, 45, 50), *outcomes(BUTTON, 30, 50)]
    old = [*outcomes(DRAWER, 10, 50, "old"), *outcomes(BUTTON, 40, 50, "old")]
    assert judge(new, old).promoted


def test_returns_count_as_shares_of_the_expert() -> None:
    """The same 50 points of return are 5% of one expert and half of the other."""
    noise = np.random.default_rng(0).normal(0, 1, 20)
    old = [*returns(WALKER, 500 + noise, "old")]
    assert judge(returns(WALKER, 450 + noise[::-1]), old, tolerance=0.1).promoted
    assert not judge(returns(REACHER, 20 + noise[::-1]), returns(REACHER, 70 + noise, "old"), tolerance=0.1).promoted


def test_without_an_expert_the_reference_is_the_promoted_round() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 20)
    old = returns("control/dog.run", 100 + noise, "old")
    assert judge(returns("control/dog.run", 96 + noise[::-1]), old, tolerance=0.1).promoted
    assert not judge(returns("control/dog.run", 80 + noise[::-1]), old, tolerance=0.1).promoted


def test_success_and_return_together() -> None:
    new = [*outcomes(DRAWER, 2, 20), *returns(WALKER, range(20))]
    old = [*outcomes(DRAWER, 18, 20, "old"), *returns(WALKER, range(1, 21), "old")]
    assert not judge(new, old).promoted


def test_other_initial_states_are_not_compared() -> None:
    with pytest.raises(ValueError, match="to start from the same state"):
        judge([make(DRAWER, 0, success=True)], [make(DRAWER, 0, success=True, actor="old", state="elsewhere")])


def test_every_target_must_be_mastered() -> None:
    experts = {WALKER: 1000.0}
    both = [*outcomes(DRAWER, 19, 20), *returns(WALKER, [900.0, 902.0])]
    assert gate.mastered(both, [DRAWER, WALKER], experts, 0.9)
    assert not gate.mastered(both, [DRAWER, WALKER], experts, 0.92)
    assert gate.mastered(both, [DRAWER], experts, 0.92)
    assert not gate.mastered(both, [WALKER], {}, 0.1)  # neither success nor expert
