import numpy as np
import pytest
from behaviour_envs import play, still_env

from pac import envs
from pac.behaviours import make
from pac.behaviours.planner import QUALITIES, Planner, PlannerSettings, settings_for, smooth_noise, weights
from pac.behaviours.simulation import Simulation
from pac.envs.base import Environment

SMALL = "planner:samples=8,horizon=5"


def snapshot(env: Environment) -> dict[str, np.ndarray]:
    data = env.simulator.physics.data
    names = ("qpos", "qvel", "act", "ctrl", "qacc", "qacc_warmstart", "sensordata", "xpos", "xmat", "xfrc_applied")
    return {name: np.array(getattr(data, name)) for name in names} | {"time": np.array(data.time)}


def acted(spec: str, task: str, steps: int, seed: int = 0) -> tuple[np.ndarray, float]:
    env, behaviour = envs.make(task), make(spec)
    observation, _ = env.reset(seed=seed)
    behaviour.begin(env, np.random.default_rng(seed))
    actions, total = [], 0.0
    for _ in range(steps):
        actions.append(behaviour.act(observation))
        observation, reward, _, _, _ = env.step(actions[-1])
        total += reward
    return np.array(actions), total


@pytest.mark.parametrize("task", ["control/walker.walk", "control/cartpole.swingup", "control/dog.walk"])
def test_planning_leaves_the_episode_untouched(task: str) -> None:
    """Contacts and warm starts, RK4, and (dog) rewards through the task's own code."""
    env, planner = envs.make(task), make("planner:samples=4,horizon=3")
    env.reset(seed=0)
    planner.begin(env, np.random.default_rng(0))
    env.step(np.full(len(env.task.action_low), 0.1, np.float32))
    before, model = snapshot(env), np.array(env.simulator.physics.model.body_pos)
    planner.act({})
    after = snapshot(env)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    np.testing.assert_array_equal(env.simulator.physics.model.body_pos, model)


@pytest.mark.parametrize("task", ["control/walker.walk", "control/cartpole.swingup", "control/ball_in_cup.catch"])
def test_planned_rewards_equal_those_of_the_environment(task: str) -> None:
    env = envs.make(task)
    env.reset(seed=3)
    random, low = np.random.default_rng(0), np.array(env.task.action_low)
    actions = random.uniform(low, env.task.action_high, (3, 12, len(low))).astype(np.float32).astype(np.float64)
    planned = Simulation(env).rewards(actions)
    rewards = [env.step(action.astype(np.float32))[1] for action in actions[1]]
    np.testing.assert_allclose(planned[1], rewards, atol=1e-9)


def test_actions_do_not_depend_on_threads_and_are_the_same_again() -> None:
    one, _ = acted(f"{SMALL},threads=1", "control/walker.walk", 6)
    again, _ = acted(f"{SMALL},threads=1", "control/walker.walk", 6)
    three, _ = acted(f"{SMALL},threads=3", "control/walker.walk", 6)
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, three)
    other, _ = acted(f"{SMALL},threads=1", "control/walker.walk", 6, seed=1)
    assert not np.array_equal(one, other)


def test_more_effort_earns_more() -> None:
    good = acted("planner", "control/point_mass.easy", 150)[1]
    assert good > 30
    assert acted("random", "control/point_mass.easy", 150)[1] < good / 10


def test_faults_apply_to_plans() -> None:
    actions, _ = acted(f"{SMALL}+stop-short:after=2-2", "control/walker.walk", 5)
    assert np.abs(actions[:2]).max() > 0
    np.testing.assert_array_equal(actions[2:], 0)
    with pytest.raises(ValueError, match="expected a scripted behaviour"):
        make("planner+wrong-goal")


def test_a_plan_is_followed_between_plannings() -> None:
    env, planner, calls = envs.make("control/pendulum.swingup"), Planner(samples=4, horizon=6, replan=3), []
    env.reset(seed=0)
    planner.begin(env, np.random.default_rng(0))
    improve = planner.improve
    planner.improve = lambda: (calls.append(planner.step), improve())[1]  # type: ignore[method-assign]
    for _ in range(8):
        if planner.step % 3 == 1:
            expected = planner.plan[0].astype(np.float32)
        action = planner.act({})
        if planner.step % 3 == 2:
            np.testing.assert_array_equal(action, expected)
    assert calls == [0, 3, 6]


def test_noise_is_normal_at_its_knots_and_linear_between() -> None:
    noise = smooth_noise(np.random.default_rng(0), PlannerSettings(samples=500, horizon=11, hold=4), 2)
    assert noise.shape == (500, 11, 2)
    assert noise[:, [0, 4, 8]].std() == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(noise[:, 1], 0.75 * noise[:, 0] + 0.25 * noise[:, 4])
    np.testing.assert_allclose(noise[:, 10] - noise[:, 9], noise[:, 9] - noise[:, 8])
    assert smooth_noise(np.random.default_rng(0), PlannerSettings(samples=3, horizon=1, hold=4), 2).shape == (3, 1, 2)
    assert smooth_noise(np.random.default_rng(0), PlannerSettings(samples=3, horizon=7, hold=1), 2).shape == (3, 7, 2)


def test_weights_follow_returns_whatever_their_scale() -> None:
    found = weights(np.array([0.0, 1.0, 2.0]) * 1e-150, temperature=0.5)
    np.testing.assert_allclose(found, np.exp([-2, -1, 0]) / np.exp([-2, -1, 0]).sum())
    np.testing.assert_array_equal(weights(np.array([3.0, 3.0, 3.0]), 0.1), [1, 0, 0])
    np.testing.assert_array_equal(weights(np.zeros(3), 0.1), [0, 0, 1])


def test_numbers_replace_the_settings_of_a_quality() -> None:
    good, poor = (settings_for("walker.walk", quality, {}) for quality in ("good", "poor"))
    assert poor.samples < good.samples
    assert poor.replan > good.replan
    assert settings_for("walker.walk", "poor", {"samples": 99}).samples == 99
    assert settings_for("no.such", "good", {}) == PlannerSettings()
    assert list(QUALITIES) == ["good", "medium", "poor"]


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="Did you mean 'good'"):
        make("planner:quality=goood")
    with pytest.raises(ValueError, match="samples above 0"):
        make("planner:samples=0")
    with pytest.raises(ValueError, match="use 'scripted'"):
        play(make("planner"), 1, env=still_env(4, "metaworld/push"))
