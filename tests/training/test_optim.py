"""The optimiser: learning rates of the paper, their curve, weight decay, and the period of target copies."""

import math

import pytest
import torch
from factories import small_model

from pac.config import OptimiserConfig
from pac.training.optim import (
    PAPER_WARMUP,
    copy_weights,
    learning_rate,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
    target_period,
    warmup_steps,
)


def curve(size: str, steps: int, **given: object) -> list[float]:
    config = OptimiserConfig(**given)  # type: ignore[arg-type]
    warmup = warmup_steps(steps)
    return [learning_rate(config, size, step=step, steps=steps, warmup=warmup) for step in range(steps)]


@pytest.mark.parametrize(
    ("size", "first", "peak"),
    [("XXS", 1e-6, 1e-4), ("XS", 1e-6, 1e-4), ("S", 1e-7, 5e-5), ("M", 1e-7, 3e-5), ("L", 1e-7, 3e-5)],
)
def test_the_rates_of_the_paper(size: str, first: float, peak: float) -> None:
    rate = [learning_rate(OptimiserConfig(), size, step=s, steps=3_000_000, warmup=PAPER_WARMUP) for s in (0, 14_999)]
    assert rate[0] == pytest.approx(first, abs=peak / PAPER_WARMUP * 1.01)
    assert rate[1] == pytest.approx(peak)
    last = learning_rate(OptimiserConfig(), size, step=2_999_999, steps=3_000_000, warmup=PAPER_WARMUP)
    assert last == pytest.approx(0.1 * peak, rel=1e-6)


def test_linear_warm_up_and_cosine_decay() -> None:
    rates = curve("nano", 1000, peak_rate=1.0, initial_rate=0.0, final_share=0.2)
    assert rates[:50] == pytest.approx([(i + 1) / 50 for i in range(50)])
    middle = 50 + 950 // 2
    assert rates[middle] == pytest.approx(0.6, abs=1e-3)
    assert rates[middle + 100] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi * 575 / 950)) / 2)
    assert sorted(rates[50:], reverse=True) == rates[50:]
    assert set(curve("nano", 100, peak_rate=0.5, decay="constant")[5:]) == {0.5}
    assert curve("nano", 1, peak_rate=0.5) == [0.5]
    assert curve("custom", 40)[1] == 5e-4


def test_warm_up_and_target_follow_the_length() -> None:
    assert [warmup_steps(n) for n in (1, 100, 20_000, 3_000_000)] == [1, 5, 1000, 15_000]
    assert [target_period(OptimiserConfig(), n) for n in (60, 10_000, 3_000_000)] == [10, 50, 100]
    assert target_period(OptimiserConfig(target_period=7), 60) == 7


def test_vectors_are_not_decayed_and_state_exists_from_the_start() -> None:
    model = small_model()
    optimizer = make_optimizer(model, OptimiserConfig(weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = optimizer_tensors(model, optimizer)
    assert len(state) == 3 * len(before)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    set_learning_rate(optimizer, 0.1)
    optimizer.step()
    for name, parameter in model.named_parameters():
        share = 0.95 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), share * before[name])
    assert all(state[f"step.{name}"] == 1 for name in before), "the tensors themselves, not copies"


def test_the_target_is_a_copy() -> None:
    model, target = small_model(0), small_model(1)
    copy_weights(model, target)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), target.parameters(), strict=True))
    assert len(list(model.buffers())) == len(list(target.buffers()))
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert not torch.equal(next(model.parameters()), next(target.parameters()))
