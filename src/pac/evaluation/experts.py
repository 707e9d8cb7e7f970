"""Experts: the return of each task that counts as 100%, with its source. A task without one has no percentage.

`python -m tools.experts` fills the table that ships with PAC from measured episodes. `from_returns` takes the expert
from a dataset instead, as the paper does (Reed et al., 2022).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pac.files import write_json
from pac.resources import ASSETS

TABLE = ASSETS / "experts.json"


@dataclass(frozen=True, kw_only=True)
class Expert:
    """A mean return, the number of episodes behind it, and its source."""

    mean: float
    n: int
    source: str


def load(path: str | Path = TABLE) -> dict[str, Expert]:
    """Return the experts in a file: {"tasks": {task: {"return": ..., "n": ..., "source": ...}}}."""
    try:
        entries = json.loads(Path(path).read_text())["tasks"]
        experts = {
            task: Expert(mean=float(entry["return"]), n=int(entry["n"]), source=str(entry["source"]))
            for task, entry in entries.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected a table of experts, a return, n and source for each task under 'tasks', found "
            f"{type(error).__name__}: {error}. See src/pac/assets/experts.json."
        ) from error
    for task, expert in experts.items():
        if not (math.isfinite(expert.mean) and expert.mean > 0 and expert.source):
            raise ValueError(f"{path}: {task}: expected a return above 0 and a source, found {expert}.")
    return experts


def from_returns(returns: Sequence[float], window: int, source: str) -> Expert:
    """Return the best mean return of `window` consecutive episodes, at most a thousand."""
    window = max(1, min(1000, window, len(returns)))
    means = np.lib.stride_tricks.sliding_window_view(np.asarray(returns, np.float64), window).mean(1)
    return Expert(mean=float(means.max()), n=window, source=source)


def save(experts: Mapping[str, Expert], path: str | Path = TABLE) -> None:
    """Write experts into the table at `path`. They replace the entries of the same tasks."""
    path = Path(path)
    document = json.loads(path.read_text()) if path.is_file() else {"tasks": {}}
    entries = {task: {"return": round(e.mean, 2), "n": e.n, "source": e.source} for task, e in experts.items()}
    document["tasks"] = dict(sorted((document["tasks"] | entries).items()))
    write_json(path, document)
