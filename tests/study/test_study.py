"""A study from its file to its page, stopped and continued."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rollout.environments import POINT
from runs import TINY, dump, write_dataset

from pac.cli import main
from pac.collection import folder_name
from pac.envs import spec
from pac.evaluation import runner as evaluation
from pac.evaluation.records import read_evaluation as read
from pac.files import write_json
from pac.study import runner
from pac.study.folder import RunEvaluation, StudyFolder
from pac.study.plan import parse_study
from pac.study.results import make_results
from pac.training.run import differences
from tools.archive import main as archive

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
            "episodes": 4,
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
def test_every_row_and_seed_plays_the_same_episodes(done: tuple[Path, Path]) -> None:
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
def test_versions_are_those_of_the_evaluation(done: tuple[Path, Path], tmp_path: Path) -> None:
    """Those of the machine that wrote the results do not count."""
    file, out = done
    other = tmp_path / "out"
    shutil.copytree(out, other)
    names = sorted(path.name for path in (other / "evaluations").iterdir())
    one, two, three = (json.loads((other / "evaluations" / name).read_text()) for name in names[:3])
    now = one["versions"]
    one["versions"] = now | {"torch": "1.2.3"}
    two["versions"] = now | {"torch": None}
    del three["versions"]  # as older files
    for name, content in zip(names, (one, two, three), strict=False):
        (other / "evaluations" / name).write_text(json.dumps(content))
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
def test_only_missing_runs_are_made_again(done: tuple[Path, Path]) -> None:
    file, out = done
    files = {path.name: path for path in (out / "evaluations").iterdir()}
    before = {name: path.read_bytes() for name, path in files.items()}
    written = {name: path.stat().st_mtime_ns for name, path in files.items()}
    lost = files["pac-seed-1.json"]
    expected = json.loads(lost.read_text())["episodes"]
    lost.unlink()
    shutil.rmtree(out / "runs" / "pac-seed-1")
    assert main(["study", str(file), "--out", str(out), "--processes", "1"]) == 0
    assert json.loads(lost.read_text())["episodes"] == expected, "the same run again gives the same episodes"
    assert all(files[name].read_bytes() == before[name] for name in before if name != lost.name)
    assert all(files[name].stat().st_mtime_ns == written[name] for name in before if name != lost.name)


@pytest.mark.slow
def test_results_alone_say_which_runs_are_finished(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clone has the Parquet file of the results, and not the runs. A seed more is trained, the others are kept."""
    file, out = done
    here = tmp_path / "here"
    archive([str(out / "results.json"), str(tmp_path / "points.parquet")])
    archive([str(tmp_path / "points.parquet"), str(here / "results.json")])
    more = ["study.seeds=[1,2,3]", "--only", "BC", "--processes", "1"]
    assert main(["study", str(file), "--out", str(here), *more]) == 0
    assert [path.name for path in (here / "runs").iterdir()] == ["bc-seed-3"]
    for seed in (1, 2):
        assert same(here, out, f"evaluations/bc-seed-{seed}.json")
    assert {e.actor for e in read(here / "results.json")[1]} == {f"BC, seed {seed}" for seed in (1, 2, 3)}
    other = tmp_path / "other"
    archive([str(tmp_path / "points.parquet"), str(other / "results.json")])
    assert main(["study", str(file), "--out", str(other), "objective.discount=0.8", "--processes", "0"]) == 2
    assert "objective.discount 0.9, not 0.8" in " ".join(capsys.readouterr().err.split())


def same(here: Path, there: Path, name: str) -> bool:
    """Return whether two evaluations have the same content. Folders in the settings may differ."""
    found = [RunEvaluation.from_json(json.loads((folder / name).read_text())) for folder in (here, there)]
    assert not list(differences(found[0].settings, found[1].settings))
    return found[0].facts == found[1].facts and found[0].records == found[1].records


@pytest.mark.slow
def test_runs_trained_elsewhere_are_evaluated_from_their_checkpoints_alone(
    done: tuple[Path, Path], tmp_path: Path
) -> None:
    file, out = done
    here = tmp_path / "here"
    shutil.copytree(out, here, symlinks=True)
    shutil.rmtree(here / "data")
    for folder in here.glob("runs/*/checkpoints/*/training_state"):
        if not folder.parent.is_symlink():
            shutil.rmtree(folder)
    lost = here / "evaluations" / "pac-seed-1.json"
    expected = json.loads(lost.read_text())["episodes"]
    lost.unlink()
    assert main(["study", str(file), "--out", str(here), "--processes", "1"]) == 0
    assert json.loads(lost.read_text())["episodes"] == expected
    assert not (here / "data").exists()


@pytest.mark.slow
def test_more_episodes_are_added(done: tuple[Path, Path], tmp_path: Path) -> None:
    """The checkpoints are enough. A run that is trained again plays all episodes."""
    file, out = done
    here = tmp_path / "here"
    shutil.copytree(out, here, symlinks=True)
    before = json.loads((here / "evaluations" / "pac-seed-1.json").read_text())
    before["episodes"][0]["return"] = 1234.5  # no episode has this return
    (here / "evaluations" / "pac-seed-1.json").write_text(json.dumps(before))
    shutil.rmtree(here / "runs" / "pac-seed-2")
    assert main(["study", str(file), "--out", str(here), "--processes", "1", "study.episodes=6"]) == 0
    added = json.loads((here / "evaluations" / "pac-seed-1.json").read_text())
    tasks = list(dict.fromkeys(entry["task"] for entry in before["episodes"]))
    assert [(e["task"], e["index"]) for e in added["episodes"]] == [(task, i) for task in tasks for i in range(6)]
    assert [e for e in added["episodes"] if e["index"] < 4] == before["episodes"]
    assert added["settings"]["episodes"] == 6
    assert added["evaluation_seconds"] > before["evaluation_seconds"]
    again = json.loads((here / "evaluations" / "pac-seed-2.json").read_text())["episodes"]
    old = json.loads((out / "evaluations" / "pac-seed-2.json").read_text())["episodes"]
    assert [e for e in again if e["index"] < 4] == old
    document = json.loads((here / "results.json").read_text())
    assert document["episodes_per_task"] == 6
    assert len(document["episodes"]) == 4 * 6 * len(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["objective.discount=0.8", "study.episodes=3", "length=7 steps"])
def test_episodes_of_other_settings_are_refused(
    change: str, done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = done
    assert main(["study", str(file), "--out", str(out), change]) == 2
    name, _, value = change.removeprefix("study.").partition("=")
    said = capsys.readouterr().err
    assert f"found {name} " in said
    assert value in said
    assert main(["study", str(file), "--out", str(out), "machine.log_every=2"]) == 0, "nothing is trained again"


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(done: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    file, out = done
    (out / "evaluations" / "bc-seed-1.json").unlink()
    (out / "runs" / "bc-seed-1" / "config.json").write_text("{}")
    for checkpoint in (out / "runs" / "bc-seed-1" / "checkpoints").iterdir():
        if checkpoint.is_dir() and not checkpoint.is_symlink():
            shutil.rmtree(checkpoint)
    (out / "evaluations" / "bc-seed-2.json").unlink()
    assert main(["study", str(file), "--out", str(out), "--processes", "1"]) == 1
    said = "".join(capfd.readouterr())
    assert "bc-seed-1 failed" in said
    assert (out / "evaluations" / "bc-seed-2.json").exists()
    shutil.rmtree(out / "runs" / "bc-seed-1")
    assert main(["study", str(file), "--out", str(out), "--processes", "1"]) == 0


def shown(tmp_path: Path, **defaults: Any) -> dict[str, Any]:
    """Return a study with several ways to give the task, over data with images."""
    content = table()
    path = write_dataset(tmp_path / "images", cameras=1, instruction=spec(POINT).instruction)
    content["mixture"]["groups"][0]["datasets"][0]["path"] = str(path)
    content["mixture"]["defaults"] = {"cameras": [], **defaults}
    content["study"] |= {"seeds": [1], "data": [], "rows": {"BC": {"objective": {"method": "bc"}}}}
    content["study"]["shows"] = ["text+goal", "goal", "text", "none"]
    return content


GOALS = {"goals": "success", "goal_cameras": ["camera0"]}


def test_each_actor_is_given_the_task_as_its_label_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = parse_study(shown(tmp_path, **GOALS), tmp_path, tmp_path, name="shows")
    folder, given, play = StudyFolder(tmp_path, study), list[tuple[bool, bool]](), evaluation.rollout
    monkeypatch.setattr(
        evaluation,
        "rollout",
        lambda actor, *a, **k: (given.append((actor.text, bool(actor.goals))), play(actor, *a, **k))[1],
    )
    folder.make()
    (run,) = study.runs
    runner.perform(folder, run)
    assert "BC, none, seed 1: 4 of 4 episodes" in capsys.readouterr().out
    assert given == [(True, True), (False, True), (True, False), (False, False)]
    results = make_results(folder, "pac study")
    rows = list(results.document["summary"])
    assert rows == ["BC, text+goal", "BC, goal", "BC, text", "BC, none"]
    assert results.grids[-1].header == ["seed", *rows]
    assert [line[0][0] for line in results.grids[-1].rows] == ["1"]
    played = {row: [e for e in results.document["episodes"] if e["actor"] == f"{row}, seed 1"] for row in rows}
    assert {len(episodes) for episodes in played.values()} == {4}
    assert len({tuple(e["state"] for e in episodes) for episodes in played.values()}) == 1
    folder.check_settings()
    fewer = dataclasses.replace(study, runs=[dataclasses.replace(run, shows=("goal",))])
    with pytest.raises(ValueError, match="found shows"):
        StudyFolder(tmp_path, fewer).check_settings()


def test_missing_goal_images_are_an_error(tmp_path: Path) -> None:
    study = parse_study(shown(tmp_path), tmp_path, tmp_path, name="shows")
    folder = StudyFolder(tmp_path, study)
    folder.make()
    with pytest.raises(ValueError, match="expected goal images in the data, to show"):
        runner.perform(folder, study.runs[0])


@pytest.mark.parametrize(
    ("before", "row"),
    [
        ("PAC+V, logged returns", "PAC+V, Monte Carlo return"),
        ("PAC+V, logged returns, a model a task", "PAC+V, Monte Carlo return, one model per task"),
        ("PAC", "PAC"),
    ],
)
def test_evaluations_of_earlier_versions_are_read(before: str, row: str, tmp_path: Path) -> None:
    content = table()
    content["study"] |= {"rows": {row: {"objective": {"method": "pac+v", "monte_carlo_weight": 1.0}}}, "seeds": [1]}
    study = parse_study(content, tmp_path, tmp_path, name="x")
    (run,) = study.runs
    settings = json.loads(json.dumps(StudyFolder(tmp_path, study).settings(run)))
    settings["trials"] = settings.pop("episodes")
    settings["evaluation"]["trials"] = settings["evaluation"].pop("episodes")
    settings["objective"]["logged_returns"] = settings["objective"].pop("monte_carlo_weight")
    entry = {"actor": f"{before}, seed 1", "task": POINT, "seed": 10_000, "index": 0, "state": "0", "length": 3}
    facts = {"run": "x", "row": before, "each": "", "seed": 1, "seconds": 1.0, "trial_seconds": 2.0}
    episodes = [entry | {"return": 1.0, "success": True}]
    name = dataclasses.replace(run, row=before).name
    write_json(tmp_path / "trials" / f"{name}.json", facts | {"settings": settings, "trials": episodes})
    folder = StudyFolder(tmp_path, study)
    folder.check_settings()
    assert folder.is_evaluated(run)
    found = folder.read_evaluation(run)
    assert found.facts["evaluation_seconds"] == 2.0
    assert [(e.actor, e.total) for e in found.records] == [(f"{row}, seed 1", 1.0)]


def test_an_unknown_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = dump(table(), tmp_path / "points.toml")
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--only", "PACK"]) == 2
    assert "expected rows of the study, found 'PACK'. Rows: BC, PAC." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_data_is_found_before_any_is_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = table()
    content["mixture"]["groups"][0]["datasets"].append({"name": "replay", "path": "{data}/replay/point"})
    file = dump(content, tmp_path / "points.toml")
    assert main(["study", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "out/data/replay/point: expected a dataset there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
