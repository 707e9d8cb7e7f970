"""A run keeps the settings that it began with, also where a default of PAC has changed since."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import TINY, dump, recipe, timeless, write_dataset

from pac import old_names
from pac.config import ObjectiveConfig, OptimiserConfig
from pac.recipe import continued, load_recipe, read_recipe
from pac.training.run import train_in
from pac.training.run_dir import read_metrics


def change_default(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, value: Any) -> None:
    """Let a config class have another default, as a later version of PAC might."""
    defaults = list(kind.__init__.__kwdefaults__.items())  # type: ignore[misc]
    monkeypatch.setattr(kind.__init__, "__kwdefaults__", dict(defaults) | {name: value})
    monkeypatch.setattr(kind.__dataclass_fields__[name], "default", value)  # type: ignore[attr-defined]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data" / "a")
    return dump(recipe(tmp_path / "data"), tmp_path / "recipe.toml")


def test_changed_defaults_do_not_reach_an_older_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_in(tmp_path / "run", file)
    whole = timeless(read_metrics(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run/checkpoints/000012")
    (tmp_path / "run/summary.json").unlink()
    change_default(monkeypatch, ObjectiveConfig, "discount", 0.5)
    change_default(monkeypatch, OptimiserConfig, "weight_decay", 0.5)
    assert load_recipe(file).objective.discount == 0.5
    trainer = train_in(tmp_path / "run", file, resume=True)
    assert trainer.config.objective.discount == 0.99
    assert trainer.config.optimiser.weight_decay == 1e-3
    assert trainer.state.step == 12
    assert timeless(read_metrics(tmp_path / "run")) == whole
    fresh = train_in(tmp_path / "new", file)
    assert fresh.config.objective.discount == 0.5


def test_a_dataset_keeps_its_settings(file: Path) -> None:
    config = load_recipe(file, ["mixture.groups.all.critic_weight=3.0"])
    before = json.loads(json.dumps(config.as_json()))
    (dataset,) = before["mixture"]["groups"][0]["datasets"]
    dataset |= {"imitation_weight": 0.3, "critic_weight": 2.0, "cameras": [], "path": "elsewhere"}
    (found,) = continued(config, before).mixture.datasets
    assert (found.imitation_weight, found.critic_weight, found.cameras) == (0.3, 3.0, ())
    assert found.path == config.mixture.datasets[0].path


def test_a_key_that_is_newer_than_the_run_means_what_runs_did_before(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_in(tmp_path / "run", file, ["length='6 steps'"])
    config = json.loads((tmp_path / "run/config.json").read_text())
    del config["config"]["objective"]["epsilon"]
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    change_default(monkeypatch, ObjectiveConfig, "epsilon", 0.3)
    monkeypatch.setitem(old_names.MEANING_BEFORE, "objective.epsilon", 0.1)
    with pytest.raises(ValueError, match="epsilon"):  # the run says nothing of it, and 0.1 is no default now
        train_in(tmp_path / "run", file, ["objective.epsilon=0.2"], resume=True)
    assert train_in(tmp_path / "run", file, resume=True).config.objective.epsilon == 0.1


def test_a_stated_setting_that_differs_is_refused(file: Path, tmp_path: Path) -> None:
    train_in(tmp_path / "run", file, ["length='6 steps'"])
    with pytest.raises(ValueError, match=r"objective.discount: 0.99 before, 0.9 now"):
        train_in(tmp_path / "run", file, ["discount=0.9"], resume=True)


def test_a_run_is_a_recipe(file: Path, tmp_path: Path) -> None:
    first = train_in(tmp_path / "run", file, ["method=bc+q", "mixture.groups.all.success_only=true"])
    table, _ = read_recipe(tmp_path / "run")
    assert table["objective"]["method"] == "bc+q"
    again = load_recipe(tmp_path / "run")
    assert dataclasses.replace(again, stated=first.config.stated) == first.config
    other = load_recipe(tmp_path / "run", ["method=pac"])
    assert other.mixture.datasets[0].imitation_weight == 0.75  # 1 came from bc+q
    second = train_in(tmp_path / "second", tmp_path / "run")
    names = ("loss/total", "optim/gradient_norm")
    rows = [[row[name] for name in names] for run in ("run", "second") for row in read_metrics(tmp_path / run)]
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]
    assert second.state.step == first.state.step


def test_data_without_a_recipe(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dataset(tmp_path / name)
    texts = [f"{tmp_path}/a@3", f"{tmp_path}/b@1"]
    config = load_recipe(None, ["size=nano", "method=pac+v", "steps=7"], data=texts)
    assert [(group.name, group.weight) for group in config.mixture.groups] == [("a", 3.0), ("b", 1.0)]
    assert (config.method, config.size, config.length, config.mixture.batch_size) == ("pac+v", "nano", "7 steps", 64)
    assert load_recipe(None, ["size=XXS"], data=texts).mixture.batch_size == 512
    assert load_recipe(None, ["batch_size=8"], data=texts).mixture.batch_size == 8
    config = load_recipe(None, ["mixture.groups.a.reward_scale=2.0"], data=texts)
    assert [dataset.reward_scale for dataset in config.mixture.datasets] == [2.0, 1.0]
    same = load_recipe(None, data=[str(tmp_path / "a"), str(tmp_path / "a")])
    assert [dataset.name for dataset in same.mixture.datasets] == ["a", "a-2"]
    (tmp_path / "a").rename(tmp_path / "a@2")  # a folder, not a weight
    (group,) = load_recipe(None, data=[f"{tmp_path}/a@2"]).mixture.groups
    assert (group.name, group.weight) == ("a@2", 1.0)
    (group,) = load_recipe(None, data=[f"{tmp_path}/a@2@1e-05"]).mixture.groups
    assert (group.name, group.weight) == ("a@2", 1e-5)
    with pytest.raises(ValueError, match="expected the folder of a dataset, found none"):
        load_recipe(None, data=[str(tmp_path / "c")])


def test_data_replaces_that_of_a_recipe(file: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "b")
    config = load_recipe(file, data=[str(tmp_path / "b")])
    assert [dataset.name for dataset in config.mixture.datasets] == ["b"]
    assert config.mixture.batch_size == 4
    assert config.model == {**TINY, "image_channels": [4, 4], "gains": [1.0, 4.0]}
