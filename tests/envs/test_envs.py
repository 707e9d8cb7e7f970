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


def random_steps(env: Any, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """States and rewards of an episode of random actions."""
    random = np.random.default_rng(seed)
    states, rewards = [env.reset(seed=seed)[0]["observation.state"]], []
    for _ in range(count):
        observation, reward, *_ = env.step(random.uniform(env.task.action_low, env.task.action_high))
        states.append(observation["observation.state"])
        rewards.append(reward)
    return np.array(states), np.array(rewards)


def everything(env: Any) -> tuple[str, bytes]:
    """All that MuJoCo's next step depends on: the model, and the state with warm starts, time and mocap bodies."""
    model, data = env._model, env._data
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
def test_each_task_has_the_sizes_of_the_table(task: str) -> None:
    env = envs.make(task)
    assert env.task == envs.spec(task)
    observation, info = env.reset(seed=3)
    assert info == {"seed": 3}
    action = np.array(env.task.action_high, np.float32)
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(action)
    assert env.observation_space.contains(observation)
    assert observation["observation.state"].shape == (len(env.state_names),) == (env.task.state_dim,)
    assert len(set(env.state_names)) == env.task.state_dim
    assert np.isfinite(observation["observation.state"]).all()
    assert isinstance(reward, float)
    assert (terminated, truncated) == (False, False)
    assert ("success" in info) == env.task.has_success
    _check_against_simulator(env)


def _check_against_simulator(env: Any) -> None:
    """The parts of the table that the observation does not show."""
    model, task, simulator = env._model, env.task, env.simulator
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
def test_a_used_environment_starts_like_a_fresh_one(task: str) -> None:
    check_forgetful(task)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in envs.TASKS if task not in SAMPLE])
def test_every_used_environment_starts_like_a_fresh_one(task: str) -> None:
    check_forgetful(task)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in envs.TASKS if task.startswith("metaworld/")])
def test_a_success_does_not_change_the_next_episode(task: str) -> None:
    policies = pytest.importorskip("metaworld.policies")
    used, fresh = envs.make(task), envs.make(task)

    def expert_episode(env: Any, seed: int) -> list[float]:
        policy, rewards, over = policies.ENV_POLICY_MAP[f"{task.removeprefix('metaworld/')}-v3"](), [], False
        state = env.reset(seed=seed)[0]["observation.state"]
        while not over:
            action = np.clip(policy.get_action(state), -1, 1)
            observation, reward, _, over, _ = env.step(action)
            state = observation["observation.state"]
            rewards.append(reward)
        return rewards

    expert_episode(used, 5)
    assert expert_episode(used, 6) == expert_episode(fresh, 6)


@pytest.mark.parametrize("task", ["control/reacher.easy", "metaworld/push", "control/quadruped.escape"])
def test_seeds_determine_the_initial_state(task: str) -> None:
    env = envs.make(task)
    starts = [env.reset(seed=seed)[0]["observation.state"] for seed in (0, 1, 2**63 - 1)]
    assert all((a != b).any() for i, a in enumerate(starts) for b in starts[:i])
    unseeded = [env.reset()[1]["seed"] for _ in range(2)]
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
    env, goals = envs.make("metaworld/push"), []
    for seed in (1, 2):
        env.reset(seed=seed)
        state = env.step(np.zeros(4))[0]["observation.state"]
        np.testing.assert_allclose(state[-3:], env.simulator._target_pos, rtol=1e-6)
        goals.append(state[-3:])
    assert (goals[0] != goals[1]).any()


@pytest.mark.parametrize("task", ["control/cartpole.swingup", "metaworld/reach"])
def test_the_time_limit_truncates_and_does_not_terminate(task: str) -> None:
    env = envs.make(task, max_steps=5)
    assert env.task.max_steps == 5
    env.reset(seed=0)
    action = np.zeros(len(env.task.action_low))
    ends = [env.step(action)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    with pytest.raises(ValueError, match="Call reset before step"):
        env.step(action)


def test_the_suites_own_limit_can_be_passed() -> None:
    env = envs.make("control/pendulum.swingup", max_steps=1002)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1))[3] for _ in range(1002)]
    assert ends.index(True) == 1001


def test_discount_zero_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    env = envs.make("control/pendulum.swingup", max_steps=1)
    monkeypatch.setattr(env.simulator.task, "get_termination", lambda physics: 0.0)
    env.reset(seed=0)
    assert env.step(np.zeros(1))[2:4] == (True, False)


def test_success_is_reported_at_each_step_and_rewarded_once() -> None:
    policies = pytest.importorskip("metaworld.policies")
    env, policy = envs.make("metaworld/reach", max_steps=150), policies.ENV_POLICY_MAP["reach-v3"]()
    state, told, sparse, over = env.reset(seed=0)[0]["observation.state"], [], [], False
    while not over:
        observation, _, _, over, info = env.step(np.clip(policy.get_action(state), -1, 1))
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
def test_a_wrong_action_is_refused(action: list[float], problem: str) -> None:
    env = envs.make("control/walker.walk")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"control/walker.walk: .*{problem}"):
        env.step(np.array(action))


def test_rounding_beyond_the_bounds_is_clipped() -> None:
    both, states = [envs.make("control/walker.walk") for _ in range(2)], []
    for env, high in zip(both, (1.0, 1.00005), strict=True):
        env.reset(seed=0)
        states.append(env.step(np.full(6, high))[0]["observation.state"])
    np.testing.assert_array_equal(*states)


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(ValueError, match="Call reset before step"):
        envs.make("control/walker.walk").step(np.zeros(6))
