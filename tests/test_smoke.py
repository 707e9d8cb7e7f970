"""The smoke recipe, and the way from no data to an evaluated policy with `pac`'s commands."""

import json
from pathlib import Path

import pytest

from pac.cli import main
from pac.collection import summary
from pac.data.store import Dataset, verify
from pac.training.run_dir import RunDirectory, read_metrics

TASK = "metaworld/drawer-close"
SHORT = ["length=12 steps", "collect.episodes=3", "collect.max_steps=30", "checkpoint.every=6 steps"]
SHORT += ["machine.log_every=6", "evaluation.episodes=2", "evaluation.max_steps=30"]


def test_collect_train_evaluate_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a short form of the smoke recipe, which collects its own data."""
    out, again = tmp_path / "run", tmp_path / "again"
    assert main(["train", "smoke", "--out", str(out), *SHORT]) == 0
    data = out / "collected" / "metaworld-drawer-close"
    assert len(Dataset(data)) == 3
    assert verify(data) == []
    (row,) = [row for row in read_metrics(out) if "evaluation/all/return" in row]
    assert row.keys() >= {f"evaluation/{TASK}/{what}" for what in ("return", "success")}
    last = json.loads((out / "summary.json").read_text())["last"]
    assert last["evaluation/all/return"] == row["evaluation/all/return"]
    capsys.readouterr()

    table = tmp_path / "table.json"
    play = ["evaluate", str(out), "--tasks", TASK, "--episodes", "2", "--max-steps", "30", "--workers", "1"]
    assert main([*play, "--seed", "10000", "--stop-at-success", "--json", str(table)]) == 0
    assert TASK in capsys.readouterr().out
    returns = [episode["return"] for episode in json.loads(table.read_text())["episodes"]]
    # The same initial states and policy, but one more process: the same returns as at the end of training.
    assert sum(returns) / 2 == pytest.approx(row["evaluation/all/return"], rel=1e-6)

    command = ["collect", TASK, "--behaviour", str(out), "--episodes", "2", "--max-steps", "20", "--workers", "1"]
    assert main([*command, "--out", str(tmp_path / "more")]) == 0
    assert "2 episodes" in summary(tmp_path / "more")
    assert next(iter(Dataset(tmp_path / "more"))).source.startswith(str(out))

    assert main(["train", "smoke", "--out", str(again), *SHORT, "seed=1", "--start", str(out)]) == 0
    assert "size nano" in capsys.readouterr().err


def test_data_is_collected_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A start that fails keeps the data, and a resume uses it. Other settings are refused. Overwriting removes it."""
    out = tmp_path / "run"
    command = ["train", "smoke", "--out", str(out), *SHORT, "evaluation.tasks=[]"]
    assert main([*command, "evaluation.tasks=['control/walker.walk']"]) == 2
    shown = capsys.readouterr().err
    assert "Collecting 3 episodes" in shown
    assert "found (24, 6)" in shown
    assert {path.name for path in out.iterdir()} == {"collected"}
    files = {path: path.stat().st_mtime_ns for path in (out / "collected").rglob("*") if path.is_file()}
    assert main(command) == 0
    assert main([*command, "--resume", "length=14 steps"]) == 0
    assert "Collecting" not in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert main([*command, "--resume", "collect.max_steps=9"]) == 2
    assert "max_steps 30 before, 9 now" in capsys.readouterr().err
    assert main([*command, "--overwrite", "evaluation.tasks=['control/walker.walk']"]) == 2
    assert {path: path.stat().st_mtime_ns for path in files} == files  # and so is the run that was to be replaced
    RunDirectory(out).open(resume=False, overwrite=True)
    assert not (out / "collected").exists()


@pytest.mark.slow
def test_the_smoke_recipe_learns(tmp_path: Path) -> None:
    """The thresholds leave room, because machines round differently."""
    assert main(["train", "smoke", "--out", str(tmp_path / "run")]) == 0
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["evaluation/all/success"] >= 0.3  # random actions: 3 of 20
    assert rows[-2]["loss/imitation"] < 0.8 * rows[0]["loss/imitation"]
