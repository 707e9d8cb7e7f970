"""The demo from nothing to a page, in small. Finished parts are used again, and a killed demo continues."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small

from pac import demo
from pac.cli import main
from pac.cli.demo import load
from pac.collection import folder_name
from pac.config import parse_duration
from pac.data.store import Dataset
from pac.evaluation import read_evaluation
from pac.study.plan import Study

METHODS = ("filtered BC", "BC+Q", "PAC", "PAC+V")
TASKS = ("metaworld/handle-press", "metaworld/door-close", "metaworld/drawer-close", "control/cartpole.balance")


def digest(folder: Path) -> dict[str, str]:
    """Return the hash of each file of data and weights."""
    files = [path for path in folder.rglob("*") if path.suffix in (".npy", ".safetensors") and not path.is_symlink()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def scores(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "demo.json").read_text())["scores"]
    return found


def test_methods_differ_only_in_the_objective_and_the_filter(tmp_path: Path) -> None:
    study = load("demo", 1, tmp_path)
    assert tuple(study.rows) == METHODS
    common = set()
    for run in study.runs:
        assert run.config.evaluation.tasks == TASKS
        table = run.config.as_json()
        table["method"] = table["objective"] = None
        for group in table["mixture"]["groups"]:
            for dataset in (group, *group["datasets"]):
                for name in ("success_only", "return_quantile", "imitation_weight"):
                    dataset.pop(name, None)
        common.add(json.dumps(table, default=str))
    assert len(common) == 1


def test_the_seed_is_that_of_the_data_and_of_training(tmp_path: Path) -> None:
    study = load("demo", 7, tmp_path)
    assert {run.config.seed for run in study.runs} == {7}
    assert {collection.seed for collection in study.collections.values()} == {7}


def test_a_seed_must_be_a_number_of_0_or_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed: expected" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a demo that was not disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    small.run(folder)
    return folder


@pytest.mark.slow
def test_from_nothing_to_a_page(whole: Path) -> None:
    text, found = (whole / "page.html").read_text(), scores(whole)
    assert all(name in text for name in (*TASKS, *METHODS))
    _, records = read_evaluation(whole / "results.json")
    assert len(records) == len(TASKS) * len(METHODS) * small.EVALUATION_EPISODES
    starts = {m: sorted((*e.start, e.state) for e in records if e.actor == f"{m}, seed {small.SEED}") for m in METHODS}
    assert all(starts[method] == starts["PAC"] for method in METHODS)
    for task in TASKS:
        suite = task.partition("/")[0]
        assert len(Dataset(whole / "data" / suite / folder_name(task))) == small.EPISODES
        expected = [demo.score(task, e.success, e.total) for e in records if (e.actor, e.task) == ("PAC, seed 3", task)]
        assert sorted(found["PAC"][task]) == pytest.approx(sorted(expected), abs=1e-3)


@pytest.mark.slow
def test_a_folder_holds_one_demo(whole: Path) -> None:
    with pytest.raises(ValueError, match="expected an evaluation with the settings of the study, found length"):
        small.small(whole, length="21 steps").check_settings()


@pytest.mark.slow
def test_a_second_run_makes_nothing_again(whole: Path) -> None:
    before, first = digest(whole), scores(whole)
    written = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    small.run(whole)
    assert digest(whole) == before
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == written
    assert scores(whole) == first


@pytest.mark.slow
def test_a_killed_demo_continues_to_the_same_end(whole: Path, tmp_path: Path) -> None:
    for pattern, kind in (("runs/bc+q-*/metrics.jsonl", signal.SIGKILL), ("evaluations/*.json", signal.SIGINT)):
        command = [sys.executable, small.__file__, str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None and not list(tmp_path.glob(pattern)):
            time.sleep(0.02)
        assert child.poll() is None
        child.send_signal(kind)
        child.wait()
        time.sleep(2)  # the runs notice that their parent is gone, save, and release their folders
    assert not (tmp_path / "demo.json").exists()
    small.run(tmp_path)
    assert digest(tmp_path) == digest(whole)
    assert scores(tmp_path) == scores(whole)


def size(study: Study) -> dict[str, int]:
    config = study.runs[0].config
    return {
        "tasks": len(config.evaluation.tasks),
        "episodes": sum(collection.episodes for collection in study.collections.values()),
        "steps": parse_duration(config.length, epoch_steps=1, update_flops=1.0),
        "batch": config.mixture.batch_size,
        "evaluation": study.config.episodes,
    }


def test_quick_is_less_of_everything(tmp_path: Path) -> None:
    full, quick = load("demo", 1, tmp_path), load("demo_quick", 1, tmp_path)
    assert all(size(quick)[name] < size(full)[name] for name in size(full))
    assert len({json.dumps(study.runs[0].config.as_json()["model"], default=str) for study in (full, quick)}) == 1
