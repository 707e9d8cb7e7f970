"""The returns that count as 100%, each with the place it came from. What was not measured is not there: a task without
an expert has no percentage.

`python -m tools.experts` fills the table that ships with PAC from measured episodes.

`from_returns` is the other measure, of data: the best that its makers kept up for a while (Reed et al., 2022, whose
definition the paper uses).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import write_json
from pac.resources import ASSETS

TABLE = ASSETS / "experts.json"


@dataclass(frozen=True, kw_only=True)
class Expert:
    """A mean return, from how many episodes, of what, found where."""

    mean: float
    n: int
    source: str


def load(path: str | Path = TABLE) -> dict[str, Expert]:
    """The table in a file: {"tasks": {task: {"return": ..., "n": ..., "source": ...}}}."""
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
    """The best mean of consecutive episodes, `window` of them at a time and at most a thousand."""
    window = max(1, min(1000, window, len(returns)))
    means = np.lib.stride_tricks.sliding_window_view(np.asarray(returns, np.float64), window).mean(1)
    return Expert(mean=float(means.max()), n=window, source=source)


def save(experts: Mapping[str, Expert], path: str | Path = TABLE) -> None:
    """Into the table at `path`, in place of older entries for the same tasks."""
    path = Path(path)
    document = json.loads(path.read_text()) if path.is_file() else {"tasks": {}}
    entries = {task: {"return": round(e.mean, 2), "n": e.n, "source": e.source} for task, e in experts.items()}
    document["tasks"] = dict(sorted((document["tasks"] | entries).items()))
    write_json(path, document)


def used(experts: Mapping[str, Expert], tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What an evaluation's JSON says of the experts it measured against."""
    return {task: asdict(experts[task]) for task in tasks if task in experts}
