"""Trials of checkpoints: what is kept of their critic's word."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout.environments import POINT
from runs import config, start, write_dataset

from pac.evaluation.plan import parse_actors
from pac.evaluation.play import play
from pac.evaluation.records import Journal
from pac.rollout import make_jobs


@pytest.mark.parametrize(("own", "expected"), [({"discount": 0.6}, 0.6), ({}, 0.9)])
def test_returns_are_discounted_as_the_data_of_their_task(own: dict[str, Any], expected: float, tmp_path: Path) -> None:
    data = tmp_path / "data"
    paths = {"arm": write_dataset(data / "arm"), "leg": write_dataset(data / "leg", dims=5)}  # an arm is a Point
    datasets = [{"name": name, "path": str(path)} for name, path in paths.items()]
    datasets[0] |= own
    groups = [{"name": "all", "weight": 1, "discount": 0.9, "datasets": datasets}]
    run = start(
        config(data, mixture={"groups": groups}, objective={"discount": 0.2}, length="2 steps"), tmp_path / "run"
    )
    run.train()
    args = argparse.Namespace(workers=0, max_steps=None, stop_at_success=False, cameras=(), ray=None)
    args.videos, args.video_trials = tmp_path, range(3)
    with Journal(None, {}) as journal:
        played = play(parse_actors([f"ours={tmp_path / 'run'}"]), make_jobs([POINT], 3), journal, args)
    assert len(played) == 3
    for (label, job), trial in played.items():
        entry = journal.records[label, job.task, job.seed, job.index]
        assert trial.values is not None
        assert entry.predicted == float(trial.values[0])
        rewards = trial.episode.reward.astype(np.float64)
        assert len(rewards) > 2
        assert entry.achieved == pytest.approx(sum(r * expected**t for t, r in enumerate(rewards)))
        assert entry.achieved != pytest.approx(sum(r * 0.2**t for t, r in enumerate(rewards)))
