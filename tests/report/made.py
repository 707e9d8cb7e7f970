"""Sources made up for the tests."""

import json
from pathlib import Path
from typing import Any

from pac.evaluation import EpisodeRecord
from pac.files import write_json

DOOR, DRAWER = "metaworld/door-open", "metaworld/drawer-open"


def episodes(actor: str, task: str, successes: int, count: int, **given: Any) -> list[EpisodeRecord]:
    """Return episodes of which the first succeed. Their return is 10; else it is the index in tenths."""
    fields: dict[str, Any] = {"seed": 0, "length": 500, **given}
    return [
        EpisodeRecord(
            actor=actor,
            task=task,
            index=i,
            state=f"{task}{i}",
            total=10.0 if i < successes else i / 10,
            success=i < successes,
            **fields,
        )
        for i in range(count)
    ]


def config(method: str = "pac", seed: int = 0, **objective: Any) -> dict[str, Any]:
    """Return as much of a config.json as a report reads."""
    dataset = {"name": "doors", "path": f"/data/{seed}", "imitation_weight": 0.5, "critic_weight": None, "reward": None}
    return {
        "config": {
            "method": method,
            "seed": seed,
            "objective": {"discount": 0.9, **objective},
            "mixture": {"groups": [{"name": "all", "weight": 2.0, "datasets": [dataset]}]},
            "evaluation": {"tasks": [DOOR, DRAWER], "episodes": 10},
            "schedules": {"imitation_weight": None, "critic_weight": None},
        },
        "model": {},
        "steps": 100,
        "parameters": 1_500_000,
        "size": "micro",
        "mixture": {
            "datasets": [
                {"name": "doors", "group": "all", "windows": 40, "episodes": 20, "actions": 4, "success": 0.25}
                | {"p_eff": 1.0}
            ],
            "batch_size": 16,
            "window": 5,
        },
        "command": f"pac train r.toml seed={seed}",
    }


def write_run(path: Path, content: Any, rows: list[dict[str, Any]], *, finished: bool = True) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (path / "summary.json").write_text(json.dumps({"seconds": 75.0, "method": "pac"}))
    return path


def metrics(offset: float = 0.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"step": step, "loss/total": step + offset} for step in range(10, 101, 10)]
    return [*rows, {"step": 100, "evaluation/all/success": 0.5 + offset / 10, "evaluation/all/return": 3.0 + offset}]


def write_evaluation(
    path: Path, records: list[EpisodeRecord], actors: dict[str, Any] | None = None, **settings: Any
) -> Path:
    document = {
        "format": 2,
        "command": "pac evaluate x",
        "settings": {"actors": actors or {}, "max_steps": None, "stop_at_success": False, **settings},
        "episodes": [entry.as_json() for entry in records],
    }
    write_json(path, document)
    return path


def improvement(**changes: Any) -> dict[str, Any]:
    def entry(number: int, mean: float, promoted: bool) -> dict[str, Any]:
        return {
            "round": number,
            "checkpoint": f"rounds/{number:03d}/train/checkpoints/last",
            "start": "nothing",
            "episodes": {DOOR: 30},
            "steps": 1000 * (number + 1),
            "promoted": promoted,
            "reason": "not better" if not promoted else "better",
            "evaluation": f"rounds/{number:03d}/evaluation.json",
            "summary": {
                DOOR: {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "unit": "success"},
                "control/walker.walk": {"mean": 900 * mean, "low": 1.0, "high": 2.0, "unit": "return"},
            },
            "seconds": {"collect": 1.5, "train": 60.0, "evaluate": 2.0},
        }

    rounds = [entry(0, 0.2, True), entry(1, 0.15, False), entry(2, 0.6, True)]
    return {"tasks": [DOOR], "others": [], "config": {"rounds": 3}, "rounds": rounds, "status": "mastered"} | changes
