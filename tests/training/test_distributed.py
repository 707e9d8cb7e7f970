"""Several processes, as torchrun starts them: the same training as one process, and no way to hang."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_end_to_end import write

from pac.data.mixture import parse_mixture
from pac.data.sampler import Sampler
from pac.training import distributed
from pac.training.distributed import ProcessGroup, Signals
from pac.training.run_dir import read_metrics

SOURCE = Path(__file__).parents[2] / "src"
RECIPE = """
length = "50 steps"
[model]
size = "nano"
num_latents = 4
num_blocks = 2
[mixture]
batch_size = 8
groups = [
    {name = "good", weight = 1, goals = "success", keep_text = 0.5, datasets = [{name = "arm", path = "arm"}]},
    {name = "poor", weight = 2, datasets = [{name = "walker", path = "walker"}]},
]
[checkpoint]
every = "20 steps"
[machine]
device = "cpu"
log_every = 1
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with few windows of two robots, one with cameras. Often a process has no image in its part."""
    folder, random = tmp_path_factory.mktemp("distributed"), np.random.default_rng(0)
    write(folder / "arm", dims=5, actions=3, cameras=2, random=random)
    write(folder / "walker", dims=4, actions=2, cameras=0, random=random)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def alone(recipe: Path) -> Path:
    """A run on one process."""
    train(recipe, out := recipe.parent / "alone", processes=1)
    return out


def start(recipe: Path, out: Path, *options: str, processes: int, before: str = "") -> "subprocess.Popen[str]":
    """Start `pac train`. `before` is Python that every process runs first."""
    script = recipe.parent / f"{out.name}.py"
    script.write_text(f"import sys\nfrom pac import cli\n{before}\nsys.exit(cli.main())\n")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [sys.executable, *(torchrun if processes > 1 else []), script, "train", recipe, "--out", out, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
    )


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill torchrun and its workers, which have sessions of their own."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for pid in [process.pid, *map(int, children.read_text().split())]:
        os.kill(pid, signal.SIGKILL)


def finish(process: "subprocess.Popen[str]", seconds: float = 180) -> str:
    """Return the output. Kill what hangs, with all processes that it started."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        pytest.fail(f"hung:\n{process.communicate()[0]}")
    return said


def train(recipe: Path, out: Path, *options: str, processes: int, before: str = "") -> str:
    said = finish(process := start(recipe, out, *options, processes=processes, before=before))
    assert process.returncode == 0, said
    return said


def fail(recipe: Path, out: Path, *options: str, before: str = "") -> str:
    said = finish(process := start(recipe, out, *options, processes=2, before=before))
    assert process.returncode != 0, said
    return said


def assert_same_curve(run: Path, other: Path, tolerance: float = 1e-5, *, magnified: bool = False) -> None:
    """Losses within the tolerance, relative; other numbers near. Weights of advantages magnify rounding, where they
    enter, as the temperature becomes small against values of about 1; the critic's loss is without them.
    """
    rows, others, num_flipped = read_metrics(run), read_metrics(other), 0
    assert [row["step"] for row in rows] == [row["step"] for row in others] == list(range(1, 51))
    for row, expected in zip(rows, others, strict=True):
        assert row.keys() == expected.keys()
        factor = max(1.0, 0.01 / row["weights/temperature"]) if magnified else 1.0
        # A draw at the edge of a bin falls to either side by rounding: of thousands of draws, one or none.
        drawn, wanted = (x.get("loss/improvement", 0) for x in (row, expected))
        flipped = drawn != pytest.approx(wanted, rel=5 * tolerance) and not magnified
        num_flipped += flipped
        for name in row.keys() - {"step"}:
            if name.startswith("time/") or (name.startswith("weights/") and row["weights/temperature"] < 1e-5):
                continue
            near = tolerance * (1 if name in ("loss/total", "loss/imitation", "loss/critic") else 100)
            near *= 1 if name == "loss/critic" else factor
            near = max(near, 1e-3) if flipped and name not in ("loss/imitation", "loss/critic") else near
            assert row[name] == pytest.approx(expected[name], rel=near, abs=near), f"{name} at step {row['step']}"
    assert num_flipped <= 1


def back_to(run: Path, step: int, copy: Path) -> Path:
    """Copy a run as if it had been killed after a checkpoint."""
    shutil.copytree(run, copy, symlinks=True)
    (copy / "summary.json").unlink()
    for folder in (copy / "checkpoints").glob("[0-9]*"):
        if int(folder.name) > step:
            shutil.rmtree(folder)
    return copy


# ------------------------------------------------------------------------------------------------------ the same curve


def test_two_processes_train_as_one_does_and_either_resumes_the_other(
    recipe: Path, alone: Path, tmp_path: Path
) -> None:
    """One test, since its runs are slow to start and test workers would each make their own."""
    together = tmp_path / "together"
    train(recipe, together, processes=2)
    assert_same_curve(together, alone)
    config, other = (json.loads((run / "config.json").read_text()) for run in (together, alone))
    assert (config["world_size"], config["parameters"]) == (2, other["parameters"])
    assert len(list((together / "checkpoints/000040/training_state").glob("shard-*.safetensors"))) == 2
    fewer, more = back_to(together, 40, tmp_path / "fewer"), back_to(alone, 40, tmp_path / "more")
    assert "from step 40" in train(recipe, fewer, "--resume", processes=1)
    assert "from step 40" in train(recipe, more, "--resume", processes=2)
    assert_same_curve(fewer, alone)
    assert_same_curve(more, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["objective.method=pac+v", "optimiser.peak_rate=1e-4"],
        ["objective.method=bc"],
        ["objective.logged_share=0.5", "objective.hidden_dims=0.5"],
        ["objective.method=bc+q", "optimiser.clip_norm=0.5", "machine.accumulate=2", "proprio_noise=0.1"],
        ["model.action_as=input", "machine.recompute=true", "objective.num_samples=2"],
    ],
    ids=lambda options: options[0],
)
def test_methods_train_as_on_one_process(recipe: Path, tmp_path: Path, options: list[str]) -> None:
    train(recipe, tmp_path / "one", *options, processes=1)
    train(recipe, tmp_path / "two", *options, processes=2)
    magnified = any(text.startswith(("objective.method=pac+v", "objective.logged_share")) for text in options)
    assert_same_curve(tmp_path / "two", tmp_path / "one", magnified=magnified)


@pytest.mark.slow
def test_bfloat16_weights_of_blocks(recipe: Path, tmp_path: Path) -> None:
    """The weights of blocks are gathered in the dtype that autocast would cast them to."""
    options = ["machine.precision=bfloat16", "objective.method=bc"]
    train(recipe, tmp_path / "one", *options, processes=1)
    train(recipe, tmp_path / "two", *options, processes=2)
    one, two = (np.array([row["loss/total"] for row in read_metrics(tmp_path / x)]) for x in ("one", "two"))
    assert np.abs(two / one - 1).max() < 1e-3
    weights = load_file(tmp_path / "two/checkpoints/last/pretrained_model/model.safetensors")
    assert {x.dtype for x in weights.values()} == {torch.float32}


@pytest.mark.slow
def test_machines_each_hold_the_whole_model(recipe: Path, alone: Path, tmp_path: Path) -> None:
    """Four processes act as two machines. Then one process continues from their checkpoint."""
    pretend = 'import os\nos.environ["LOCAL_WORLD_SIZE"] = "2"'
    train(recipe, tmp_path / "four", processes=4, before=pretend)
    assert_same_curve(tmp_path / "four", alone)
    train(recipe, fewer := back_to(tmp_path / "four", 40, tmp_path / "fewer"), "--resume", processes=1)
    assert_same_curve(fewer, alone)


@pytest.mark.slow
def test_compiled_blocks(recipe: Path, alone: Path, tmp_path: Path) -> None:
    train(recipe, tmp_path / "two", "machine.compile=true", processes=2)
    assert_same_curve(tmp_path / "two", alone, tolerance=1e-4)


def test_batches_have_the_same_width_on_every_process(recipe: Path) -> None:
    """Noise is drawn in this shape, and gradients are exchanged for the modules that a batch uses."""
    groups = [
        {"name": "good", "weight": 1, "goals": "success", "keep_text": 0.2, "keep_goal": 0.2,
         "datasets": [{"name": "arm", "path": "arm"}]},
        {"name": "poor", "weight": 2, "keep_text": 0.2, "datasets": [{"name": "walker", "path": "walker"}]},
    ]  # fmt: skip
    mixture = parse_mixture({"batch_size": 4, "groups": groups}, root=recipe.parent)
    whole, parts = Sampler(mixture, seed=0), [Sampler(mixture, seed=0, rank=i, world_size=4) for i in range(4)]
    seen = set()
    for step in range(40):
        expected = whole.batch(step)
        for part in parts:
            for found, tensor in zip(part.batch(step).tensors(), expected.tensors(), strict=True):
                assert found.shape == (len(tensor) // 4, *tensor.shape[1:]), step
        observation = expected.observation
        seen.add((observation.text.shape[2] > 0, observation.images.shape[2], observation.goal_images.shape[2]))
    assert len(seen) >= 5  # with and without


# ------------------------------------------------------------------------------------------------------------- trouble


def test_only_one_process_reports_a_batch_that_does_not_divide(recipe: Path, tmp_path: Path) -> None:
    said = fail(recipe, tmp_path / "run", "mixture.batch_size=7")
    assert said.count("expected a rank below the world size and a batch that divides by it") == 1, said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resuming_nothing_is_refused_on_all(recipe: Path, tmp_path: Path) -> None:
    said = fail(recipe, tmp_path / "run", "--resume")
    assert said.count("expected a run to resume, found none") == 1, said


BREAK = """
from pac.training.step import TrainStep
call = TrainStep.__call__
def broken(self, batch, schedule):
    if self.processes.rank == 1 and self.state.step == 5:
        raise {error}("broken on purpose")
    call(self, batch, schedule)
TrainStep.__call__ = broken
"""


@pytest.mark.slow
@pytest.mark.parametrize("error", ["RuntimeError", "ValueError"])
def test_an_error_on_one_process_ends_all(recipe: Path, tmp_path: Path, error: str) -> None:
    said = fail(recipe, tmp_path / "run", before=BREAK.format(error=error))
    assert "broken on purpose" in said
    if error == "ValueError":
        assert "process 1: broken on purpose" in said


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_all(recipe: Path, tmp_path: Path) -> None:
    said = fail(recipe, tmp_path / "run", "optimiser.peak_rate=1e30", "optimiser.warmup=1 steps")
    assert said.count("expected a finite loss and gradient") == 1, said
    assert "of 8 windows" in said
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["optim/refused"] == 1
    assert (tmp_path / "run/checkpoints/last/checksums.json").exists()


POISONED = """
import os
from pac.data.sampler import Sampler
make_batch = Sampler.batch
def poisoned(self, step):
    batch = make_batch(self, step)
    if step == 3 and os.environ["RANK"] == "0":
        batch.reward.mul_(float("nan"))
    return batch
Sampler.batch = poisoned
"""


@pytest.mark.slow
def test_data_that_is_not_finite_on_one_process_is_named_by_all(recipe: Path, tmp_path: Path) -> None:
    """A process with finite data must not wait for the other in a forward pass."""
    said = fail(recipe, tmp_path / "run", before=POISONED)
    assert "Step 3: expected a finite loss and gradient" in said, said
    assert "(4 of 8 windows)" in said, said


SLOW_WRITES = """
import time
from pac.training import distributed
write = distributed.HuggingFaceStorageWriter.write_data
def slow(self, plan, planner):
    found = write(self, plan, planner)
    time.sleep({seconds})
    return found
distributed.HuggingFaceStorageWriter.write_data = slow
"""


def wait_for(process: "subprocess.Popen[str]", found: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not found():
        if process.poll() is not None or time.monotonic() > end:
            kill(process)
            pytest.fail(f"did not get so far:\n{process.communicate()[0]}")
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_while_saving(recipe: Path, alone: Path, tmp_path: Path) -> None:
    """The second checkpoint has its shards but not its name. The run continues from the first."""
    run = tmp_path / "run"
    process = start(recipe, run, processes=2, before=SLOW_WRITES.format(seconds=2))
    wait_for(process, lambda: list((run / "checkpoints/.000040/training_state").glob("shard-*.safetensors")))
    kill(process)
    process.communicate()
    assert not (run / "checkpoints/000040").exists()
    assert "from step 20" in train(recipe, run, "--resume", processes=2)
    assert_same_curve(run, alone)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000040", "000050", "last"]


@pytest.mark.slow
def test_a_checkpoint_gets_its_name_when_all_have_written(recipe: Path, tmp_path: Path) -> None:
    """If one process cannot write its part, all report it, and the earlier checkpoint stays."""
    cannot = """
import os
from pac.training import distributed
write = distributed.HuggingFaceStorageWriter.write_data
def full(self, plan, planner):
    if os.environ["RANK"] == "1" and "000040" in str(self.path):
        raise OSError(28, "No space left on device")
    return write(self, plan, planner)
distributed.HuggingFaceStorageWriter.write_data = full
"""
    said = fail(recipe, tmp_path / "run", before=cannot)
    assert "expected to write a checkpoint, found process 1: [Errno 28] No space left on device" in re.sub(
        r"\s+", " ", said
    ), said
    assert (tmp_path / "run/checkpoints/last").resolve().name == "000020"


@pytest.mark.slow
def test_a_signal_stops_all_after_the_same_update(recipe: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(recipe, run, processes=2)
    wait_for(process, lambda: (run / "metrics.jsonl").exists() and len(read_metrics(run)) > 5)
    os.kill(process.pid, signal.SIGTERM)
    said = finish(process)
    assert said.count("everything is saved") == 1, said
    steps = len(read_metrics(run))
    assert steps < 50
    assert (run / "checkpoints/last").resolve().name == f"{steps:06d}"
    train(recipe, run, "--resume", processes=2)
    assert_same_curve(run, alone)


@pytest.fixture
def walker(recipe: Path) -> Path:
    """A recipe with evaluations after three and six updates."""
    pytest.importorskip("dm_control")
    text, file = recipe.read_text().replace("weight = 1", "weight = 0"), recipe.parent / "walker.toml"
    file.write_text(
        text + '[evaluation]\ntasks = ["control/point_mass.easy"]\nevery = "3 steps"\nepisodes = 2\nworkers = 0\n'
        "max_steps = 20\n"
    )
    return file


def evaluated(run: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run) if "evaluation/all/return" in row]


BROKEN_EVALUATION = """
from pac.evaluation import runner
whole = runner.rollout
def broken(*args, **options):
    {first}
    yield from whole(*args, **options)
runner.rollout = broken
"""


@pytest.mark.slow
def test_a_failed_evaluation_loses_no_updates(walker: Path, tmp_path: Path) -> None:
    """After any error all processes save, also those that do not evaluate."""
    said = fail(
        walker, run := tmp_path / "run", before=BROKEN_EVALUATION.format(first='raise LookupError("no such joint")')
    )
    assert "LookupError: no such joint" in said
    assert "TypeError" not in said
    assert (run / "checkpoints/last").resolve().name == "000003"


@pytest.mark.slow
def test_a_resume_repeats_an_evaluation_that_a_signal_ended(walker: Path, tmp_path: Path) -> None:
    run, stop = tmp_path / "run", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    fail(walker, run, "length=6 steps", before=BROKEN_EVALUATION.format(first=stop))
    assert (run / "checkpoints/last").resolve().name == "000003"
    assert evaluated(run) == []
    train(walker, run, "length=6 steps", "--resume", processes=2)
    assert evaluated(run) == [3, 6]


@pytest.mark.slow
def test_the_main_process_evaluates_and_the_others_wait(walker: Path, tmp_path: Path) -> None:
    for processes in (1, 2):
        train(walker, tmp_path / str(processes), "length=6 steps", processes=processes)
    one, two = ([row for row in read_metrics(tmp_path / x) if "evaluation/all/return" in row] for x in "12")
    assert [row["step"] for row in one] == [row["step"] for row in two] == [3, 6]
    for row, expected in zip(two, one, strict=True):
        assert row["evaluation/all/return"] == pytest.approx(expected["evaluation/all/return"], abs=1e-5)


# ------------------------------------------------------------------------------------------------------- one process


def test_one_process_needs_no_others() -> None:
    processes = ProcessGroup(device=torch.device("cpu"))
    rows = torch.arange(3.0)
    assert processes.gather(rows) is rows
    assert processes.sum(rows) is rows
    assert processes.broadcast("word") == "word"
    assert processes.collect(1) == [1]
    assert processes.on_main(lambda: 2) == 2
    processes.barrier()
    signals = Signals(processes)
    assert [signals.ask(0), signals.ask(15), signals.settle(2)] == [0, 15, 2]


def test_only_the_main_process_reports_an_error_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "LISTEN_SECONDS", 0.0)
    for rank, expected in {"0": "^wrong$", "3": "^process 3: wrong$"}.items():
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=expected), distributed.report_errors_once():
            raise ValueError("wrong")


def test_state_of_another_model_is_refused(tmp_path: Path) -> None:
    processes = ProcessGroup(device=torch.device("cpu"))
    distributed.start_saving({"target.a": torch.ones(2)}, tmp_path, processes)()
    with pytest.raises(ValueError, match=r"found none for \['target.b'\]"):
        distributed.load_state({"target.b": torch.ones(2)}, tmp_path, processes)
    with pytest.raises(ValueError, match=r"of shape \(3,\), found \(2,\)"):
        distributed.load_state({"target.a": torch.ones(3)}, tmp_path, processes)
    distributed.load_state({"target.a": (found := torch.zeros(2))}, tmp_path, processes)
    assert found.tolist() == [1, 1]
