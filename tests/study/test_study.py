"""A study from file to page, and what a stop in the midst of it costs."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rollout.environments import POINT
from runs import TINY, dump, write_dataset

from pac.cli import main
from pac.cli.study import results
from pac.collection import folder_name
from pac.envs import spec
from pac.evaluation.records import read_evaluation as read
from pac.study import runner
from pac.study.plan import parse_study

PATH = f"{{data}}/some/{folder_name(POINT)}"


def table() -> dict[str, Any]:
    return {
        "length": "6 steps",
        "model": dict(TINY),
        "objective": {"num_samples": 3, "discount": 0.9},
        "optimiser": {"peak_rate": 1e-3},
        "mixture": {
            "batch_size": 4,
            "window": 3,
            "defaults": {"reward": "success"},
            "groups": [
                {
                    "name": "all",
                    "weight": 1,
                    "datasets": [{"name": "point", "path": f"{{data}}/some/{folder_name(POINT)}"}],
                }
            ],
        },
        "machine": {"log_every": 3, "workers": 0, "device": "cpu"},
        "evaluation": {"tasks": [POINT], "workers": 0, "stop_at_success": True},
        "study": {
            "seeds": [1, 2],
            "trials": 4,
            "data": [{"name": "some", "tasks": [POINT], "behaviour": "random", "episodes": 6}],
            "rows": {"BC": {"objective": {"method": "bc"}}, "PAC": {"objective": {"method": "pac"}}},
        },
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The file and the folder of a finished study."""
    folder = tmp_path_factory.mktemp("study")
    file = dump(table(), folder / "points.toml")
    assert main(["study", str(file), "--out", str(folder / "out"), "--processes", "1"]) == 0
    return file, folder / "out"


@pytest.mark.slow
def test_every_row_and_seed_plays_the_same_trials(done: tuple[Path, Path]) -> None:
    _, out = done
    settings, records = read(out / "results.json")
    assert len(records) == 2 * 2 * 4
    labels = {"BC, seed 1", "BC, seed 2", "PAC, seed 1", "PAC, seed 2"}
    assert {entry.actor for entry in records} == labels == set(settings["actors"])
    starts = {label: [(e.index, e.state) for e in records if e.actor == label] for label in labels}
    assert len({str(sorted(found)) for found in starts.values()}) == 1
    document = json.loads((out / "results.json").read_text())
    won = sum(bool(e.success) for e in records if e.actor.startswith("PAC"))
    assert document["summary"]["PAC"]["pooled"]["all"]["success"]["mean"] == won / 8
    assert (out / "page.html").exists()
    assert "| PAC |" in (out / "results.md").read_text()


@pytest.mark.slow
def test_versions_are_those_the_trials_were_played_with(done: tuple[Path, Path], tmp_path: Path) -> None:
    """Not those of the machine that wrote the results; the rest of the results is the same."""
    file, out = done
    other = tmp_path / "out"
    shutil.copytree(out, other)
    names = sorted(path.name for path in (other / "trials").iterdir())
    one, two, three = (json.loads((other / "trials" / name).read_text()) for name in names[:3])
    now = one["versions"]
    one["versions"] = now | {"torch": "1.2.3"}
    two["versions"] = now | {"torch": None}
    del three["versions"]  # as older files
    for name, content in zip(names, (one, two, three), strict=False):
        (other / "trials" / name).write_text(json.dumps(content))
    assert main(["study", str(file), "--out", str(other)]) == 0
    found, before = (json.loads((folder / "results.json").read_text()) for folder in (other, out))
    assert found["settings"]["versions"] == now | {"torch": f"1.2.3, {now['torch']}"}
    assert before["settings"]["versions"] == now
    assert found["runs"] == before["runs"]
    assert "versions" not in found["runs"][0]


@pytest.mark.slow
def test_seeds_differ_and_rows_of_a_seed_share_their_data(done: tuple[Path, Path]) -> None:
    _, out = done
    runs = {path.name: json.loads((path / "config.json").read_text()) for path in (out / "runs").iterdir()}
    assert {name: run["config"]["seed"] for name, run in runs.items()}["pac-seed-2"] == 2
    losses = {name: (out / "runs" / name / "metrics.jsonl").read_text() for name in runs}
    assert len(set(losses.values())) == 4
    assert len({run["config"]["mixture"]["groups"][0]["datasets"][0]["path"] for run in runs.values()}) == 1


@pytest.mark.slow
def test_what_is_missing_is_made_again_and_nothing_else(done: tuple[Path, Path]) -> None:
    file, out = done
    trials = {path.name: path for path in (out / "trials").iterdir()}
    before = {name: path.read_bytes() for name, path in trials.items()}
    written = {name: path.stat().st_mtime_ns for name, path in trials.items()}
    lost = trials["pac-seed-1.json"]
    expected = json.loads(lost.read_text())["trials"]
    lost.unlink()
    shutil.rmtree(out / "runs" / "pac-seed-1")
    assert main(["study", str(file), "--out", str(out), "--processes", "1"]) == 0
    assert json.loads(lost.read_text())["trials"] == expected, "the same run again gives the same trials"
    assert all(trials[name].read_bytes() == before[name] for name in before if name != lost.name)
    assert all(trials[name].stat().st_mtime_ns == written[name] for name in before if name != lost.name)


@pytest.mark.slow
def test_runs_trained_elsewhere_are_tried_by_their_checkpoints_alone(done: tuple[Path, Path], tmp_path: Path) -> None:
    file, out = done
    here = tmp_path / "here"
    shutil.copytree(out, here, symlinks=True)
    shutil.rmtree(here / "data")
    for folder in here.glob("runs/*/checkpoints/*/training_state"):
        if not folder.parent.is_symlink():
            shutil.rmtree(folder)
    lost = here / "trials" / "pac-seed-1.json"
    expected = json.loads(lost.read_text())["trials"]
    lost.unlink()
    assert main(["study", str(file), "--out", str(here), "--processes", "1"]) == 0
    assert json.loads(lost.read_text())["trials"] == expected
    assert not (here / "data").exists()


@pytest.mark.slow
def test_more_trials_are_added_to_those_there_are(done: tuple[Path, Path], tmp_path: Path) -> None:
    """By the checkpoints alone; a checkpoint that is trained anew plays all of them."""
    file, out = done
    here = tmp_path / "here"
    shutil.copytree(out, here, symlinks=True)
    before = json.loads((here / "trials" / "pac-seed-1.json").read_text())
    before["trials"][0]["return"] = 1234.5  # as nobody would play it again
    (here / "trials" / "pac-seed-1.json").write_text(json.dumps(before))
    shutil.rmtree(here / "runs" / "pac-seed-2")
    assert main(["study", str(file), "--out", str(here), "--processes", "1", "study.trials=6"]) == 0
    added = json.loads((here / "trials" / "pac-seed-1.json").read_text())
    tasks = list(dict.fromkeys(trial["task"] for trial in before["trials"]))
    assert [(t["task"], t["index"]) for t in added["trials"]] == [(task, i) for task in tasks for i in range(6)]
    assert [t for t in added["trials"] if t["index"] < 4] == before["trials"]
    assert added["settings"]["trials"] == 6
    assert added["trial_seconds"] > before["trial_seconds"]
    anew = json.loads((here / "trials" / "pac-seed-2.json").read_text())["trials"]
    old = json.loads((out / "trials" / "pac-seed-2.json").read_text())["trials"]
    assert [t for t in anew if t["index"] < 4] == old
    document = json.loads((here / "results.json").read_text())
    assert document["trials_per_task"] == 6
    assert len(document["trials"]) == 4 * 6 * len(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["objective.discount=0.8", "study.trials=3", "length=7 steps"])
def test_trials_of_other_settings_are_refused(
    change: str, done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = done
    assert main(["study", str(file), "--out", str(out), change]) == 2
    name, _, value = change.removeprefix("study.").partition("=")
    said = capsys.readouterr().err
    assert f"found {name} " in said
    assert value in said
    assert main(["study", str(file), "--out", str(out), "machine.log_every=2"]) == 0, "nothing is trained anew"


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(done: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    file, out = done
    (out / "trials" / "bc-seed-1.json").unlink()
    (out / "runs" / "bc-seed-1" / "config.json").write_text("{}")
    for checkpoint in (out / "runs" / "bc-seed-1" / "checkpoints").iterdir():
        if checkpoint.is_dir() and not checkpoint.is_symlink():
            shutil.rmtree(checkpoint)
    (out / "trials" / "bc-seed-2.json").unlink()
    assert main(["study", str(file), "--out", str(out), "--processes", "1"]) == 1
    said = "".join(capfd.readouterr())
    assert "bc-seed-1 failed" in said
    assert (out / "trials" / "bc-seed-2.json").exists()
    shutil.rmtree(out / "runs" / "bc-seed-1")
    assert main(["study", str(file), "--out", str(out), "--processes", "1"]) == 0


def shown(tmp_path: Path, **defaults: Any) -> dict[str, Any]:
    """A study of what is shown, over data with pictures."""
    content = table()
    path = write_dataset(tmp_path / "pictures", cameras=1, instruction=spec(POINT).instruction)
    content["mixture"]["groups"][0]["datasets"][0]["path"] = str(path)
    content["mixture"]["defaults"] = {"cameras": [], **defaults}
    content["study"] |= {"seeds": [1], "data": [], "rows": {"BC": {"objective": {"method": "bc"}}}}
    content["study"]["shows"] = ["text+goal", "goal", "text", "none"]
    return content


GOALS = {"goals": "success", "goal_cameras": ["camera0"]}


def test_each_trial_shows_what_its_label_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = parse_study(shown(tmp_path, **GOALS), tmp_path, tmp_path, name="shows")
    (run,), told = study.runs, list[tuple[bool, bool]]()
    play = runner.rollout
    monkeypatch.setattr(
        runner,
        "rollout",
        lambda actor, *a, **k: (told.append((actor.text, bool(actor.goals))), play(actor, *a, **k))[1],
    )
    for name in ("runs", "trials", "logs"):
        (tmp_path / name).mkdir()
    runner.perform(run, tmp_path, 4)
    assert "BC, none, seed 1: 4 of 4 trials" in capsys.readouterr().out
    assert told == [(True, True), (False, True), (True, False), (False, False)]
    document, grids = results(study, tmp_path, "pac study")
    assert list(document["summary"]) == ["BC, text+goal", "BC, goal", "BC, text", "BC, none"]
    assert grids[-1].header == ["", *document["summary"]]
    played = {row: [t for t in document["trials"] if t["actor"] == f"{row}, seed 1"] for row in document["summary"]}
    assert {len(trials) for trials in played.values()} == {4}
    assert len({tuple(t["state"] for t in trials) for trials in played.values()}) == 1
    runner.check_same(study, tmp_path)
    fewer = dataclasses.replace(run, shows=("goal",))
    with pytest.raises(ValueError, match="found shows"):
        runner.check_same(dataclasses.replace(study, runs=[fewer]), tmp_path)


def test_goals_that_the_data_has_not_are_asked_for(tmp_path: Path) -> None:
    (run,) = parse_study(shown(tmp_path), tmp_path, tmp_path, name="shows").runs
    for name in ("runs", "trials", "logs"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="expected goal pictures in the data, to show"):
        runner.perform(run, tmp_path, 4)


def test_an_unknown_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = dump(table(), tmp_path / "points.toml")
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--only", "PACK"]) == 2
    assert "expected rows of the study, found 'PACK'. Rows: BC, PAC." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_that_nothing_makes_is_missed_before_any_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = table()
    content["mixture"]["groups"][0]["datasets"].append({"name": "lives", "path": "{data}/lives/point"})
    file = dump(content, tmp_path / "points.toml")
    assert main(["study", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "out/data/lives/point: expected a dataset there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
