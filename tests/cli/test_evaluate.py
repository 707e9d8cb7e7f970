"""`pac evaluate` from the command line to its files, in a real environment."""

import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import small_model

from pac import policy
from pac.cli import main, parse
from pac.cli.evaluate import DEFAULTS, command
from pac.evaluation import read_evaluation as read
from pac.evaluation import runner, video
from pac.evaluation.records import partial_path
from pac.types import Query, Reply

PENDULUM = ["evaluate", "random", "--tasks", "control/pendulum.swingup", "--max-steps", "8"]


def evaluate(*words: object, workers: int = 0, base: list[str] = PENDULUM) -> int:
    return main([*base, "--workers", str(workers), *map(str, words)])


def episodes(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["episodes"]


def test_end_to_end_with_two_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.md"
    words = ["evaluate", "random", "still=random+hesitate", "--tasks", "control/pend*", "control/point_mass.easy"]
    words += ["--episodes", "3", "--max-steps", "8"]
    assert evaluate("--json", out, "--markdown", page, "--seed", 5, workers=2, base=words) == 0
    document = json.loads(out.read_text())
    assert len(document["episodes"]) == 2 * 2 * 3
    first, other = document["episodes"][0], document["episodes"][6]
    assert first.keys() == {"actor", "task", "seed", "index", "state", "length", "return", "success"}
    assert (first["actor"], other["actor"], first["seed"], first["length"]) == ("random", "still", 5, 8)
    assert first["state"] == other["state"]
    assert len({entry["state"] for entry in document["episodes"]}) == 6
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
    assert episodes(alone) == document["episodes"]


def test_ctrl_c_keeps_finished_episodes_and_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.json", tmp_path / "a.json"
    evaluate("--episodes", 5, "--json", whole)
    real = runner.rollout
    closed = []

    def stopped(*given: Any, **options: Any) -> Iterator[Any]:
        try:
            for number, result in enumerate(real(*given, **options)):
                if number == 2:
                    raise KeyboardInterrupt
                yield result
        finally:
            closed.append(True)

    monkeypatch.setattr(runner, "rollout", stopped)
    capsys.readouterr()
    assert evaluate("--episodes", 5, "--json", out) == 130
    assert closed
    assert "2 of 5 episodes were finished" in capsys.readouterr().out.replace("\n", " ")
    assert not out.exists()
    assert len(read(out)[1]) == 2
    played = []
    monkeypatch.setattr(
        runner, "rollout", lambda actor, jobs, **given: played.extend(jobs) or real(actor, jobs, **given)
    )
    assert evaluate("--episodes", 5, "--json", out) == 0
    assert [job.index for job in played] == [2, 3, 4]
    assert episodes(out) == episodes(whole)


def test_more_episodes_are_added_fewer_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.json"
    assert evaluate("--episodes", 2, "--json", out) == 0
    before = episodes(out)
    assert evaluate("--episodes", 3, "--json", out) == 0
    assert episodes(out)[:2] == before
    assert len(episodes(out)) == 3
    assert evaluate("--episodes", 1, "--json", out) == 2
    assert "--episodes 3 or more, found 1" in capsys.readouterr().err
    assert evaluate("--episodes", 3, "--seed", 1, "--json", out) == 2
    assert "other settings" in capsys.readouterr().err
    assert len(episodes(out)) == 3
    assert len(read(out)[1]) == 3


@pytest.mark.usefixtures("gl")
def test_videos_of_new_and_of_earlier_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    out, videos = tmp_path / "a.json", tmp_path / "videos"
    for choice in (["0"], ["0", "1"]):
        assert evaluate("--episodes", 2, "--json", out, "--videos", videos, "--video-episodes", *choice) == 0
    names = sorted(path.name for path in videos.iterdir())
    assert names == [f"control.pendulum.swingup.episode{i}.random.mp4" for i in (0, 1)]
    assert "played again" not in capsys.readouterr().out
    notes = json.loads(out.read_text())["notes"]
    assert "random: a task has 2 episodes. The interval of its return means little." in notes
    assert not [note for note in notes if "played again" in note]  # the second video agrees with the first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", "0"], "1 or more"),
        (["--videos", "x", "--episodes", "2", "--video-episodes", "2"], "from 0 to 1"),
        (["--experts", "nowhere.json"], "a table of experts"),
        (["--sampling", "greedy"], "sample, mode, mean"),
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
    assert evaluate("--episodes", 2, "--experts", table, "--json", out) == 0
    document = json.loads(out.read_text())
    assert document["summary"]["random"]["pooled"]["all"]["percent"] is None
    assert any("Percent of expert is not shown" in note for note in document["notes"])
    whole = ["evaluate", "random", "--tasks", "control/pendulum.swingup", "--episodes", "1"]
    out.unlink()
    assert evaluate("--experts", table, "--json", out, base=whole) == 0
    document = json.loads(out.read_text())
    percent = document["summary"]["random"]["pooled"]["all"]["percent"]
    assert percent["mean"] == pytest.approx(document["episodes"][0]["return"] / 8)
    assert document["experts"]["control/pendulum.swingup"]["source"] == "made up"


def workers_of_this_process() -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            command = (place / "cmdline").read_text()
        except OSError:
            continue
        if parent == os.getpid() and "pac.rollout.worker" in command:
            found.append(int(place.name))
    return found


def test_killed_workers_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["evaluate", "random", "--tasks", "control/pendulum.swingup", "--episodes", "6", "--max-steps", "200"]
    undisturbed, disturbed = tmp_path / "undisturbed.json", tmp_path / "disturbed.json"
    assert evaluate("--json", undisturbed, base=words) == 0
    real, killed = runner.rollout, []

    def kill_a_worker(*given: Any, **options: Any) -> Iterator[Any]:
        for number, result in enumerate(real(*given, **options)):
            if number == 0:
                killed.extend(workers_of_this_process()[:1])
                os.kill(killed[0], signal.SIGKILL)
            yield result

    monkeypatch.setattr(runner, "rollout", kill_a_worker)
    assert evaluate("--json", disturbed, workers=1, base=words) == 0
    assert len(killed) == 1
    assert episodes(disturbed) == episodes(undisturbed)
    assert "killed" in caplog.text


class Leaning:
    """A policy with a critic, whose action depends on `best_of`."""

    name = "leaning"

    def __init__(self, path: str, *, sampling: str, best_of: int, values: bool) -> None:
        assert values  # the video shows them
        self.push = (1.0 if sampling == "mode" else -1.0) / best_of

    def act(self, queries: Sequence[Query]) -> list[Reply]:
        return [Reply(action=np.array([self.push], np.float32), value=query.step / 10) for query in queries]


@pytest.mark.usefixtures("gl")
def test_a_checkpoint_its_choices_and_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    monkeypatch.setattr(policy, "load", Leaning)
    folder, out = tmp_path / "run", tmp_path / "a.json"
    small_model().save_pretrained(folder)
    drawn: list[video.Curves] = []
    real = video.draw_panel
    monkeypatch.setattr(video, "draw_panel", lambda curves, width: drawn.append(curves) or real(curves, width))
    words = ["evaluate", f"ours={folder}", "--tasks", "control/pendulum.swingup", "--episodes", "2", "--max-steps", "6"]
    words += ["--sampling", "sample", "mode", "--best-of", "4", "--videos", str(tmp_path / "videos")]
    assert evaluate("--json", out, base=words) == 0
    document = json.loads(out.read_text())
    actors = document["settings"]["actors"]
    assert list(actors) == ["ours (sample)", "ours (mode)"]
    assert (actors["ours (mode)"]["sampling"], actors["ours (mode)"]["best_of"]) == ("mode", 4)
    assert {d["pairs"] for d in document["differences"]} == {2}
    assert len(drawn) == 2
    assert drawn[0].value is not None
    np.testing.assert_allclose(drawn[0].value, np.arange(6) / 10, rtol=1e-6)


def test_paths_that_cannot_be_written_are_found_before_the_first_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "rollout", lambda *given, **options: pytest.fail("too late"))
    (tmp_path / "file").write_text("")
    for option, name in (("--json", "a.json"), ("--markdown", "a.md"), ("--videos", "films")):
        assert evaluate("--episodes", 2, option, tmp_path / "file" / name) == 2
        assert "Name another." in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["random", "--tasks", "control"],
        ["our own=runs/a b", "random", "--tasks", "metaworld/*open*", "control", "--seed", "3"],
        ["random", "--tasks", "control", "--sampling", "mode", "--best-of", "1", "16", "--cameras", "corner2"],
        ["random", "--tasks", "control", "--goals", "data/a", "data/b", "--show", "goal", "none", "--stop-at-success"],
        ["random", "--tasks", "control", "--bootstrap", "--experts", "mine.json", "--max-steps", "20"],
    ],
)
def test_the_command_in_the_document_gives_the_same_numbers(words: list[str]) -> None:
    args = parse(["evaluate", *words, "--workers", "3"])[1]
    program, *again = shlex.split(command(args))
    assert program == "pac"
    assert {name: getattr(parse(again)[1], name) for name in DEFAULTS} == {
        name: getattr(args, name) for name in DEFAULTS
    }


def test_the_command_in_the_document_leaves_out_defaults() -> None:
    args = parse(["evaluate", "random", "--tasks", "control", "--episodes", "7", "--workers", "2"])[1]
    assert command(args) == "pac evaluate random --tasks control --episodes 7 --seed 0"
