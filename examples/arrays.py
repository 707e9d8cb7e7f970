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


def record(episodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return flat arrays of Pendulum: half of the episodes by the controller, half by random torques."""
    env, random = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    rows: dict[str, list[np.ndarray | float | bool]] = {name: [] for name in ("o", "a", "r", "t", "u")}
    for number in range(episodes):
        state, _ = env.reset(seed=seed + number)
        for step in range(200):
            torque = swing_up(state) if number % 2 else random.uniform(-2, 2, 1)
            action = np.clip(torque, -2, 2).astype(np.float32)
            rows["o"].append(state)
            rows["a"].append(action)
            state, reward, _, _, _ = env.step(action)
            rows["r"].append(float(reward))
            rows["t"].append(False)  # a true end: never in Pendulum
            rows["u"].append(step == 199)  # a time limit
    return {name: np.array(values) for name, values in rows.items()}


def main(steps: int = 2_000, episodes: int = 60) -> None:
    arrays = record(episodes)
    data = pac.Dataset.from_arrays(
        observations=arrays["o"],
        actions=arrays["a"],
        rewards=arrays["r"],
        terminals=arrays["t"],
        timeouts=arrays["u"],
        out="data/pendulum",
    )
    print(data)
    agent = pac.train(data, method="pac", size="nano", steps=steps, discount=0.95, peak_rate=1e-3, out="runs/pendulum")
    print("torque at the bottom:", agent.act(np.array([-1.0, 0.0, 0.1], np.float32)))
    print(agent.evaluate("Pendulum-v1", episodes=20))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
