"""`pac.Dataset`: episodes on disk, opened from any source, with a summary. It is a `pac.data.store.Dataset`.

A source of another format is imported once, into a folder that the next call finds again. What is printed says which
command does the same.
"""

import dataclasses
import inspect
import json
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
from pac.files import problem
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
        overwrite: bool = False,
        reward: str | None = None,
        **facts: Any,
    ) -> "Dataset":
        """Write flat arrays as a dataset, one row per step, and open it.

        In `observations[t]` the robot took `actions[t]` and got `rewards[t]`. `terminals` mark true ends, `timeouts`
        time limits. A dict of observations may hold a state and images of cameras. `facts` are those of
        `pac.data.arrays.write_arrays`: `next_observations`, `instruction`, `success`, `action_low`, `action_high`,
        `control_rate`, `state_names`, `action_names`. `out` is the dataset's folder. Without it the folder is a
        temporary one, which is removed with the object. A dataset that is
        there already is kept if it holds the same. Otherwise it is refused, unless `overwrite`.
        """
        check_facts(facts, write_arrays, reward)
        notes = list[str]()
        facts |= {"rewards": rewards, "terminals": terminals, "timeouts": timeouts, "notes": notes}
        with _Folder(out, overwrite=overwrite) as folder:
            write_arrays(folder.path, observations=observations, actions=actions, **facts)
            _say(*notes)
            return folder.open(cls).with_reward(reward)

    @classmethod
    def from_episodes(
        cls,
        episodes: Any,
        *,
        out: str | Path | None = None,
        overwrite: bool = False,
        reward: str | None = None,
        **facts: Any,
    ) -> "Dataset":
        """Write episodes as a dataset and open it.

        `episodes` are of `pac.types.Episode`, of Minari's `EpisodeData`, or a whole `d3rlpy.dataset.MDPDataset`.
        `out`, `overwrite` and `facts` are those of `from_arrays`.
        """
        check_facts(facts, write_episodes, reward)
        with _Folder(out, overwrite=overwrite) as folder:
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

        `function` gets an episode and returns one number per step. Images are not copied. A column that holds the
        same numbers already is kept.
        """
        known = self.arrays.get(f"{store.REWARD}.{name}")
        if known is None or not all(
            np.array_equal(known[row : row + length], np.asarray(function(episode), np.float32))
            for (row, length), episode in zip(self.index[["row", "length"]].tolist(), self, strict=True)
        ):
            add_reward(self.path, name, function)
        super().__init__(self.path)
        return self.with_reward(name)

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes in order."""
        return iter(self)

    def __getitem__(self, index: int) -> Episode:
        return self.episode(index)

    def __str__(self) -> str:
        return summary_text(describe_dataset(self.path, reward=self.reward))

    __repr__ = __str__
    _folder: "_Folder | None" = None  # keeps a temporary folder


class _Folder:
    """The folder of a new dataset: a named one, or a temporary one that is removed with the last dataset that uses it.

    Where a named folder has a dataset already, the new one is written beside it, and `open` compares the two. As a
    context it removes a temporary folder after an error.
    """

    def __init__(self, out: str | Path | None, *, overwrite: bool) -> None:
        self.out, self.overwrite = None if out is None else Path(out), overwrite
        self.path = Path(str(out))
        self._remove: Callable[[], object] | None = None
        if self.out is None or (self.out / store.COMMITTED).is_file():
            parent = tempfile.mkdtemp(prefix=".pac-", dir=None if self.out is None else self.out.parent)
            self.path = Path(parent) / "data"
            self._remove = weakref.finalize(self, shutil.rmtree, parent, ignore_errors=True)

    def open(self, kind: type[Dataset]) -> Dataset:
        """Return the new dataset, or the one that was there and holds the same. Raise if they differ."""
        if self.out is not None and self.path != self.out:
            is_same = self._is_same()
            if not is_same and not self.overwrite:
                fix = "Pass overwrite=True, name another folder, or open it with pac.Dataset.open."
                raise problem(self.out, expected="a new folder", found="a dataset of other episodes", fix=fix)
            if not is_same:
                self.out.rename(self.path.parent / "old")
                self.path.rename(self.out)
            return kind(self.out)
        found = kind(self.path)
        found._folder = self
        return found

    def _is_same(self) -> bool:
        """Return whether the dataset that was there has the new one's files. It may have more reward columns."""
        assert self.out is not None
        old, new = (store.read_committed(path) for path in (self.out, self.path))
        specs = [json.loads((path / store.SPEC).read_text()) for path in (self.out, self.path)]
        names = specs[1].keys() - {"extra_rewards", "features", "pac", "numpy"}
        same = all(old["files"].get(name) == entry for name, entry in new["files"].items())
        return same and all(specs[0][name] == specs[1][name] for name in names)

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


def check_facts(facts: Mapping[str, Any], function: Callable[..., Any], reward: Any) -> None:
    """Raise for an unknown keyword, and for a column of rewards that was passed as the reward of training."""
    known = set(inspect.signature(function).parameters) | {"rewards", "terminals", "timeouts", "out", "overwrite"}
    for name in facts:
        if name not in known - {"notes", "progress"}:
            raise ValueError(f"Unknown argument {name!r} of a dataset.{suggest(name, known - {'notes', 'progress'})}")
    if reward is not None and not isinstance(reward, str):
        expected, fix = "a rule or the name of a column", "Pass the column as `rewards`."
        raise problem("reward", expected=expected, found=type(reward).__name__, fix=fix)


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
    rule = f" under {report['reward']}" if report["reward"] else ""
    lines.append(f"  return{rule} {returns}" + (f", success {success}" if success != "-" else ""))
    lines.append("  ends: " + ", ".join(f"{count:,} {name}" for name, count in report["ends"].items() if count))
    texts = [repr(task["instruction"]) if task["instruction"] else "(no instruction)" for task in report["tasks"]]
    lines.append(f"  tasks: {', '.join(texts[:3])}{f' and {len(texts) - 3} more' if len(texts) > 3 else ''}")
    return "\n".join(lines + [f"  warning: {text}" for text in report["warnings"]])
