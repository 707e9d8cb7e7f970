"""`pac.Dataset`: episodes on disk, opened from any source, with a summary. It is a `pac.data.store.Dataset`.

A source of another format is imported once, into a folder that the next call finds again. What is printed says which
command does the same.
"""

import dataclasses
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pac.config import suggest
from pac.data import store
from pac.data.arrays import write_arrays, write_episodes
from pac.data.relabel import add_reward, reward_column
from pac.formats.options import ImportOptions
from pac.formats.sources import cache_place, locate
from pac.formats.transfer import import_dataset
from pac.report.dataset_summary import describe_dataset, format_results
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
                _say(*summary.notes)
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
            notes = list[str]()
            facts |= {"rewards": rewards, "terminals": terminals, "timeouts": timeouts, "notes": notes}
            write_arrays(folder.path, observations=observations, actions=actions, **facts)
            _say(*notes)
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
            reward_column(self, reward)  # raises if there is none
        found = type(self)(self.path)
        found.reward, found._folder = reward, self._folder
        return found

    def add_reward(self, name: str, function: Callable[[Episode], np.ndarray]) -> "Dataset":
        """Store a reward column, and return the dataset with that reward.

        `function` gets an episode and returns one number per step. Images are not copied.
        """
        add_reward(self.path, name, function)
        found = type(self)(self.path)
        found._folder = self._folder
        return found.with_reward(name)

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes in order."""
        return iter(self)

    def __getitem__(self, index: int) -> Episode:
        return self.episode(index)

    def __str__(self) -> str:
        return summary_text(describe_dataset(self.path))

    __repr__ = __str__
    _folder: "_Folder | None" = None  # keeps a temporary folder


class _Folder:
    """The folder of a new dataset: a named one, or a temporary one that is removed with the last dataset that uses it.

    As a context it removes a temporary folder after an error.
    """

    def __init__(self, out: str | Path | None) -> None:
        parent = None if out is not None else tempfile.mkdtemp(prefix="pac-")
        self.path = Path(str(out)) if parent is None else Path(parent) / "data"
        self._remove = None if parent is None else weakref.finalize(self, shutil.rmtree, parent, ignore_errors=True)

    def open(self, kind: type[Dataset]) -> Dataset:
        found = kind(self.path)
        found._folder = self
        return found

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._remove is not None:
            self._remove()


def _say(*notes: str) -> None:
    """Print notes on what was read, left out and assumed."""
    for note in notes:
        make_console().print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)


def make_options(options: Mapping[str, Any]) -> ImportOptions:
    """Return the options of an import. The error about an unknown one suggests the nearest."""
    known = {field.name for field in dataclasses.fields(ImportOptions)}
    for name in options:
        if name not in known:
            raise ValueError(f"Unknown option {name!r} of an import.{suggest(name, known)}")
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
    return ImportOptions(**fields)


def option_words(format: str, options: Mapping[str, Any]) -> list[str]:
    """Return the options of an import as `pac import` takes them."""
    words = [] if format == "auto" else ["--format", format]
    for name, value in options.items():
        texts = [f"{key}={','.join(x)}" for key, x in value.items()] if isinstance(value, Mapping) else value
        texts = [str(texts)] if isinstance(texts, str | int | float) else list(map(str, texts))
        words += [f"--{name.replace('_', '-')}", *texts]
    return words


def summary_text(report: dict[str, Any]) -> str:
    """Return a few lines about a dataset: sizes, returns, success, and what looks wrong."""
    rate = f", {report['control_rate']:g} Hz" if report["control_rate"] else ""
    lines = [f"{report['path']}: {report['episodes']:,} episodes, {report['steps']:,} steps{rate}"]
    dims = f"state {len(report['state'])}, action {len(report['action'])}"
    cameras = ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in report["cameras"].items())
    lines.append(f"  {dims}{f', cameras {cameras}' if cameras else ''}")
    returns, success = format_results(report)
    lines.append(f"  return {returns}" + (f", success {success}" if success != "-" else ""))
    lines.append("  ends: " + ", ".join(f"{count:,} {name}" for name, count in report["ends"].items() if count))
    texts = [repr(task["instruction"]) for task in report["tasks"]]
    lines.append(f"  tasks: {', '.join(texts[:3])}{f' and {len(texts) - 3} more' if len(texts) > 3 else ''}")
    return "\n".join(lines + [f"  warning: {text}" for text in report["warnings"]])
