"""Train on your own numpy arrays, and judge the policy: `python examples/arrays.py` (3 minutes of one CPU core)."""

import sys

import gymnasium
import numpy as np

import pac


def swing_up(state: np.ndarray) -> np.ndarray:
    """Return the torque of a simple controller: pump energy, then balance."""
    cos, sin, speed = state
    if cos > 0.9:
        return np.array([-16 * sin - 3 * speed])
    energy = 0.5 * speed**2 / 3 + 5 * cos
    return np.array([np.sign(speed or 1.0) * 2.0 * np.sign(5.5 - energy)])


def record(episodes: int, seed: int = 0) -> list[np.ndarray]:
    """Return observations, actions, rewards, terminals and timeouts of Pendulum, one row per step.

    The controller plays half of the episodes. Random torques play the others.
    """
    env, random = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    rows = []
    for number in range(episodes):
        state, _ = env.reset(seed=seed + number)
        for step in range(200):
            torque = swing_up(state) if number % 2 else random.uniform(-2, 2, 1)
            action = np.clip(torque, -2, 2).astype(np.float32)
            following, reward, _, _, _ = env.step(action)
            rows.append((state, action, float(reward), False, step == 199))  # no true end; a time limit at 200
            state = following
    return [np.array(column) for column in zip(*rows, strict=True)]


def main(episodes: int = 60, steps: int = 2_000) -> None:
    o, a, r, t, u = record(episodes)
    data = pac.Dataset.from_arrays(observations=o, actions=a, rewards=r, terminals=t, timeouts=u, out="data/mine")
    print(data)  # episodes, returns, and what looks wrong

    agent = pac.train(data, method="pac", size="nano", steps=steps, out="runs/mine")
    print(agent.act(o[0]))  # numpy in, numpy out, one or a batch
    print(agent.evaluate("Pendulum-v1", episodes=20))
    agent.save("my-policy")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
