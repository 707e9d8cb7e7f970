"""Half-trained learners: the network in the file acts as the trained one, and the stages are those nearest the aim."""

import sys
from pathlib import Path

import bc_learners
import numpy as np
import pytest
import torch
from bc_learners import Clone, squash

from pac.behaviours.learner import act, learner_file, read_learner
from pac.cli import main

TASK = "metaworld/reach"


def test_the_exported_network_acts_as_the_trained_one() -> None:
    random = np.random.default_rng(0)
    states = (random.normal(size=(200, 5)) * [0.02, 0.3, 1, 5, 0] + [0.6, 0, -1, 3, 1]).astype(np.float32)
    clone = Clone(states, 3)
    layers = [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in clone.export()]
    with torch.no_grad():
        wanted = clone(torch.from_numpy((squash(states) - clone.mean) / clone.scale)).numpy()
    assert np.abs(wanted).max() > 0.1
    assert np.allclose(act(layers, states), wanted, atol=0.02)


def test_stages_are_the_checkpoints_whose_success_is_nearest_the_aim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    curve, exported = iter([0.0, 0.2, 0.5, 0.1, 0.35, 0.9, 0.3]), list[bc_learners.Layers]()
    export = Clone.export
    monkeypatch.setattr(Clone, "export", lambda self: (exported.append(export(self)), exported[-1])[1])
    monkeypatch.setattr(bc_learners, "EPISODES", 1)
    monkeypatch.setattr(bc_learners, "CHECKPOINTS", (1, 2, 3, 4, 5, 6, 7))
    monkeypatch.setattr(bc_learners, "success", lambda *_: next(curve))
    monkeypatch.setattr(sys, "argv", ["bc_learners.py", TASK, "--out", str(tmp_path)])
    bc_learners.main()
    assert next(curve) == 0.3, "training stops when the success is high enough"
    assert '"stages": [2, 4, 5]' in capsys.readouterr().out
    layers = read_learner(tmp_path / learner_file(TASK))
    assert [weight.shape for weight, _ in layers] == [(3, 39, 64), (3, 64, 64), (3, 64, 4)]
    for stage, checkpoint in enumerate((1, 3, 4)):  # counted from 0
        for (weight, bias), (wanted, wanted_bias) in zip(layers, exported[checkpoint], strict=True):
            np.testing.assert_array_equal(weight[stage], wanted)
            np.testing.assert_array_equal(bias[stage], wanted_bias)
    rules = ["--episodes", "1", "--workers", "0", "--max-steps", "20"]
    assert main(["evaluate", f"learner:folder={tmp_path}", "--tasks", TASK, *rules]) == 0
