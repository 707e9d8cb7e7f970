"""`pac.Dataset`: episodes on disk, opened from any source. It is a `pac.data.store.Dataset` with a way in and a summary.

A source of another format is imported once, into a folder that the next call finds again. What is printed says which
command does the same.
"""

import shlex
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from pac.data import store
from pac.data.arrays import write_arrays, write_episodes
from pac.files import problem
from pac.formats.options import ImportOptions
from pac.formats.sources import cache_place, locate
from pac.formats.transfer import import_dataset
from pac.report.dataset_summary import describe_dataset, summary_text
from pac.training.logging import make_console
from pac.types import Episode


class Dataset(store.Dataset):
    """Episodes in a folder, memory-mapped: size does not matter.

    `data[i]` and `data.episodes()` give episodes as numpy arrays. `print(data)` shows sizes, returns, success and
    likely mistakes. `pac.train(data)` trains on it.
    """

    reward: str | None = None  # the reward that training uses: a rule or a stored column; None: the stored rewards

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        reward: str | None = None,
        format: str = "auto",
        out: str | Path | None = None,
        **options: Any,
    ) -> "Dataset":
        """Open a dataset of PAC, a folder or file of another format, a Minari id or a Hugging Face id.

        A source of another format is imported into `out`, by default a folder of the cache that a second call finds
        again. `options` are those of `pac import`, such as `cameras=["front"]` or `episodes="0:80"`. `reward` is a
        rule ("sparse-success", "time-to-go") or the name of a stored reward column.
        """
        if format == "auto" and not options and (Path(source) / store.SPEC).is_file():
            return cls(source).with_reward(reward)
        place, chosen = locate(source), make_options(options)
        out = Path(out) if out is not None else cache_place(place, chosen)
        if not (out / store.COMMITTED).is_file():
            console = make_console()
            words = ["pac", "import", str(source), "--out", str(out), *option_words(format, options)]
            console.print(f"Imports {source} once. The same as: {shlex.join(words)}", markup=False, soft_wrap=True)
            for summary in import_dataset([place], out, format=format, options=chosen, console=console):
                _say(console, summary.notes)
        return cls(out).with_reward(reward)

    @classmethod
    def from_arrays(
        cls,
        observations: np.ndarray | Mapping[str, np.ndarray],
        actions: np.ndarray,
        rewards: np.ndarray | None = None,
        terminals: np.ndarray | None = None,
        timeouts: np.ndarray | None = None,
        *,
        out: str | Path | None = None,
        reward: str | None = None,
        **facts: Any,
    ) -> "Dataset":
        """Write flat arrays as a dataset, one row per step, and open it.

        In `observations[t]` the robot took `actions[t]` and got `rewards[t]`. `terminals` mark true ends, `timeouts`
        time limits. A dict of observations may hold a state and images of cameras. `facts` are those of
        `pac.data.arrays.write_arrays`: `next_observations`, `instruction`, `success`, `action_low`, `action_high`,
        `control_rate`, `state_names`, `action_names`. `out` is the dataset's folder. Without it the folder is a
        temporary one, which is removed with the object.
        """
        with _Folder(out) as folder:
            columns = {"rewards": rewards, "terminals": terminals, "timeouts": timeouts}
            write_arrays(folder.path, observations=observations, actions=actions, **columns, **facts)
            return folder.open(cls).with_reward(reward)

    @classmethod
    def from_episodes(
        cls, episodes: Any, *, out: str | Path | None = None, reward: str | None = None, **facts: Any
    ) -> "Dataset":
        """Write episodes as a dataset and open it.

        `episodes` are of `pac.types.Episode`, of Minari's `EpisodeData`, or a whole `d3rlpy.dataset.MDPDataset`.
        `out` and `facts` are those of `from_arrays`.
        """
        with _Folder(out) as folder:
            write_episodes(folder.path, episodes, **facts)
            return folder.open(cls).with_reward(reward)

    def with_reward(self, reward: str | None) -> "Dataset":
        """Return the same dataset with the reward that training uses: a rule, or a stored column by its name."""
        if reward is not None:
            check_reward(self, reward)
        found = type(self)(self.path)
        found.reward, found._folder = reward, self._folder
        return found

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes in order."""
        return iter(self)

    def __getitem__(self, index: int) -> Episode:
        return self.episode(index)

    def __str__(self) -> str:
        return summary_text(describe_dataset(self.path))

    __repr__ = __str__
    _folder: "object | None" = None  # keeps a temporary folder alive
