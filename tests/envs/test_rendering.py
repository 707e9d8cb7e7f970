"""Pictures; skipped, with the cause, where no GL works."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pac import envs
from pac.envs import rendering
from pac.envs.tasks import known_cameras

mujoco = pytest.importorskip("mujoco", reason="the simulators are not installed")


@pytest.mark.parametrize(
    ("task", "camera"),
    [
        ("control/walker.walk", "side"),
        ("control/quadruped.escape", "x"),
        ("metaworld/drawer-open", "corner2"),
        ("metaworld/push", "gripperPOV"),
    ],
)
@pytest.mark.usefixtures("gl")
def test_pictures_show_the_scene_and_follow_it(task: str, camera: str) -> None:
    env = envs.make(task, cameras=[camera])
    name = f"observation.images.{camera}"
    first, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    assert first[name].std() > 5
    np.testing.assert_array_equal(first[name], env._image(camera))
    for _ in range(10):
        later, *_ = env.step(np.array(env.task.action_high))
    assert (later[name] != first[name]).any(-1).mean() > 0.01
    again, _ = env.reset(seed=0)
    np.testing.assert_array_equal(again[name], first[name])
    env.close()


@pytest.mark.usefixtures("gl")
def test_pictures_change_nothing_in_the_world() -> None:
    ends = []
    for cameras in ([], ["side"]):
        env = envs.make("control/hopper.hop", cameras=["cam0"] if cameras else [])
        env.reset(seed=2)
        ends.append([env.step(np.full(4, 0.4))[0]["observation.state"] for _ in range(20)][-1])
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("camera", [name for name in known_cameras("metaworld/reach") if "corner" in name])
@pytest.mark.usefixtures("gl")
def test_what_is_higher_in_the_world_is_higher_in_the_picture_and_right_is_right(camera: str) -> None:
    env = envs.make("metaworld/reach", cameras=[camera])
    env.reset(seed=0)
    forward, start = -env._data.camera(camera).xmat.reshape(3, 3)[:, 2], np.array([0, 0.6, 0.2])
    up = np.array([0, 0, 1])
    right = np.cross(forward, up)
    row, column = _where_is_the_goal(env, camera, start)
    assert _where_is_the_goal(env, camera, start + 0.2 * up)[0] < row - 3  # row 0 is the top
    assert _where_is_the_goal(env, camera, start + 0.2 * right / np.linalg.norm(right))[1] > column + 3


def _where_is_the_goal(env: Any, camera: str, position: np.ndarray) -> tuple[float, float]:
    """Row and column of the pixels that a ball at this position changes."""
    site, pictures = env._model.site("goal"), []
    for opacity in (0, 1):
        site.rgba, site.size, site.pos = [0, 1, 0, opacity], [0.05] * 3, position
        mujoco.mj_forward(env._model, env._data)
        pictures.append(env._image(camera))
    rows, columns = np.nonzero((pictures[0] != pictures[1]).any(-1))
    return rows.mean(), columns.mean()


@pytest.mark.usefixtures("gl")
def test_a_frame_for_videos_is_larger_and_leaves_the_observation_as_it_was() -> None:
    with_frames = envs.make("control/cheetah.run", cameras=["side"], render_mode="rgb_array")
    without = envs.make("control/cheetah.run", cameras=["side"])
    pictures = [env.reset(seed=1)[0]["observation.images.side"] for env in (with_frames, without)]
    np.testing.assert_array_equal(*pictures)
    assert with_frames.render().shape == (240, 320, 3)
    assert with_frames.render().std() > 5
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        without.render()


@pytest.mark.usefixtures("gl")
def test_terrain_is_drawn_as_it_is_after_each_reset() -> None:
    env = envs.make("control/quadruped.escape", cameras=["global"])
    env.reset(seed=1)
    picture = env.reset(seed=2)[0]["observation.images.global"]
    env._close_cameras()
    env._open_cameras(with_frames=False)  # reads the model anew
    np.testing.assert_array_equal(picture, env._image("global"))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PAC_GL", "PYOPENGL_PLATFORM")}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | environment)


DRAW = "import pac.envs; world = pac.envs.make('control/walker.walk', cameras=['side']); world.reset(seed=0)"


def test_without_gl_all_is_there_but_pictures() -> None:
    code = "import pac.envs; pac.envs.make('control/quadruped.escape').reset(seed=0); " + DRAW
    done = run(code, MUJOCO_GL="disabled")
    assert "MUJOCO_GL=disabled turns it off" in done.stderr.splitlines()[-1]


def test_a_broken_choice_stops_only_those_who_draw() -> None:
    code = "import pac.envs; pac.envs.make('control/walker.walk').reset(seed=0); " + DRAW
    done = run(code, MUJOCO_GL="egl", PYOPENGL_PLATFORM="broken")
    assert "ValueError: Cannot draw pictures" in done.stderr.splitlines()[-1]
    assert "(MUJOCO_GL=egl). egl: " in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("gl")
def test_a_world_that_draws_may_come_after_ones_that_do_not_and_exits_in_silence() -> None:
    code = "import pac.envs; pac.envs.make('control/quadruped.escape').reset(seed=0); " + DRAW
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_choice_is_the_only_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(rendering, "_try", lambda name: tried.append(name) or "broken")  # type: ignore[func-returns-value]
    monkeypatch.delenv("PAC_GL", raising=False)
    for chosen, expected in [("osmesa", ["osmesa"]), ("egl", ["egl"]), ("", ["egl", "osmesa"])]:
        monkeypatch.setenv("MUJOCO_GL", chosen)
        tried.clear()
        with pytest.raises(ValueError, match=r"broken\. .*libegl1.*libosmesa6.*without cameras"):
            rendering.find_gl.__wrapped__()
        assert tried == expected


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("import os; os.abort()", "exit code -6"),
        ("import time; time.sleep(60)", "did not answer in 2 s"),
        ("raise ImportError('no libEGL')", "ImportError: no libEGL"),
        ("None.glGetError", "its library is not installed"),
    ],
)
def test_a_driver_that_crashes_hangs_or_raises_is_survived(
    body: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "_TRIAL", body)
    found = rendering._try.__wrapped__("egl", seconds=2)
    assert found is not None
    assert cause in found


def test_the_first_that_works_is_kept_for_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("PAC_GL", "")
    monkeypatch.setattr(rendering, "_try", lambda name: "broken" if name == "egl" else None)
    assert rendering.find_gl.__wrapped__() == "osmesa"
    monkeypatch.setattr(rendering, "_try", lambda name: "must not be asked again")
    assert rendering.find_gl.__wrapped__() == "osmesa"
