"""Rewards of many action sequences from the current state of an episode, for the planner."""

from typing import Any

import mujoco
import mujoco.rollout
import numpy as np
from jaxtyping import Float64

from pac.behaviours.rewards import REWARDS
from pac.behaviours.states import States

FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS


class Simulation:
    """A simulator that shares the episode's model, because each reset writes targets and gains into it.

    It has data of its own, so the episode does not change.
    """

    def __init__(self, env: Any, threads: int = 1) -> None:
        simulator = env.unwrapped.simulator
        self.physics, self.task = simulator.physics, simulator.task
        self.model = self.physics.model.ptr
        self.num_substeps = simulator._n_sub_steps
        self.reward = REWARDS.get(env.task.name.removeprefix("control/").partition(".")[0])
        self.data = [mujoco.MjData(self.model) for _ in range(threads)]
        self.scratch = None if self.reward else self.physics.copy(share_model=True)

    def rewards(self, actions: Float64[np.ndarray, "sample time action"]) -> Float64[np.ndarray, "sample time"]:
        """Return the rewards of each sequence from the current state on. NaN after a divergence counts 0."""
        states, sensors = self.unroll(actions)
        flat, control = states.reshape(-1, states.shape[2]), actions.reshape(-1, actions.shape[2])
        if self.reward is None:
            values = self.task_rewards(flat, control)
        else:
            values = self.reward(self.view(flat, sensors.reshape(len(flat), -1), control), self.task)
        return np.nan_to_num(values.reshape(actions.shape[:2]), posinf=0.0, neginf=0.0)

    def unroll(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return states and sensor readings after each action.

        MuJoCo's sensors belong to the state before a step, so one more step gives the last reading.
        """
        num = self.num_substeps
        controls = np.repeat(actions, num, axis=1)
        controls = np.ascontiguousarray(np.concatenate([controls, controls[:, -1:]], axis=1))
        start = np.empty(mujoco.mj_stateSize(self.model, FULL))
        mujoco.mj_getState(self.model, self.physics.data.ptr, start, FULL)
        warm = np.array(self.physics.data.ptr.qacc_warmstart)
        states, sensors = mujoco.rollout.rollout(
            self.model, self.data, start[None], controls, initial_warmstart=warm[None], persistent_pool=False
        )
        return states[:, num - 1 : -1 : num], sensors[:, num::num]

    def view(self, states: np.ndarray, sensors: np.ndarray, control: np.ndarray) -> States:
        positions, velocities = self.model.nq, self.model.nv  # a full state is time, positions, velocities, ...
        qpos, qvel = states[:, 1 : 1 + positions], states[:, 1 + positions : 1 + positions + velocities]
        return States(self.model, qpos, qvel, sensors, control)

    def task_rewards(self, states: np.ndarray, control: np.ndarray) -> np.ndarray:
        """Return the rewards of the task's own `get_reward`, in a copy of the physics that is set to each state."""
        scratch = self.physics.copy(share_model=True) if self.scratch is None else self.scratch
        values = np.empty(len(states))
        for i, (state, action) in enumerate(zip(states, control, strict=True)):
            mujoco.mj_setState(self.model, scratch.data.ptr, state, FULL)
            scratch.data.ptr.ctrl[:] = action
            mujoco.mj_step1(self.model, scratch.data.ptr)
            values[i] = self.task.get_reward(scratch)
        return values
