"""`pac inspect` describes a dataset and warns of likely mistakes."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac.cli import parse
from pac.data.store import STATE, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.report.dataset_page import png
from pac.report.dataset_summary import describe_dataset


def run(*arguments: str) -> int:
    command, args = parse(["inspect", *arguments])
    return int(command(args) or 0)


def warned(path: Path, *words: str) -> bool:
    return any(all(word in warning for word in words) for warning in describe_dataset(path)["warnings"])


def test_report_counts_episodes_steps_and_success(make_episode: Any, make_dataset: Any, capsys: Any) -> None:
    episodes = [
        make_episode(i, 3 + i, cameras=["front"], instruction=["a", "b"][i % 2], success=[True, False, None][i % 3])
        for i in range(6)
    ]
    path = make_dataset("d", episodes, control_rate=20.0)
    assert run(str(path), "--json", "--verify") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["episodes"], report["steps"], report["control_rate"]) == (6, 33, 20.0)
    assert report["return"]["mean"] == pytest.approx(np.mean([e.reward.sum() for e in episodes]))
    assert report["success"] == pytest.approx({"rate": 0.5, "low": 0.15, "high": 0.85, "known": 4}, abs=0.005)
    assert [(task["instruction"], task["episodes"]) for task in report["tasks"]] == [("a", 3), ("b", 3)]
    assert report["cameras"] == {"front": [4, 5]}
    assert (report["state"][1]["min"], report["state"][1]["max"]) == (0, 8)
    assert report["ends"]["time limit"] == 6
    assert report["verified"] is True


def test_good_dataset_has_no_warnings(make_episode: Any, make_dataset: Any) -> None:
    episodes = [make_episode(i, 60 + i, instruction="walker.walk") for i in range(3)]
    for episode in episodes:
        episode.action[0] = -1
    assert describe_dataset(make_dataset("d", episodes, control_rate=20.0))["warnings"] == []


def test_likely_mistakes_give_warnings(make_episode: Any, make_dataset: Any) -> None:
    odd = [make_episode(i, 4, cameras=["dark"], terminated=True, truncated=False, success=i == 0) for i in range(2)]
    for episode in odd:
        episode.observation[STATE][:, 2] = 0.3 + 1e-6 * np.arange(5)
        episode.observation[STATE][:, 0] = 7
        episode.observation["observation.images.dark"][:] = 3
        episode.action[:, 1] = 0.5
    path = make_dataset("odd", odd, state_names=("base", "arm", "hand"))
    assert warned(path, "Constant state", "base")
    assert warned(path, "hardly move", "hand")
    assert warned(path, "Constant action", "1")
    assert warned(path, "under a fifth of their bounds", "0")
    assert warned(path, "exactly 4 steps", "time limits")
    assert warned(path, "lower return")
    assert not warned(path, "no instruction")  # all episodes may be of one task
    mixed = [make_episode(0, 4), make_episode(1, 4, instruction="go")]
    assert warned(make_dataset("mixed", mixed), "1 episodes have no instruction")
    assert warned(path, "'dark'", "flat colour")
    assert warned(path, "Control rate unknown")
    cut = [make_episode(0, 4, last_known=False, truncated=False, instruction="pick up " * 60)]
    cut[0].reward[:] = 0
    path = make_dataset("cut", cut, action_low=None, action_high=None)
    assert warned(path, "without their last observation")
    assert warned(path, "neither")
    assert warned(path, "Every reward is 0")
    assert warned(path, "measured")
    assert warned(path, "longer than 50 tokens")


def test_damaged_and_empty_datasets(make_episode: Any, make_dataset: Any, tmp_path: Path, capsys: Any) -> None:
    path = make_dataset("d", [make_episode(0, 4)])
    file = path / "action.npy"
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    assert run(str(path)) == 0
    assert run(str(path), "--verify") == 1
    assert "action.npy" in capsys.readouterr().out.replace("\n", "")
    DatasetWriter(tmp_path / "empty", DatasetSpec.of(make_episode(0, 4))).close()
    assert warned(tmp_path / "empty", "No episodes")
    assert run(str(tmp_path / "empty")) == 0


def test_html_page_needs_no_other_file(make_episode: Any, make_dataset: Any, tmp_path: Path, capsys: Any) -> None:
    path = make_dataset("d", [make_episode(i, 4, cameras=["front"], instruction="<script>") for i in range(3)])
    assert run(str(path), "--html", str(tmp_path / "page.html")) == 0
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)\s*=\s*.(?!data:)", page)
    svgs = re.findall("<svg.*?</svg>", page, re.DOTALL)
    assert len(svgs) == 1 + 1 + 1 + 3 + 2  # returns, an episode, rewards, state, actions
    assert all(svg.count('class="axis"') == 2 for svg in svgs)
    assert len(re.findall('data:image/png;base64,[^"]+', page)) == 5 + 6  # frames of an episode, first and last ones


def test_png_round_trip() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    data = base64.b64decode(base64.b64encode(png(image)))
    start = data.index(b"IDAT") + 4
    rows = np.frombuffer(zlib.decompress(data[start:-16]), np.uint8).reshape(3, 13)
    np.testing.assert_array_equal(rows[:, 1:].reshape(3, 4, 3), image)


def test_other_things_than_a_dataset_are_named(tmp_path: Path) -> None:
    """The error was FileNotFoundError of a spec.json, whatever the path held."""
    state, actions = np.zeros((3, 2)), np.zeros((3, 1), np.float32)
    np.savez(tmp_path / "mine.npz", observations=state, actions=actions, timeouts=[0, 0, 1])
    for name, files in {"run": {"config.json": {"config": {}, "model": {}, "steps": 3}}, "empty": {}, "d": {}}.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(json.dumps(content))
    (tmp_path / "d/committed.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    expected = {
        "mine.npz": r"data of the format arrays\. Import it first: pac import \S+mine.npz --out data/mine",
        "run": r"a run of `pac train`\. To see it: pac report \S+run ",
        "nope": r"nothing there\. Check the path",
        "empty": r"a folder without one\. Name a dataset",
        "notes.txt": r"a file\. Name a dataset",
        "d": r"a dataset that has lost its spec.json\. Restore",
    }
    for name, words in expected.items():
        with pytest.raises(ValueError, match=rf"{name}: expected a dataset of `pac import` or .*, found {words}"):
            run(str(tmp_path / name))


@pytest.mark.parametrize("rule", ["time-to-go", "sparse-success", "distance"])
def test_a_dataset_is_described_under_a_chosen_reward(
    rule: str, make_episode: Any, make_dataset: Any, tmp_path: Path, capsys: Any
) -> None:
    """Returns, ends and warnings were those of the stored reward, whatever was chosen."""
    episodes = [make_episode(i, 5, success=i < 2) for i in range(3)]
    for episode in episodes:
        episode.reward[:] = 0
        episode.extra_rewards["distance"] = np.arange(5, dtype=np.float32)
    path = make_dataset("d", episodes, control_rate=20.0)
    stored, found = describe_dataset(path), describe_dataset(path, reward=rule)
    assert any("Every reward is 0" in text for text in stored["warnings"])
    assert not any("Every reward" in text for text in found["warnings"])
    returns = {"time-to-go": [-4, -4, -5], "sparse-success": [1, 1, 0], "distance": [10, 10, 10]}[rule]
    for row in (found, found["tasks"][0]):
        assert (row["return"]["mean"], row["return"]["max"]) == (pytest.approx(np.mean(returns)), max(returns))
    ends = {"terminated": 0, "time limit": 3} if rule == "distance" else {"terminated": 2, "time limit": 1}
    assert found["ends"] == ends | {"both": 0, "neither": 0}
    assert run(str(path), "--reward", rule, "--html", str(tmp_path / "page.html")) == 0
    printed = capsys.readouterr().out
    assert f"under the reward '{rule}'" in printed
    assert f"pac train own reward={rule} --data" in printed
    with pytest.raises(ValueError, match="unknown extra reward 'tim'"):
        describe_dataset(path, reward="tim")


def test_warnings_are_short_and_speak_to_python_too(make_episode: Any, make_dataset: Any) -> None:
    odd = [make_episode(i, 4, terminated=True, truncated=False, instruction="a" * i) for i in range(2)]
    for episode in odd:
        episode.reward[:] = 0
    path = make_dataset("d", odd, action_low=(-9.0, -9.0), action_high=(9.0, 9.0))
    warnings = describe_dataset(path)["warnings"] + describe_dataset(make_dataset("e", odd))["warnings"]
    assert len(warnings) > 5
    for text in warnings:
        assert len(text.split()) <= 27, text  # names of dimensions count, too
        assert not re.search(r"(?<!\()--(instruction|fps|keys)", text), text
