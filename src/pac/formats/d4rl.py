"""D4RL HDF5: one flat table of transitions.

Time alignment: row i holds the observation, the action taken in it and the reward of that action. The next observation
is row i + 1, unless row i ends an episode. Then it is `next_observations[i]` where the file has that. Otherwise it is
unknown, and the episode has T observations for T actions.

Ends: `terminals` ends the task, `timeouts` is a time limit, and a row may be both. A file without `timeouts` (v0) does
not show where its other episodes end. Its ends are then read from `next_observations`, where the next row does not
continue, or from --max-episode-steps. With neither the file is refused. Rows after the last end are cut off by the end
of the file, so they are truncated.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.array_checks import dimension_names
from pac.data.array_table import width
from pac.data.spec import STATE
from pac.files import problem
from pac.formats.checks import check, check_length
from pac.formats.common import ForeignDataset, build_episode, split_ends
from pac.formats.hdf5 import array, dataset, is_hdf5, open_hdf5
from pac.formats.options import ImportOptions, choose_array_keys, key_of, used_keys
from pac.types import Episode


def detect(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return {"observations", "actions", "rewards", "terminals"} <= set(file)


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    file = open_hdf5(path)
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    columns = {"action": dataset(file, action_key, path), "reward": dataset(file, reward_key, path)}
    num_rows = len(columns["action"])
    names = {"observations"} | (options.named_keys - {action_key, reward_key})
    keys = choose_array_keys({name: dataset(file, name, path) for name in sorted(names)}, options, path)
    columns |= {key: dataset(file, key, path) for key in used_keys(keys)}
    notes = []
    if has_next := "next_observations" in file and list(keys.values()) == [("observations",)]:
        columns["next"] = dataset(file, "next_observations", path)
    else:
        notes.append("No next_observations: the observation after the last action of an episode is unknown.")
    for name, data in columns.items():
        check_length(len(data), (num_rows,), f"{path}, key {name!r}")
    check(num_rows, path, "at least one row", "an empty file", "Download it again.")
    terminal = _flags(file, "terminals", num_rows, path)
    timeout = _timeouts(file, columns, terminal, options, path, notes)
    ends = split_ends(terminal | timeout, notes)
    starts = np.append(0, ends[:-1])
    read_keys = {"terminals", "timeouts", action_key, reward_key, *used_keys(keys), *["next_observations"] * has_next}
    if others := sorted(set(map(str, file)) - read_keys):
        notes.append(f"Not read: {', '.join(others)}. --keys reads them.")
    chosen = options.ranges.choose(range(len(ends)), path, notes)

    def episodes() -> Iterator[Episode]:
        with file:
            for index in chosen:
                start, stop = int(starts[index]), int(ends[index])
                raw = {name: data[start:stop] for name, data in columns.items()}
                if has_next:
                    raw["observations"] = np.concatenate([raw["observations"], raw["next"][-1:]])
                yield build_episode(
                    f"{path}, episode {index}",
                    keys=keys,
                    raw=raw,
                    action=raw["action"],
                    reward=raw["reward"],
                    terminated=bool(terminal[stop - 1]),
                    truncated=bool(timeout[stop - 1]),
                )

    return ForeignDataset(
        keys=keys,
        episodes=episodes(),
        num_episodes=len(chosen),
        num_steps=int((ends - starts)[chosen].sum()),
        state_names=dimension_names({key: width(columns[key]) for key in keys.get(STATE, ())}),
        notes=notes,
    )


def _flags(file: Any, key: str, num_rows: int, path: Path) -> np.ndarray:
    flags, where = array(file, key, path), f"{path}, key {key!r}"
    good = flags.dtype.kind in "fiub" and np.isin(flags, (0, 1)).all()
    check(good, where, "flags 0 or 1", f"dtype {flags.dtype}")
    check_length(flags.size, (num_rows,), where)
    return np.asarray(flags.reshape(num_rows), bool)


def _timeouts(
    file: Any, columns: dict[str, Any], terminal: np.ndarray, options: ImportOptions, path: Path, notes: list[str]
) -> np.ndarray:
    """Return flags of the rows where an episode ends without a terminal."""
    num_rows = len(terminal)
    if "timeouts" in file:
        return _flags(file, "timeouts", num_rows, path)
    if options.max_episode_steps is not None:
        notes.append(
            f"No timeouts: there is a time limit every {options.max_episode_steps} steps, as --max-episode-steps says."
        )
        starts = np.append(0, np.flatnonzero(terminal) + 1)
        since = np.arange(num_rows) - np.repeat(starts, np.diff(np.append(starts, num_rows)))
        return np.asarray((since + 1) % options.max_episode_steps == 0)
    if "next" in columns:
        notes.append("No timeouts: episodes end where next_observations differs from the next row.")
        jumps = np.zeros(num_rows, bool)
        for start in range(0, num_rows - 1, 4096):
            stop = min(start + 4096, num_rows - 1)
            differ = columns["observations"][start + 1 : stop + 1] != columns["next"][start:stop]
            jumps[start:stop] = differ.reshape(stop - start, -1).any(1)
        return np.asarray(jumps & ~terminal)
    raise problem(
        path,
        expected="key 'timeouts' or 'next_observations' (D4RL v1 and later)",
        found="neither: this file does not tell where a time limit ended an episode",
        fix="Give the time limit of the environment with --max-episode-steps, or download the v2 file.",
    )
