"""Files of commit c3d1b9f still work: tests/old/make.py made them with the code of that commit."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac.cli import main
from pac.data.store import Dataset, verify
from pac.evaluation import read_evaluation
from pac.model.pretrained import load_config
from pac.old_names import OldNameWarning
from pac.policy import PolicyMetadata, load
from pac.recipe import load_recipe
from pac.types import Query, TaskSpec

OLD = Path(__file__).parent / "old"
CARTPOLE = "run/collected/control-cartpole.balance"
ACTING: dict[str, dict[str, Any]] = {
    "sample": {},
    "mode": {"sampling": "mode"},
    "interquartile": {"sampling": "interquartile"},
    "best of 3": {"best_of": 3},
}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the old files. Tests must not change them."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(OLD / "old.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def recorded(old: Path, name: str) -> Any:
    return json.loads((old / "recorded.json").read_text())[name]


@pytest.mark.parametrize("name", ["arm", CARTPOLE])
def test_a_dataset_reads_the_same(old: Path, name: str) -> None:
    dataset = Dataset(old / name)
    arrays = {"index": dataset.index, **dataset.arrays}
    found = {key: hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest() for key, x in arrays.items()}
    found |= {"instructions": json.dumps(dataset.instructions), "length": str(len(dataset))}
    assert found == recorded(old, "datasets")[name]
    assert verify(old / name) == []


@pytest.mark.parametrize("how", list(ACTING))
@pytest.mark.parametrize(("checkpoint", "data"), [("run", CARTPOLE), ("checkpoint", "arm")])
def test_a_checkpoint_acts_the_same(old: Path, checkpoint: str, data: str, how: str) -> None:
    """Its weights, its config.json and the choice of actions mean what they meant."""
    expected, episode = recorded(old, "acts")[checkpoint], Dataset(old / data).episode(0)
    task = TaskSpec(**{name: tuple(x) if isinstance(x, list) else x for name, x in expected["task"].items()})
    queries = [
        Query(task=task, observation={k: v[step] for k, v in episode.observation.items()}, seed=seed, step=step)
        for step, seed in enumerate(expected["seeds"])
    ]
    found = load(old / checkpoint, device="cpu", values=True, goals={}, **ACTING[how]).act(queries)
    answers = expected["answers"][how]
    np.testing.assert_array_equal([reply.action for reply in found], np.array(answers["actions"], np.float32))
    np.testing.assert_allclose([reply.value for reply in found], answers["values"], rtol=1e-5)


def test_the_metadata_of_a_checkpoint_reads_the_same(old: Path) -> None:
    content = json.loads((old / "checkpoint/config.json").read_text())
    metadata = PolicyMetadata.from_json(load_config(old / "checkpoint"), "here")
    (before,), (now,) = content["robots"], metadata.embodiments
    assert (now.language_conditioned, now.goal_cameras) == (before["told"], ("top",))
    for name in ("name", "discount", "value_scale", "instructions", "cameras", "action_low", "proprio_scale"):
        value = getattr(now, name)
        assert (list(value) if isinstance(value, tuple) else value) == before[name]


def test_a_run_resumes(old: Path, tmp_path: Path) -> None:
    """Its recipe, weights, target network and optimiser state go on as they did: losses of the next updates agree."""
    folder = tmp_path / "run"
    with tarfile.open(OLD / "old.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert main(["train", str(OLD / "old.toml"), "--out", str(folder), "--resume"]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found, expected = [row for row in rows if row["step"] > 2], recorded(old, "later")
    assert [row["step"] for row in found] == [row["step"] for row in expected] == [3, 4, 4]
    for before, now in zip(expected, found, strict=True):
        names = [name for name in before if not name.startswith("time/")]
        np.testing.assert_allclose([now[name] for name in names], [before[name] for name in names], rtol=1e-5)


def test_a_recipe_reads_under_its_old_keys() -> None:
    with pytest.warns(OldNameWarning) as warnings:
        found = load_recipe(OLD / "old.toml")
    assert (found.objective.monte_carlo_weight, found.evaluation.episodes) == (0.5, 2)
    assert len(warnings) == 2


def test_an_evaluation_reads_the_same(old: Path) -> None:
    content = json.loads((old / "evaluation.json").read_text())
    settings, episodes = read_evaluation(old / "evaluation.json")
    assert settings == content["settings"]
    assert [(x.actor, x.index, x.total, x.state) for x in episodes] == [
        (x["actor"], x["index"], x["return"], x["state"]) for x in content["trials"]
    ]
    assert len(episodes) == 4
