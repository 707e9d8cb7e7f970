"""Old names still work. Each use is one warning, which names the new word."""

import json
from pathlib import Path
from typing import Any

import pytest
from runs import dump, recipe, write_dataset

from pac.cli import main
from pac.old_names import OldNameWarning, rename_options, rename_override, rename_recipe
from pac.recipe import load_recipe


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    write_dataset(tmp_path / "data" / "arm")
    return recipe(tmp_path / "data")


def test_keys_and_values_of_a_recipe() -> None:
    old = {
        "seed": 3,
        "objective": {"logged_returns": 0.5, "discount": 0.9},
        "evaluation": {"trials": 7, "sampling": "middle", "tasks": ["middle"]},
        "machine": {"data": "resident"},
        "study": {
            "rows": {"a.b": {"objective": {"logged_returns": 1.0}, "evaluation": {"trials": 2}}},
            "domains": {"Control": {"sampling": "middle", "max_steps": 9}},
            "data": [{"name": "middle"}],
        },
    }
    new = {
        "seed": 3,
        "objective": {"monte_carlo_weight": 0.5, "discount": 0.9},
        "evaluation": {"episodes": 7, "sampling": "interquartile", "tasks": ["middle"]},
        "machine": {"data": "gpu"},
        "study": {
            "rows": {"a.b": {"objective": {"monte_carlo_weight": 1.0}, "evaluation": {"episodes": 2}}},
            "domains": {"Control": {"sampling": "interquartile", "max_steps": 9}},
            "data": [{"name": "middle"}],
        },
    }
    before = json.dumps(old)
    with pytest.warns(OldNameWarning) as caught:
        assert rename_recipe(old) == new
    assert json.dumps(old) == before, "the table is the caller's"
    assert sorted(str(warning.message).partition(" now. ")[0] for warning in caught) == [
        "evaluation.sampling=middle is called evaluation.sampling=interquartile",
        "evaluation.trials is called evaluation.episodes",
        "machine.data=resident is called machine.data=gpu",
        "objective.logged_returns is called objective.monte_carlo_weight",
        "study.domains.*.sampling=middle is called study.domains.*.sampling=interquartile",
    ]
    assert rename_recipe(new) == new
    assert rename_recipe(old, warn=False) == new


def test_an_old_key_beside_the_new_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected evaluation.episodes, found evaluation.trials beside it"):
        rename_recipe({"evaluation": {"trials": 3, "episodes": 3}})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("evaluation.trials", 3), ("evaluation.episodes", 3)),
        (("evaluation", {"trials": 3}), ("evaluation", {"episodes": 3})),
        (("machine.data", "resident"), ("machine.data", "gpu")),
        (("study.rows.PAC.objective.logged_returns", 1), ("study.rows.PAC.objective.monte_carlo_weight", 1)),
        (("study.domains.Control.sampling", "middle"), ("study.domains.Control.sampling", "interquartile")),
    ],
)
def test_overrides(old: tuple[str, Any], new: tuple[str, Any]) -> None:
    with pytest.warns(OldNameWarning):
        assert rename_override(*old) == new
    assert rename_override(*new) == new


def test_a_recipe_and_its_overrides_are_read_under_the_present_names(tmp_path: Path, table: dict[str, Any]) -> None:
    file = dump(table | {"evaluation": {"trials": 3, "tasks": []}}, tmp_path / "recipe.toml")
    with pytest.warns(OldNameWarning) as caught:
        found = load_recipe(file, ["objective.logged_returns=0.25", "evaluation.trials=4", "machine.data='resident'"])
    assert (found.evaluation.episodes, found.objective.monte_carlo_weight, found.machine.data) == (4, 0.25, "gpu")
    assert len(caught) == 4


def test_options() -> None:
    with pytest.warns(OldNameWarning, match="--video-trials is called --video-episodes"):
        assert rename_options(["evaluate", "--video-trials=3", "trials"]) == [
            "evaluate",
            "--video-episodes=3",
            "trials",
        ]
    with pytest.warns(OldNameWarning, match="middle is called interquartile"):
        assert rename_options(["--sampling", "mode", "middle", "--tasks", "middle"]) == [
            "--sampling",
            "mode",
            "interquartile",
            "--tasks",
            "middle",
        ]


def test_the_command_line_prints_one_plain_line(
    tmp_path: Path, table: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = dump(table, tmp_path / "recipe.toml")
    assert (
        main(["train", str(file), "--out", str(tmp_path / "run"), "length=2 steps", "objective.logged_returns=0"]) == 0
    )
    first = capsys.readouterr().err.splitlines()[0]
    assert first == (
        "pac: objective.logged_returns is called objective.monte_carlo_weight now. The old name still works."
    )
