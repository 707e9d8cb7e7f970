"""Bins: the projection against brute force, means, and the value a head starts at."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pac.bins import Bins

numbers = st.floats(-3, 3, allow_nan=False)


def brute_force(bins: Bins, probs: np.ndarray, shift: float, scale: float, kind: str) -> np.ndarray:
    points, out = np.linspace(bins.low, bins.high, bins.count), np.zeros(bins.count)
    for point, mass in zip(points, probs, strict=True):
        value = min(max(shift + scale * point, bins.low), bins.high)
        distance = np.abs(points - value) / bins.step
        if kind == "nearest":
            out[np.argmin(distance)] += mass
        else:
            near = np.argsort(distance, kind="stable")[:2]
            for k in near:
                out[k] += mass * max(0.0, 1 - distance[k])
    return out


@pytest.mark.parametrize("kind", ["two-hot", "nearest"])
@given(
    count=st.integers(2, 12), low=numbers, span=st.floats(0.1, 5), shift=numbers, scale=numbers, seed=st.integers(0, 99)
)
def test_projection_matches_brute_force(
    kind: str, count: int, low: float, span: float, shift: float, scale: float, seed: int
) -> None:
    bins = Bins(low, low + span, count)
    probs = np.random.default_rng(seed).dirichlet(np.ones(count))
    place = (np.clip(shift + scale * np.linspace(low, low + span, count), low, low + span) - low) / bins.step
    if kind == "nearest" and np.any(np.abs(place % 1 - 0.5) < 1e-6):
        return  # a tie: either neighbour is nearest
    tensors = [torch.tensor(x, dtype=torch.float64) for x in (probs, shift, scale)]
    projected = bins.project(*tensors, kind)
    np.testing.assert_allclose(projected, brute_force(bins, probs, shift, scale, kind), atol=1e-9)
    assert projected.sum().item() == pytest.approx(1)


@given(shift=st.floats(0, 0.3), scale=st.floats(0, 0.7), seed=st.integers(0, 99))
def test_two_hot_keeps_the_mean_inside_the_range(shift: float, scale: float, seed: int) -> None:
    bins = Bins(0.0, 1.0, 101)
    probs = torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(101)))
    points = bins.points(probs)
    projected = bins.project(probs, probs.new_tensor(shift), probs.new_tensor(scale))
    assert (projected @ points).item() == pytest.approx(shift + scale * (probs @ points).item(), abs=1e-12)


def test_nearest_loses_small_shifts_and_two_hot_does_not() -> None:
    """The reason for the default: rewards scaled by 1 - gamma are smaller than half a bin."""
    bins = Bins(0.0, 1.0, 101)
    probs = torch.zeros(101, dtype=torch.float64)
    probs[0] = 1
    small, one = probs.new_tensor(0.004), probs.new_tensor(1.0)
    assert bins.project(probs, small, one, "nearest") @ bins.points(probs) == 0
    assert bins.project(probs, small, one) @ bins.points(probs) == pytest.approx(0.004)


def test_mass_outside_the_range_goes_to_its_ends() -> None:
    bins = Bins(0.0, 1.0, 5)
    probs = torch.full((2, 5), 0.2)
    projected = bins.project(probs, torch.tensor([9.0, -9.0]), torch.ones(2))
    assert projected[0].tolist() == pytest.approx([0, 0, 0, 0, 1])
    assert projected[1].tolist() == pytest.approx([1, 0, 0, 0, 0])


def test_action_cells_tile_the_range_and_round_trip() -> None:
    bins = Bins.cells(-1.0, 1.0, 101)
    points = bins.points(torch.zeros(1))
    assert points[50].item() == pytest.approx(0, abs=1e-6)
    assert bins.step == pytest.approx(2 / 101)
    assert points[0] - bins.step / 2 == pytest.approx(-1)
    assert torch.equal(bins.encode(points), torch.arange(101))
    assert torch.equal(bins.encode(torch.tensor([-5.0, -1.0, 1.0, 5.0])), torch.tensor([0, 0, 100, 100]))
    values = torch.rand(1000) * 2 - 1
    assert ((bins.decode(bins.encode(values), values) - values).abs() <= bins.step / 2 + 1e-6).all()


def test_mean_of_logits() -> None:
    bins = Bins(-2.0, 3.0, 7)
    logits = torch.randn(4, 7, dtype=torch.float64)
    expected = (logits.softmax(-1) * torch.linspace(-2, 3, 7, dtype=torch.float64)).sum(-1)
    torch.testing.assert_close(bins.mean(logits), expected)


@pytest.mark.parametrize(("centre", "noise"), [(0.3, 0.3), (1.0, 0.5), (0.9, 1.0), (-0.97, 0.6), (0.0, 2.0)])
def test_the_median_removes_noise_clipped_at_the_bounds(centre: float, noise: float) -> None:
    bins = Bins.cells(-1.0, 1.0, 101)
    drawn = centre + noise * torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(bins.encode(drawn.clamp(-1, 1)), minlength=101).float()
    assert bins.median(counts.log()[None]).item() == pytest.approx(centre, abs=0.02)


def test_the_median_of_certain_and_of_even_logits() -> None:
    bins = Bins.cells(0.0, 1.0, 4)
    certain = torch.tensor([[0.0, 9e4, 0.0, 0.0], [9e4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9e4]])
    assert bins.median(certain).tolist() == pytest.approx([0.375, 0.125, 0.875])
    assert bins.median(torch.zeros(2, 4)).tolist() == pytest.approx([0.5, 0.5])


@given(low=st.floats(-50, 50), span=st.floats(0.1, 100), where=st.floats(0, 1))
def test_logits_start_near_the_chosen_value(low: float, span: float, where: float) -> None:
    bins = Bins(low, low + span, 101)
    value = min(low + where * span, low + span)
    logits = bins.logits_near(value)
    assert bins.mean(logits.double()).item() == pytest.approx(value, abs=0.011 * span)
    assert logits.amax() - logits.amin() < 10  # a reward far from there costs nats, not hundreds of them


@pytest.mark.parametrize("wrong", [(1.0, 0.0, 5), (0.0, 0.0, 5), (0.0, 1.0, 1)])
def test_impossible_bins_are_refused(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="expected low < high and count >= 2, found"):
        Bins(*wrong)
    with pytest.raises(ValueError, match="initial value inside"):
        Bins(0.0, 1.0, 5).logits_near(2.0)
