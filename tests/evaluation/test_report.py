"""An evaluation as it is asked for, and the command line that asks for the same."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from pac.cli import parse
from pac.cli.evaluate import request
from pac.evaluation.report import EvaluationRequest

PLAIN: dict[str, Any] = {"actor": ("random",), "tasks": ("control",), "trials": 7, "seed": 0}


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"actor": ("our own=runs/a b", "random"), "tasks": ("metaworld/*open*", "control"), "seed": 3},
        {"sampling": ("mode",), "best_of": (1, 16), "cameras": ("corner2",), "max_steps": 20},
        {"goals": ("data/a", "data/b"), "show": ("goal", "none"), "stop_at_success": True},
        {"bootstrap": True, "experts": Path("mine.json")},
    ],
)
def test_the_command_asks_for_the_same(choices: dict[str, Any]) -> None:
    asked = EvaluationRequest(**(PLAIN | choices))
    program, *words = shlex.split(asked.command)
    assert program == "pac"
    assert request(parse(words)[1]) == asked


def test_the_command_says_no_more_than_it_must() -> None:
    assert EvaluationRequest(**PLAIN).command == "pac evaluate random --tasks control --trials 7 --seed 0"
    assert EvaluationRequest(**PLAIN).whole
    assert not EvaluationRequest(**PLAIN, stop_at_success=True).whole
    assert not EvaluationRequest(**PLAIN, max_steps=9).whole
