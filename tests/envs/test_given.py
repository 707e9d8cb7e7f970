"""Environments that exist in this process only: their names, their cameras, and where they run."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from pac import envs
from pac.cli import main
from pac.envs.given import is_given, one_at_a_time, task_of, tasks_of
from pac.rollout import Job, rollout

STEPS = 3


class Cart(gymnasium.Env[Any, Any]):
    """A state of `size` numbers and images in a Dict. It renders nothing by itself."""

    def __init__(self, size: int = 2, key: str = "wrist", **_: Any) -> None:
        image = Box(0, 255, (8, 6, 3), np.uint8)
        self.observation_space = Dict({key: image, "inner": Dict({"far": image}), "pose": Box(-1, 1, (size,))})
        self.action_space, self.steps = Box(-1, 1, (1,)), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._look(), 1.0, False, self.steps == STEPS, {}

    def _look(self) -> Any:
        key, *_ = (name for name in self.observation_space.spaces if name not in ("inner", "pose"))  # type: ignore[attr-defined]
        near, far = (np.full((8, 6, 3), value + self.steps, np.uint8) for value in (10, 100))
        return {key: near, "inner": {"far": far}, "pose": np.zeros(self.observation_space["pose"].shape, np.float32)}  # type: ignore[index]


def cart(**options: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Cart(**options), 5)


def test_a_name_is_the_same_for_each_new_object_and_the_newest_plays() -> None:
    name = task_of(cart(size=2))
    assert name == f"gym/given-{__name__.replace('.', '-')}/Cart-v0"
    assert envs.spec(name).state_dim == 2
    assert one_at_a_time(name)
    assert task_of(lambda: cart(size=5)) == name
    assert envs.spec(name).state_dim == envs.make(name).task.state_dim == 5
    assert is_given(name)
    assert not one_at_a_time(name)
    assert task_of(gymnasium.make("Pendulum-v1")) == "gym/given/Pendulum-v1"


def test_two_environments_of_one_class_stay_apart_in_one_call() -> None:
    small, large = cart(size=1), cart(size=4)
    names = tasks_of([small, large, small])
    assert names[0] == names[2] != names[1]
    assert [envs.spec(name).state_dim for name in names] == [1, 4, 1]
    assert tasks_of([cart(size=1), cart(size=4)]) == names[:2]


def test_ids_that_a_fresh_interpreter_lacks_run_in_this_process() -> None:
    pendulum = "gymnasium.envs.classic_control:PendulumEnv"
    gymnasium.register("InProc-v0", Cart, max_episode_steps=5)
    gymnasium.register("InProc-v1", pendulum, max_episode_steps=5)
    try:
        assert is_given(task_of("InProc-v0"))
        assert is_given(task_of("InProc-v1"))
    finally:
        del gymnasium.registry["InProc-v0"], gymnasium.registry["InProc-v1"]
    for other in ("Pendulum-v1", "robot:Cart-v0", "control/walker.walk"):
        assert not is_given(task_of(other))


@pytest.mark.parametrize("key", ["wrist", "images.wrist", "observation.images.wrist"])
def test_images_among_the_observations_are_cameras(key: str) -> None:
    name = task_of(cart(key=key))
    assert set(envs.all_cameras(name)) == {"render", "inner.far", "wrist"}
    env = envs.make(name, cameras=["wrist"])
    assert env.state_names == ("pose.0", "pose.1")
    observation, _ = env.reset(seed=0)
    assert set(observation) == {"observation.state", "observation.images.wrist"}
    np.testing.assert_array_equal(observation["observation.images.wrist"], np.full((8, 6, 3), 10))
    observation = env.step(np.zeros(1))[0]
    np.testing.assert_array_equal(observation["observation.images.wrist"], np.full((8, 6, 3), 11))
    assert observation["observation.images.wrist"].shape == env.observation_space["observation.images.wrist"].shape  # type: ignore[index]
    resized = envs.make(name, cameras=["inner.far"], image_size=(4, 4)).reset(seed=0)[0]
    np.testing.assert_array_equal(resized["observation.images.inner.far"], np.full((4, 4, 3), 100))
    assert set(envs.make(name).reset(seed=0)[0]) == {"observation.state"}
    with pytest.raises(ValueError, match=r"Unknown camera 'front'.*has render, .*wrist"):
        envs.make(name, cameras=["front"])


def test_an_error_for_the_user_has_no_traceback_of_a_worker() -> None:
    jobs = [Job("gym/Nowhere-v0", 0, 0)]
    for workers in (0, 1):
        with pytest.raises(ValueError, match="expected an id of Gymnasium") as caught:
            list(rollout("random", jobs, workers=workers))
        assert not getattr(caught.value, "__notes__", [])
        assert caught.value.__cause__ is caught.value.__context__ is None

    class Broken(Cart):
        def step(self, action: np.ndarray) -> Any:
            return np.zeros(2) + np.zeros(3)

    with pytest.raises(ValueError, match="broadcast") as caught:
        list(rollout("random", [Job(task_of(lambda: gymnasium.wrappers.TimeLimit(Broken(), 5)), 0, 0)], workers=0))
    assert "in step" in caught.value.__notes__[0]


def test_a_command_finds_modules_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "robot.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Mine(PendulumEnv): pass\n"
        "gymnasium.register('Mine-v0', Mine, max_episode_steps=4)\n"
    )
    pac = Path(sysconfig.get_path("scripts")) / "pac"
    start = [str(pac)] if pac.is_file() else [sys.executable, "-P", "-m", "pac"]
    words = ["evaluate", "random", "--tasks", "gym/robot:Mine-v0", "--episodes", "2", "--workers", "1"]
    done = subprocess.run([*start, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Mine-v0" in done.stdout
    code = "import pac; pac.collect('robot:Mine-v0', 'random', episodes=1, out='data/a', workers=1)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_suggests_the_family_of_gymnasium(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "random", "--tasks", "Pendulum-v1", "--episodes", "1"]) == 2
    assert "Did you mean 'gym/Pendulum-v1'?" in capsys.readouterr().err
