"""The demo from nothing to a page, in small: what is made once is used again, whole or not."""

import hashlib
import json
import multiprocessing as mp
import os
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from pac.cli import main
from pac.data.episodes import Dataset
from pac.demo import steps
from pac.demo.cli import make
from pac.demo.settings import FULL, METHODS, QUICK, WORLDS, Settings, claim, recipe
from pac.recipe import parse_recipe

SMALL = Settings(seed=3, episodes=6, steps=20, trials=2)
TASKS = [task for world in WORLDS for task in world.tasks]


def digest(folder: Path) -> dict[str, str]:
    """Of what must not change, if it is there: data and weights."""
    files = [path for path in folder.rglob("*") if path.suffix in (".npy", ".safetensors") and not path.is_symlink()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_methods_differ_in_the_objective_and_the_filter_alone() -> None:
    made = {method: recipe(method, SMALL) for method in METHODS}
    for table in made.values():
        parse_recipe(table)
        table.pop("objective")
        for dataset in table["mixture"]["groups"][0]["datasets"]:
            for name in ("success_only", "return_quantile", "imitation_weight"):
                dataset.pop(name, None)
    assert len({json.dumps(table) for table in made.values()}) == 1


def test_a_folder_holds_one_demo(tmp_path: Path) -> None:
    claim(tmp_path, SMALL)
    claim(tmp_path, SMALL)
    with pytest.raises(ValueError, match="found other steps, recipes"):
        claim(tmp_path, Settings(seed=3, episodes=6, steps=21, trials=2))


def test_a_seed_must_be_a_number_of_0_or_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed: expected" in capsys.readouterr().err


def _whole(folder: Path) -> None:
    make(SMALL, folder, Console(width=200))


@pytest.mark.slow
def test_from_nothing_to_a_page_and_again(tmp_path: Path) -> None:
    page = make(SMALL, tmp_path, Console(width=200), command="pac demo")
    text, before = page.read_text(), digest(tmp_path)
    assert all(task in text for task in TASKS)
    assert all(method in text for method in METHODS)
    result = json.loads((tmp_path / "demo.json").read_text())
    for world in WORLDS:
        trials = json.loads(steps.trials_file(tmp_path, world).read_text())["trials"]
        assert len(trials) == len(world.tasks) * len(METHODS) * SMALL.trials
        starts = {m: sorted((t["task"], t["index"], t["state"]) for t in trials if t["actor"] == m) for m in METHODS}
        assert all(starts[m] == starts["PAC"] for m in METHODS)
        for task in world.tasks:
            assert len(Dataset(tmp_path / "data" / task.replace("/", "-"))) == SMALL.episodes
            told = result["scores"]["PAC"][task]
            own = [t for t in trials if (t["actor"], t["task"]) == ("PAC", task)]
            expert = world.experts.get(task)
            scores = [100.0 * t["success"] if expert is None else 100 * t["return"] / expert for t in own]
            assert sorted(told) == pytest.approx(sorted(scores), abs=1e-3)
    make(SMALL, tmp_path, Console(width=200), command="pac demo")
    assert digest(tmp_path) == before
    assert json.loads((tmp_path / "demo.json").read_text())["scores"] == result["scores"]
    assert json.loads((tmp_path / "demo.json").read_text())["seconds"]["training"] < result["seconds"]["training"]


@pytest.mark.slow
def test_a_killed_demo_goes_on_to_the_same_end(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    _whole(tmp_path / "whole")
    for wanted in ("data/*", "pac/checkpoints", "metaworld.json*"):
        child = context.Process(target=_whole, args=(tmp_path / "killed",))
        child.start()
        while child.is_alive() and not list((tmp_path / "killed").glob(wanted)):
            time.sleep(0.02)
        if child.pid is not None and child.is_alive():
            os.kill(child.pid, signal.SIGTERM if wanted.startswith("data") else signal.SIGINT)
        child.join()
    _whole(tmp_path / "killed")
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    results = [json.loads((tmp_path / name / "demo.json").read_text()) for name in ("whole", "killed")]
    assert results[0]["scores"] == results[1]["scores"]


def test_quick_is_less_of_everything() -> None:
    assert FULL.keys() == QUICK.keys()
    assert all(QUICK[name] < FULL[name] for name in FULL)
