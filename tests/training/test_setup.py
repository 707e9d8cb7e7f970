"""Reward scale and discount of each dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import assert_same, config, start, tensors, timeless

from pac.data.store import DatasetSpec
from pac.data.writer import DatasetWriter
from pac.objectives import loss
from pac.training.run_dir import read_metrics
from pac.training.trainer import Trainer
from pac.types import Episode


def write_steady(path: Path, reward: float, dims: int) -> None:
    """Write episodes with the same reward at every step. A time limit ends them."""
    random = np.random.default_rng(dims)
    spec = DatasetSpec(state_dim=dims, action_dim=1, action_low=(-1.0,), action_high=(1.0,))
    with DatasetWriter(path, spec) as writer:
        for _ in range(4):
            writer.append(
                Episode(
                    observation={"observation.state": random.normal(size=(9, dims)).astype(np.float32)},
                    action=random.uniform(-1, 1, (8, 1)).astype(np.float32),
                    reward=np.full(8, reward, np.float32),
                    terminated=False,
                    truncated=True,
                )
            )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_steady(tmp_path / "data" / "arm", 2.0, 3)
    write_steady(tmp_path / "data" / "leg", 0.5, 4)
    return tmp_path / "data"


def make_run(data: Path, out: Path, arm: float | None, leg: float | None, **objective: Any) -> Trainer:
    """Return a run whose datasets have these discounts."""
    found = {"arm": arm, "leg": leg}
    datasets = [
        {"name": name, "path": str(data / name)} | ({} if discount is None else {"discount": discount})
        for name, discount in found.items()
    ]
    groups = [{"name": "all", "weight": 1, "datasets": datasets}]
    method = {"method": "pac", "num_samples": 3, "discount": 0.95} | objective
    return start(config(data, objective=method, mixture={"groups": groups, "batch_size": 16}), out)


def test_a_reward_that_is_not_finite_is_named_before_step_0(data: Path, tmp_path: Path) -> None:
    """With on_nonfinite = "skip" it does not change the scale of the others."""
    scales = start(config(data), tmp_path / "before").sampler.value_scales
    rewards = np.load(data / "arm" / "next.reward.npy", mmap_mode="r+")
    rewards[9 + 3] = np.nan  # of the second episode, eight steps and a last observation after the first
    rewards.flush()
    with pytest.raises(ValueError, match=r"Dataset 'arm': expected finite rewards, found others in episode 1\. Repair"):
        start(config(data), tmp_path / "run")
    skipping = start(config(data, machine={"on_nonfinite": "skip"}), tmp_path / "skipping")
    assert skipping.sampler.value_scales == scales
    skipping.train()
    assert skipping.state.step == 12


@pytest.mark.parametrize(("arm", "leg"), [(0.9, 0.98), (0.5, None), (None, None)])
def test_values_of_every_dataset_span_the_bins(
    data: Path, tmp_path: Path, arm: float | None, leg: float | None
) -> None:
    """The largest reward for ever has the value 1, by the numbers that the loss bootstraps with."""
    run = make_run(data, tmp_path / "run", arm, leg)
    assert run.sampler.value_scales == pytest.approx({"arm": (1 - (arm or 0.95)) / 2, "leg": (1 - (leg or 0.95)) / 0.5})
    batch = run.sampler.batch(0)
    discount = batch.discount * batch.gamma[:, None]
    for wide, gamma in ((False, arm or 0.95), (True, leg or 0.95)):
        rows = batch.mask & (batch.observation.proprio_mask[:, :1, 3] == wide)
        assert rows.any()
        torch.testing.assert_close(discount[rows], torch.full_like(discount[rows], gamma))
        torch.testing.assert_close((batch.reward / (1 - discount))[rows], torch.ones_like(batch.reward[rows]))


def test_reward_scale_holds_for_all_datasets(data: Path, tmp_path: Path) -> None:
    run = make_run(data, tmp_path / "run", 0.9, 0.98, reward_scale=0.01)
    assert run.sampler.value_scales == {"arm": 0.01, "leg": 0.01}
    batch = run.sampler.batch(0)
    assert sorted(set(batch.reward[batch.mask].tolist())) == (torch.tensor([0.5, 2.0]) * 0.01).tolist()


@pytest.mark.parametrize("objective", [{}, {"reward_scale": 0.01}, {"method": "pac+v"}])
def test_equal_discounts_of_datasets_equal_one_of_the_objective(
    data: Path, tmp_path: Path, objective: dict[str, Any]
) -> None:
    """Bit for bit: weights, optimiser and losses."""
    found = []
    for name, discount in (("own", 0.95), ("none", None)):
        run = make_run(data, tmp_path / name, discount, discount, **objective)
        assert (run.sampler.batch(0).gamma == np.float32(0.95)).all()
        run.train()
        found.append((tensors(run), timeless(read_metrics(tmp_path / name))))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    other = make_run(data, tmp_path / "other", 0.8, 0.8, **objective)
    other.train()
    assert timeless(read_metrics(tmp_path / "other")) != found[0][1]  # else nothing above would be shown


@pytest.mark.parametrize("method", ["pac", "pac+v"])
def test_two_discounts_in_a_batch_give_the_losses_of_two_runs(data: Path, tmp_path: Path, method: str) -> None:
    """A transition has the same loss in a run with the discount of its dataset alone."""
    given: dict[str, Any] = {"method": method, "temperature": 0.1}
    mixed = make_run(data, tmp_path / "mixed", 0.8, 0.98, **given)
    alone = {
        discount: make_run(data, tmp_path / str(discount), None, None, discount=discount, **given)
        for discount in (0.8, 0.98)
    }

    def losses(run: Trainer) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        batch = run.sampler.batch(3)
        values, _ = loss(mixed.state.model, mixed.state.target, batch, run.objective, generator)
        return values.detach().view(batch.mask.shape)

    with torch.no_grad():  # else an untrained critic is flat, and targets make little difference
        for parameter in mixed.state.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    batch, found = mixed.sampler.batch(3), losses(mixed)
    for discount, run in alone.items():
        rows = batch.gamma == np.float32(discount)
        assert rows.any()
        torch.testing.assert_close(found[rows], losses(run)[rows], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found[~rows], losses(run)[~rows], rtol=1e-3)
