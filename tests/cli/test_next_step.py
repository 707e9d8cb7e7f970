"""Every command ends with what it made and the next command. Each printed command can be typed as it is."""

import io
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import runs
from rich.console import Console

from pac.cli import main, parse
from pac.cli.demo import load
from pac.cli.evaluate import needed_episodes, next_steps
from pac.cli.next_step import evaluation_of, print_next
from pac.cli.study import watch
from pac.cli.train import print_next_steps
from pac.evaluation import EpisodeRecord
from pac.evaluation.result import make_result
from pac.recipe import load_recipe
from pac.study.folder import StudyFolder

TASK = "control/pendulum.swingup"


def next_commands(text: str) -> list[list[str]]:
    """Return the words of each printed command, after `pac`. Raise if one cannot be parsed."""
    lines = [line for line in text.splitlines() if line.startswith("Next")]
    commands = [shlex.split(re.fullmatch(r"Next(?:, [^:]+)?: pac (.*)", line)[1]) for line in lines]  # type: ignore[index]
    for words in commands:
        parse(words)
    return commands


def run(capsys: pytest.CaptureFixture[str], *words: object) -> list[list[str]]:
    """Run a command and return the next ones."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    shown = capsys.readouterr()
    return next_commands(shown.out + shown.err)


def test_from_collecting_to_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each printed command runs, and prints the next one."""
    monkeypatch.chdir(tmp_path)
    where = ["--episodes", 3, "--max-steps", 12, "--workers", 0]
    (inspect,) = run(capsys, "collect", TASK, "--behaviour", "random", *where, "--out", "my data")
    assert inspect == ["inspect", "my data"]
    (train,) = run(capsys, *inspect)
    clone = "objective.method=bc"  # the rewards of so few steps are equal
    assert train == ["train", "own", clone, "--data", "my data", "--out", "runs/my data"]
    tiny = ["length=2 steps", "mixture.batch_size=4", "mixture.window=4", "machine.workers=0", "machine.device=cpu"]
    (evaluate,) = run(capsys, *train, *tiny)
    assert evaluate[:4] == ["evaluate", "runs/my data", "--tasks", TASK]
    assert evaluate[4:6] == ["--max-steps", "12"]  # those of the data
    more, both = run(capsys, *evaluate, "--episodes", 2, "--workers", 0)
    assert both[both.index("--sampling") + 1] == "both"
    assert more[more.index("--episodes") + 1] == "20"
    file = "runs/my data/evaluation.json"
    assert more[-2:] == ["--json", file]  # which adds to the episodes
    report = run(capsys, *more, "--workers", 0)[0]
    assert report == ["report", file, "--out", "runs/my data/evaluation.html"]
    assert run(capsys, *report) == []
    assert (tmp_path / "runs/my data/evaluation.html").exists()


def test_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "info", "nano") == [["train", "smoke", "--out", "runs/smoke"]]
    ((name, task, *_),) = run(capsys, "tasks", "drawer-close")
    assert (name, task) == ("collect", "metaworld/drawer-close")
    path = runs.write_dataset(tmp_path / "data" / "arm")
    group = {"name": "a", "weight": 1, "datasets": [{"name": "arm", "path": str(path)}]}
    recipe = runs.dump({"groups": [group]}, tmp_path / "mixture.toml")
    ((name, *words),) = run(capsys, "mixture", recipe)
    assert load_recipe(words[0], [word for word in words if "=" in word]).mixture.groups[0].name == "a"
    assert run(capsys, "export", path, "--format", "lerobot", "--out", tmp_path / "other", "--fps", 10) == []
    again = tmp_path / "again"
    assert run(capsys, "import", tmp_path / "other", "--out", again) == [["inspect", str(again)]]


def test_an_interrupted_run_and_an_interrupted_evaluation_continue(capsys: pytest.CaptureFixture[str]) -> None:
    text = io.StringIO()
    args = parse(["train", "smoke", "--out", "runs/a b", "seed=1"])[1]
    state = SimpleNamespace(step=5)
    trainer: Any = SimpleNamespace(config=load_recipe("smoke"), interrupted=2, state=state, console=Console(file=text))
    print_next_steps(trainer, args)
    assert next_commands(text.getvalue()) == [["train", "smoke", "seed=1", "--out", "runs/a b", "--resume"]]
    words = ["evaluate", "random", "--tasks", TASK, "--episodes", "7", "--json", "e.json", "--videos", "v"]
    ((_, command),) = next_steps(parse(words)[1], [], None, interrupted=True)  # type: ignore[arg-type]
    again = parse(list(map(str, command[1:])))[1]
    assert (again.episodes, again.json, again.videos) == (7, Path("e.json"), Path("v"))


def test_a_study_and_the_demo_end_with_a_film(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path, load("demo_quick", 1, tmp_path))
    reason, command = watch(folder, folder.study.runs[-1])
    args = parse(list(map(str, command[1:])))[1]
    assert reason
    assert (args.tasks, args.max_steps, args.stop_at_success) == (["metaworld/drawer-close"], 150, True)
    assert args.videos == tmp_path / "films"


def test_without_differing_rewards_the_command_clones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs.write_dataset(tmp_path / "still", reward=0.0)
    (train,) = run(capsys, "inspect", path)
    assert "objective.method=bc" in train


def test_json_is_only_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs.write_dataset(tmp_path / "data" / "arm")
    for words in (["inspect", str(path), "--json"], ["tasks", "drawer-close", "--json"], ["info", "nano", "--json"]):
        capsys.readouterr()
        assert main(words) == 0
        json.loads(capsys.readouterr().out)


def test_the_tasks_of_data_that_was_not_collected_are_not_known(tmp_path: Path) -> None:
    runs.write_dataset(tmp_path / "data" / "arm")
    config = runs.config(tmp_path / "data")
    assert evaluation_of(config).tasks == ()
    (tmp_path / "data" / "arm" / "collect.json").write_text("damaged")
    assert evaluation_of(config).tasks == ()


def test_names_with_spaces_and_brackets_are_printed_as_they_are() -> None:
    out = io.StringIO()
    print_next(Console(file=out, width=40), "a [red]b", ("", ["pac", "inspect", "my [bold]data" + "x" * 80]))
    made, line = out.getvalue().splitlines()
    assert made == "a [red]b"
    assert next_commands(line) == [["inspect", "my [bold]data" + "x" * 80]]


def test_more_episodes_are_asked_for_only_if_they_help() -> None:
    def needed(successes: int, count: int) -> int | None:
        entry = {"actor": "a", "task": "t/x", "seed": 0, "state": "", "length": 5}
        records = [
            EpisodeRecord(**entry, index=i, total=float(i), success=i < successes)  # type: ignore[arg-type]
            for i in range(count)
        ]
        settings: dict[str, Any] = {"tasks": ["t/x"], "max_steps": None, "stop_at_success": False, "actors": {}}
        given: dict[str, Any] = {"experts": {}, "bootstrap": False, "notes": [], "command": "", "finished": True}
        return needed_episodes(make_result(records, settings, episodes=count, **given), count)

    assert needed(50, 100) == 390  # 381 narrow it to 5 points
    assert needed(10, 20) == 200  # at most ten times as many
    assert needed(500, 1000) is None
    assert needed(200, 200) is None
