"""Train nine short runs with a tree of PAC, and print a hash of every weight, optimiser state and loss.

    python tools/same_numbers.py OUT                      # this tree
    python tools/same_numbers.py OUT --tree ../before     # another one, such as a checkout of an earlier commit

Two trees that compute the same print the same hash, on one machine with one version of PyTorch. `OUT/hashes.txt` has
one line a tensor and a log step, so `diff` finds what differs. Tensor names of earlier trees are mapped.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.numpy import load_file

HERE = Path(__file__).parent
# Parts of tensor names that differ between trees, and the one that is printed.
RENAMED = {"read.": "input_attention.", "stages.": "sections."}
RUNS = {
    "pac": ["objective.method=pac"],
    "bc": ["objective.method=bc"],
    "filtered": ["objective.method=filtered-bc"],
    "bcq": ["objective.method=bc+q"],
    "pacv": ["objective.method=pac+v"],
    "return-to-go": ["objective.method=pac+v", "objective.{monte_carlo_weight}=0.5"],
    "learned": ["objective.method=pac+v", "objective.behaviour=learned"],
    "scaled": ["objective.reward_scale=0.1", "objective.num_steps=1"],
}


def train(tree: Path, recipe: str, out: Path, overrides: list[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pac", "train", recipe, "--out", str(out), "machine.device=cpu", *overrides]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def lines(run: Path) -> list[str]:
    """Return one line for each tensor of the last checkpoint and each logged loss."""
    found = []
    for file in sorted(run.glob("checkpoints/last/**/*.safetensors")):
        for name, values in load_file(file).items():
            for old, new in RENAMED.items():
                name = name.replace(old, new)
            found.append(f"{run.name} {name} {values.shape} {hashlib.sha256(values.tobytes()).hexdigest()[:16]}")
    for text in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(text)
        found.append(f"{run.name} step {row['step']:06d} {[row[name] for name in sorted(row) if 'loss/' in name]}")
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="new folder for the runs")
    parser.add_argument("--tree", type=Path, default=HERE.parent, help="root of the tree to run")
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    new = (args.tree / "src/pac/old_names.py").exists()
    train(args.tree, "smoke", args.out / "smoke", [])
    for name, overrides in RUNS.items():
        key = "monte_carlo_weight" if new else "logged_returns"
        given = [text.format(monte_carlo_weight=key) for text in overrides]
        train(args.tree, str(HERE / "same_numbers.toml"), args.out / name, given)
    found = [line for run in sorted(args.out.iterdir()) for line in lines(run)]
    (args.out / "hashes.txt").write_text("\n".join(found) + "\n")
    print(f"{len(found):,} lines, hash {hashlib.sha256((args.out / 'hashes.txt').read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
