"""One model on several GPUs. Each update has the same windows as on one GPU.

It needs a dataset. So collect one first:

    pac collect metaworld/drawer-close --behaviour scripted --episodes 20 --max-steps 150 --out data/several

Then train:

    torchrun --nproc-per-node 2 examples/several_gpus.py

All processes run this file. Without GPUs they use the CPU.
"""

import os
import sys

import pac


def main(steps: int = 500) -> None:
    agent = pac.train("data/several", size="micro", steps=steps, batch_size=64, out="runs/several")
    if os.environ.get("RANK", "0") == "0":
        print(agent.evaluate("metaworld/drawer-close", episodes=10, max_steps=150, stop_at_success=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
