"""OGBench npz: flat arrays of states, the last state of each episode included.

Time alignment: an episode of T actions has T + 1 rows. Row t holds the state and the action taken in it. The action of
the last row has no result and is dropped. `rewards[t]`, where a file has rewards, belongs to `actions[t]`. Published
files have none, since their tasks are goals. Rewards are then 0, for `relabel` to fill.

Ends: `terminals` marks the last row of an episode and nothing more. So every end is a time limit, unless the file holds
`masks` (OGBench's bootstrap mask). A mask of 0 at the last transition is a true termination.

The arrays are streamed out of the zip file, so memory does not grow with it.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pac.data.array_checks import dimension_names
from pac.data.array_table import width
from pac.data.spec import STATE
from pac.formats.arrays import only_here
from pac.formats.checks import check, check_length, require
from pac.formats.common import NO_REWARDS, ForeignDataset, as_vector, build_episode, split_ends
from pac.formats.npz import names_of, open_columns
from pac.formats.options import ImportOptions, choose_array_keys, key_of, used_keys
from pac.types import Episode


def detect(path: Path) -> bool:
    names = set(names_of(path))
    return {"observations", "actions", "terminals"} <= names and not only_here(names)


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    names = set(names_of(path))
    foreign = sorted(only_here(names))
    check(not foreign, path, "keys of OGBench", f"key {', '.join(map(repr, foreign))}", "Choose --format arrays.")
    needed = {"terminals", "observations", action_key} | (options.named_keys - {reward_key})
    with open_columns(path, needed | ({reward_key, "masks"} & names)) as columns:
        terminals = columns["terminals"]
        num_rows = terminals.shape[0]
        observed = columns.keys() & ({"observations"} | options.named_keys) - {action_key, reward_key}
        keys = choose_array_keys({name: columns[name] for name in observed}, options, path)
        used = {*used_keys(keys), action_key} | ({reward_key, "masks"} & columns.keys())
        for name in sorted(used):
            check_length(require(columns, name, path).shape[0], (num_rows,), f"{path}, key {name!r}")
        flags = as_vector(terminals.value(), f"{path}, key 'terminals'")
        widths = {key: width(columns[key]) for key in keys.get(STATE, ())}
    notes = [] if "masks" in used else ["OGBench's terminals are ends of episodes: all count as time limits."]
    notes += [] if reward_key in used else [NO_REWARDS]
    if others := sorted(names - used - {"terminals"}):
        notes.append(f"Not read: {', '.join(others)}. --keys reads them.")
    ends = split_ends(flags, notes)
    check(num_rows > len(ends), path, "at least one transition", f"{num_rows} rows", "Check the file.")
    lengths = np.diff(ends, prepend=0)
    chosen = set(options.ranges.choose(range(len(ends)), path, notes))

    def episodes() -> Iterator[Episode]:
        with open_columns(path, used) as columns:
            for index, (stop, count) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
                if index not in chosen:
                    continue
                raw = {name: columns[name][stop - count : stop] for name in used}
                if count < 2:
                    notes.append(f"Episode {index} has one state and no transition: left out.")
                    continue
                yield build_episode(
                    f"{path}, episode {index}",
                    keys=keys,
                    raw=raw,
                    action=raw[action_key][:-1],
                    reward=raw[reward_key][:-1] if reward_key in raw else None,
                    terminated="masks" in raw and not as_vector(raw["masks"], f"{path}, key 'masks'")[-2],
                )

    return ForeignDataset(
        keys=keys,
        episodes=episodes(),
        num_episodes=len(chosen),
        num_steps=int(lengths[sorted(chosen)].sum()) - len(chosen),
        state_names=dimension_names(widths),
        notes=notes,
    )
