"""Short names of keys, and the way from a Python value to an override and back."""

import re
from pathlib import Path
from typing import Any

import pytest

from pac.config import parse_overrides
from pac.recipe_keys import CHOSEN, NOT_SHORT, SECTIONS, UNCLEAR, as_override, expand_key, expand_setting, short_names

ROOT = Path(__file__).parents[1]


def test_short_names_stand_for_existing_keys() -> None:
    names = short_names()
    assert names["discount"] == "objective.discount"
    assert names["peak_rate"] == "optimiser.peak_rate"
    assert names["batch_size"] == "mixture.batch_size"
    assert names["imitation_weight"] == "mixture.defaults.imitation_weight"
    for key in set(names.values()) - {"length", "objective.method", "model.size"}:
        section, _, name = key.rpartition(".")
        assert name in SECTIONS[section].__dataclass_fields__, key
    assert not {*NOT_SHORT, *UNCLEAR} & names.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bath_size", "Did you mean 'batch_size'"),
        ("every", "checkpoint.every, evaluation.every"),
        ("learning_rate", "optimiser.peak_rate, schedules.learning_rate"),
        ("workers", "evaluation.workers, collect.workers, machine.workers"),
    ],
)
def test_unclear_names_are_refused(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        expand_key(name)


def test_settings_are_completed() -> None:
    assert expand_setting("steps", 2000) == ("length", "2000 steps")
    assert expand_setting("steps", "2k") == ("length", "2k steps")
    assert expand_setting("steps", " 1.5M") == ("length", "1.5M steps")
    assert expand_setting("steps", 2e3) == ("length", "2000.0 steps")
    assert expand_setting("length", "2k") == ("length", "2k")  # refused with the units that there are
    assert expand_setting("steps", "3 epochs") == ("length", "3 epochs")
    assert expand_setting("tasks", "metaworld/push") == ("evaluation.tasks", ("metaworld/push",))
    assert expand_setting("mixture.defaults.cameras", "front") == ("mixture.defaults.cameras", ("front",))
    assert expand_setting("start", "runs/a") == ("start", "runs/a")


@pytest.mark.parametrize(
    "value",
    [
        3,
        0.97,
        1e-3,
        True,
        "pac+v",
        "time-to-go",
        "3",
        "true",
        "a b",
        'quote " and \\',
        "runs/a",
        "",
        "two\nlines",
        "0x10",
    ],
)
def test_a_value_survives_the_command_line(value: Any) -> None:
    assert parse_overrides([as_override("key", value)]) == {"key": value}


def test_lists_and_tables_survive_the_command_line() -> None:
    assert parse_overrides([as_override("key", ["a", 1, [0, 1.0]])]) == {"key": ("a", 1, [0, 1.0])}
    assert parse_overrides([as_override("key", {"a": [1, 2], "b c": True})]) == {"key": {"a": [1, 2], "b c": True}}
    with pytest.raises(ValueError, match="expected a number, a text, a list or a table"):
        as_override("key", object())


def test_the_docs_list_the_names_that_several_sections_have() -> None:
    text = (ROOT / "docs/training.md").read_text()
    for name, key in CHOSEN.items():
        assert f"| `{name}` | `{key}` |" in text
