"""What is read from disk, whole and damaged."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from report.made import DOOR, config, episodes, improvement, metrics, write_evaluation, write_run

from pac.evaluation.records import partial_path
from pac.report.sources import (
    EXPECTED,
    LoadedEvaluation,
    LoadedImprovement,
    LoadedRun,
    Source,
    read_curves,
    read_sources,
)


def read_one(text: str | Path) -> Source:
    (source,) = read_sources(text)
    return source


def test_a_finished_run_has_no_notes(tmp_path: Path) -> None:
    run = read_one(write_run(tmp_path / "a", config(seed=3), metrics()))
    assert isinstance(run, LoadedRun)
    assert (run.seed, run.last_step, run.notes) == (3, 100, ())
    assert run.curves["loss/total"].values.tolist() == list(range(10, 101, 10))


def test_a_run_with_old_names_is_read_under_the_present_ones(tmp_path: Path) -> None:
    content = config()
    content["config"]["evaluation"]["trials"] = content["config"]["evaluation"].pop("episodes")
    counts = content["mixture"]["datasets"][0]
    counts["trajectories"] = counts.pop("windows")
    run = read_one(write_run(tmp_path / "a", content, metrics()))
    assert isinstance(run, LoadedRun)
    assert run.recipe["evaluation"]["episodes"] == 10
    assert run.settings["mixture"]["datasets"][0]["windows"] == 40


def test_a_line_that_is_half_written_does_not_count_and_nulls_are_gaps(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "a": 1.0}',
        '{"step": 2, "a": null, "b": "x"}',
        '{"step": 3, "a": NaN}',
        '{"step": 4, "a": 4}',
    ]
    file.write_text("\n".join(lines) + '\n{"step": 5, "a"')
    curves, notes = read_curves(file)
    assert curves["a"].steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(curves["a"].values, [1.0, math.nan, math.nan, 4.0])
    assert math.isnan(curves["b"].values[0])
    assert notes == []


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 2, "a": 2}\n\xff\xfe\n[1]\n{"a": 1}\n{"step": 1, "a": 1}\n')
    curves, notes = read_curves(file)
    assert curves["a"].steps.tolist() == [1, 2]
    assert notes == ["3 of 5 lines of metrics.jsonl cannot be read and are left out."]


def test_unfinished_and_damaged_runs_are_shown_with_a_note(tmp_path: Path) -> None:
    going = read_one(write_run(tmp_path / "going", config(), metrics()[:3], finished=False))
    assert going.notes == (f"{tmp_path / 'going'}: Not finished: step 30 of 100.",)
    broken = read_one(write_run(tmp_path / "broken", '{"config": {', metrics()))
    assert isinstance(broken, LoadedRun)
    assert "config.json cannot be read" in broken.notes[0]
    assert broken.curves["loss/total"].steps[-1] == 100
    fresh = write_run(tmp_path / "fresh", config(), [], finished=False)
    (fresh / "metrics.jsonl").unlink()
    assert any("no curves" in note for note in read_one(fresh).notes)


def test_an_interrupted_evaluation_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    lines = [{"format": 1, "settings": {"seed": 0}}, *(entry.as_json() for entry in episodes("a", DOOR, 1, 3))]
    partial_path(file).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"actor": "a", "ta')
    for path in (file, partial_path(file)):
        found = read_one(path)
        assert isinstance(found, LoadedEvaluation)
        assert len(found.records) == 3
        assert "Not finished: 3 episodes so far" in found.notes[0]


def test_an_improvement_and_the_experts_its_evaluations_name(tmp_path: Path) -> None:
    (tmp_path / "rounds" / "001").mkdir(parents=True)
    (tmp_path / "rounds" / "001" / "evaluation.json").write_text(json.dumps({"experts": {"x": {"mean": 5.0}}}))
    (tmp_path / "improve.json").write_text(json.dumps(improvement(status="running")))
    found = read_one(tmp_path)
    assert isinstance(found, LoadedImprovement)
    assert len(found.rounds) == 3
    assert found.experts == {"x": 5.0}
    assert found.notes == (f"{tmp_path}: Not finished: 3 rounds so far.",)
    (tmp_path / "improve.json").write_text("{")
    assert "cannot be read" in read_one(tmp_path).notes[0]


def test_other_paths_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[1, 2]")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"type": "pac", "model": {}}')
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "notes.json", "model", "empty"):
        with pytest.raises(ValueError, match=f"{name}: expected {re.escape(EXPECTED)}, found "):
            read_one(tmp_path / name)


def test_a_label_before_the_path(tmp_path: Path) -> None:
    write_run(tmp_path / "a=b", config(), metrics())
    assert read_one(tmp_path / "a=b").name.endswith("a=b")  # a folder with such a name is itself
    found = read_one(f"Ours={tmp_path / 'a=b'}")
    assert isinstance(found, LoadedRun)
    assert found.label == "Ours"
    (found,) = read_sources(f"alpha=0.5={tmp_path}/a*")  # a label, too, may have an equals sign
    assert (found.label, found.path) == ("alpha=0.5", tmp_path / "a=b")


def test_only_videos_of_the_evaluations_own_episodes_are_taken(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    names = ["metaworld.door-open.episode1.a.mp4", "metaworld.door-open.episode7.a.mp4", "holiday.mp4"]
    for name in names:
        (tmp_path / "videos" / name).write_bytes(b"x")
    found = read_one(write_evaluation(tmp_path / "e.json", episodes("a", DOOR, 2, 3)))
    assert isinstance(found, LoadedEvaluation)
    assert [path.name for path in found.videos] == names[:1]
    assert next(iter(found.videos.values())) == "a: metaworld/door-open, episode 1, return 10.0, success"
