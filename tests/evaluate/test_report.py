"""An evaluation as it is asked for, and the command line that asks for the same."""

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from pac.evaluate.cli import add_parser, request
from pac.evaluate.report import Request

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
    asked = Request(**(PLAIN | choices))
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    program, *words = shlex.split(asked.command)
    assert program == "pac"
    assert request(parser.parse_args(words)) == asked


def test_the_command_says_no_more_than_it_must() -> None:
    assert Request(**PLAIN).command == "pac evaluate random --tasks control --trials 7 --seed 0"
    assert Request(**PLAIN).whole
    assert not Request(**PLAIN, stop_at_success=True).whole
    assert not Request(**PLAIN, max_steps=9).whole
