from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from pac import envs


class Goals(gymnasium.Env[Any, Any]):
    """Observations in a dict, a matrix of actions, success in `info`; ends when the sum of actions passes 1."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, **spaces: Any) -> None:
        inner = Dict({"far": Box(-1, 1, (2, 2)), "near": Box(-1, 1, ())})
        self.observation_space = spaces.get("observations", Dict({"goal": Box(-1, 1, (2,)), "body": inner}))
        self.action_space = spaces.get("actions", Box(np.float32([[-1], [-2]]), np.float32([[1], [3]])))
        self.render_mode, self.total = render_mode, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.total, self.goal = 0.0, self.np_random.uniform(size=2)
        return self._look(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (2, 1)
        self.total += float(action.sum())
        return self._look(), self.total, self.total > 1, False, {"is_success": self.total > 0.5}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.full((50, 100, 3), [10, 20, 30], np.uint8)

    def _look(self) -> Any:
        return {"goal": self.goal, "body": {"far": np.full((2, 2), self.total), "near": np.array(self.total)}}


@pytest.fixture(autouse=True)
def _registered() -> Any:
    gymnasium.register("pac-test/Goals-v0", Goals, max_episode_steps=4)
    gymnasium.register("pac-test/Endless-v0", Goals)
    gymnasium.register("pac-test/Buttons-v0", Goals, max_episode_steps=4, kwargs={"actions": Discrete(3)})
    gymnasium.register("pac-test/Counts-v0", Goals, max_episode_steps=4, kwargs={"observations": Discrete(3)})
    gymnasium.register("pac-test/Unbounded-v0", Goals, max_episode_steps=4, kwargs={"actions": Box(-np.inf, 1, (2,))})
    yield
    for name in ("Goals", "Endless", "Buttons", "Counts", "Unbounded"):
        del gymnasium.registry[f"pac-test/{name}-v0"]


def test_dicts_are_flattened_in_their_spaces_order_and_actions_take_their_shape() -> None:
    env = envs.make("gym/pac-test/Goals-v0")
    assert env.task == envs.spec("gym/pac-test/Goals-v0")
    assert env.task.action_low == (-1, -2)
    assert env.task.max_steps == 4
    assert env.task.instruction == "Goals"
    expected = (*(f"body.far.{i}" for i in range(4)), "body.near.0", "goal.0", "goal.1")
    assert env.state_names == expected
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(np.array([0.5, 0.25]))
    np.testing.assert_array_equal(observation["observation.state"][:5], [0.75] * 5)
    assert (observation["observation.state"][5:] != 0.75).all()
    assert (reward, terminated, truncated, info["success"]) == (0.75, False, False, True)


def test_termination_and_time_limit_differ() -> None:
    env = envs.make("gym/pac-test/Goals-v0")
    env.reset(seed=1)
    assert env.step(np.array([1, 1]))[2:4] == (True, False)
    env.reset(seed=1)
    assert [env.step(np.zeros(2))[2:4] for _ in range(4)][-1] == (False, True)
    env = envs.make("gym/pac-test/Goals-v0", max_steps=6)
    env.reset(seed=1)
    assert [env.step(np.zeros(2))[3] for _ in range(6)] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Endless", "expected a time limit.*max_steps"),
        ("Buttons", r"expected continuous actions.*found Discrete\(3\)"),
        ("Counts", r"expected observations of numbers.*Discrete\(3\)"),
        ("Unbounded", "expected finite action bounds"),
        ("Nowhere", "expected an id of Gymnasium"),
    ],
)
def test_unusable_environments_are_refused(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        envs.make(f"gym/pac-test/{name}-v0")


def test_max_steps_replaces_a_missing_limit() -> None:
    assert envs.make("gym/pac-test/Endless-v0", max_steps=9).task.max_steps == 9


def test_the_rendered_image_is_reduced() -> None:
    env = envs.make("gym/pac-test/Goals-v0", cameras=["render"], render_mode="rgb_array")
    image = env.reset(seed=0)[0]["observation.images.render"]
    np.testing.assert_array_equal(image, np.full((80, 80, 3), [10, 20, 30], np.uint8))
    assert env.render().shape == (240, 320, 3)


@pytest.mark.parametrize("name", ["Pendulum-v1", "HalfCheetah-v5"])
def test_seeds_determine_everything(name: str) -> None:
    used, fresh = envs.make(f"gym/{name}"), envs.make(f"gym/{name}")
    seed, action = 2**63 - 1, np.full(len(used.task.action_low), 0.3)
    used.reset(seed=3)
    for _ in range(20):
        used.step(action)
    used.reset(seed=seed)
    fresh.reset(seed=seed)
    for _ in range(20):
        mine, other = used.step(action), fresh.step(action)
        np.testing.assert_array_equal(mine[0]["observation.state"], other[0]["observation.state"])
        assert mine[1:] == other[1:]
