"""The run directory: damaged checkpoints, full disks, and files that are not the run's."""

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import assert_same, config, dump, recipe, start, tensors, timeless, write_dataset

from pac.cli import main
from pac.training.run_dir import RunDirectory, find_damage, keep_rule, read_metrics
from pac.training.trainer import Trainer


@pytest.fixture
def run(tmp_path: Path) -> Trainer:
    """Twelve steps, checkpoints 4, 8 and 12."""
    write_dataset(tmp_path / "data" / "arm")
    made = start(config(tmp_path / "data", checkpoint={"keep_last": 3}), tmp_path / "run")
    made.train()
    return made


def truncate(folder: Path) -> None:
    file = folder / "training_state" / "state.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def flip(folder: Path) -> None:
    file = folder / "pretrained_model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "state.safetensors does not match": truncate,
    "model.safetensors does not match": flip,
    "training_step.json is missing": lambda folder: (folder / "training_state" / "training_step.json").unlink(),
    "no readable checksums.json": lambda folder: (folder / "checksums.json").unlink(),
    "config.json is not in checksums.json": lambda folder: void((folder / "checksums.json").write_text("{}")),
}
UNREADABLE = ["[]", "null", '{"a": 3}', '{"a": {"bytes": 3}}', '{"pretrai', "\x00"]


def void(_: object) -> None:
    """Discard a value."""


@pytest.mark.parametrize("problem", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_skipped(
    run: Trainer, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, rows = tensors(run), read_metrics(run.directory.path)
    DAMAGES[problem](run.directory.checkpoints_path / "000012")
    (run.directory.path / "summary.json").unlink()
    again = start(run.config, run.directory.path, resume=True)
    shown = capsys.readouterr().err
    assert problem in shown
    assert "000012 is damaged" in shown
    assert again.state.step == 8
    last = run.directory.checkpoints_path / "last"
    assert last.resolve().name == "000008"
    again.train()
    assert_same(tensors(again), expected)
    assert timeless(read_metrics(run.directory.path)) == timeless(rows)
    names = {path.name for path in run.directory.checkpoints_path.iterdir()}
    assert names == {"000004", "000008", "000012", "000012.damaged", "last"}


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable_checksums(run: Trainer, text: str) -> None:
    folder = run.directory.checkpoints_path / "000012"
    assert find_damage(folder) is None
    (folder / "checksums.json").write_text(text)
    assert find_damage(folder) == "no readable checksums.json"


def test_without_an_undamaged_checkpoint_a_resume_starts_at_step_0(
    run: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = tensors(run)
    for folder in ("000004", "000008", "000012"):
        flip(run.directory.checkpoints_path / folder)
    again = start(run.config, run.directory.path, resume=True)
    assert "No whole checkpoint was found: starting from step 0." in capsys.readouterr().err
    assert again.state.step == 0
    again.train()
    assert_same(tensors(again), expected)
    assert [row["step"] for row in read_metrics(run.directory.path)] == [3, 6, 9, 12]


def test_damaged_checkpoints_do_not_count_as_the_newest(run: Trainer) -> None:
    """With keep_last = 1 they would make the run delete an undamaged one."""
    flip(run.directory.checkpoints_path / "000012")
    flip(run.directory.checkpoints_path / "000008")
    again = start(
        config(run.directory.path.parent / "data", checkpoint={"keep_last": 1}), run.directory.path, resume=True
    )
    again.steps = 8
    again.train()
    assert (run.directory.checkpoints_path / "last").resolve().name == "000008"
    assert find_damage(run.directory.checkpoints_path / "000008") is None


def test_which_checkpoints_are_kept(tmp_path: Path) -> None:
    steps = [100, 150, 200, 250, 300]
    assert keep_rule(2, None)(steps) == {250, 300}
    assert keep_rule(1, 100)(steps) == {100, 200, 300}
    write_dataset(tmp_path / "data" / "arm")
    settings = config(tmp_path / "data", checkpoint={"every": "2 steps", "keep_last": 1, "keep_every": "4 steps"})
    start(settings, tmp_path / "run").train()
    found = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert found == {"000004", "000008", "000012", "last"}
    assert (tmp_path / "run" / "checkpoints" / "last").readlink() == Path("000012")


@pytest.mark.parametrize(("keep_last", "keep_every"), [(1, None), (2, None), (9, None), (1, 4), (3, 4), (9, 6)])
def test_the_disk_has_room_for_all_kept_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_last: int, keep_every: int | None
) -> None:
    """And for one more, which is being written."""
    write_dataset(tmp_path / "data" / "arm")
    rule = {"every": "2 steps", "keep_last": keep_last, "keep_every": keep_every and f"{keep_every} steps"}
    run = start(config(tmp_path / "data", checkpoint=rule, length="13 steps"), tmp_path / "run")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 10))  # type: ignore[attr-defined]
    expected = len(run.keep([2, 4, 6, 8, 10, 12, 13])) + 1
    with pytest.raises(ValueError, match=f"MB, {expected} at a time"):
        run.check_disk()
    run.steps = 10**12
    with pytest.raises(ValueError, match="at a time"):
        run.check_disk()


def test_keep_every_is_a_multiple_of_every(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "arm")
    with pytest.raises(ValueError, match=r"keep_every: expected a multiple of checkpoint.every, 2 steps, found 3"):
        start(config(tmp_path / "data", checkpoint={"every": "2 steps", "keep_every": "3 steps"}), tmp_path / "run")


def test_a_kill_while_a_checkpoint_replaces_another_loses_neither(run: Trainer) -> None:
    folder = run.directory.checkpoints_path
    (folder / "000012").rename(folder / ".replaced-000012")
    shutil.copytree(folder / "000008", folder / ".000012")
    RunDirectory(run.directory.path).open(resume=True, overwrite=False)
    assert find_damage(folder / "000012") is None
    assert {path.name for path in folder.iterdir()} == {"000004", "000008", "000012", "last"}


def test_a_resume_removes_old_checkpoints_that_a_kill_left(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "arm")
    settings = config(tmp_path / "data", checkpoint={"every": "4 steps", "keep_last": 1})
    start(settings, tmp_path / "run").train()
    folder = tmp_path / "run" / "checkpoints"
    shutil.copytree(folder / "000012", folder / "000008")
    start(settings, tmp_path / "run", resume=True)
    assert {path.name for path in folder.iterdir()} == {"000012", "last"}


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit on file sizes makes room for metrics but not for weights. Earlier checkpoints stay."""
    write_dataset(tmp_path / "data" / "arm")
    file = dump(recipe(tmp_path / "data"), tmp_path / "recipe.toml")
    command = ["train", str(file), "--out", str(tmp_path / "run")]
    assert main([*command, "length=4 steps"]) == 0
    capsys.readouterr()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        assert main([*command, "--resume"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    shown = capsys.readouterr().err
    assert "expected to write a checkpoint, found" in shown
    assert "--resume; earlier checkpoints are untouched" in shown
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"000004", "last"}
    assert main([*command, "--resume"]) == 0
    assert read_metrics(tmp_path / "run")[-1]["step"] == 12


def test_a_disk_without_room_is_reported_before_step_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "data" / "arm")
    file = dump(recipe(tmp_path / "data"), tmp_path / "recipe.toml")
    command = ["train", str(file), "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 10))  # type: ignore[attr-defined]
        assert main(command) == 2
    assert "expected room for checkpoints" in capsys.readouterr().err
    assert main(command) == 0  # nothing was left that stands in the way


def test_folders_in_use(run: Trainer, tmp_path: Path) -> None:
    folder = run.directory.path
    with pytest.raises(ValueError, match=r"in use. Continue that run with --resume"):
        RunDirectory(folder).open(resume=False, overwrite=False)
    with pytest.raises(ValueError, match="found both"):
        RunDirectory(folder).open(resume=True, overwrite=True)
    with pytest.raises(ValueError, match="expected a run to resume, found none"):
        RunDirectory(tmp_path / "nothing").open(resume=True, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="found a file"):
        RunDirectory(tmp_path / "file").open(resume=False, overwrite=False)
    other = tmp_path / "other"
    other.mkdir()
    for name, text in (("config.json", '{"name": "something else"}'), ("thesis.tex", "years of work")):
        (other / name).write_text(text)
        for how in ({"overwrite": True, "resume": False}, {"overwrite": False, "resume": True}):
            with pytest.raises(ValueError, match="found"):
                RunDirectory(other).open(**how)
    assert (other / "thesis.tex").read_text() == "years of work"


def test_overwriting_removes_a_run_and_nothing_else(run: Trainer) -> None:
    folder = run.directory.path
    (folder / "notes.txt").write_text("mine")
    directory = RunDirectory(folder)
    directory.open(resume=False, overwrite=True)
    assert directory.bytes_aside() > 0
    directory.begin(run.describe())
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "checkpoints", "config.json", ".lock"}
    assert not any((folder / "checkpoints").iterdir())


def test_overwriting_removes_nothing_before_the_new_run_begins(run: Trainer) -> None:
    """The new run may fail its checks, or be killed at any moment before it begins."""

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}

    folder, names = run.directory.path, ("checkpoints", "config.json", "metrics.jsonl")
    before = content()
    directory = RunDirectory(folder)
    directory.open(resume=False, overwrite=True)
    (folder / "metrics.jsonl").write_text("of the new one")
    directory.abandon()
    assert content() == before
    for count in range(len(names) + 1):  # put aside so far
        (folder / ".overwritten").mkdir()
        for name in ("config.json", "checkpoints", "metrics.jsonl")[:count]:
            (folder / name).rename(folder / ".overwritten" / name)
        RunDirectory(folder).open(resume=True, overwrite=False)
        assert content() == before


def test_only_one_process_trains_into_a_folder(run: Trainer) -> None:
    code = (
        "import sys; from pac.training.run_dir import RunDirectory;"
        "RunDirectory(sys.argv[1]).open(resume=True, overwrite=False)"
    )
    command = [sys.executable, "-c", code, str(run.directory.path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "found another process training into it" in done.stderr
    with (run.directory.path / ".lock").open("a") as held:
        fcntl.lockf(held, fcntl.LOCK_UN)
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_metrics_are_json_and_may_be_read_while_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert read_metrics(tmp_path) == []
    directory.append_metrics({"step": 1, "loss/total": float("nan"), "a": 0.5})
    line = directory.metrics_path.read_text()
    assert json.loads(line, parse_constant=lambda _: 1 / 0) == {"step": 1, "loss/total": None, "a": 0.5}
    with directory.metrics_path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
