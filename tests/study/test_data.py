"""The success of a study's data, in its tables."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout.environments import POINT

from pac import envs
from pac.collection import folder_name
from pac.data.store import DatasetSpec
from pac.data.writer import DatasetWriter
from pac.evaluation import tables
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.summary import summarise
from pac.files import write_json
from pac.study.data import DataQuality, as_json, data_quality, from_json, notes, pool_poor, show_share, with_data
from pac.study.folder import RunEvaluation, StudyFolder
from pac.study.plan import Study, parse_study
from pac.study.results import make_results
from pac.training.run_dir import CONFIG
from pac.types import Episode


def write(path: Path, successes: int, episodes: int) -> None:
    """Write a dataset of the point task with so many successes."""
    about = envs.spec(POINT)
    low, high = about.action_low, about.action_high
    spec = DatasetSpec(state_dim=about.state_dim, action_dim=len(low), action_low=low, action_high=high)
    with DatasetWriter(path, spec) as writer:
        for i in range(episodes):
            writer.append(
                Episode(
                    observation={"observation.state": np.zeros((4, about.state_dim), np.float32)},
                    action=np.zeros((3, len(low)), np.float32),
                    reward=np.zeros(3, np.float32),
                    terminated=False,
                    truncated=True,
                    instruction=about.instruction,
                    success=i < successes,
                )
            )


def study(folder: Path, **settings: Any) -> Study:
    """Return a study of two rows on one task, whose second row learns from successes alone."""
    entry = {"name": "point", "path": f"{{data}}/some/{folder_name(POINT)}"}
    table = {
        "length": "1 steps",
        "model": {"size": "nano"},
        "mixture": {"groups": [{"name": "all", "weight": 1, "datasets": [entry]}]},
        "evaluation": {"tasks": [POINT], "stop_at_success": True},
        "study": {
            "seeds": [1],
            "episodes": 2,
            "data": [{"name": "some", "tasks": [POINT], "behaviour": "random", "episodes": 6}],
            "rows": {"PAC": {}, "filtered BC": {"objective": {"method": "filtered-bc"}}},
        }
        | settings,
    }
    return parse_study(table, folder, folder, name="x")


def evaluated(path: Path, **settings: Any) -> StudyFolder:
    """Return a folder whose runs have an evaluation: one of two episodes succeeds."""
    folder = StudyFolder(path, study(path, **settings))
    folder.make()
    for run in folder.study.runs:
        records = [entry(f"{run.row}, seed 1", POINT, i, won=i == 0) for i in range(2)]
        facts = {"run": run.name, "row": run.row, "seed": 1, "seconds": 1.0}
        folder.write_evaluation(run, RunEvaluation(facts=facts, settings=folder.settings(run), records=records))
    return folder


def entry(actor: str, task: str, index: int, *, won: bool) -> EpisodeRecord:
    content = {"actor": actor, "task": task, "seed": 0, "index": index, "state": str(index), "length": 3}
    return EpisodeRecord.from_json(content | {"return": 1.0, "success": won})


def test_the_table_has_the_success_of_the_data_before_any_filter(tmp_path: Path) -> None:
    folder = evaluated(tmp_path)
    write(tmp_path / "data" / "some" / folder_name(POINT), 1, 4)
    results = make_results(folder, "pac study")
    grid = results.grids[0]
    assert grid.header == ["task", "episodes", "data", "PAC", "filtered BC"]
    assert [text for text, _ in grid.rows[0]][:3] == [POINT, "2", "25.0"]
    assert grid.stub == 3
    assert results.document["data"]["filtered BC"][POINT] == {"episodes": 4, "success": 0.25, "poor": False}
    assert "| 25.0 |" in tables.markdown(results.grids)


def test_data_that_is_gone_is_known_from_the_run(tmp_path: Path) -> None:
    folder = evaluated(tmp_path)
    assert data_quality(folder) == {}
    for run in folder.study.runs:
        share = 1.0 if run.row == "filtered BC" else 0.5
        content = {"mixture": {"datasets": [{"name": "point", "episodes": 6, "success": share}]}}
        write_json(folder.run_path(run) / CONFIG, content)
    found = data_quality(folder)
    expected = {POINT: DataQuality(episodes=6, success=0.5, poor=False)}
    assert found == {"PAC": expected, "filtered BC": expected}, "a filtered run's own record says 1.0"
    assert from_json(json.loads(json.dumps(as_json(found)))) == found


@pytest.mark.parametrize(("successes", "shown"), [(0, "(0.0)"), (2, "10.0"), (8, "40.0"), (9, "(45.0)")])
def test_poor_data_that_is_not_poor_is_marked(tmp_path: Path, successes: int, shown: str) -> None:
    folder = evaluated(tmp_path, poor=["some"])
    write(tmp_path / "data" / "some" / folder_name(POINT), successes, 20)
    results = make_results(folder, "pac study")
    assert results.grids[0].rows[0][2] == (shown, False)
    said = [note for note in results.document["notes"] if "10 to 40%" in note]
    assert bool(said) == ("(" in shown)
    assert all(POINT in note for note in said)


def test_an_unknown_name_of_poor_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"study\.poor: expected names in study\.data \(some\), found 'sum'"):
        study(tmp_path, poor=["sum"])


def test_marked_tasks_are_pooled_apart_row_by_row() -> None:
    good, poor = (DataQuality(episodes=10, success=share, poor=True) for share in (0.9, 0.3))
    qualities = {"A": {"x/1": good, "x/2": poor}, "B": {"x/1": poor, "x/2": dataclasses.replace(poor, success=0.2)}}
    groups = {
        "A": [entry("A", "x/1", i, won=True) for i in range(4)] + [entry("A", "x/2", i, won=False) for i in range(4)],
        "B": [entry("B", task, i, won=i < 1) for task in ("x/1", "x/2") for i in range(4)],
    }
    (grid,) = tables.grids({row: summarise(group) for row, group in groups.items()}, metrics=["success"])
    made = pool_poor(with_data(grid, qualities), groups, qualities)
    assert [line[2][0] for line in made.rows] == ["(90.0) / 30.0", "30.0 / 20.0", "60.0 / 25.0", "30.0 / 25.0"]
    assert [text for text, _ in made.rows[-1]][:2] == ["pooled, 1/2 with poor data", "4/8"]
    assert made.rows[-1][3][0].startswith("0.0 ")
    assert made.rows[-1][4] == (tables.show(summarise(groups["B"]).overall.success, 100.0), True)
    assert made.pooled == grid.pooled + 1
    assert "x/1" in notes(qualities)[0]
    fine = {"A": {"x/1": poor}}
    assert pool_poor(with_data(grid, fine), groups, fine).rows == with_data(grid, fine).rows


def test_tables_of_other_numbers_have_no_column() -> None:
    records = [entry("A", "x/1", i, won=True) for i in range(4)]
    (grid,) = tables.grids({"A": summarise(records)}, metrics=["return"])
    quality = {"A": {"x/1": DataQuality(episodes=1, success=0.2, poor=True)}}
    assert with_data(grid, quality) == grid
    assert show_share({"A": ["x/1", "x/2"]}, quality) == "-", "a share of some of the tasks would mislead"
