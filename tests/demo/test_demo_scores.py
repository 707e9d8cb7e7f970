"""The demo's table: its numbers are those of the episodes, and methods start from the same states."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pac import demo
from pac.cli.demo import load
from pac.collection import dataset_spec, folder_name
from pac.data.writer import DatasetWriter
from pac.evaluation import EpisodeRecord
from pac.evaluation.intervals import stratified_mean, wilson
from pac.evaluation.tables import show
from pac.rollout import make_jobs, rollout
from pac.study.folder import StudyFolder

STUDY = load("demo", 1, Path("demo"))
TASKS = STUDY.runs[0].config.evaluation.tasks
SUCCESS = {"filtered BC": 0.5, "BC+Q": 0.1, "PAC": 0.9, "PAC+V": 0.7}


def records(rates: dict[str, float] = SUCCESS, episodes: int = 20) -> list[EpisodeRecord]:
    """Return records with these success rates or, where a task has no success, shares of the expert's return."""
    made = []
    for method, rate in rates.items():
        for task in TASKS:
            for i in range(episodes):
                expert = demo.EXPERTS.get(task)
                won = i < round(rate * episodes)
                total = 10.0 * won if expert is None else expert * (rate + 0.01 * (i % 2))
                common = {"seed": 1, "index": i, "state": f"{task}{i}", "length": 9}
                success = won if expert is None else None
                made.append(EpisodeRecord(actor=f"{method}, seed 1", task=task, total=total, success=success, **common))
    return made


def method_scores(made: list[EpisodeRecord]) -> dict[str, demo.Scores]:
    return demo.method_scores(STUDY, made)


def test_scores_are_success_or_percent_of_expert() -> None:
    made = method_scores(records())
    for method, rate in SUCCESS.items():
        for task in TASKS:
            assert made[method][task].mean() == pytest.approx(100 * rate + 0.5 * (task in demo.EXPERTS))
        rows, groups = demo.estimates(made[method]), list(made[method].values())
        assert rows["pooled"].mean == pytest.approx(np.mean([group.mean() for group in groups]))
        assert (rows["pooled"].low, rows["pooled"].high) == pytest.approx(stratified_mean(groups))
        plain = next(task for task in TASKS if task not in demo.EXPERTS)
        low, high = wilson(round(20 * rate), 20)
        assert (rows[plain].low, rows[plain].high) == pytest.approx((100 * low, 100 * high))


def test_the_order_of_records_does_not_matter_but_their_states_do() -> None:
    plain = method_scores(records())
    mixed = method_scores([*records()[::-1]])
    for method in SUCCESS:
        assert all(np.array_equal(plain[method][task], mixed[method][task]) for task in TASKS)
    other = [dataclasses.replace(r, state="x") if r.actor == "PAC, seed 1" and r.index == 3 else r for r in records()]
    with pytest.raises(ValueError, match="PAC to start from the states of filtered BC"):
        method_scores(other)
    with pytest.raises(ValueError, match="to start from the states"):
        method_scores([r for r in records() if (r.actor, r.index) != ("BC+Q, seed 1", 0)])


def test_differences_are_paired() -> None:
    """Two methods that differ by ten points in every episode differ significantly, however episodes vary."""
    first = {task: np.array([0.0, 90.0, 40.0]) for task in TASKS}
    second = {task: values - 10 for task, values in first.items()}
    made = demo.difference(first, second)
    assert (made.mean, made.low, made.high) == (10, 10, 10)


def test_findings_name_the_better_methods_and_where_cloning_wins() -> None:
    made = method_scores(records()) | {demo.DATA: method_scores(records(dict.fromkeys(SUCCESS, 0.3)))["PAC"]}
    lines = demo.findings(made)
    assert lines[0].startswith("PAC: its pooled interval is above filtered BC's and above BC+Q's.")
    assert len(lines) == 2
    worse = method_scores(records(SUCCESS | {"PAC": 0.4})) | {demo.DATA: made[demo.DATA]}
    lines = demo.findings(worse)
    assert "not clearly above filtered BC's and above BC+Q's" in lines[0]
    assert [line.partition(":")[0] for line in lines[2:]] == list(TASKS)


def test_every_cell_of_the_table_is_an_estimate_of_the_scores() -> None:
    made = method_scores(records(SUCCESS | {"PAC+V": 0.4}))
    grid = demo.grid(made, 20)
    assert grid.header == ["task", *SUCCESS]
    assert [line[0][0] for line in grid.rows[: -grid.pooled]] == list(TASKS)
    for line in grid.rows:
        for method, (text, is_best) in zip(made, line[1:], strict=True):
            assert text == show(demo.estimates(made[method])[line[0][0]])
            assert is_best == (method == "PAC")


def test_the_data_is_scored_as_evaluation_episodes(tmp_path: Path) -> None:
    totals = {}
    for task in TASKS:
        played = list(rollout("random", make_jobs([task], 2), workers=0, max_steps=3))
        path = tmp_path / "data" / task.partition("/")[0] / folder_name(task)
        with DatasetWriter(path, dataset_spec(played[0])) as writer:
            for result in played:
                writer.append(result.episode)
        totals[task] = [demo.score(task, result.success, result.total_return) for result in played]
    made = demo.data_scores(StudyFolder(tmp_path, STUDY))
    for task in TASKS:
        np.testing.assert_allclose(made[task], totals[task], rtol=1e-6)
