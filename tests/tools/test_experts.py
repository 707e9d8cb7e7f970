"""The table of experts is filled from whole episodes of sound behaviours."""

import json
from pathlib import Path

from pac.evaluation import experts
from tools.experts import main


def test_experts_are_filled_from_measured_episodes(tmp_path: Path) -> None:
    table, results = tmp_path / "experts.json", tmp_path / "behaviours.json"
    walk, push = {"task": "control/walker.walk", "length": 1000}, {"task": "metaworld/push", "length": 500}
    episodes = [
        {**walk, "behaviour": "planner:quality=good", "return": 900.0},
        {**walk, "behaviour": "planner:quality=good", "return": 950.0},
        {**walk, "behaviour": "planner:quality=poor", "return": 400.0},
        {**walk, "behaviour": "random", "return": 990.0},
        {**walk, "task": "control/walker.run", "behaviour": "planner:quality=poor", "return": 0.0},
        {**push, "behaviour": "scripted", "return": 900.0, "length": 60},  # stopped at success
        {**push, "behaviour": "scripted", "return": 4000.0},
        {**push, "actor": "scripted+slow", "return": 3000.0},  # has a fault
        {**push, "task": "metaworld/reach", "actor": "scripted", "return": 2000.0},
    ]
    results.write_text(json.dumps({"episodes": episodes}))
    main([str(results), "--out", str(table), "--where", "results/behaviours.md"])
    assert experts.load(table) == {
        "control/walker.walk": experts.Expert(mean=925.0, n=2, source="planner:quality=good, results/behaviours.md"),
        "metaworld/reach": experts.Expert(mean=2000.0, n=1, source="scripted, results/behaviours.md"),
    }
