"""Logs: metrics.jsonl and TensorBoard agree, also after a resume. Names are flat and documented."""

import io
import json
import re
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import config, start, write_dataset

from pac.training.logging import RunLogger, evaluation_lines
from pac.training.run_dir import RunDirectory, read_metrics

DOCS = Path(__file__).parents[2] / "docs"


def board(folder: Path) -> dict[str, dict[int, float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def columns(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    names = {name for row in rows for name in row} - {"step"}
    return {name: {row["step"]: row[name] for row in rows if name in row} for name in names}


def test_tensorboard_holds_the_metrics(tmp_path: Path) -> None:
    """The newest undamaged checkpoint is of step 8. Later steps are logged again."""
    write_dataset(tmp_path / "data" / "arm")
    run = start(config(tmp_path / "data", machine={"log_every": 2}), tmp_path / "run")
    run.steps = 10
    run.train()
    (tmp_path / "run" / "checkpoints" / "000010" / "checksums.json").unlink()
    again = start(config(tmp_path / "data", machine={"log_every": 2}), tmp_path / "run", resume=True)
    assert again.state.step == 8
    again.train()
    expected, found = columns(read_metrics(tmp_path / "run")), board(tmp_path / "run" / "tensorboard")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert list(values) == [2, 4, 6, 8, 10, 12]
        assert found[name] == pytest.approx(values, rel=1e-6), name


def test_names_are_flat_and_documented(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "arm")
    text = (DOCS / "training.md").read_text()
    for method in ("bc", "pac", "pac+v"):
        run = start(config(tmp_path / "data", objective={"method": method}, length="3 steps"), tmp_path / method)
        run.train()
        (row,) = read_metrics(tmp_path / method)
        assert row.pop("step") == 3
        for name, value in row.items():
            assert isinstance(value, int | float)
            assert re.fullmatch(r"[a-z]+/[a-z_]+(/[0-9]+)?", name)
            listed = re.sub("/[0-9]+$", "/DIM", name)
            assert f"`{listed}`" in text, f"{listed} is not in docs/training.md"


def test_the_summary(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "arm")
    run = start(config(tmp_path / "data"), tmp_path / "run")
    run.train()
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["steps"] == 12
    assert found["parameters"] == sum(p.numel() for p in run.state.model.parameters())
    assert found["flops"] == 12 * found["update_flops"]
    assert found["method"] == "pac"
    last = {k: v for k, v in read_metrics(tmp_path / "run")[-1].items() if k != "step" and not k.startswith("time/")}
    assert found["last"] == last
    assert {"torch", "pac", "python"} <= found["versions"].keys()
    assert ("commit" in found["versions"]) == (DOCS.parent / ".git").exists()
    assert f"`{'`, `'.join(found)}`" in (DOCS / "training.md").read_text()


def test_the_live_line(tmp_path: Path) -> None:
    """A terminal shows it in place. Files get a line now and then."""
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=200)
        with RunLogger(RunDirectory(tmp_path), console, steps=100, first_step=0) as logs:
            logs.tick(50)
            logs.write(50, {"loss/total": 1.25, "loss/imitation": 0.5})
            logs.write(50, {"evaluation/all/success": 0.5})
        shown = text.getvalue()
        assert "evaluated" in shown
        for part in ("loss 1.250", "bc 0.500", "/s data 0%", "50/100", "success 50%"):
            assert terminal or part in shown
        assert ("\x1b[" in shown) == terminal
        assert "50/100" in shown


def test_a_narrow_terminal_shows_all_of_it(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    with RunLogger(RunDirectory(tmp_path), console, steps=5000, first_step=0) as logs:
        logs.tick(1234)
        logs.write(
            1234, {"loss/total": 19.564, "loss/imitation": 18.467, "loss/improvement": 18.46, "loss/critic": 0.275}
        )
        logs._progress.refresh()
        logs.show_evaluation(3, 20)
        logs._progress.refresh()
        logs.write(1234, {f"evaluation/metaworld/drawer-{x}/success": 0.5 for x in ("open", "close")})
    shown = text.getvalue()
    for part in ("1234/5000", "critic 0.275", "episode 3/20", "drawer-close  success 50%"):
        assert part in shown, part
    assert "…" not in shown


def evaluation(**rates: float) -> dict[str, float]:
    """Return the metrics of an evaluation: success per task of Meta-World, and pooled."""
    found = {}
    for task, rate in (rates | {"all": sum(rates.values()) / len(rates)}).items():
        name = "evaluation/all" if task == "all" else f"evaluation/metaworld/{task.replace('_', '-')}"
        ends = {f"{name}/success_low": max(0.0, rate - 0.2), f"{name}/success_high": min(1.0, rate + 0.2)}
        found |= {f"{name}/return": 100 * rate, f"{name}/success": rate} | ends
    return found


def test_each_evaluation_stays_with_its_change(tmp_path: Path) -> None:
    """Also after a resume, whose metrics of before are in `last`."""
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=80)
        last = evaluation(push=0.5, door_open=0.5)
        with RunLogger(RunDirectory(tmp_path), console, steps=300, first_step=0, last=last) as logs:
            for step, push in ((100, 0.7), (200, 0.4)):
                logs.write(step, {"loss/total": 1.0})
                logs.write(step, evaluation(push=push, door_open=0.5))
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
        for line in (
            "step 100/300 evaluated",
            "  push         success 70% [50, 90], up 20 points",
            "  all 2 tasks  success 60% [40, 80], up 10 points",
            "  door-open    success 50% [30, 70], as before",
            "step 200/300 evaluated",
            "  push         success 40% [20, 60], down 30 points",
        ):
            assert line in shown, (terminal, line)


def test_of_many_tasks_the_worst_and_the_best_are_shown() -> None:
    rates = {f"button_press_topdown_wall_{i}": i / 30 for i in range(30)}  # longer than any of Meta-World
    lines = evaluation_lines(evaluation(**rates), evaluation(**dict.fromkeys(rates, 0.123)))
    assert lines[0].startswith("all 30 tasks ")
    numbers = [int(re.search(r"wall-(\d+)", line)[1]) for line in lines[1:]]  # type: ignore[index]
    assert numbers == [0, 1, 2, 29, 28, 27]
    assert max(map(len, lines)) <= 78  # printed with two spaces before
    (line,) = evaluation_lines(evaluation(push=0.5), {})
    assert line == "push  success 50% [30, 70]"


def test_tasks_with_and_without_success() -> None:
    metrics = {"evaluation/control/walker.walk/return": 512.34, "evaluation/control/return": 512.34}
    metrics |= {"evaluation/metaworld/push/return": 3.0, "evaluation/metaworld/push/success": 0.25}
    metrics |= {"evaluation/metaworld/return": 3.0, "evaluation/metaworld/success": 0.25}
    metrics |= {"evaluation/all/return": 257.0, "evaluation/all/success": 0.25}
    lines = evaluation_lines(metrics, {"evaluation/control/walker.walk/return": 500.0})
    assert "control/walker.walk  return 512, up 12.3" in lines
    assert "metaworld/push       success 25%" in lines
    assert not [line for line in lines if line.startswith("all ") and "tasks" in line]


def test_boards_leave_out_the_ends_of_intervals(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with RunLogger(RunDirectory(tmp_path), console, steps=2, first_step=0) as logs:
        logs.write(1, evaluation(push=0.5))
    assert "evaluation/all/success_low" in read_metrics(tmp_path)[0]
    assert {name.rpartition("/")[2] for name in board(tmp_path / "tensorboard")} == {"return", "success"} | {
        "updates_per_second",
        "data_wait",
    }


def test_a_wait_counts_only_if_the_device_is_idle(tmp_path: Path) -> None:
    logs = RunLogger(RunDirectory(tmp_path), Console(file=io.StringIO()), steps=2, first_step=0, main=False)
    with logs.waiting(lambda: True):
        time.sleep(0.02)
    assert logs.data_wait == 0
    with logs.waiting():
        time.sleep(0.02)
    assert logs.data_wait > 0


def test_evaluation_time_does_not_change_the_speed_of_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations come at log steps and between them. The clock is fake."""
    now = [100.0]
    monkeypatch.setattr("pac.training.logging.time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    logs = RunLogger(RunDirectory(tmp_path), Console(file=io.StringIO()), steps=30, first_step=0)
    with logs:
        for step in range(1, 31):
            now[0] += 0.01
            logs.tick(step)
            if step % 10 == 0:
                logs.write(step, {"loss/total": 1.0})
            if step in (15, 20):
                with logs.paused():
                    now[0] += 60
                logs.write(step, {"evaluation/all/return": 1.0})
        assert logs.seconds == pytest.approx(120.3)
        assert logs.updates_per_second == pytest.approx(100)
    speeds = [row["time/updates_per_second"] for row in read_metrics(tmp_path) if "time/updates_per_second" in row]
    assert speeds == pytest.approx([100] * 4)


def test_wandb_gets_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake module stands in for the package."""
    calls: list[Any] = []

    class Remote:
        def log(self, metrics: dict[str, float], step: int) -> None:
            calls.append((step, metrics))

        def finish(self) -> None:
            calls.append("finish")

    module = types.ModuleType("wandb")
    module.__spec__ = __import__("importlib.machinery", fromlist=["x"]).ModuleSpec("wandb", None)
    module.init = lambda **given: (calls.append(given), Remote())[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    write_dataset(tmp_path / "data" / "arm")
    settings: dict[str, Any] = {"machine": {"wandb": "mine", "log_every": 6}}
    start(config(tmp_path / "data", **settings), tmp_path / "run").train()
    start(config(tmp_path / "data", **settings), tmp_path / "run", resume=True).train()
    opened, *rows, end, again, _ = calls
    assert (opened["project"], opened["name"], end) == ("mine", "run", "finish")
    assert again["id"] == opened["id"], "a run that goes on is the same run there"
    assert [step for step, _ in rows] == [6, 12]
    assert "loss/total" in rows[0][1]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        start(config(tmp_path / "data", **settings), tmp_path / "other")
