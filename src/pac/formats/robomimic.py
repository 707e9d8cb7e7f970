"""robomimic HDF5, and LIBERO's, which follows it: one group a demonstration.

Time alignment: row t of `obs`, `actions` and `rewards` is the observation, the action taken in it and the reward that
action gave; the last row of `next_obs` is the observation after the last action. Files without `next_obs` (LIBERO) give
T observations for T actions.

Ends: `dones` is written at success, at the end of every demonstration, or at both, depending on how a file was made,
and the file does not say which. So an end is terminal only where the last `dones` is set *and* the task's 0/1 reward
says success; every other end is a time limit. The summary says so.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats.common import (
    ForeignDataset,
    ImportOptions,
    as_vector,
    build_episode,
    choose_keys,
    is_image,
    key_of,
    require,
)
from pac.formats.hdf5 import array, dataset, is_hdf5, member, open_hdf5
from pac.types import Episode


def detect(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return "data" in file and any(str(name).startswith("demo_") for name in file["data"])


def read(path: Path, options: ImportOptions) -> ForeignDataset:
    file = open_hdf5(path)
    data = member(file, "data", path)
    demos = _demos(file, data, options, path)
    observations = {key: dataset(data, f"{demos[0]}/obs/{key}", path) for key in member(data, f"{demos[0]}/obs", path)}
    pictures = {key for key, item in observations.items() if is_image(item.shape[1:], item.dtype)}
    keys = choose_keys(sorted(observations.keys() - pictures), sorted(pictures), options, f"{path}, {demos[0]}/obs")
    action_key, reward_key = key_of("action", "actions", options), key_of("reward", "rewards", options)
    instruction = options.instruction if options.instruction is not None else _instruction(data, path)
    notes = ["robomimic's dones do not tell success from a time limit: an end is terminal only where the reward is 1."]

    def episodes() -> Iterator[Episode]:
        with file:
            for demo in demos:
                group, where = member(data, demo, path), f"{path}, {demo}"
                last = member(group, "next_obs", path) if "next_obs" in group else None
                raw = {}
                for key in {key for parts in keys.values() for key in parts}:
                    raw[key] = array(group, f"obs/{key}", path)
                    if last is not None:
                        raw[key] = np.concatenate([raw[key], dataset(last, key, path)[-1:]])
                reward = as_vector(array(group, reward_key, path), f"{where}, key {reward_key!r}")
                dones = as_vector(array(group, "dones", path), f"{where}, key 'dones'")
                success = bool(reward.any()) if np.isin(reward, (0, 1)).all() else None
                terminated = bool(len(dones) and dones[-1] and success and reward[-1])
                yield build_episode(
                    where,
                    source=path,
                    keys=keys,
                    raw=raw,
                    action=array(group, action_key, path),
                    reward=reward,
                    terminated=terminated,
                    truncated=not terminated,
                    instruction=instruction,
                    success=success,
                )

    bound = _unit_bound(data, demos, action_key, path)
    return ForeignDataset(
        format="robomimic",
        path=path,
        keys=keys,
        episodes=episodes(),
        num_episodes=len(demos),
        fps=options.fps or _control_rate(data, path),
        action_low=None if bound is None else -bound,
        action_high=bound,
        notes=notes,
    )


def _unit_bound(data: Any, demos: list[str], key: str, path: Path) -> np.ndarray | None:
    """Ones, where all actions are within [-1, 1], as robomimic asks for; else None: the bounds are then measured."""
    actions = [array(data, f"{demo}/{key}", path) for demo in demos]
    unit = all(values.ndim == 2 and values.dtype.kind in "fiu" and np.all(np.abs(values) <= 1) for values in actions)
    return np.ones(actions[0].shape[1], np.float32) if unit else None


def _demos(file: Any, data: Any, options: ImportOptions, path: Path) -> list[str]:
    """Names of the demonstrations, in order: all, or those of one filter key."""
    names = [str(name) for name in data if str(name).startswith("demo_")]
    if options.split is not None:
        listed = array(member(file, "mask", path), options.split, path).ravel()
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in listed]
        for name in names:
            require(data, name, f"{path}, mask/{options.split}")
    if not names:
        raise problem(f"{path}, data", expected="groups demo_0, demo_1, ...", found="none", fix="Check the file.")
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def _attribute(data: Any, name: str, path: Path) -> dict[str, Any]:
    """A JSON attribute of the `data` group; {} where there is none."""
    text = data.attrs.get(name)
    if text is None:
        return {}
    content = json.loads(text)
    if not isinstance(content, dict):
        raise problem(f"{path}, data.attrs[{name!r}]", expected="a JSON object", found=text, fix="Repair the file.")
    return content


def _instruction(data: Any, path: Path) -> str:
    """LIBERO's instruction, or robomimic's name of the environment."""
    text = _attribute(data, "problem_info", path).get("language_instruction")
    if text is None:
        text = _attribute(data, "env_args", path).get("env_name", "")
    return str(text[0] if isinstance(text, list) and text else text)


def _control_rate(data: Any, path: Path) -> float | None:
    kwargs = _attribute(data, "env_args", path).get("env_kwargs")
    rate = kwargs.get("control_freq") if isinstance(kwargs, dict) else None
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
