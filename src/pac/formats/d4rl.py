"""D4RL HDF5: one flat table of transitions.

Time alignment: row i holds the observation, the action taken in it and the reward that action gave. The observation
that followed is row i + 1, unless row i ends an episode; then it is `next_observations[i]` where the file has that,
and otherwise unknown: such an episode has T observations for T actions.

Ends: `terminals` ends the task, `timeouts` is a time limit, a row may be both. A file without `timeouts` (v0) does not
show where its other episodes end. It is then read from `next_observations` (an episode ends where the next row does not
continue) or from --max-episode-steps; with neither it is refused rather than guessed. Rows after the last end are cut
off by the end of the file: truncated.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats.common import (
    ForeignDataset,
    ImportOptions,
    build_episode,
    check_length,
    choose_keys,
    is_image,
    key_of,
)
from pac.formats.hdf5 import Rows, array, dataset, is_hdf5, open_hdf5
from pac.types import Episode


def detect(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return {"observations", "actions", "rewards", "terminals"} <= set(file)


def read(path: Path, options: ImportOptions) -> ForeignDataset:
    file = open_hdf5(path)
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    columns = {"action": dataset(file, action_key, path), "reward": dataset(file, reward_key, path)}
    num_rows = len(columns["action"])
    named = {key for keys in options.keys.values() for key in keys}
    observations = {
        key: dataset(file, key, path) for key in sorted({"observations"} | (named - {action_key, reward_key}))
    }
    pictures = {key for key, data in observations.items() if is_image(data.shape[1:], data.dtype)}
    keys = choose_keys(sorted(observations.keys() - pictures), sorted(pictures), options, path)
    columns |= {key: observations[key] for parts in keys.values() for key in parts}
    for name, data in columns.items():
        check_length(len(data), (num_rows,), f"{path}, key {name!r}")
    if num_rows == 0:
        raise problem(path, expected="at least one row", found="an empty file", fix="Download it again.")

    notes: list[str] = []
    last = "next_observations" in file and keys == {next(iter(keys)): ("observations",)}
    if last:
        columns["next"] = dataset(file, "next_observations", path)
        check_length(len(columns["next"]), (num_rows,), f"{path}, key 'next_observations'")
    else:
        notes.append("No next_observations: the observation after the last action of an episode is unknown.")
    terminal = _flags(file, "terminals", num_rows, path)
    timeout = _timeouts(file, columns, terminal, options, path, notes)
    ends = np.flatnonzero(terminal | timeout) + 1
    if not len(ends) or ends[-1] != num_rows:
        notes.append(f"The last {num_rows - (ends[-1] if len(ends) else 0)} rows have no end: kept as truncated.")
        ends = np.append(ends, num_rows)

    def episodes() -> Iterator[Episode]:
        rows = {name: Rows(data) for name, data in columns.items()}
        with file:
            for index, (start, stop) in enumerate(zip(np.append(0, ends[:-1]), ends, strict=True)):
                part = {name: reader[int(start) : int(stop)] for name, reader in rows.items()}
                raw = {key: part[key] for parts in keys.values() for key in parts}
                if last:
                    raw["observations"] = np.concatenate([part["observations"], part["next"][-1:]])
                yield build_episode(
                    f"{path}, episode {index}",
                    source=path,
                    keys=keys,
                    raw=raw,
                    action=part["action"],
                    reward=part["reward"],
                    terminated=bool(terminal[stop - 1]),
                    truncated=bool(timeout[stop - 1] or not terminal[stop - 1]),
                    instruction=options.instruction or "",
                )

    return ForeignDataset(
        format="d4rl", path=path, keys=keys, episodes=episodes(), num_episodes=len(ends), fps=options.fps, notes=notes
    )


def _flags(file: Any, key: str, num_rows: int, path: Path) -> np.ndarray:
    flags = array(file, key, path)
    if flags.dtype.kind not in "fiub" or not np.isin(flags, (0, 1)).all():
        raise problem(
            f"{path}, key {key!r}", expected="flags 0 or 1", found=f"dtype {flags.dtype}", fix="Repair the file."
        )
    check_length(flags.size, (num_rows,), f"{path}, key {key!r}")
    return np.asarray(flags.reshape(num_rows), bool)


def _timeouts(
    file: Any, columns: dict[str, Any], terminal: np.ndarray, options: ImportOptions, path: Path, notes: list[str]
) -> np.ndarray:
    """Where episodes end without a terminal."""
    num_rows = len(terminal)
    if "timeouts" in file:
        return _flags(file, "timeouts", num_rows, path)
    if options.max_episode_steps is not None:
        notes.append(f"No timeouts: time limits are every {options.max_episode_steps} steps, as told.")
        starts = np.append(0, np.flatnonzero(terminal) + 1)
        since = np.arange(num_rows) - np.repeat(starts, np.diff(np.append(starts, num_rows)))
        return np.asarray((since + 1) % options.max_episode_steps == 0)
    if "next" in columns:
        notes.append("No timeouts: episodes end where next_observations differs from the next row.")
        now, after = Rows(columns["observations"]), Rows(columns["next"])
        jumps = np.zeros(num_rows, bool)
        for start in range(0, num_rows - 1, 4096):
            stop = min(start + 4096, num_rows - 1)
            differ = now[start + 1 : stop + 1] != after[start:stop]
            jumps[start:stop] = differ.reshape(stop - start, -1).any(1)
        ends: np.ndarray = jumps & ~terminal
        return ends
    raise problem(
        path,
        expected="key 'timeouts' or 'next_observations' (D4RL v1 and later)",
        found="neither: this file does not tell where a time limit ended an episode",
        fix="Give the time limit of the environment with --max-episode-steps, or download the v2 file.",
    )
