"""Writing Minari 0.5 in HDF5, without loss: `NAME/data/{metadata.json, main_data.hdf5}`, as its own loader reads it.

Time alignment is that of an `Episode`. Minari always wants a last observation. Where an episode's is unknown, the one
before is repeated, and the episode's `options` say so. The instruction is in `options` too. Success and extra rewards
are in `infos`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.spec import IMAGES, STATE
from pac.data.store import Dataset
from pac.formats.checks import need
from pac.types import Episode

VERSION = "0.5.4"  # of the layout; Minari's loader checks it


def write_dataset(folder: Path, data: Dataset, episodes: Iterable[Episode], fps: float | None) -> list[str]:
    """Write the episodes of a dataset as Minari. Return notes on losses."""
    h5py = need("h5py", "formats")
    (folder / "data").mkdir(parents=True)
    arrays = folder / "data" / "main_data.hdf5"
    with h5py.File(arrays, "w", track_order=True) as file:
        for index, episode in enumerate(episodes):
            _write_episode(file.create_group(f"episode_{index}"), index, episode)
    low, high = data.action_low.tolist(), data.action_high.tolist()
    metadata = {
        "total_episodes": len(data),
        "total_steps": data.num_steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_observation_space(data.episode(0))),
        "action_space": json.dumps(_box(data.action_low.shape, "float32", low, high)),
        "dataset_id": re.sub(r"[^\w.-]", "_", folder.name),
        "minari_version": VERSION,
        "dataset_size": round(arrays.stat().st_size / 1e6, 1),
    } | ({} if fps is None else {"fps": fps})
    names = {"state_names": data.spec.state_names, "action_names": data.spec.action_names}
    metadata |= {key: list(value) for key, value in names.items() if value}  # ours: Minari has no place for them
    (folder / "data" / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    unknown = int((~data.index["last_known"]).sum())
    note = f"{unknown} episodes do not hold the observation after their last action: the one before is repeated there."
    return [note] if unknown else []


def _write_episode(group: Any, index: int, episode: Episode) -> None:
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


def _observation_space(episode: Episode) -> dict[str, Any]:
    spaces = {}
    for key, values in episode.observation.items():
        low, high, dtype = (0, 255, "uint8") if key.startswith(IMAGES) else (-np.inf, np.inf, "float32")
        shape = values.shape[1:]
        spaces[key] = _box(shape, dtype, np.full(shape, low).tolist(), np.full(shape, high).tolist())
    return spaces[STATE] if list(spaces) == [STATE] else {"type": "Dict", "subspaces": spaces}


def _box(shape: tuple[int, ...], dtype: str, low: Any, high: Any) -> dict[str, Any]:
    return {"type": "Box", "dtype": dtype, "shape": list(shape), "low": low, "high": high}
