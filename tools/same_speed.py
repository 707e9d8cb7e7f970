"""Compare the speed of training of two trees of PAC, in turn on one machine.

    python tools/same_speed.py ../before .     # two checkouts
    python tools/same_speed.py ../before . --size micro --repeats 5

Each repeat trains a short run with both trees, one after the other, on one thread. The table has the median of
updates per second and the median ratio of the pairs. It also times drawing a batch and acting.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPE = Path(__file__).with_name("same_numbers.toml")
ACT = """
import json, sys, time
import numpy as np
from pac.envs import spec
from pac.policy import load
from pac.types import Query
run = sys.argv[1]
policy, task = load(run), spec("metaworld/drawer-close")
state = np.load(run + "/collected/metaworld-drawer-close/observation.state.npy", mmap_mode="r")[0]
query = Query(task=task, observation={"observation.state": state}, seed=0, step=0)
times = []
for _ in range(300):
    began = time.perf_counter()
    policy.act([query])
    times.append(time.perf_counter() - began)
print(json.dumps(sorted(times)[150]))
"""


def run(tree: Path, words: list[str]) -> str:
    """Run Python with one tree and one thread, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def measure(tree: Path, out: Path, overrides: list[str]) -> dict[str, float]:
    """Train a short run. Return its updates per second without the first log step, and actions per second."""
    run(tree, ["-m", "pac", "train", str(RECIPE), "--out", str(out), *overrides])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    speeds = [row["time/updates_per_second"] for row in rows if "time/updates_per_second" in row]
    return {
        "updates per second": statistics.median(speeds[1:]),
        "actions per second": 1 / json.loads(run(tree, ["-c", ACT, str(out)])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--size", default="nano")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    overrides = [f"model.size={args.size}", f"length={args.steps} steps", f"machine.log_every={args.steps // 10}"]
    found: dict[str, list[tuple[float, float]]] = {}
    for repeat in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            pair = [measure(tree, Path(folder) / str(i), overrides) for i, tree in enumerate((args.before, args.after))]
        for name in pair[0]:
            found.setdefault(name, []).append((pair[0][name], pair[1][name]))
        print(f"repeat {repeat + 1} of {args.repeats}", file=sys.stderr)
    print(f"| {args.size}, CPU, one thread | before | after | after / before |\n|---|---:|---:|---:|")
    for name, pairs in found.items():
        before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"| {name} | {before:.1f} | {after:.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
