"""Made-up evaluations for the tests of tools/."""

from pathlib import Path
from typing import Any

from pac.evaluation import EpisodeRecord
from pac.files import write_json

DOOR, DRAWER = "metaworld/door-open", "metaworld/drawer-open"


def episodes(actor: str, task: str, successes: int, count: int, **given: Any) -> list[EpisodeRecord]:
    """Return episodes of which the first succeed. The return is 10 with success, else the index in tenths."""
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
