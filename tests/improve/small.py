"""A small improvement: a point must move far from its start, with a model of a few thousand weights."""

import json
from pathlib import Path
from typing import Any

from rollout.environments import POINT
from runs import TINY, dump

from pac.cli import main


def recipe(**changes: Any) -> dict[str, Any]:
    """Return a recipe that starts with random actions. `changes` are merged into its sections."""
    table: dict[str, Any] = {
        "model": dict(TINY),
        "objective": {"method": "pac", "num_samples": 3, "discount": 0.9},
        "optimiser": {"peak_rate": 1e-3, "target_period": 5},
        "mixture": {"batch_size": 4, "window": 3, "defaults": {"reward": "success", "imitation_weight": 0.5}},
        "checkpoint": {"every": "4 steps"},
        "machine": {"log_every": 3, "workers": 0, "device": "cpu"},
        "improve": {
            "tasks": [POINT],
            "first": "random",
            "rounds": 3,
            "episodes": 3,
            "steps": "6 steps",
            "evaluation_episodes": 4,
            "mastery": 1.0,
            "workers": 0,
            "stop_at_success": True,
        },
    }
    for key, value in changes.items():
        table[key] = table.get(key, {}) | value if isinstance(value, dict) else value
    return table


def improve(tmp_path: Path, *control_group: str, out: str = "run", **changes: Any) -> int:
    file = dump(recipe(**changes), tmp_path / "recipe.toml")
    return main(["improve", str(file), "--out", str(tmp_path / out), *control_group])


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "improve.json").read_text())
    return found


def contents(folder: Path) -> dict[str, Any]:
    """Return everything that a kill must not change: data, weights, optimisers and episodes, but no times."""
    files = [*folder.glob("rounds/*/data/*/*.npy"), *folder.glob("rounds/*/data/*/*.jsonl")]
    files += folder.glob("rounds/*/train/checkpoints/0*/**/*.safetensors")
    found: dict[str, Any] = {str(f.relative_to(folder)): f.read_bytes() for f in sorted(files)}
    for file in sorted(folder.glob("rounds/*/evaluation.json")):
        found[str(file.relative_to(folder))] = json.loads(file.read_text())["episodes"]
    document = record(folder)
    found["rounds"] = [{k: v for k, v in entry.items() if k != "seconds"} for entry in document["rounds"]]
    found["status"] = document["status"]
    return found
