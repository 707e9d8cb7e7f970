"""Episode records made up for the tests."""

from typing import Any

import numpy as np

from pac.evaluation import EpisodeRecord


def make(task: str = "control/walker.walk", index: int = 0, total: float = 0.0, **given: Any) -> EpisodeRecord:
    fields: dict[str, Any] = {
        "actor": "ours",
        "seed": 0,
        "state": f"{task}{index}",
        "length": 1000,
        "success": None,
    }
    return EpisodeRecord(task=task, index=index, total=total, **(fields | given))


def returns(task: str, totals: Any, actor: str = "ours") -> list[EpisodeRecord]:
    return [make(task, i, float(total), actor=actor) for i, total in enumerate(totals)]


def outcomes(
    task: str, successes: int, episodes: int, actor: str = "ours", seed: int | None = None
) -> list[EpisodeRecord]:
    """Return records of which the first `successes` succeed; with a seed, in random order."""
    order = np.arange(episodes) if seed is None else np.random.default_rng(seed).permutation(episodes)
    won = order < successes
    return [make(task, i, float(won[i]), actor=actor, success=bool(won[i])) for i in range(episodes)]
