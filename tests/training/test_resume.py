"""A run that is killed at any moment and resumed equals an uninterrupted run, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout.environments import POINT
from runs import assert_same, config, dump, recipe, start, tensors, timeless, write_dataset
from safetensors.torch import load_file

from pac.cli import main
from pac.data.sampler import Sampler
from pac.evaluation import runner
from pac.rollout import rollout
from pac.training.run_dir import read_metrics
from pac.training.trainer import Trainer

HERE = Path(__file__).parent


def contents(run: Path) -> dict[str, Any]:
    """Return the bytes of all tensor files of the newest checkpoint."""
    last = run / "checkpoints" / "last"
    return {str(f.relative_to(last)): f.read_bytes() for f in sorted(last.rglob("*.safetensors"))}


def kill(tmp_path: Path, kills: int, steps: int) -> None:
    write_dataset(tmp_path / "data" / "arm", cameras=1)
    write_dataset(tmp_path / "data" / "leg", dims=5, seed=1)
    # Saves and logs fall on different steps: sums of metrics must survive too.
    table = recipe(tmp_path / "data", length=f"{steps} steps", machine={"workers": 2, "log_every": 7})
    file = dump(table | {"checkpoint": {"every": "5 steps"}}, tmp_path / "recipe.toml")
    command = [sys.executable, str(HERE.parent / "kills.py"), str(file), str(tmp_path), str(kills), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert timeless(read_metrics(tmp_path / "killed")) == timeless(read_metrics(tmp_path / "whole"))
    seen, expected = ({*(tmp_path / f"{n}.batches").read_text().splitlines()} for n in ("killed", "whole"))
    assert len(expected) == steps
    assert seen == expected
    left = {path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()}
    assert left == {"last", f"{steps - 5:06d}", f"{steps:06d}"}


def test_killed_five_times(tmp_path: Path) -> None:
    kill(tmp_path, 5, 60)


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    kill(tmp_path, 20, 250)


@pytest.mark.parametrize("method", ["pac", "pac+v", "bc"])
def test_a_resume_between_log_steps(tmp_path: Path, method: str) -> None:
    """12 steps equal 5, a restart, and 7 more: state, metrics and sums of metrics."""
    write_dataset(tmp_path / "data" / "arm")
    given: dict[str, Any] = {"objective": {"method": method}, "machine": {"log_every": 7}}
    given["schedules"] = {"learning_rate": [[0, 1e-3], [12, 1e-5]]}
    whole = start(config(tmp_path / "data", **given), tmp_path / "whole")
    whole.train()
    part = start(config(tmp_path / "data", **given), tmp_path / "part")
    stop_at(part, 5)
    part.train()
    assert (part.state.step, part.interrupted) == (5, signal.SIGTERM)
    again = start(config(tmp_path / "data", **given), tmp_path / "part", resume=True)
    assert again.state.step == 5
    assert_same(tensors(again), tensors(part))
    again.train()
    assert_same(tensors(again), tensors(whole))
    assert timeless(read_metrics(tmp_path / "part")) == timeless(read_metrics(tmp_path / "whole"))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def stop_at(run: Trainer, step: int, number: int = signal.SIGTERM) -> None:
    """Send a signal to this process when a step begins."""
    schedule_values, sent = run.schedule_values, list[int]()

    def signalling(at: int) -> Any:
        if at == step - 1 and not sent:
            sent.append(at)
            os.kill(os.getpid(), number)
        return schedule_values(at)

    run.schedule_values = signalling  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    write_dataset(tmp_path / "data" / "arm")
    file = dump(recipe(tmp_path / "data"), tmp_path / "recipe.toml")
    command = ["train", str(file), "--out", str(tmp_path / "run")]
    make = Trainer.__init__

    def stopping(self: Trainer, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        stop_at(self, 6, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "__init__", stopping)
        assert main(command) == 128 + number
    assert "Stopped at step 6; everything is saved. Continue with --resume." in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "last").resolve().name == "000006"
    assert not (tmp_path / "run" / "summary.json").exists()
    assert main([*command, "--resume"]) == 0
    assert "from step 6" in capsys.readouterr().err
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != ".lock"}
    assert main([*command, "--resume"]) == 0
    assert "is finished: 12 steps" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert main([*command, "--resume", "length=16 steps"]) == 0
    shown = capsys.readouterr().err
    assert 'another length: "12 steps" before, "16 steps" now' in shown
    assert "from step 12" in shown


def test_each_evaluation_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume repeats an evaluation that a signal ended, and none that was logged."""
    write_dataset(tmp_path / "data" / "arm", instruction="rollout environments:Point")
    evaluation = {"tasks": [POINT], "every": "5 steps", "episodes": 3, "workers": 0}
    settings = config(tmp_path / "data", evaluation=evaluation)
    whole = start(settings, tmp_path / "whole")
    whole.train()
    expected = timeless(read_metrics(tmp_path / "whole"))
    assert [row["step"] for row in expected if "evaluation/all/return" in row] == [5, 10, 12]

    part = start(settings, tmp_path / "part")

    def broken(*args: Any, **given: Any) -> Any:
        for i, episode in enumerate(rollout(*args, **given)):
            if i == 1 and part.state.step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            yield episode

    with monkeypatch.context() as patched:
        patched.setattr(runner, "rollout", broken)
        part.train()
    assert part.state.step == 5
    assert [row["step"] for row in read_metrics(tmp_path / "part")] == [3]
    start(settings, tmp_path / "part", resume=True).train()
    assert timeless(read_metrics(tmp_path / "part")) == expected

    summary = tmp_path / "part" / "summary.json"
    last = json.loads(summary.read_text())["last"]
    summary.unlink()  # a kill just before the end
    again = start(settings, tmp_path / "part", resume=True)
    again.train()
    assert timeless(read_metrics(tmp_path / "part")) == expected
    assert json.loads(summary.read_text())["last"] == last


def test_another_recipe_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "data" / "arm")
    file = dump(recipe(tmp_path / "data"), tmp_path / "recipe.toml")
    command = ["train", str(file), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    for change, named in {
        "seed=1": "seed: 0 before, 1 now",
        "objective.discount=0.5": "objective.discount: 0.99 before, 0.5 now",
        "mixture.batch_size=8": "mixture.batch_size: 4 before, 8 now",
        "optimiser.peak_rate=1": "optimiser.peak_rate: 0.001 before, 1 now",
        "mixture.defaults.imitation_weight=0.1": "imitation_weight: 0.75 before, 0.1 now",
    }.items():
        assert main([*command, "--resume", change]) == 2
        shown = capsys.readouterr().err
        assert named in shown
        assert "--start" in shown
    write_dataset(tmp_path / "data" / "arm", episodes=2)
    assert main([*command, "--resume"]) == 2
    assert "episodes: 6 before, 8 now" in capsys.readouterr().err


def test_a_run_of_an_older_pac_can_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that it did not have must be at their defaults."""
    write_dataset(tmp_path / "data" / "arm")
    file = dump(recipe(tmp_path / "data"), tmp_path / "recipe.toml")
    command = ["train", str(file), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    kept = tmp_path / "run" / "config.json"
    content = json.loads(kept.read_text())
    del content["config"]["objective"]["monte_carlo_weight"], content["config"]["optimiser"]["beta2"]
    kept.write_text(json.dumps(content))
    assert main([*command, "--resume"]) == 0
    assert main([*command, "--resume", "objective.monte_carlo_weight=0.5"]) == 2
    assert "objective.monte_carlo_weight: null before, 0.5 now" in capsys.readouterr().err


def test_a_run_that_has_moved_can_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "a" / "data" / "arm")
    file = dump(recipe(tmp_path / "a" / "data"), tmp_path / "recipe.toml")
    assert main(["train", str(file), "--out", str(tmp_path / "a" / "run")]) == 0
    (tmp_path / "a").rename(tmp_path / "b")
    file = dump(recipe(tmp_path / "b" / "data"), tmp_path / "recipe.toml")
    assert main(["train", str(file), "--out", str(tmp_path / "b" / "run"), "--resume", "length=14 steps"]) == 0


def test_batches_do_not_depend_on_where_a_stream_begins(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "arm", cameras=1)
    sampler = Sampler(config(tmp_path / "data").mixture, seed=3)
    stream = sampler.batches(0, num_workers=2, threads=True)
    found = [next(stream) for _ in range(6)]
    later = sampler.batches(4)
    for batch in found[4:]:
        assert all(map(torch.equal, next(later).tensors(), batch.tensors()))


def test_the_target_is_saved_as_it_is(tmp_path: Path) -> None:
    """Between two copies the target differs from the model."""
    write_dataset(tmp_path / "data" / "arm")
    run = start(config(tmp_path / "data", length="8 steps"), tmp_path / "run")
    run.train()
    saved = load_file(tmp_path / "run" / "checkpoints" / "last" / "training_state" / "state.safetensors")
    model = load_file(tmp_path / "run" / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")
    assert_same(
        {k.removeprefix("target."): x for k, x in saved.items() if k.startswith("target.")},
        dict(run.state.target.state_dict()),
    )
    assert any(not saved[f"target.{name}"].equal(model[name]) for name in model)
