"""Checks of [improve], and that the docs list every key."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from improve.small import improve, recipe
from rollout.environments import POINT

from pac.improve.settings import ImproveConfig, load, parse
from pac.recipe import load_recipe
from pac.resources import RECIPES

DOCS = Path(__file__).parents[2] / "docs"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"task": ["control/walker.walk"]}, r"Unknown key 'task' in \[improve\]. Did you mean 'tasks'\?"),
    ({"tasks": []}, "improve.tasks: expected at least one task"),
    ({"tasks": ["control/walker.wlk"]}, "walker.walk"),
    ({"others": [POINT]}, "expected other tasks than the targets"),
    ({"rounds": 0}, "improve.rounds: expected 1 or more, found 0"),
    ({"rounds": 10_001}, "improve.rounds: expected at most 10,000"),
    ({"evaluation_episodes": 2.5}, "improve.evaluation_episodes: expected a whole number, found 2.5"),
    ({"workers": -1}, "improve.workers: expected 0 or more"),
    ({"steps": "soon"}, "improve.steps: expected a duration"),
    ({"first_steps": "0 steps"}, "improve.first_steps: expected a duration"),
    ({"mastery": 0.0}, "improve.mastery: expected a number above 0"),
    ({"tolerance": -0.1}, r"improve.tolerance: expected a share in \[0, 1\]"),
    ({"imitation_weight": 1.5}, r"improve.imitation_weight: expected a share in \[0, 1\]"),
    ({"weight": 0.0}, "improve.weight: expected a number above 0"),
    ({"collect": "sometimes"}, "improve.collect"),
    ({"first": "rndom"}, "Did you mean 'random'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[str(changes) for changes, _ in WRONG])
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(recipe(improve=changes), Path(), Path("collected"))


def test_a_recipe_needs_data_a_checkpoint_or_a_first_behaviour() -> None:
    table = recipe()
    del table["improve"]["first"]
    with pytest.raises(ValueError, match=r"data in \[mixture\], a checkpoint .* improve.first"):
        parse(table, Path(), Path("collected"))
    parse(table | {"start": "runs/a"}, Path(), Path("collected"))


def test_sections_must_fit_each_other() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.seed: expected a seed outside"):
        parse(recipe(evaluation={"seed": 1_000_003}), Path(), Path("collected"))
    with pytest.raises(ValueError, match=r"Unknown key 'improv' in the recipe"):
        parse(recipe(improv={"tasks": []}), Path(), Path("collected"))


def test_recipes_of_the_other_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="Run it with `pac improve`"):
        load_recipe("improve/suite")
    with pytest.raises(ValueError, match=r"smoke.toml: Expected a section \[improve\]"):
        load("smoke", [], tmp_path)
    assert improve(tmp_path, "--resume") == 2
    assert "expected an improvement to resume, found none" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_tasks_of_the_command_line_are_read_as_those_of_the_file(tmp_path: Path) -> None:
    found = load("improve/suite", ['improve.tasks=["control/reacher.*"]'], tmp_path).improve.tasks
    assert "control/reacher.easy" in found
    assert not any("*" in task for task in found)
    with pytest.raises(ValueError, match=r"Unknown task 'control/reacher.eazy'.* Did you mean 'control/reacher.easy'"):
        load("improve/suite", ['improve.tasks=["control/reacher.eazy"]'], tmp_path)


def test_every_recipe_that_ships_can_be_read(tmp_path: Path) -> None:
    found = sorted(RECIPES.glob("improve/*.toml"))
    assert len(found) >= 2
    for path in found:
        assert load(f"improve/{path.stem}", ["improve.rounds=3"], tmp_path).improve.rounds == 3
        header = path.read_text().split("\n\n")[0]
        assert re.search(r"# Expected:.*\n(#.*\n)*# Cost:.*\n(#.*\n)*# Command: ", header), path


def test_the_docs_list_every_key() -> None:
    table = (DOCS / "improve.md").read_text().split("## Keys of `[improve]`")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", table, re.MULTILINE)
    fields = {field.name: field.default for field in dataclasses.fields(ImproveConfig)}
    assert {name for name, _ in listed} == set(fields)
    for name, default in listed:
        if fields[name] not in (dataclasses.MISSING, None, ()):
            assert default.strip('`"') == str(fields[name]).lower().strip('"') or default == f'`"{fields[name]}"`', name
