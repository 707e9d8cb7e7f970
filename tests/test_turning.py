"""The study of cloning turned into RL: alpha is the scheduled one in every update, and the turn is where it is said."""

import json
from pathlib import Path
from typing import Any

import learning
import pytest
import torch
from runs import TINY, write_dataset

from pac.cli import main
from pac.recipe import parse_recipe
from pac.sections import interpolate
from pac.train import Run

STEPS = 16


def alphas(name: str, steps: int) -> list[float]:
    """Of each update, as the schedule of a variant says."""
    points = learning.schedules({"alpha": learning.TURNS[name], "steps": steps})["imitation_weight"]
    return [interpolate(tuple((float(a), float(b)) for a, b in points), step) for step in range(steps)]


def test_where_each_turns() -> None:
    assert alphas("alpha 1, then 0", 8) == [1.0] * 4 + [0.0] * 4
    assert alphas("alpha 1, then 0", 3000) == [1.0] * 1500 + [0.0] * 1500
    assert alphas("alpha 1, sliding to 0.3", 8) == pytest.approx([1.0] * 5 + [0.65] + [0.3] * 2)
    for name, value in (("alpha 0.5", 0.5), ("alpha 0", 0.0), ("alpha 1", 1.0)):
        assert alphas(name, 8) == [value] * 8
    settings = learning.turning_study((0, 1), "noiseless-300")
    assert len(settings) == 2 * 5 * len(learning.TASKS)
    assert {tuple(sorted(s["objective"].items())) for s in settings.values()} == {(("method", "pac"),)}


@pytest.mark.parametrize("name", learning.TURNS)
def test_the_updates_see_it(tmp_path: Path, name: str) -> None:
    """Alpha as the losses themselves show it: total = alpha * imitation + (1 - alpha) * improvement + beta * critic."""
    write_dataset(tmp_path / "metaworld-push")
    setting: dict[str, Any] = learning.METHODS["PAC"] | {"alpha": learning.TURNS[name], "steps": STEPS, "task": "push"}
    setting |= {"model": TINY, "batch": 4, "window": 3, "data": {"reward": None, "critic_weight": 1.0}}
    setting |= {"machine": {"device": "cpu", "workers": 0}}
    table = learning.recipe(tmp_path, setting)
    del table["mixture"]["defaults"]["reward"]
    run = Run(parse_recipe(table), tmp_path / "run")
    with torch.no_grad():  # a fresh policy is flat, and its two losses alike: alpha would not show
        for key, weights in run.state.model.named_parameters():
            if "head.weight" in key:
                weights.normal_()
    batches, expected, told = run.batches(), alphas(name, STEPS), 0
    for step in range(STEPS):
        run.update(next(batches), run.controls(step))
        found = run.update.tally.read()
        rest = found["loss/total"] - found["loss/critic"] - found["loss/improvement"]
        apart = found["loss/imitation"] - found["loss/improvement"]
        assert rest == pytest.approx(apart * expected[step], abs=1e-3)
        told += abs(apart) > 0.1
    assert told > STEPS / 2


@pytest.mark.slow
def test_a_run_is_tried_before_and_after_the_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--episodes", "3", "--max-steps", "30", "--workers", "0", "--stop-at-success"]
    command = [
        "collect",
        "metaworld/push",
        "--behaviour",
        "scripted+faults",
        "--out",
        str(tmp_path / "f" / "metaworld-push"),
    ]
    assert main([*command, *options]) == 0
    setting = learning.turning_study((0,), "f")["alpha 1, then 0 push 0"]
    setting |= {"model": TINY, "steps": 40, "trials": 2, "batch": 4, "window": 3}
    result = learning.train("alpha 1, then 0 push 0", setting, tmp_path)
    assert [row["alpha"] for row in result["curve"]] == [1.0] * 4 + [0.0] * 4
    assert len(result["halfway"]["push"]) == len(result["trials"]["push"]) == 2
    assert result["halfway"]["push"] != result["trials"]["push"]  # the critic has learned on
    file = tmp_path / "turning.jsonl"
    file.write_text(json.dumps(result) + "\n")
    capsys.readouterr()
    learning.table(file)
    shown = capsys.readouterr().out
    assert "|alpha 1, then 0; half-way|" in shown
    assert "|alpha 1, then 0|" in shown
