"""Collect, train and evaluate in an environment of your own: `python examples/gymnasium_env.py` (2 minutes)."""

import sys
from typing import Any

import gymnasium
import numpy as np

import pac

Space = gymnasium.spaces.Box


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point moves to a goal in the plane. `info["success"]` is true once it is there."""

    observation_space = Space(-2, 2, (4,), np.float32)
    action_space = Space(-1, 1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.concatenate([self.place, self.goal]).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + 0.2 * action, -2, 2)
        distance = float(np.linalg.norm(self.place - self.goal))
        success = distance < 0.15
        return self.observe(), 1.0 if success else -0.1 * distance, success, False, {"success": success}


def main(steps: int = 1_000, episodes: int = 300) -> None:
    env = Reach()
    data = pac.collect(env, "random", episodes=episodes, max_steps=40, out="data/reach")
    print(data)
    agent = pac.train(
        data, size="nano", steps=steps, discount=0.9, peak_rate=1e-3, imitation_weight=0.1, out="runs/reach"
    )
    print(pac.compare(agent, "random", env, episodes=50, max_steps=40))
    env.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
