"""Recipes: an error is one line, and comes before anything is built."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import dump, recipe, write_dataset

from pac.cli import main
from pac.config import ObjectiveConfig, Schedules, interpolate, parse_duration
from pac.recipe import METHODS, SECTIONS, RunConfig, load_recipe, parse_recipe
from pac.resources import RECIPES
from pac.study.plan import load_study

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    write_dataset(tmp_path / "data" / "arm")
    return recipe(tmp_path / "data")


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


UNKNOWN = {
    "sead=1": "Did you mean 'seed'?",
    "methods=bc": "Unknown setting 'methods'. Did you mean 'method'?",
    "every=3": "found 2: checkpoint.every, evaluation.every",
    "learning_rate=1e-3": "found 2: optimiser.peak_rate, schedules.learning_rate",
    "model.latent_widht=8": "Did you mean 'latent_width'?",
    "objective.discont=0.9": "Unknown key 'discont' in [objective]. Did you mean 'discount'?",
    "objective.method=pacc": "Unknown method 'pacc' in [objective]. Did you mean 'pac'?",
    "optimiser.peak_rat=1": "Unknown key 'peak_rat' in [optimiser]. Did you mean 'peak_rate'?",
    "checkpoint.evry='1 step'": "Did you mean 'every'?",
    "evaluation.task=['a']": "Did you mean 'tasks'?",
    "machine.devise=cpu": "Did you mean 'device'?",
    "schedules.temprature=[[0,1]]": "Did you mean 'temperature'?",
    "collect.episods=3": "Did you mean 'episodes'?",
    "mixture.batchsize=3": "Did you mean 'batch_size'?",
    "mixture.defaults.imitation=3": "Did you mean 'imitation_weight'?",
}
IMPOSSIBLE = {
    "seed=-1": "seed: expected a whole number of 0 or more",
    "seed=1.5": "seed",
    "length=12": "length: expected a duration such as '200k steps'",
    "length='0 steps'": "length: expected a duration",
    "length='0 flops'": "length: expected a duration",
    "length='0.2 steps'": "at least one step",
    "length='1e999 steps'": "length: expected a duration",
    "length='1..2 steps'": "length: expected a duration",
    "length='-5 steps'": "length: expected a duration",
    "length='ten epochs'": "length: expected a duration",
    "checkpoint.every=soon": "checkpoint.every: expected a duration",
    "checkpoint.keep_every=never": "checkpoint.keep_every: expected a duration",
    "evaluation.every=5": "evaluation.every: expected a text or None",
    "optimiser.warmup=long": "optimiser.warmup: expected a duration",
    "checkpoint.keep_last=0": "keep_last: expected at least 1",
    "proprio_noise=-1": "proprio_noise",
    "proprio_noise=nan": "proprio_noise",
    "start=5": "start: expected the folder",
    "model.size=nanno": "Unknown model size 'nanno'. Did you mean 'nano'?",
    "model.num_heads=3": "multiple of num_heads",
    "model.latent_width=a": "model.latent_width: expected a whole number",
    "model=nano": "Expected a table [model]",
    "objective=pac": "Expected a table [objective]",
    "mixture.defaults=3": "Expected a table for [defaults]",
    "optimiser.peak_rate=-1": "peak_rate: expected a positive number",
    "optimiser.peak_rate=fast": "optimiser.peak_rate: expected a number or None",
    "optimiser.beta1=1": "beta1: expected a number in [0, 1)",
    "optimiser.final_share=2": "final_share",
    "optimiser.weight_decay=-1": "weight_decay",
    "optimiser.initial_rate=-1": "initial_rate",
    "optimiser.target_period=0": "target_period",
    "optimiser.decay=linear": "optimiser.decay: expected 'cosine' or 'constant', found 'linear'",
    "objective.discount=1": "discount",
    "objective.critic=none": "objective.critic: expected 'q', as method 'pac' has it, found 'none'",
    "objective.improve=false": "choose another method",
    "machine.accumulate=0": "accumulate",
    "machine.accumulate=5": "accumulate: expected at most mixture.batch_size, 4, found 5",
    "machine.workers=-1": "workers",
    "machine.precision=int8": "precision",
    "evaluation.episodes=0": "evaluation.episodes: expected at least 1",
    "schedules.imitation_weight=3": "expected a list of [step, value], found 3",
    "schedules.imitation_weight=['ab']": "expected a list of [step, value]",
    "schedules.imitation_weight=[]": "expected points [step, value]",
    "schedules.imitation_weight=[[0,'a']]": "expected a list of [step, value]",
    "schedules.imitation_weight=[[5,1],[5,0]]": "ascending steps",
    "schedules.imitation_weight=[[0,1],[5,1.5]]": "expected values in [0, 1], found 1.5",
    "schedules.critic_weight=[[0,-1]]": "found -1.0",
    "schedules.critic_weight=[[-5,1],[5,0]]": "ascending steps from 0 on",
    "schedules.critic_weight=[[nan,1]]": "ascending steps from 0 on",
    "schedules.critic_weight=[[0,1],[inf,0]]": "ascending steps from 0 on",
    "length=2e12 steps": "length: expected a duration of at most 1e+12 steps",
    "mixture.groups.all.datasets.arm.more_paths=[3]": "more_paths of dataset 'arm': expected folders, found [3]",
    "schedules.learning_rate=[[0,nan]]": "found nan",
    "schedules.temperature=[[0,0]]": "schedules.temperature: expected values in",
    "collect.tasks=[]": "Expected 'behaviour' in [collect]",
    "mixture=5": "Expected a table [mixture]",
    "mixture=nowhere.toml": "found neither at nowhere.toml",
    "seed.deep=3": "expected 'seed' to be a section",
    "mixture.batch_size=0": "batch_size",
    "mixture.groups.al.weight=2": "expected a name (all) and a key at 'al.weight'",
    "mixture.groups.all=2": "expected a name (all) and a key at 'all'",
    "mixture.groups.all.datasets.leg.discount=0": "expected a name (arm) and a key at 'leg.discount'",
    "mixture.groups.all.datasets.arm.imitation_weight=2": "expected imitation_weight in [0, 1], found 2",
}


@pytest.mark.parametrize("change", [*UNKNOWN, *IMPOSSIBLE])
def test_errors_name_the_mistake(tmp_path: Path, table: dict[str, Any], change: str) -> None:
    file = dump(table | {"seed": 0}, tmp_path / "recipe.toml")
    found = error_of(lambda: load_recipe(file, [change]))
    assert (UNKNOWN | IMPOSSIBLE)[change] in found


CONFLICTS = [
    ("filtered-bc", ["schedules.imitation_weight=[[0,1]]"], "schedules.imitation_weight: expected none with method"),
    ("bc", ["schedules.critic_weight=[[0,1]]"], "schedules.critic_weight: expected none with method 'bc'"),
    ("bc+q", ["schedules.temperature=[[0,1]]"], "schedules.temperature: expected none"),
    ("bc", ["objective.improve=true"], "objective.improve: expected False"),
]


@pytest.mark.parametrize(("method", "changes", "expected"), CONFLICTS)
def test_methods_and_weights_that_conflict(
    tmp_path: Path, table: dict[str, Any], method: str, changes: list[str], expected: str
) -> None:
    file = dump(table, tmp_path / "recipe.toml")
    assert expected in error_of(lambda: load_recipe(file, [f"objective.method='{method}'", *changes]))


def test_an_error_is_one_line_and_leaves_no_files(
    tmp_path: Path, table: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = dump(table, tmp_path / "recipe.toml"), tmp_path / "runs" / "a"
    for words, expected in {
        ("sead=1",): "Did you mean 'seed'",
        ("machine.data=gpu",): "machine.data: expected a GPU",
        ("machine.device=cuda",): "machine.device: expected a CUDA GPU",
        ("machine.wandb=mine",): "machine.wandb: expected the wandb package",
        ("evaluation.tasks=['control/walker.wlak']",): "Did you mean 'control/walker.walk'?",
        ("evaluation.tasks=['control/walker.walk']",): "arm (3, 2)), found (24, 6)",
        ("model.num_proprio=2",): "model.num_proprio: expected the data's 3, found 2",
        ("model.q_head=false",): "method 'pac' needs it",
        ("--start", str(tmp_path / "nothing")): "found none of them",
        ("--start", str(tmp_path / "data" / "arm")): "expected a run, a checkpoint",
        ("--resume",): "expected a run to resume, found none",
    }.items():
        assert main(["train", str(file), "--out", str(out), *words]) == 2, words
        shown = capsys.readouterr().err
        assert expected in shown
        assert shown.count("\n") == 1
        assert shown.startswith("pac train: ")
    (tmp_path / "data" / "arm").rename(tmp_path / "data" / "leg")
    assert main(["train", str(file), "--out", str(out)]) == 2
    assert str(tmp_path / "data" / "arm") in capsys.readouterr().err
    (tmp_path / "data" / "leg").rename(tmp_path / "data" / "arm")
    assert main(["train", str(file), "--out", str(out), "length=2 steps"]) == 0
    assert main(["train", str(tmp_path / "nowhere.toml"), "--out", str(out)]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(file), "--out", str(out), "seed"])


def test_overrides_reach_every_section(tmp_path: Path, table: dict[str, Any]) -> None:
    file = dump(table, tmp_path / "recipe.toml")
    changes = ["seed=3", "model.gains=[1,2]", "mixture.defaults.imitation_weight=0.25", "objective.method=pac+v"]
    found = load_recipe(file, [*changes, "schedules.critic_weight=[[0,1],[10,2]]"])
    assert found.seed == 3
    assert found.mixture.datasets[0].imitation_weight == 0.25
    assert found.objective.critic == "v"
    assert found.schedules.critic_weight == ((0.0, 1.0), (10.0, 2.0))


def test_a_mixture_in_a_file_of_its_own(tmp_path: Path, table: dict[str, Any]) -> None:
    """Its paths are relative to its own folder."""
    mixture = table.pop("mixture")
    mixture["groups"][0]["datasets"][0]["path"] = "arm"
    dump(mixture, tmp_path / "data" / "mixture.toml")
    file = dump(table | {"mixture": "data/mixture.toml"}, tmp_path / "recipe.toml")
    found = load_recipe(file, ["mixture.batch_size=7"])
    assert found.mixture.batch_size == 7
    assert Path(str(found.mixture.datasets[0].path)) == tmp_path / "data" / "arm"
    (tmp_path / "bad.toml").write_text("groups = [")
    assert "Expected a mixture in TOML" in error_of(lambda: load_recipe(file, [f"mixture={tmp_path}/bad.toml"]))


def test_a_method_decides_objective_and_defaults(tmp_path: Path, table: dict[str, Any]) -> None:
    for method, (decided, defaults) in METHODS.items():
        found = parse_recipe(table | {"objective": {"method": method}})
        assert {name: getattr(found.objective, name) for name in decided} == decided
        assert {name: getattr(found.mixture.datasets[0], name) for name in defaults} == defaults


def test_methods_that_clone_ignore_alpha(table: dict[str, Any]) -> None:
    table["mixture"]["groups"][0]["datasets"][0]["imitation_weight"] = 0.25
    expected = {"bc": 1, "filtered-bc": 1, "bc+q": 1, "pac": 0.25, "pac+v": 0.25}
    for method, alpha in expected.items():
        found = parse_recipe(table | {"objective": {"method": method}})
        assert [dataset.imitation_weight for dataset in found.mixture.datasets] == [alpha], method


def test_overrides_reach_groups_and_datasets_by_name(tmp_path: Path, table: dict[str, Any]) -> None:
    group = table["mixture"]["groups"][0]
    group["datasets"].append(group["datasets"][0] | {"name": "arm.left"})
    file, at = dump(table, tmp_path / "recipe.toml"), f"mixture.groups.{group['name']}"
    words = [
        f"{at}.weight=3",
        f"{at}.datasets.arm.imitation_weight=0.1",
        f"{at}.datasets.arm.left.imitation_weight=0.9",
    ]
    found = load_recipe(file, words).mixture
    assert found.groups[0].weight == 3
    assert {dataset.name: dataset.imitation_weight for dataset in found.datasets} == {"arm": 0.1, "arm.left": 0.9}


def test_collected_is_replaced_by_the_folder(table: dict[str, Any], tmp_path: Path) -> None:
    table["mixture"]["groups"][0]["datasets"][0]["path"] = "{collected}/arm"
    assert "expected a [collect] section" in error_of(lambda: parse_recipe(table))
    table["collect"] = {"tasks": ["control/walker.walk"], "behaviour": "random"}
    found = parse_recipe(table, Path("elsewhere"), collected=tmp_path / "here")
    assert found.mixture.datasets[0].path == str(tmp_path / "here" / "arm")
    assert "{collected}" in table["mixture"]["groups"][0]["datasets"][0]["path"], "the table is the caller's"


DURATIONS = {
    "200k steps": 200_000,
    "1 step": 1,
    "3 epochs": 21,
    "0.5 epochs": 4,
    "1e6 flops": 1000,
    "1.5M steps": 1_500_000,
}
DURATIONS |= {"2.5e3steps": 2500, "2. steps": 2, "1 flop": 1, ".5k steps": 500}


@pytest.mark.parametrize("text", DURATIONS)
def test_durations(text: str) -> None:
    assert parse_duration(text, epoch_steps=7, update_flops=1000.0) == DURATIONS[text]


def test_schedules_are_straight_lines() -> None:
    points = ((10.0, 1.0), (20.0, 0.0), (30.0, 0.5))
    for step, value in {0: 1, 10: 1, 15: 0.5, 20: 0, 25: 0.25, 30: 0.5, 99: 0.5}.items():
        assert interpolate(points, step) == pytest.approx(value)
    assert interpolate(((0.0, 3.0),), 5) == 3


def test_every_recipe_that_ships_can_be_read(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    for path in RECIPES.glob("*.toml"):
        text = path.read_text()
        if "\n[study]\n" in text:
            load_study(path.stem, [], tmp_path)
        else:
            load_recipe(path.stem, data=[str(data)] if path.stem == "own" else ())
        header = text.split("\n\n")[0]
        assert re.search(r"# Expected:.*\n(#.*\n)*# Cost:.*\n(#.*\n)*# Command: ", header), path


def test_the_docs_list_every_key() -> None:
    """Each key with its default, in docs/training.md."""
    text = (DOCS / "training.md").read_text().split("## Methods")[0]
    kinds: dict[str, type] = {"": RunConfig, "objective": ObjectiveConfig, "schedules": Schedules, **SECTIONS}
    expected = set()
    for section, kind in kinds.items():
        for key in dataclasses.fields(kind):
            if section or key.type in (int, float, str, "int", "float", "str", str | None):
                expected.add(f"{section}.{key.name}".lstrip("."))
    listed = set(re.findall(r"^\| `([a-z_.0-9]+)` \|", text, re.MULTILINE))
    assert listed - expected == {"objective.method", "mixture", "model.size"}
    assert expected - listed == {"method"}
