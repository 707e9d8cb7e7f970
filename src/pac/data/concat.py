"""Several datasets of one kind read as one, such as the rounds of a collection, each in its own folder.

Arrays are joined in memory. Every transition is then equally likely, and a batch costs as much as from one folder.
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
            if part.spec.differences(first.spec):
                expected = f"data of the same kind as {first.path}: sizes, cameras, rewards and bounds"
                found, fix = f"{part.spec}, not {first.spec}", "Give it an entry of its own in the mixture."
                raise problem(part.path, expected=expected, found=found, fix=fix)
        self.path, self.spec = first.path, first.spec
        self.num_episodes = sum(part.num_episodes for part in self.parts)
        self.num_rows = sum(part.num_rows for part in self.parts)
        self.instructions = list(dict.fromkeys(text for part in self.parts for text in part.instructions))
        self.sources = list(dict.fromkeys(text for part in self.parts for text in part.sources))
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
        """The joined arrays. They are read at first use."""
        return {name: np.concatenate([part.arrays[name] for part in self.parts]) for name in self.parts[0].arrays}

    @cached_property
    def goals(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {name: np.concatenate([part.goals[name] for part in self.parts]) for name in self.parts[0].goals}

    def _join_index(self) -> np.ndarray:
        pieces, rows, goals = [], 0, 0
        for part in self.parts:
            piece = np.array(part.index)
            piece["row"] += rows
            piece["goal"][piece["goal"] >= 0] += goals
            tables = {"instruction": (part.instructions, self.instructions), "source": (part.sources, self.sources)}
            for name, (texts, table) in tables.items():
                piece[name] = np.array([table.index(text) for text in texts], np.int64)[piece[name]]
            rows, goals = rows + part.num_rows, goals + part.num_goals
            pieces.append(piece)
        return np.concatenate(pieces)


def open_dataset(path: str | Path, more: Sequence[str | Path] = ()) -> Dataset:
    """Open one folder, or several as one."""
    return ConcatDataset([path, *more]) if more else Dataset(path)


def open_part(path: str | Path) -> Dataset:
    """Open a dataset, once as long as it does not change: each round of a collection opens all folders."""
    committed = Path(path) / "committed.json"
    files = [file.stat() for file in (Path(path) / "spec.json", committed) if file.exists()]
    return _open_part(str(path), tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files))


@lru_cache(maxsize=4096)
def _open_part(path: str, version: object) -> Dataset:
    return Dataset(path)
