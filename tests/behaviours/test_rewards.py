"""Every reward over many states against the suite's own, state by state."""

import mujoco
import numpy as np
import pytest

from pac import envs
from pac.behaviours.rewards import REWARDS
from pac.behaviours.simulation import FULL, Simulation
from pac.behaviours.states import States, matrices

TASKS = [name.removeprefix("control/") for name in envs.TASKS if name.startswith("control/") and "dog" not in name]


def random_states(sim: Simulation, random: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Full states from all over the space, half of them close to the reference pose, where sparse rewards are paid."""
    model, data = sim.model, mujoco.MjData(sim.model)
    states, sensors, controls = [], [], random.uniform(-1, 1, (num, model.nu))
    for i in range(num):
        closeness = random.choice([0.01, 0.1, 1.0])
        data.qpos[:] = model.qpos0 + closeness * random.normal(0, 1, model.nq)
        data.qvel[:] = random.normal(0, 10 * closeness, model.nv)
        data.time = i
        mujoco.mj_normalizeQuat(model, data.qpos)
        state = np.empty(mujoco.mj_stateSize(model, FULL))
        mujoco.mj_getState(model, data, state, FULL)
        mujoco.mj_step1(model, data)
        states.append(state)
        sensors.append(np.array(data.sensordata))
    return np.array(states), np.array(sensors), controls


@pytest.mark.parametrize("task", TASKS)
def test_rewards_equal_the_environments(task: str) -> None:
    env = envs.make(f"control/{task}")
    env.reset(seed=0)
    sim, random = Simulation(env), np.random.default_rng(0)
    states, sensors, control = random_states(sim, random, 300)
    assert sim.reward is REWARDS[task.partition(".")[0]]
    found = sim.reward(sim.view(states, sensors, control), sim.task)
    expected = sim.task_rewards(states, control)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert expected.max() - expected.min() > 0.05, "these states tell nothing"


def test_frames_equal_mujocos_on_a_model_with_every_kind_of_joint() -> None:
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody>
      <body name="a" pos="1 2 3" quat="1 2 0 1"><freejoint/><geom size=".1" pos=".1 .2 .3"/>
        <body name="b" pos=".3 0 .1" quat="1 0 1 0"><joint type="ball" pos=".1 .1 0"/><geom size=".1"/>
          <body name="c" pos="0 .5 0"><joint type="slide" axis="1 1 0" ref=".2"/>
            <joint type="hinge" axis="0 1 1" pos="0 .2 .1" ref=".3"/><joint type="hinge" axis="1 0 0"/>
            <geom name="g" size=".1" pos="0 .1 .4"/><site name="s" pos=".3 .2 .1"/></body></body></body>
    </worldbody></mujoco>""")
    data, random = mujoco.MjData(model), np.random.default_rng(0)
    qpos = random.normal(0, 1, (5, model.nq))  # quaternions of any length: MuJoCo normalises them too
    states = States(model, qpos, np.zeros((5, model.nv)), np.zeros((5, 0)), np.zeros((5, 0)))
    for i in range(5):
        data.qpos[:] = qpos[i]
        mujoco.mj_kinematics(model, data)
        for name in "abc":
            np.testing.assert_allclose(states.position("body", name)[i], data.body(name).xpos, atol=1e-12)
            np.testing.assert_allclose(states.centre(name)[i], data.body(name).xipos, atol=1e-12)
            np.testing.assert_allclose(states.upright(name)[i], data.body(name).xmat[8], atol=1e-12)
        np.testing.assert_allclose(states.position("geom", "g")[i], data.geom("g").xpos, atol=1e-12)
        np.testing.assert_allclose(states.position("site", "s")[i], data.site("s").xpos, atol=1e-12)


def test_matrices_are_rotations() -> None:
    turns = matrices(np.random.default_rng(0).normal(0, 1, (50, 4)))
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (50, 3, 3)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(turns), 1)
