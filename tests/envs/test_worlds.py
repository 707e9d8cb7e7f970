"""Every task against the table, and resets that remember nothing."""

import hashlib
from typing import Any

import numpy as np
import pytest

from pac import envs
from pac.envs.tasks import known_cameras

mujoco = pytest.importorskip("mujoco", reason="the simulators are not installed")
# Domains with terrain, targets drawn into the model, many contacts; Meta-World tasks that move bodies of the model.
SAMPLE = [
    "control/quadruped.escape",
    "control/fish.swim",
    "control/finger.turn_hard",
    "control/humanoid.walk",
    "control/swimmer.swimmer6",
    "metaworld/assembly",
    "metaworld/door-open",
    "metaworld/stick-pull",
    "metaworld/pick-place-wall",
    "metaworld/basketball",
]


def random_steps(world: Any, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """States and rewards of an episode of random actions."""
    random = np.random.default_rng(seed)
    states, rewards = [world.reset(seed=seed)[0]["observation.state"]], []
    for _ in range(count):
        observation, reward, *_ = world.step(random.uniform(world.task.action_low, world.task.action_high))
        states.append(observation["observation.state"])
        rewards.append(reward)
    return np.array(states), np.array(rewards)


def everything(world: Any) -> tuple[str, bytes]:
    """All that MuJoCo's next step depends on: the model, and the state with warm starts, time and mocap bodies."""
    model, data = world._model, world._data
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    return hashlib.sha256(buffer.tobytes()).hexdigest(), state.tobytes()


def check_forgetful(task: str) -> None:
    used, fresh = envs.make(task), envs.make(task)
    random_steps(used, 1, 60)
    random_steps(used, 2, 100)
    used.reset(seed=7)
    fresh.reset(seed=7)
    assert everything(used) == everything(fresh)
    for mine, other in zip(random_steps(used, 7, 30), random_steps(fresh, 7, 30), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("task", envs.TASKS)
def test_each_task_steps_and_is_what_the_table_says(task: str) -> None:
    world = envs.make(task)
    assert world.task == envs.spec(task)
    observation, info = world.reset(seed=3)
    assert info == {"seed": 3}
    action = np.array(world.task.action_high, np.float32)
    for _ in range(3):
        observation, reward, terminated, truncated, info = world.step(action)
    assert world.observation_space.contains(observation)
    assert observation["observation.state"].shape == (len(world.state_names),) == (world.task.state_dim,)
    assert len(set(world.state_names)) == world.task.state_dim
    assert np.isfinite(observation["observation.state"]).all()
    assert isinstance(reward, float)
    assert (terminated, truncated) == (False, False)
    assert ("success" in info) == world.task.has_success
    _check_against_simulator(world)


def _check_against_simulator(world: Any) -> None:
    """The parts of the table that the observation does not show."""
    model, task, simulator = world._model, world.task, world.simulator
    assert {model.camera(i).name for i in range(model.ncam)} == set(known_cameras(task.name))
    if task.name.startswith("control/"):
        spec, period = simulator.action_spec(), simulator.control_timestep()
        low, high = np.broadcast_to(spec.minimum, spec.shape), np.broadcast_to(spec.maximum, spec.shape)
    else:
        low, high, period = simulator.action_space.low, simulator.action_space.high, simulator.dt
    np.testing.assert_array_equal(low, task.action_low)
    np.testing.assert_array_equal(high, task.action_high)
    assert task.control_rate == pytest.approx(1 / period)


@pytest.mark.parametrize("task", SAMPLE)
def test_a_used_world_starts_like_a_fresh_one(task: str) -> None:
    check_forgetful(task)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in envs.TASKS if task not in SAMPLE])
def test_every_used_world_starts_like_a_fresh_one(task: str) -> None:
    check_forgetful(task)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in envs.TASKS if task.startswith("metaworld/")])
def test_a_solved_task_leaves_nothing_behind(task: str) -> None:
    policies = pytest.importorskip("metaworld.policies")
    used, fresh = envs.make(task), envs.make(task)

    def expert_episode(world: Any, seed: int) -> list[float]:
        policy, rewards, over = policies.ENV_POLICY_MAP[f"{task.removeprefix('metaworld/')}-v3"](), [], False
        state = world.reset(seed=seed)[0]["observation.state"]
        while not over:
            action = np.clip(policy.get_action(state), -1, 1)
            observation, reward, _, over, _ = world.step(action)
            state = observation["observation.state"]
            rewards.append(reward)
        return rewards

    expert_episode(used, 5)
    assert expert_episode(used, 6) == expert_episode(fresh, 6)


@pytest.mark.parametrize("task", ["control/reacher.easy", "metaworld/push", "control/quadruped.escape"])
def test_seeds_decide_the_start(task: str) -> None:
    world = envs.make(task)
    starts = [world.reset(seed=seed)[0]["observation.state"] for seed in (0, 1, 2**63 - 1)]
    assert all((a != b).any() for i, a in enumerate(starts) for b in starts[:i])
    unseeded = [world.reset()[1]["seed"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_no_state_depends_on_the_generator_of_numpy() -> None:
    states: dict[str, list[np.ndarray]] = {"control/ball_in_cup.catch": [], "metaworld/push": []}
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        for task, seen in states.items():
            seen.append(random_steps(envs.make(task), 4, 5)[0])
    for seen in states.values():
        np.testing.assert_array_equal(*seen)


def test_metaworlds_goal_stays_visible_and_follows_the_seed() -> None:
    world, goals = envs.make("metaworld/push"), []
    for seed in (1, 2):
        world.reset(seed=seed)
        state = world.step(np.zeros(4))[0]["observation.state"]
        np.testing.assert_allclose(state[-3:], world.simulator._target_pos, rtol=1e-6)
        goals.append(state[-3:])
    assert (goals[0] != goals[1]).any()


@pytest.mark.parametrize("task", ["control/cartpole.swingup", "metaworld/reach"])
def test_the_time_limit_truncates_and_does_not_terminate(task: str) -> None:
    world = envs.make(task, max_steps=5)
    assert world.task.max_steps == 5
    world.reset(seed=0)
    action = np.zeros(len(world.task.action_low))
    ends = [world.step(action)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    with pytest.raises(ValueError, match="Call reset first"):
        world.step(action)


def test_the_suites_own_limit_can_be_passed() -> None:
    world = envs.make("control/pendulum.swingup", max_steps=1002)
    world.reset(seed=0)
    ends = [world.step(np.zeros(1))[3] for _ in range(1002)]
    assert ends.index(True) == 1001


def test_discount_zero_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    world = envs.make("control/pendulum.swingup", max_steps=1)
    monkeypatch.setattr(world.simulator.task, "get_termination", lambda physics: 0.0)
    world.reset(seed=0)
    assert world.step(np.zeros(1))[2:4] == (True, False)


def test_success_is_told_at_each_step_and_rewarded_once() -> None:
    policies = pytest.importorskip("metaworld.policies")
    world, policy = envs.make("metaworld/reach", max_steps=150), policies.ENV_POLICY_MAP["reach-v3"]()
    state, told, sparse, over = world.reset(seed=0)[0]["observation.state"], [], [], False
    while not over:
        observation, _, _, over, info = world.step(np.clip(policy.get_action(state), -1, 1))
        state = observation["observation.state"]
        told.append(info["success"])
        sparse.append(info["sparse_reward"])
    assert sum(told) > 1
    assert sparse.index(1.0) == told.index(True)
    assert sum(sparse) == 1


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ([0.0] * 5, r"expected an action of shape \(6,\), found \(5,\)"),
        ([[0.0] * 6], r"found \(1, 6\)"),
        ([0, 0, float("nan"), 0, 0, 0], r"expected action\[2\] within \[-1, 1\], found nan at step 0"),
        ([0, 0, 0, 0, float("inf"), 0], r"action\[4\].*found inf"),
        ([0, 0, 0, 0, 0, 1.001], r"action\[5\].*found 1.001"),
    ],
)
def test_a_wrong_action_is_named(action: list[float], problem: str) -> None:
    world = envs.make("control/walker.walk")
    world.reset(seed=0)
    with pytest.raises(ValueError, match=rf"control/walker.walk: .*{problem}"):
        world.step(np.array(action))


def test_rounding_beyond_the_bounds_is_clipped() -> None:
    worlds, states = [envs.make("control/walker.walk") for _ in range(2)], []
    for world, high in zip(worlds, (1.0, 1.00005), strict=True):
        world.reset(seed=0)
        states.append(world.step(np.full(6, high))[0]["observation.state"])
    np.testing.assert_array_equal(*states)


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(ValueError, match="Call reset first"):
        envs.make("control/walker.walk").step(np.zeros(6))
