"""robomimic HDF5, and LIBERO's, which follows it: one group per demonstration.

Time alignment: row t of `obs`, `actions` and `rewards` is the observation, the action taken in it and its reward. The
last row of `next_obs` is the observation after the last action. Files without `next_obs` (LIBERO) give T
observations for T actions.

Ends: `dones` is written at success, at the end of every demonstration, or at both. The file does not say which. So an
end is terminal only where the last `dones` is set *and* the task's 0/1 reward says success. Every other end is a time
limit. The summary says so.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.array_checks import dimension_names
from pac.data.array_table import width
from pac.data.spec import STATE
from pac.formats.checks import check, require
from pac.formats.common import ForeignDataset, as_vector, build_episode
from pac.formats.hdf5 import array, dataset, is_hdf5, member, open_hdf5
from pac.formats.options import ImportOptions, choose_array_keys, key_of, used_keys
from pac.types import Episode


def detect(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return "data" in file and any(str(name).startswith("demo_") for name in file["data"])


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    file = open_hdf5(path)
    data = member(file, "data", path)
    demos = _demos(file, data, options, path)
    notes = ["robomimic's dones do not tell success from a time limit: only an end with reward 1 is terminal."]
    numbered = {_numbers(demo)[-1]: demo for demo in demos}  # 7 of "demo_7"
    check(len(numbered) == len(demos), path, "demonstrations with different numbers", demos[:5], "Rename them.")
    demos = [numbered[index] for index in options.ranges.choose(numbered, path, notes)]
    first = f"{demos[0]}/obs"
    observations = {key: dataset(data, f"{first}/{key}", path) for key in member(data, first, path)}
    keys = choose_array_keys(observations, options, f"{path}, {first}")
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    environment, libero = _attribute(data, "env_args", path), _attribute(data, "problem_info", path)
    text = libero.get("language_instruction", environment.get("env_name", ""))
    rate = (environment.get("env_kwargs") or {}).get("control_freq")

    def episodes() -> Iterator[Episode]:
        with file:
            for demo in demos:
                group, where = member(data, demo, path), f"{path}, {demo}"
                raw = {key: array(group, f"obs/{key}", path) for key in used_keys(keys)}
                if "next_obs" in group:
                    last = {key: dataset(group, f"next_obs/{key}", path)[-1:] for key in raw}
                    raw = {key: np.concatenate([raw[key], last[key]]) for key in raw}
                reward = as_vector(array(group, reward_key, path), f"{where}, key {reward_key!r}")
                dones = as_vector(array(group, "dones", path), f"{where}, key 'dones'")
                success = bool(reward.any()) if np.isin(reward, (0, 1)).all() else None
                yield build_episode(
                    where,
                    keys=keys,
                    raw=raw,
                    action=array(group, action_key, path),
                    reward=reward,
                    terminated=bool(len(dones) and dones[-1] and success and reward[-1]),
                    instruction=str(text[0] if isinstance(text, list) and text else text),
                    success=success,
                )

    bound = _unit_bound(data, demos, action_key, path)
    return ForeignDataset(
        keys=keys,
        episodes=episodes(),
        num_episodes=len(demos),
        fps=float(rate) if rate else None,
        action_low=None if bound is None else -bound,
        action_high=bound,
        state_names=dimension_names({key: width(observations[key]) for key in keys.get(STATE, ())}),
        notes=notes,
    )


def _unit_bound(data: Any, demos: list[str], key: str, path: Path) -> np.ndarray | None:
    """Return ones if all actions are within [-1, 1], as robomimic asks for. Else return None, to measure the bounds."""
    actions = [array(data, f"{demo}/{key}", path) for demo in demos]
    unit = all(values.ndim == 2 and values.dtype.kind in "fiu" and np.all(np.abs(values) <= 1) for values in actions)
    return np.ones(actions[0].shape[1], np.float32) if unit else None


def _demos(file: Any, data: Any, options: ImportOptions, path: Path) -> list[str]:
    """Return the names of all demonstrations, or of those of one filter key, in order."""
    names = [str(name) for name in data if str(name).startswith("demo_")]
    if options.split is not None:
        listed = array(member(file, "mask", path), options.split, path).ravel()
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in listed]
        for name in names:
            require(data, name, f"{path}, mask/{options.split}")
    check(names, f"{path}, data", "groups demo_0, demo_1, ...", "none", "Check the file.")
    return sorted(names, key=_numbers)


def _numbers(name: str) -> list[int]:
    """Return the numbers in the name of a demonstration, [0] if there is none."""
    return [int(part) for part in re.findall(r"\d+", name)] or [0]


def _attribute(data: Any, name: str, path: Path) -> dict[str, Any]:
    """Return a JSON attribute of the `data` group, or {} if there is none."""
    text = data.attrs.get(name, "{}")
    content = json.loads(text)
    check(isinstance(content, dict), f"{path}, data.attrs[{name!r}]", "a JSON object", text)
    return content
