"""The demo from nothing to a page, in small: what is made once is used again, whole or not."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from pac.cli import main
from pac.cli.demo import make
from pac.data.store import Dataset
from pac.demo import steps
from pac.demo.settings import FULL, METHODS, QUICK, WORLDS, Settings, claim, recipe
from pac.recipe import parse_recipe

SMALL = Settings(seed=3, tasks=3, episodes=6, steps=20, batch=16, trials=1)
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
        claim(tmp_path, replace(SMALL, steps=21))


def test_a_seed_must_be_a_number_of_0_or_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed: expected" in capsys.readouterr().err


def _make(folder: Path) -> None:
    make(SMALL, folder, Console(width=200), command="pac demo")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    _make(folder)
    return folder


@pytest.mark.slow
def test_from_nothing_to_a_page(whole: Path) -> None:
    text, result = (whole / "page.html").read_text(), json.loads((whole / "demo.json").read_text())
    assert all(name in text for name in (*TASKS, *METHODS))
    for world in WORLDS:
        trials = json.loads(steps.trials_file(whole, world).read_text())["episodes"]
        assert len(trials) == len(world.tasks) * len(METHODS) * SMALL.trials
        starts = {m: sorted((t["task"], t["index"], t["state"]) for t in trials if t["actor"] == m) for m in METHODS}
        assert all(starts[m] == starts["PAC"] for m in METHODS)
        for task in world.tasks:
            assert len(Dataset(whole / "data" / task.replace("/", "-"))) == SMALL.episodes
            expert, told = world.experts.get(task), result["scores"]["PAC"][task]
            own = [t for t in trials if (t["actor"], t["task"]) == ("PAC", task)]
            scores = [100.0 * t["success"] if expert is None else 100 * t["return"] / expert for t in own]
            assert sorted(told) == pytest.approx(sorted(scores), abs=1e-3)


@pytest.mark.slow
def test_a_second_run_makes_nothing_again(whole: Path) -> None:
    before, first = digest(whole), json.loads((whole / "demo.json").read_text())
    written = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    _make(whole)
    second = json.loads((whole / "demo.json").read_text())
    assert digest(whole) == before
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == written
    assert second["scores"] == first["scores"]


SCRIPT = """
import signal, sys
from pathlib import Path
from rich.console import Console
from pac.cli.demo import make
from pac.demo.settings import Settings
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
make(Settings(**{settings}), Path(sys.argv[1]), Console(width=200), command="pac demo")
"""


@pytest.mark.slow
def test_a_killed_demo_goes_on_to_the_same_end(whole: Path, tmp_path: Path) -> None:
    for wanted, kind in (("bc+q/metrics.jsonl", signal.SIGKILL), ("metaworld.json*", signal.SIGINT)):
        command = [sys.executable, "-c", SCRIPT.replace("{settings}", str(asdict(SMALL))), str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None and not list(tmp_path.glob(wanted)):
            time.sleep(0.02)
        assert child.poll() is None
        child.send_signal(kind)
        child.wait()
        time.sleep(2)  # lanes notice that they are alone, save, and let go of their folders
    assert not (tmp_path / "demo.json").exists()
    _make(tmp_path)
    assert digest(tmp_path) == digest(whole)
    results = [json.loads((folder / "demo.json").read_text()) for folder in (whole, tmp_path)]
    assert results[0]["scores"] == results[1]["scores"]


def test_quick_is_less_of_everything() -> None:
    assert FULL.keys() == QUICK.keys()
    assert all(QUICK[name] < FULL[name] for name in FULL)
