"""The tour in CONTRIBUTING names the files that one transition passes."""

import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from runs import config, start, write_dataset

import pac
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


def count_calls(work: Any) -> Counter[Path]:
    """Return how many calls of PAC's functions `work()` makes in each file."""
    calls: Counter[Path] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            calls[file] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("method", ["pac", "pac+v"])
def test_nine_tenths_of_the_calls_are_in_the_tour(method: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "a")
    run = start(config(tmp_path / "data", objective={"method": method}), tmp_path / "run")
    policy = run.policy()
    task = TaskSpec(
        name="a",
        instruction="go there",
        state_dim=3,
        action_low=(-1.0, -2.0),
        action_high=(1.0, 3.0),
        max_steps=9,
        has_success=True,
    )
    query = Query(task=task, observation={"observation.state": np.zeros(3, np.float32)}, seed=0, step=0)

    def work() -> None:
        run.update(run.sampler.batch(run.state.step), run.schedule_values(run.state.step))
        policy.act([query])

    work()  # what is prepared once does not count
    calls = count_calls(work)
    inside = sum(calls[file] for file in tour())
    assert inside >= 0.9 * calls.total(), calls.most_common()
