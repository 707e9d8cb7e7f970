"""The tour in CONTRIBUTING names the files that one transition passes."""

import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from factories import save_dataset

import pac
from pac.policy import Policy
from pac.recipe import load_recipe
from pac.training.trainer import Trainer
from pac.types import Query, TaskSpec

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pac.__file__).parent


def tour() -> list[Path]:
    """Return the files of the tour."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Tour")[1].split("\n## ")[0]
    return [ROOT / name for name in re.findall(r"^\| `(src/pac/[\w/]+\.py)` \|", text, re.MULTILINE)]


def test_the_tour_is_short_and_its_files_exist() -> None:
    files = tour()
    assert 5 < len(files) <= 11
    assert [file for file in files if not file.is_file()] == []
