"""Writing Minari 0.5 in HDF5, without loss: `NAME/data/{metadata.json, main_data.hdf5}`, as its own loader reads it.

Time alignment is that of an `Episode`. Where an episode's last observation is unknown, Minari still wants one: the one
before is repeated, and the episode's `options` say so. The instruction stands in `options` too, success and extra
rewards in `infos`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.spec import IMAGES, STATE
from pac.files import problem
from pac.formats.checks import need
from pac.types import Episode

VERSION = "0.5.4"  # of the layout; Minari's loader asks


def write(
    folder: Path,
    episodes: Iterable[Episode],
    *,
    name: str,
    fps: float | None,
    action_low: np.ndarray,
    action_high: np.ndarray,
) -> list[str]:
    """Write episodes as a Minari dataset; returns notes on what the format cannot hold."""
    h5py = need("h5py", "formats")
    (folder / "data").mkdir(parents=True)
    num_episodes = num_steps = unknown = goals = 0
    first: Episode | None = None
    with h5py.File(folder / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for index, episode in enumerate(episodes):
            first = first or episode
            unknown += _write_episode(file.create_group(f"episode_{index}"), index, episode)
            num_episodes, num_steps = index + 1, num_steps + len(episode.action)
            goals += bool(episode.goal_images)
    if first is None:
        raise problem(folder, expected="at least one episode", found="none", fix="Choose another dataset.")
    metadata = {
        "total_episodes": num_episodes,
        "total_steps": num_steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_observation_space(first)),
        "action_space": json.dumps(_box(action_low.shape, "float32", action_low.tolist(), action_high.tolist())),
        "dataset_id": re.sub(r"[^\w.-]", "_", name),
        "minari_version": VERSION,
        "dataset_size": round((folder / "data" / "main_data.hdf5").stat().st_size / 1e6, 1),
    } | ({} if fps is None else {"fps": fps})
    (folder / "data" / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    note = f"{unknown} episodes do not hold the observation after their last action: the one before is repeated there."
    notes = [note] if unknown else []
    return notes + ([f"Minari has no place for goal images: left out in {goals} episodes."] if goals else [])


def _write_episode(group: Any, index: int, episode: Episode) -> bool:
    """One group; returns whether the last observation had to be made up."""
    steps = len(episode.action)
    group.attrs.update({"id": index, "total_steps": steps, "options/instruction": episode.instruction})
    if episode.seed is not None:
        group.attrs["seed"] = episode.seed
    missing = len(next(iter(episode.observation.values()))) == steps
    if missing:
        group.attrs["options/last_observation_unknown"] = True
    bare = list(episode.observation) == [STATE]
    for key, values in episode.observation.items():
        padded = np.concatenate([values, values[-1:]]) if missing else values
        group.create_dataset("observations" if bare else f"observations/{key}", data=padded)
    group.create_dataset("actions", data=episode.action)
    group.create_dataset("rewards", data=episode.reward)
    for flag, value in (("terminations", episode.terminated), ("truncations", episode.truncated)):
        group.create_dataset(flag, data=np.arange(steps) == (steps - 1 if value else -1))
    infos = {f"reward.{key}": np.append(np.float32(0), values) for key, values in episode.extra_rewards.items()}
    if episode.success is not None:
        infos["success"] = np.arange(steps + 1) == (steps if episode.success else -1)
    for key, values in infos.items():
        group.create_dataset(f"infos/{key}", data=values)
    return missing


def _observation_space(episode: Episode) -> dict[str, Any]:
    spaces = {}
    for key, values in episode.observation.items():
        low, high, dtype = (0, 255, "uint8") if key.startswith(IMAGES) else (-np.inf, np.inf, "float32")
        shape = values.shape[1:]
        spaces[key] = _box(shape, dtype, np.full(shape, low).tolist(), np.full(shape, high).tolist())
    return spaces[STATE] if list(spaces) == [STATE] else {"type": "Dict", "subspaces": spaces}


def _box(shape: tuple[int, ...], dtype: str, low: Any, high: Any) -> dict[str, Any]:
    return {"type": "Box", "dtype": dtype, "shape": list(shape), "low": low, "high": high}
