"""The demo's table: its numbers are those of the trials, and methods are only compared from the same states."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pac.collection import dataset_spec, folder_name
from pac.data.writer import DatasetWriter
from pac.demo import scores as found
from pac.demo.settings import FULL, LOG, METHODS, WORLDS, Settings
from pac.evaluation import EpisodeRecord
from pac.evaluation.intervals import stratified_mean, wilson
from pac.evaluation.tables import show
from pac.rollout import make_jobs, rollout

TASKS = [task for world in WORLDS for task in world.tasks]
SUCCESS = {"filtered BC": 0.5, "BC+Q": 0.1, "PAC": 0.9, "PAC+V": 0.7}


def records(rates: dict[str, float] = SUCCESS, trials: int = 20) -> list[EpisodeRecord]:
    """Of 20 trials a task, the first so many succeed; where there is no success, they get so much of the expert's."""
    made = []
    for method, rate in rates.items():
        for task in TASKS:
            for i in range(trials):
                expert = found.EXPERTS.get(task)
                won = i < round(rate * trials)
                total = 10.0 * won if expert is None else expert * (rate + 0.01 * (i % 2))
                common = {"seed": 1, "index": i, "state": f"{task}{i}", "length": 9}
                success = won if expert is None else None
                made.append(EpisodeRecord(actor=method, task=task, total=total, success=success, **common))
    return made


def test_scores_are_success_or_percent_of_expert() -> None:
    made = found.score_methods(records())
    for method, rate in SUCCESS.items():
        for task in TASKS:
            assert made[method][task].mean() == pytest.approx(100 * rate + 0.5 * (task in found.EXPERTS))
        rows, groups = found.rows(made[method]), list(made[method].values())
        assert rows["pooled"].mean == pytest.approx(np.mean([group.mean() for group in groups]))
        assert (rows["pooled"].low, rows["pooled"].high) == pytest.approx(stratified_mean(groups))
        plain = next(task for task in TASKS if task not in found.EXPERTS)
        low, high = wilson(round(20 * rate), 20)
        assert (rows[plain].low, rows[plain].high) == pytest.approx((100 * low, 100 * high))


def test_the_order_of_trials_does_not_matter_but_their_states_do() -> None:
    plain = found.score_methods(records())
    mixed = found.score_methods([*records()[::-1]])
    for method in METHODS:
        assert all(np.array_equal(plain[method][task], mixed[method][task]) for task in TASKS)
    other = [dataclasses.replace(r, state="x") if r.actor == "PAC" and r.index == 3 else r for r in records()]
    with pytest.raises(ValueError, match="PAC to start from the states of filtered BC"):
        found.score_methods(other)
    with pytest.raises(ValueError, match="to start from the states"):
        found.score_methods([r for r in records() if (r.actor, r.index) != ("BC+Q", 0)])


def test_differences_are_paired() -> None:
    """Two methods that differ by ten points in every trial differ surely, however different the trials are."""
    first = {task: np.array([0.0, 90.0, 40.0]) for task in TASKS}
    second = {task: values - 10 for task, values in first.items()}
    made = found.difference(first, second)
    assert (made.mean, made.low, made.high) == (10, 10, 10)


def test_words_say_who_is_ahead_and_where_cloning_is() -> None:
    made = found.score_methods(records()) | {LOG: found.score_methods(records({"data": 0.3}))["data"]}
    lines = found.findings(made)
    assert lines[0].startswith("PAC: its pooled interval is above filtered BC's and above BC+Q's.")
    assert len(lines) == 2
    worse = found.score_methods(records(SUCCESS | {"PAC": 0.4})) | {LOG: made[LOG]}
    lines = found.findings(worse)
    assert "not clearly above filtered BC's and above BC+Q's" in lines[0]
    assert [line.partition(":")[0] for line in lines[2:]] == TASKS


def test_every_cell_of_the_table_is_a_row_of_the_scores() -> None:
    made = found.score_methods(records(SUCCESS | {"PAC+V": 0.4}))
    cells = found.grid(made, lambda text: f"*{text}*")
    assert [line[0] for line in cells][: len(TASKS)] == TASKS
    for line in cells:
        for method, text in zip(made, line[1:], strict=True):
            assert text.strip("*") == show(found.rows(made[method])[line[0]])
            assert text.startswith("*") == (method == "PAC")
    table = found.table(made, 5, 20)
    assert table.row_count == len(cells)


def test_the_data_scores_as_trials_do(tmp_path: Path) -> None:
    totals = {}
    for task in TASKS:
        trials = list(rollout("random", make_jobs([task], 2), workers=0, max_steps=3))
        with DatasetWriter(tmp_path / folder_name(task), dataset_spec(trials[0])) as writer:
            for trial in trials:
                writer.append(trial.episode)
        totals[task] = [found.score(task, t.success, t.total_return) for t in trials]
    made = found.score_data(tmp_path, Settings(seed=0, **FULL))
    for task in TASKS:
        np.testing.assert_allclose(made[task], totals[task], rtol=1e-6)
