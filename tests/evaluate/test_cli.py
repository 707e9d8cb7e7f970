"""`pac evaluate` from the command line to its files, in a real world."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pac.cli import main
from pac.evaluate import play, read
from pac.evaluate.records import partial_path

PENDULUM = ["evaluate", "random", "--tasks", "control/pendulum.swingup", "--max-steps", "8"]


def evaluate(*words: object, workers: int = 0, base: list[str] = PENDULUM) -> int:
    return main([*base, "--workers", str(workers), *map(str, words)])


def trials(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["trials"]


def test_end_to_end_with_two_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.md"
    words = ["evaluate", "random", "still=random+hesitate", "--tasks", "control/pend*", "control/point_mass.easy"]
    words += ["--trials", "3", "--max-steps", "8"]
    assert evaluate("--json", out, "--markdown", page, "--seed", 5, workers=2, base=words) == 0
    document = json.loads(out.read_text())
    assert len(document["trials"]) == 2 * 2 * 3
    first, other = document["trials"][0], document["trials"][6]
    assert first.keys() == {"actor", "task", "seed", "index", "state", "length", "return", "success"}
    assert (first["actor"], other["actor"], first["seed"], first["length"]) == ("random", "still", 5, 8)
    assert first["state"] == other["state"]
    assert len({trial["state"] for trial in document["trials"]}) == 6
    assert document["settings"]["versions"]["mujoco"]
    assert document["settings"]["actors"]["still"] == {"behaviour": "random+hesitate"}
    assert document["command"].startswith("pac evaluate random still=random+hesitate --tasks")
    shown = capsys.readouterr().out
    assert "Return" in shown
    assert "not distinguishable" in shown.replace("\n", " ")
    assert "| pooled, 2 tasks | 6 |" in page.read_text()
    assert not partial_path(out).exists()
    alone = tmp_path / "b.json"
    assert evaluate("--json", alone, "--seed", 5, workers=0, base=words) == 0
    assert trials(alone) == document["trials"]


def test_ctrl_c_leaves_what_was_finished_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.json", tmp_path / "a.json"
    evaluate("--trials", 5, "--json", whole)
    real = play.rollout
    closed = []

    def stopped(*given: Any, **options: Any) -> Iterator[Any]:
        try:
            for number, trial in enumerate(real(*given, **options)):
                if number == 2:
                    raise KeyboardInterrupt
                yield trial
        finally:
            closed.append(True)

    monkeypatch.setattr(play, "rollout", stopped)
    capsys.readouterr()
    assert evaluate("--trials", 5, "--json", out) == 130
    assert closed
    assert "2 of 5 trials were finished" in capsys.readouterr().out.replace("\n", " ")
    assert not out.exists()
    assert len(read(out)[1]) == 2
    played = []
    monkeypatch.setattr(play, "rollout", lambda actor, jobs, **given: played.extend(jobs) or real(actor, jobs, **given))
    assert evaluate("--trials", 5, "--json", out) == 0
    assert [job.index for job in played] == [2, 3, 4]
    assert trials(out) == trials(whole)


def test_more_trials_are_added_fewer_and_other_settings_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.json"
    assert evaluate("--trials", 2, "--json", out) == 0
    before = trials(out)
    assert evaluate("--trials", 3, "--json", out) == 0
    assert trials(out)[:2] == before
    assert len(trials(out)) == 3
    assert evaluate("--trials", 1, "--json", out) == 2
    assert "--trials 3 or more, found 1" in capsys.readouterr().err
    assert evaluate("--trials", 3, "--seed", 1, "--json", out) == 2
    assert "other settings" in capsys.readouterr().err
    assert len(trials(out)) == 3
    assert len(read(out)[1]) == 3


def test_videos_of_new_and_of_earlier_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    out, films = tmp_path / "a.json", tmp_path / "films"
    for choice in (["0"], ["0", "1"]):
        assert evaluate("--trials", 2, "--json", out, "--videos", films, "--video-trials", *choice) == 0
    names = sorted(path.name for path in films.iterdir())
    assert names == [f"control.pendulum.swingup.trial{i}.random.mp4" for i in (0, 1)]
    assert "before" not in capsys.readouterr().out
    assert json.loads(out.read_text())["notes"] == [
        "random: a task has 2 trials; the interval of its return means little."
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trials", "0"], "1 or more"),
        (["--videos", "x", "--trials", "2", "--video-trials", "2"], "from 0 to 1"),
        (["--experts", "nowhere.json"], "a table of experts"),
        (["--sampling", "greedy"], "sample or mode"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_percent_of_expert_needs_whole_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "experts.json", tmp_path / "a.json"
    entry = {"return": 800.0, "n": 5, "source": "made up"}
    table.write_text(json.dumps({"tasks": {"control/pendulum.swingup": entry}}))
    assert evaluate("--trials", 2, "--experts", table, "--json", out) == 0
    document = json.loads(out.read_text())
    assert document["summary"]["random"]["pooled"]["all"]["percent"] is None
    assert any("Percent of expert is not shown" in note for note in document["notes"])
    whole = ["evaluate", "random", "--tasks", "control/pendulum.swingup", "--trials", "1"]
    out.unlink()
    assert evaluate("--experts", table, "--json", out, base=whole) == 0
    document = json.loads(out.read_text())
    percent = document["summary"]["random"]["pooled"]["all"]["percent"]
    assert percent["mean"] == pytest.approx(document["trials"][0]["return"] / 8)
    assert document["experts"]["control/pendulum.swingup"]["source"] == "made up"
