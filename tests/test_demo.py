"""The demo: its data is what it says, and it runs from data to table."""

import pytest
import torch

from pac import demo
from pac.cli import main


def test_the_log_is_poor_and_well_formed() -> None:
    log = demo.make_log(0)
    rate = log.reached.sum().item() / demo.EPISODES
    assert 0.12 < rate < 0.22  # one episode in six
    assert log.success[log.reached].all()  # what ends in success belongs to a successful episode
    moved = (log.next_state - log.state)[:, :2].abs()
    assert moved.max() <= demo.STRIDE + 1e-6
    assert torch.equal(log.next_state[:, 2:], log.state[:, 2:])
    batch = demo.make_batch(log, torch.arange(100), 0.5)
    assert torch.equal(batch.discount, 1 - batch.reward)


def test_every_policy_is_tried_from_the_same_starts() -> None:
    starts = [demo.starts(50, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*starts)
    assert ((starts[0][:, :2] - starts[0][:, 2:]).norm(dim=1) > 0.8).all()


def test_from_data_to_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seeds", "1", "--steps", "40", "--trials", "10"]) == 0
    shown = capsys.readouterr().out
    for method in ("the logged data", *demo.METHODS):
        assert method in shown
    assert main(["demo", "--seeds", "0"]) == 2
    assert "expected at least 1 seed" in capsys.readouterr().err
