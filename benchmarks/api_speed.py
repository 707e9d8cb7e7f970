"""The cost of Python: training and acting by `import pac`, beside the command and the plain policy.

    python benchmarks/api_speed.py

Each pair is measured in turn, in one process with one thread. The ratios should be near 1.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

import pac
from pac.cli import main as command
from pac.types import Query

STATE, ACTIONS = 39, 4


def make_data(folder: Path) -> pac.Dataset:
    """Return random episodes of the size of Meta-World's."""
    random, steps = np.random.default_rng(0), 50_000
    ends = np.arange(1, steps + 1) % 500 == 0
    return pac.Dataset.from_arrays(
        observations=random.normal(size=(steps, STATE)).astype(np.float32),
        actions=random.uniform(-1, 1, (steps, ACTIONS)).astype(np.float32),
        rewards=random.uniform(size=steps),
        timeouts=ends,
        out=folder / "data",
    )


def updates_per_second(run: Path) -> float:
    found: float = json.loads((run / "summary.json").read_text())["updates_per_second"]
    return found


def train_pair(folder: Path, data: pac.Dataset, number: int, steps: int) -> tuple[float, float]:
    """Return updates per second by Python and by the command."""
    by_api, by_command = folder / f"api{number}", folder / f"command{number}"
    pac.train(data, size="nano", steps=steps, device="cpu", out=by_api)
    words = ["train", "size=nano", f"steps={steps}", "device=cpu", "--data", str(data.path), "--out", str(by_command)]
    assert command(words) == 0
    return updates_per_second(by_api), updates_per_second(by_command)


def seconds(work: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        data = make_data(Path(name))
        speeds = [train_pair(Path(name), data, number, args.steps) for number in range(args.repeats)]
        agent = pac.load(Path(name) / "api0", device="cpu")
        state = np.zeros(STATE, np.float32)
        (query,), _ = agent.policy.prepare(state)
        plain = Query(task=query.task, observation={"observation.state": state}, seed=0, step=0)
        pairs = [
            (seconds(lambda: agent.act(state), args.calls), seconds(lambda: agent.policy.act([plain]), args.calls))
            for _ in range(args.repeats)
        ]
    for title, rows, unit, scale in (("training", speeds, "updates/s", 1.0), ("one action", pairs, "ms", 1e3)):
        ours, theirs = (scale * median(column) for column in zip(*rows, strict=True))
        ratio = median(a / b for a, b in rows)
        print(f"{title}: Python {ours:.2f} {unit}, command or policy {theirs:.2f} {unit}, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
