"""Poor demonstrations, where PAC beats cloning: `python examples/poor_data.py`.

The scripted policy is right in 40% of its phases, and mirrors its actions in another 40%. It switches every few steps.
"""

import sys

import pac

TASK, FAULTS = "metaworld/drawer-close", "scripted+faults:clean=0.4,backwards=0.4,switch=5-15"


def main(steps: int = 1_000, episodes: int = 50) -> None:
    data = pac.collect(TASK, FAULTS, episodes=100, max_steps=150, out="data/drawer")
    print(data)
    settings = {"size": "nano", "num_latents": 8, "gains": [0.5, 2.0], "discount": 0.95, "epsilon": 0.2}
    settings |= {"peak_rate": 1e-3, "batch_size": 32, "window": 9, "proprio_noise": 0.05, "steps": steps}
    clone = pac.train(data, method="filtered-bc", out="runs/drawer-clone", **settings)
    agent = pac.train(data, method="pac", imitation_weight=0.25, out="runs/drawer-pac", **settings)
    print(pac.compare(agent, clone, TASK, episodes=episodes, max_steps=150, stop_at_success=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
