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
def test_images_show_the_scene_and_follow_it(task: str, camera: str) -> None:
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
def test_rendering_does_not_change_the_environment() -> None:
    ends = []
    for cameras in ([], ["side"]):
        env = envs.make("control/hopper.hop", cameras=["cam0"] if cameras else [])
        env.reset(seed=2)
        ends.append([env.step(np.full(4, 0.4))[0]["observation.state"] for _ in range(20)][-1])
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("camera", [name for name in known_cameras("metaworld/reach") if "corner" in name])
@pytest.mark.usefixtures("gl")
def test_images_are_the_right_way_up_and_not_mirrored(camera: str) -> None:
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
    site, images = env._model.site("goal"), []
    for opacity in (0, 1):
        site.rgba, site.size, site.pos = [0, 1, 0, opacity], [0.05] * 3, position
        mujoco.mj_forward(env._model, env._data)
        images.append(env._image(camera))
    rows, columns = np.nonzero((images[0] != images[1]).any(-1))
    return rows.mean(), columns.mean()


@pytest.mark.usefixtures("gl")
def test_video_frames_are_larger_and_leave_observations_unchanged() -> None:
    with_frames = envs.make("control/cheetah.run", cameras=["side"], render_mode="rgb_array")
    without = envs.make("control/cheetah.run", cameras=["side"])
    images = [env.reset(seed=1)[0]["observation.images.side"] for env in (with_frames, without)]
    np.testing.assert_array_equal(*images)
    assert with_frames.render().shape == (240, 320, 3)
    assert with_frames.render().std() > 5
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        without.render()


@pytest.mark.usefixtures("gl")
def test_terrain_is_rendered_anew_after_each_reset() -> None:
    env = envs.make("control/quadruped.escape", cameras=["global"])
    env.reset(seed=1)
    image = env.reset(seed=2)[0]["observation.images.global"]
    env._close_cameras()
    env._open_cameras(with_frames=False)  # reads the model anew
    np.testing.assert_array_equal(image, env._image("global"))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PAC_GL", "PYOPENGL_PLATFORM")}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | environment)


DRAW = "import pac.envs; world = pac.envs.make('control/walker.walk', cameras=['side']); world.reset(seed=0)"


def test_environments_work_without_gl_but_images_do_not() -> None:
    code = "import pac.envs; pac.envs.make('control/quadruped.escape').reset(seed=0); " + DRAW
    done = run(code, MUJOCO_GL="disabled")
    assert "found MUJOCO_GL=disabled" in done.stderr.splitlines()[-1]


def test_a_broken_gl_stops_only_rendering() -> None:
    code = "import pac.envs; pac.envs.make('control/walker.walk').reset(seed=0); " + DRAW
    done = run(code, MUJOCO_GL="egl", PYOPENGL_PLATFORM="broken")
    assert "ValueError: Images: expected a GL that works" in done.stderr.splitlines()[-1]
    assert "(MUJOCO_GL=egl), found none. egl: " in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("gl")
def test_rendering_may_start_later_and_exits_silently() -> None:
    code = "import pac.envs; pac.envs.make('control/quadruped.escape').reset(seed=0); " + DRAW
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_gl_that_the_user_chose_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(rendering, "_probe", lambda name: tried.append(name) or "broken")  # type: ignore[func-returns-value]
    monkeypatch.delenv("PAC_GL", raising=False)
    for chosen, expected in [("osmesa", ["osmesa"]), ("egl", ["egl"]), ("", ["egl", "osmesa"])]:
        monkeypatch.setenv("MUJOCO_GL", chosen)
        tried.clear()
        with pytest.raises(ValueError, match=r"broken\. .*libegl1.*libosmesa6.*use no cameras"):
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
def test_a_driver_may_crash_hang_or_raise(body: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_PROBE", body)
    found = rendering._probe.__wrapped__("egl", seconds=2)
    assert found is not None
    assert cause in found


def test_child_processes_use_the_gl_that_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("PAC_GL", "")
    monkeypatch.setattr(rendering, "_probe", lambda name: "broken" if name == "egl" else None)
    assert rendering.find_gl.__wrapped__() == "osmesa"
    monkeypatch.setattr(rendering, "_probe", lambda name: "must not be asked again")
    assert rendering.find_gl.__wrapped__() == "osmesa"
