"""The return that counts as 100%, measured in the study's own data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac import envs
from pac.data.store import DatasetSpec
from pac.data.writer import DatasetWriter
from pac.evaluation import experts as shipped
from pac.study import experts
from pac.study.folder import StudyFolder
from pac.study.plan import Study, parse_study
from pac.types import Episode

TASK, OTHER = "control/pendulum.swingup", "control/cartpole.swingup"


def write(path: Path, returns: list[float], *, steps: int = 1000, task: str = TASK) -> Path:
    """Write a dataset whose episodes have these returns, spread over all steps."""
    about = envs.spec(task)
    low, high = about.action_low, about.action_high
    spec = DatasetSpec(state_dim=about.state_dim, action_dim=len(low), action_low=low, action_high=high)
    with DatasetWriter(path, spec) as writer:
        for total in returns:
            writer.append(
                Episode(
                    observation={"observation.state": np.zeros((steps + 1, about.state_dim), np.float32)},
                    action=np.zeros((steps, len(low)), np.float32),
                    reward=np.full(steps, total / steps, np.float32),
                    terminated=False,
                    truncated=True,
                    instruction=about.instruction,
                )
            )
    return path


def study(folder: Path, path: Path, *more: Path, rules: dict[str, Any] | None = None, **settings: Any) -> Study:
    entry = {"name": "pendulum", "path": str(path), "more_paths": [str(other) for other in more]}
    table = {
        "length": "1 steps",
        "model": {"size": "nano"},
        "mixture": {"groups": [{"name": "all", "weight": 1, "datasets": [entry]}]},
        "evaluation": {"tasks": [TASK], **(rules or {})},
        "study": {"seeds": [0], "rows": {"PAC": {}}, "experts": "data"} | settings,
    }
    return parse_study(table, folder, folder, name="x")


def test_the_best_mean_of_consecutive_episodes_over_all_folders_in_order(tmp_path: Path) -> None:
    first, then = write(tmp_path / "first", [0.0] * 18 + [90.0]), write(tmp_path / "then", [50.0] + [30.0] * 9)
    found = experts.from_data(study(tmp_path, first, then))[TASK]
    assert found.mean == pytest.approx(70.0)  # two of 29 at a time: the last of one folder, the first of the next
    assert found.n == 2
    assert "29 episodes" in found.source


def test_the_number_of_consecutive_episodes_is_limited() -> None:
    assert shipped.from_returns([1.0, 5.0, 2.0], 0, "x").n == 1
    assert shipped.from_returns([1.0] * 30, 40, "x").n == 30
    assert shipped.from_returns([1.0] * 20_000, 2_000, "x").n == 1000


def test_a_tenth_of_all_steps_includes_short_episodes(tmp_path: Path) -> None:
    whole, short = write(tmp_path / "whole", [0.0, 90.0, 30.0, 60.0]), write(tmp_path / "x", [9.0] * 270, steps=100)
    found = experts.from_data(study(tmp_path, whole, short))[TASK]
    assert (found.n, found.mean) == (3, pytest.approx(60.0))


def test_episodes_that_were_cut_short_do_not_count(tmp_path: Path) -> None:
    short, whole = write(tmp_path / "short", [500.0], steps=100), write(tmp_path / "whole", [40.0])
    assert experts.from_data(study(tmp_path, short, whole))[TASK].mean == pytest.approx(40.0)
    with pytest.raises(ValueError, match=rf"whole episodes of {TASK} in the data.*found none"):
        experts.from_data(study(tmp_path, short))


def test_evaluation_episodes_that_are_cut_short_need_no_expert(tmp_path: Path) -> None:
    data = write(tmp_path / "short", [500.0], steps=100)
    assert experts.from_data(study(tmp_path, data, rules={"max_steps": 100})) == {}


def test_a_return_of_zero_is_no_expert(tmp_path: Path) -> None:
    assert experts.from_data(study(tmp_path, write(tmp_path / "data", [0.0] * 3))) == {}


def test_data_of_another_task_does_not_count(tmp_path: Path) -> None:
    other = write(tmp_path / "other", [800.0], task=OTHER)
    with pytest.raises(ValueError, match="found none"):
        experts.from_data(study(tmp_path, other))


def test_experts_are_measured_once_and_outlive_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "data", [40.0])
    folder = StudyFolder(tmp_path, study(tmp_path, data))
    experts.write_experts(folder)
    path = experts.experts_path(folder)
    assert shipped.load(path)[TASK].mean == pytest.approx(40.0)
    (tmp_path / "data").rename(tmp_path / "gone")
    monkeypatch.setattr(StudyFolder, "is_trained", lambda folder, run: True)
    experts.write_experts(folder)
    assert shipped.load(path)[TASK].mean == pytest.approx(40.0)
    folder.study = study(tmp_path, data, experts="table")
    assert experts.experts_path(folder) == shipped.TABLE
