"""Videos: every step is shown, curves lie at their moments, and a replay that differs is reported."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pac.evaluation import record, video
from pac.rollout import EpisodeResult, Job, rollout

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def played() -> EpisodeResult:
    return next(iter(rollout("random", [Job("control/pendulum.swingup", 0, 0)], workers=0, max_steps=12)))


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.usefixtures("gl")
def test_a_video_of_an_episode(played: EpisodeResult, tmp_path: Path) -> None:
    path = tmp_path / "videos" / "a.mp4"
    assert video.write_video(played, path, record(played, "random"), max_steps=12) == []
    frames = frames_of(path)
    assert len(frames) == 7  # 50 Hz, every second step of 12, and the end
    assert frames[0].shape == (240 + video.PANEL, 320, 3)
    assert list(path.parent.iterdir()) == [path]
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 50


@pytest.mark.usefixtures("gl")
def test_a_replay_that_differs_is_reported(played: EpisodeResult, tmp_path: Path) -> None:
    entry = dataclasses.replace(record(played, "random"), total=played.total_return + 1)
    (note,) = video.write_video(played, tmp_path / "a.mp4", entry, max_steps=12)
    assert "does not show the episode that was counted" in note


def test_curves_lie_at_their_moments() -> None:
    reward = np.zeros(100, np.float32)
    reward[50] = 1
    curves = video.Curves(title="x", reward=reward, value=np.linspace(0, 1, 100), success=50)
    panel = video.draw_panel(curves, 320)
    assert panel.shape == (video.PANEL, 320, 3)
    middle = panel[video.HEAD : -video.FOOT]
    columns = {name: np.unique(np.nonzero((middle == video.INK[name]).all(-1))[1]) for name in ("value", "success")}
    assert 155 <= columns["success"].min() <= 165
    assert columns["value"].min() < 10
    assert columns["value"].max() > 305
    rows = np.nonzero((middle[:, :20] == video.INK["value"]).all(-1))[0]
    assert rows.min() > middle.shape[0] - 12  # small values lie low


def test_the_cursor_moves_and_constant_curves_are_drawn() -> None:
    curves = video.Curves(title="x", reward=np.ones(10, np.float32))
    frames = list(video.draw(iter([np.zeros((41, 65, 3), np.uint8)] * 11), curves, 1))
    assert frames[0].shape == (40 + video.PANEL, 64, 3)
    cursor = [int(np.flatnonzero((frame[40 + 40] == video.INK["text"]).all(-1))[0]) for frame in frames]
    assert cursor == sorted(set(cursor))


def test_file_names_are_safe_and_different() -> None:
    name = video.file_name("a/b:c=1", "control/walker.walk", 3)
    assert name == "control.walker.walk.episode3.a_b_c_1.mp4"
    assert video.file_name("a/b:c 1", "control/walker.walk", 3, [name]) != name
