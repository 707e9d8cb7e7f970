"""Several datasets of one kind read as one: episodes that were collected in rounds, each round in a folder of its own.

Arrays are put together in memory. A transition is then as likely as any other, in whichever folder it lies, and a
batch costs as much as if there were one folder.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from pac.data.statistics import pool_statistics
from pac.data.store import Dataset
from pac.files import problem


class ConcatDataset(Dataset):
    """Datasets with the same spec, one after the other."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.parts = [open_part(path) for path in paths]
        first = self.parts[0]
        for part in self.parts:
            if part.spec != first.spec:
                raise problem(
                    part.path,
                    expected=f"data of the same kind as {first.path}: sizes, cameras, rewards and bounds",
                    found=f"{part.spec}, not {first.spec}",
                    fix="Give it an entry of its own in the mixture.",
                )
        self.path, self.spec = first.path, first.spec
        self.num_episodes = sum(part.num_episodes for part in self.parts)
        self.num_rows = sum(part.num_rows for part in self.parts)
        self._texts = list(dict.fromkeys(text for part in self.parts for text in part.instructions))
        self._origins = list(dict.fromkeys(text for part in self.parts for text in part.sources))
        self.index = self._join_index()
        self._committed = {
            "goals": sum(part.num_goals for part in self.parts),
            "statistics": {
                name: pool_statistics([part.statistics(name) for part in self.parts])
                for name in first._committed["statistics"]
            },
        }

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """Put together when they are first asked for."""
        return {name: np.concatenate([part.arrays[name] for part in self.parts]) for name in self.parts[0].arrays}

    @cached_property
    def goals(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {name: np.concatenate([part.goals[name] for part in self.parts]) for name in self.parts[0].goals}

    @property
    def instructions(self) -> list[str]:
        return self._texts

    @property
    def sources(self) -> list[str]:
        return self._origins

    def _join_index(self) -> np.ndarray:
        pieces, rows, goals = [], 0, 0
        for part in self.parts:
            piece = np.array(part.index)
            piece["row"] += rows
            piece["goal"][piece["goal"] >= 0] += goals
            if len(piece):
                piece["instruction"] = np.array([self._texts.index(t) for t in part.instructions])[piece["instruction"]]
                piece["source"] = np.array([self._origins.index(t) for t in part.sources])[piece["source"]]
            rows, goals = rows + part.num_rows, goals + part.num_goals
            pieces.append(piece)
        return np.concatenate(pieces)


def open_dataset(path: str | Path, more: Sequence[str | Path] = ()) -> Dataset:
    """One folder, or several as one."""
    return ConcatDataset([path, *more]) if more else Dataset(path)


def open_part(path: str | Path) -> Dataset:
    """A dataset, opened once as long as it does not change: round after round, all folders are looked at again."""
    committed = Path(path) / "committed.json"
    found = committed.stat() if committed.exists() else None
    return _open_part(str(path), None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=4096)
def _open_part(path: str, version: object) -> Dataset:
    return Dataset(path)
