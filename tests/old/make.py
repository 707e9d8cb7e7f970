"""Make old.tar.xz, the files of an earlier version that tests/test_old_files.py reads. Run it with that version:

    git worktree add ../before c3d1b9f
    PYTHONPATH=../before/src OMP_NUM_THREADS=1 python tests/old/make.py

The archive holds a run that stopped halfway, an evaluation of it, a dataset with images, a checkpoint trained on that
dataset, and recorded.json: what the earlier version read, did and computed with them.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.episodes import Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.policy import load
from pac.types import Episode, Query, TaskSpec

HERE = Path(__file__).parent
CARTPOLE = "run/collected/control-cartpole.balance"
CARTPOLE_DATA = "{collected}/control-cartpole.balance"  # as the recipe has it
ACTING: dict[str, dict[str, Any]] = {
    "sample": {},
    "mode": {"sampling": "mode"},
    "interquartile": {"sampling": "middle"},
    "best of 3": {"best_of": 3},
}


def pac(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pac", *words], check=True)


def write_images(path: Path) -> None:
    """Write a dataset with a camera, goal images, and bounds that are not symmetric."""
    random = np.random.default_rng(0)
    low, high, cameras = (-1.0, -2.0), (1.0, 3.0), {"top": (12, 12)}
    spec = DatasetSpec(
        state_dim=3, action_dim=2, cameras=cameras, goal_cameras=cameras, action_low=low, action_high=high
    )
    with DatasetWriter(path, spec) as writer:
        for number in range(3):
            length = int(random.integers(3, 6))
            images = random.integers(0, 256, (length + 1, 12, 12, 3), np.uint8)
            state = random.normal(5.0, 3.0, (length + 1, 3)).astype(np.float32)
            writer.append(
                Episode(
                    observation={"observation.state": state, "observation.images.top": images},
                    action=random.uniform(low, high, (length, 2)).astype(np.float32),
                    reward=np.r_[np.zeros(length - 1, np.float32), np.float32(number % 2)],
                    terminated=number % 2 == 1,
                    truncated=number % 2 == 0,
                    instruction="lift the cube",
                    success=number % 2 == 1,
                    goal_images={"top": images[-1]},
                )
            )


def without_simulator(recipe: str) -> str:
    """Return a recipe that neither collects nor evaluates."""
    return "\n\n".join(part for part in recipe.split("\n\n") if not part.startswith(("[collect]", "[evaluation]")))


def hashes(path: str) -> dict[str, str]:
    """Return a hash of each array of a dataset, and of its texts."""
    dataset = Dataset(path)
    arrays = {"index": dataset.index, **dataset.arrays}
    found = {name: hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest() for name, x in arrays.items()}
    return found | {"instructions": json.dumps(dataset.instructions), "length": str(len(dataset))}


def act(checkpoint: str, dataset: str) -> dict[str, Any]:
    """Return queries made from a dataset's first episode, and the answers of a checkpoint to them."""
    data, answers = Dataset(dataset), {}
    episode = data.episode(0)
    spec: dict[str, Any] = {
        "name": "control/cartpole.balance",
        "instruction": episode.instruction,
        "state_dim": data.spec.state_dim,
        "action_low": [float(x) for x in data.action_low],
        "action_high": [float(x) for x in data.action_high],
        "max_steps": 100,
        "has_success": False,
    }
    task = TaskSpec(**{name: tuple(value) if isinstance(value, list) else value for name, value in spec.items()})
    queries = [
        Query(task=task, observation={k: v[step] for k, v in episode.observation.items()}, seed=7 + step % 2, step=step)
        for step in range(len(episode.action))
    ]
    for name, options in ACTING.items():
        found = load(checkpoint, device="cpu", values=True, goals={}, **options).act(queries)
        answers[name] = {"actions": [x.action.tolist() for x in found], "values": [x.value for x in found]}
    return {"task": spec, "seeds": [query.seed for query in queries], "answers": answers}


def halve(run: Path) -> list[dict[str, Any]]:
    """Take a run back to its first checkpoint. Return the metrics of the updates that follow it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run / "checkpoints/000004")
    (run / "checkpoints/last").unlink()
    (run / "checkpoints/last").symlink_to("000002")
    (run / "summary.json").unlink()
    shutil.rmtree(run / "tensorboard")
    return [row for row in rows if row["step"] > 2]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(HERE / "old.tar.xz", "w:xz") as archive:
        home = Path(folder)
        run, arm, recipe = home / "run", home / "arm", str(HERE / "old.toml")
        write_images(arm)
        pac("train", recipe, "--out", str(run))
        (home / "images.toml").write_text(without_simulator(Path(recipe).read_text()).replace(CARTPOLE_DATA, str(arm)))
        pac("train", str(home / "images.toml"), "--out", str(home / "images"))
        shutil.copytree(home / "images/checkpoints/last/pretrained_model", home / "checkpoint")
        later = halve(run)
        trials = ["--trials", "2", "--max-steps", "5", "--workers", "0"]
        pac(
            "evaluate",
            f"PAC={run}",
            "random",
            "--tasks",
            "control/cartpole.balance",
            *trials,
            "--json",
            f"{home}/evaluation.json",
        )
        recorded = {
            "datasets": {name: hashes(str(home / name)) for name in ("arm", CARTPOLE)},
            "acts": {"run": act(str(run), str(home / CARTPOLE)), "checkpoint": act(str(home / "checkpoint"), str(arm))},
            "later": later,
        }
        (home / "recorded.json").write_text(json.dumps(recorded) + "\n")
        for name in ("run", "arm", "checkpoint", "evaluation.json", "recorded.json"):
            archive.add(home / name, name)


if __name__ == "__main__":
    main()
