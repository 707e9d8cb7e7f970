"""Train on your own numpy arrays, and judge the policy: `python examples/arrays.py` (2 minutes of one CPU core).

The arrays are of random play. One episode in seven reaches the goal. The policy reaches it in eight of ten.
"""

import sys

import numpy as np
from gymnasium_env import Reach  # the example beside this one: a point that moves to a goal

import pac

LIMIT = 40  # steps of an episode


def record(env: Reach, episodes: int, seed: int = 0) -> list[np.ndarray]:
    """Return observations, actions, rewards, terminals and timeouts of random play, one row per step."""
    random, rows = np.random.default_rng(seed), []
    for number in range(episodes):
        state, _ = env.reset(seed=seed + number)
        for step in range(LIMIT):
            action = random.uniform(-1, 1, 2).astype(np.float32)
            following, reward, at_goal, _, _ = env.step(action)
            rows.append((state, action, reward, at_goal, step == LIMIT - 1 and not at_goal))
            state = following
            if at_goal:
                break
    return [np.array(column) for column in zip(*rows, strict=True)]


def main(episodes: int = 300, steps: int = 1_000) -> None:
    env = Reach()
    o, a, r, t, u = record(env, episodes)

    data = pac.Dataset.from_arrays(observations=o, actions=a, rewards=r, terminals=t, timeouts=u, out="data/mine")
    print(data)  # episodes, returns, and what looks wrong

    agent = pac.train(data, method="pac", size="nano", steps=steps, discount=0.9, imitation_weight=0.1, out="runs/a")
    print(agent.act(o[0]))  # numpy in, numpy out, one or a batch
    print(agent.evaluate(env, episodes=50, max_steps=40))
    agent.save("my-policy")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
