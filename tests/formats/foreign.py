"""Episodes with every kind of end, and a writer for each foreign format.

Writers use the format's own library where there is one (Minari, h5py, numpy, torch, pyarrow), else its published
layout. Nothing here uses the readers under test.
"""

import dataclasses
import io
import json
import os
import struct
import sys
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import strategies as st
from PIL import Image

from pac.types import Episode

STATE, IMAGES = "observation.state", "observation.images."
TASKS = ["walk", "pick up the red cube", "öffne die Tür", ""]
ENDS = {"terminal": (True, False), "limit": (False, True), "both": (True, True)}


def make_episode(
    rng: np.random.Generator,
    *,
    steps: int,
    end: str = "limit",
    state: int = 3,
    actions: int = 2,
    cameras: tuple[str, ...] = (),
    task: str = "walk",
    size: tuple[int, int] = (4, 6),
    sparse: bool = False,
    success: bool | None = None,
    seed: int | None = None,
) -> Episode:
    """Return a random episode. `sparse` rewards are 0, and 1 at a successful end."""
    terminated, truncated = ENDS[end]
    observation = {STATE: rng.normal(0, 10, (steps + 1, state)).astype(np.float32)}
    for camera in cameras:
        observation[IMAGES + camera] = rng.integers(0, 256, (steps + 1, *size, 3), dtype=np.uint8)
    reward = rng.normal(0, 1, steps).astype(np.float32)
    if sparse:
        reward = (np.arange(steps) == (steps - 1 if success else -1)).astype(np.float32)
    return Episode(
        observation=observation,
        action=rng.uniform(-1, 1, (steps, actions)).astype(np.float32),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        instruction=task,
        success=success,
        seed=seed,
    )


def tricky(cameras: tuple[str, ...] = (), **given: Any) -> list[Episode]:
    """Return episodes with all ends (terminal, time limit, both), with a single step, and of several tasks."""
    rng = np.random.default_rng(0)
    plan = [(5, "terminal"), (4, "limit"), (3, "both"), (1, "terminal"), (1, "limit"), (2, "terminal")]
    return [
        make_episode(rng, steps=steps, end=end, cameras=cameras, task=TASKS[i % len(TASKS)], **given)
        for i, (steps, end) in enumerate(plan)
    ]


@st.composite
def episode_sets(
    draw: st.DrawFn,
    cameras: bool = True,
    ends: tuple[str, ...] = tuple(ENDS),
    sparse: bool = False,
    equal: bool = False,
) -> list[Episode]:
    """Draw a few short episodes with the same features."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    names = draw(st.sampled_from([(), ("wrist",), ("left", "right")])) if cameras else ()
    shape = {"state": draw(st.integers(1, 4)), "actions": draw(st.integers(1, 3)), "cameras": names}
    size = draw(st.sampled_from([(1, 1), (4, 6)]))
    length = draw(st.integers(1, 5))
    episodes = []
    for _ in range(draw(st.integers(1, 4))):
        end = draw(st.sampled_from(ends))
        success = end != "limit" if sparse else None
        steps = length if equal else draw(st.integers(1, 5))
        task = draw(st.sampled_from(TASKS))
        episodes.append(
            make_episode(rng, steps=steps, end=end, task=task, size=size, sparse=sparse, success=success, **shape)
        )
    return episodes


def change(episodes: list[Episode], **fields: Any) -> list[Episode]:
    return [dataclasses.replace(episode, **fields) for episode in episodes]


def without_last(episodes: list[Episode]) -> list[Episode]:
    """Return the episodes without the observation after the last action."""
    return [
        dataclasses.replace(e, observation={k: v[: len(e.action)] for k, v in e.observation.items()}) for e in episodes
    ]


def assert_same(found: list[Episode], expected: list[Episode], *, source: str | None = None) -> None:
    """Compare all fields of all episodes exactly."""
    assert len(found) == len(expected)
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert list(a.observation) == list(b.observation), index
        pairs = {name: (a.observation[name], b.observation[name]) for name in b.observation}
        pairs |= {"action": (a.action, b.action), "reward": (a.reward, b.reward)}
        assert a.extra_rewards.keys() == b.extra_rewards.keys()
        pairs |= {name: (a.extra_rewards[name], b.extra_rewards[name]) for name in b.extra_rewards}
        for name, (x, y) in pairs.items():
            assert (x.dtype, x.shape) == (y.dtype, y.shape), (index, name)
            np.testing.assert_array_equal(x, y, err_msg=f"episode {index}, {name}")
        for name in ("terminated", "truncated", "instruction", "success", "seed"):
            assert getattr(a, name) == getattr(b, name), (index, name, getattr(a, name), getattr(b, name))
        assert source is None or a.source == source


# --- Minari, by its own library


def write_minari(folder: Path, episodes: list[Episode], data_format: str, jpeg_encoding: bool = False) -> Path:
    import gymnasium as gym
    import minari
    from minari.data_collector import EpisodeBuffer

    def box(name: str, shape: tuple[int, ...]) -> gym.Space:
        if name.startswith(IMAGES):
            return gym.spaces.Box(0, 255, shape, np.uint8)
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)

    first = episodes[0]
    bare = list(first.observation) == [STATE]
    space = gym.spaces.Dict({name: box(name, values.shape[1:]) for name, values in first.observation.items()})
    buffers = []
    for episode in episodes:
        steps = len(episode.action)
        infos = {} if episode.success is None else {"success": [False] * steps + [bool(episode.success)]}
        flags = [[i == steps - 1 and flag for i in range(steps)] for flag in (episode.terminated, episode.truncated)]
        buffers.append(
            EpisodeBuffer(
                seed=episode.seed,
                options={"instruction": episode.instruction},
                observations=episode.observation[STATE] if bare else episode.observation,
                actions=episode.action,
                rewards=episode.reward.tolist() if data_format == "hdf5" else episode.reward,
                terminations=flags[0],
                truncations=flags[1],
                infos=infos or None,
            )
        )
    with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(folder)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "synthetic-v0",
            buffers,
            observation_space=space[STATE] if bare else space,
            action_space=gym.spaces.Box(-1, 1, first.action.shape[1:], np.float32),
            data_format=data_format,
            jpeg_encoding=jpeg_encoding,
        )
    return folder / "synthetic-v0"


# --- HDF5 and npz, by their published layouts


def write_d4rl(path: Path, episodes: list[Episode], *, timeouts: bool = True, next_observations: bool = True) -> Path:
    observations, actions, rewards, terminals, limits, following = [], [], [], [], [], []
    for episode in episodes:
        state, steps = episode.observation[STATE], len(episode.action)
        observations.append(state[:-1])
        following.append(state[1:])
        actions.append(episode.action)
        rewards.append(episode.reward)
        terminals.append(np.arange(steps) == (steps - 1 if episode.terminated else -1))
        limits.append(np.arange(steps) == (steps - 1 if episode.truncated else -1))
    columns = {"observations": observations, "actions": actions, "rewards": rewards, "terminals": terminals}
    columns |= {"timeouts": limits} if timeouts else {}
    columns |= {"next_observations": following} if next_observations else {}
    with h5py.File(path, "w") as file:
        for name, parts in columns.items():
            file.create_dataset(name, data=np.concatenate(parts), compression="gzip")
        file.create_dataset("infos/qpos", data=np.zeros((3, 2)))
    return path


def write_robomimic(path: Path, episodes: list[Episode], *, next_obs: bool = True, libero: str | None = None) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(len(episode.action) for episode in episodes)
        data.attrs["env_args"] = json.dumps(
            {"env_name": episodes[0].instruction, "env_type": 1, "env_kwargs": {"control_freq": 20}}
        )
        if libero is not None:
            data.attrs["problem_info"] = json.dumps({"language_instruction": libero})
        for index, episode in enumerate(episodes):
            demo = data.create_group(f"demo_{index}")
            demo.attrs["num_samples"] = steps = len(episode.action)
            demo["states"] = np.zeros((steps, 7))
            demo["actions"] = episode.action.astype(np.float64)
            demo["rewards"] = episode.reward.astype(np.float64)
            demo["dones"] = (np.arange(steps) == steps - 1).astype(np.int64)  # done_mode 1: at every end
            for name, values in episode.observation.items():
                demo[f"obs/{name.removeprefix(IMAGES)}"] = values[:-1]
                if next_obs:
                    demo[f"next_obs/{name.removeprefix(IMAGES)}"] = values[1:]
        names = [f"demo_{i}" for i in range(0, len(episodes), 2)]
        file["mask/even"] = np.array(names, dtype="S8")
    return path


def write_ogbench(path: Path, episodes: list[Episode], *, masks: bool = False, rewards: bool = False) -> Path:
    key = STATE if STATE in episodes[0].observation else next(iter(episodes[0].observation))
    pad = [np.concatenate([e.action, np.full((1, e.action.shape[1]), 9, np.float32)]) for e in episodes]
    columns = {
        "observations": np.concatenate([e.observation[key] for e in episodes]),
        "actions": np.concatenate(pad),
        "terminals": np.concatenate([np.arange(len(e.action) + 1) == len(e.action) for e in episodes]).astype(
            np.float32
        ),
        "qpos": np.concatenate([e.observation[key] for e in episodes]).astype(np.float64),
    }
    if rewards:
        columns["rewards"] = np.concatenate([np.append(e.reward, np.float32(7)) for e in episodes])
    if masks:
        ends = [
            [float(not (e.terminated and t >= len(e.action) - 1)) for t in range(len(e.action) + 1)] for e in episodes
        ]
        columns["masks"] = np.concatenate(ends)
    np.savez_compressed(path, **columns)
    return path


def flat_arrays(episodes: list[Episode], *, following: bool = True) -> dict[str, Any]:
    """Return episodes as flat arrays, with the names that d3rlpy and D4RL users know. Observations are a dictionary."""
    steps = [len(episode.action) for episode in episodes]
    last = np.cumsum(steps) - 1
    names = list(episodes[0].observation)
    ends = {"terminals": [e.terminated for e in episodes], "timeouts": [e.truncated for e in episodes]}
    arrays: dict[str, Any] = {
        "observations": {n: np.concatenate([e.observation[n][: len(e.action)] for e in episodes]) for n in names},
        "actions": np.concatenate([e.action for e in episodes]),
        "rewards": np.concatenate([e.reward for e in episodes]),
    }
    for name, values in ends.items():
        arrays[name] = np.zeros(sum(steps), bool)
        arrays[name][last] = values
    if following:
        arrays["next_observations"] = {n: np.concatenate([e.observation[n][1:] for e in episodes]) for n in names}
    return arrays


def save_arrays(path: Path, arrays: dict[str, Any], **more: Any) -> Path:
    """Save flat arrays as an .npz file. A dictionary becomes one array per key."""
    table = dict(more)
    for name, value in arrays.items():
        if isinstance(value, dict):
            table |= {f"{name}/{key.removeprefix('observation.')}": part for key, part in value.items()}
        else:
            table[name] = value
    np.savez_compressed(path, **table)
    return path


def write_arrays(path: Path, episodes: list[Episode], *, following: bool = True, **more: Any) -> Path:
    return save_arrays(path, flat_arrays(episodes, following=following), **more)


# --- RLDS: TFRecord and protobuf by hand


def crc32c(content: bytes) -> int:
    """Compute CRC-32C bit by bit from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    return head + masked(head) + payload + masked(payload)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while True:
        out += bytes([value & 127 | (128 if value > 127 else 0)])
        value >>= 7
        if not value:
            return out


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Any) -> bytes:
    if isinstance(values, list):
        return message(1, b"".join(message(1, value) for value in values))
    if values.dtype.kind == "f":
        return message(2, message(1, values.astype("<f4").tobytes()))
    return message(3, message(1, b"".join(varint(int(value)) for value in values)))


def example(features: dict[str, Any]) -> bytes:
    entries = [message(1, message(1, name.encode()) + message(2, feature(x))) for name, x in features.items()]
    return message(1, b"".join(entries))


def png(frame: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG")
    return buffer.getvalue()


def write_rlds(
    folder: Path, episodes: list[Episode], *, last_step: str, shards: int = 1, terminal: bool = True
) -> Path:
    """Write RLDS. `last_step` is "observation" by RLDS's convention, "transition" by Open X-Embodiment's."""
    place = folder / "synthetic" / "1.0.0"
    place.mkdir(parents=True)
    files = [place / f"synthetic-train.tfrecord-{i:05d}-of-{shards:05d}" for i in range(shards)]
    contents = [b""] * shards
    for index, episode in enumerate(episodes):
        steps = len(episode.action) + (last_step == "observation")
        action, reward = np.zeros((steps, episode.action.shape[1]), np.float32), np.zeros(steps, np.float32)
        action[: len(episode.action)], reward[: len(episode.action)] = episode.action, episode.reward
        flag = np.arange(steps)
        features = {
            "steps/action": action.reshape(-1),
            "steps/reward": reward,
            "steps/discount": np.ones(steps, np.float32),
            "steps/is_first": (flag == 0).astype(np.int64),
            "steps/is_last": (flag == steps - 1).astype(np.int64),
            "steps/language_instruction": [episode.instruction.encode()] * steps,
            "episode_metadata/file_path": [b"somewhere"],
        }
        if terminal:
            features["steps/is_terminal"] = ((flag == steps - 1) & episode.terminated).astype(np.int64)
        for name, values in episode.observation.items():
            if name == STATE:
                features["steps/observation/state"] = values[:steps].reshape(-1)
            else:
                features[f"steps/observation/{name.removeprefix(IMAGES)}"] = [png(frame) for frame in values[:steps]]
        contents[index * shards // len(episodes)] += record(example(features))
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    tensor = {"tensor": {"shape": {"dimensions": [str(episodes[0].action.shape[1])]}, "dtype": "float32"}}
    inner = {"featuresDict": {"features": {"action": tensor}}}
    steps_feature = {"sequence": {"feature": inner, "length": "-1"}}
    (place / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": steps_feature}}}))
    (place / "dataset_info.json").write_text(json.dumps({"name": "synthetic", "fileFormat": "tfrecord"}))
    return folder / "synthetic"


# --- TD-MPC2: torch.save of a TensorDict, whose two pickled forms are imitated: that of 0.2, which the published chunks
# were saved with, and that of 0.15


def _make_td(kind: type, state: dict[str, Any]) -> Any:
    raise AssertionError("only its name is pickled")


class _StringOnlyDict(dict):  # type: ignore[type-arg]
    pass


class TensorDict:
    reduced = False

    def __init__(self, fields: dict[str, torch.Tensor]) -> None:
        self._tensordict = fields if self.reduced else _StringOnlyDict(fields)
        self._batch_size = torch.Size(next(iter(fields.values())).shape[:2])
        self._device = torch.device("cpu")
        self._td_dim_names = None
        if not self.reduced:
            self._is_locked = False
            self._lock_id: set[int] = set()
            self._locked_tensordicts: list[Any] = []

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.reduced:
            return _make_td, (TensorDict, self.__dict__)
        return super().__reduce_ex__(protocol)


def save_tensordict(path: Path, fields: dict[str, torch.Tensor], reduced: bool = False) -> Path:
    home = "tensordict._td" if reduced else "tensordict.tensordict"
    places = {TensorDict: home, _StringOnlyDict: "tensordict.utils", _make_td: "tensordict._reductions"}
    modules = {name: types.ModuleType(name) for name in ("tensordict", *places.values())}
    for thing, module in places.items():
        thing.__module__ = module
        setattr(modules[module], thing.__name__, thing)
    TensorDict.reduced = reduced
    sys.modules.update(modules)
    try:
        torch.save(TensorDict(fields), path)
    finally:
        for name in modules:
            del sys.modules[name]
    return path


def write_tdmpc2(path: Path, episodes: list[Episode], task: list[int], *, reduced: bool = False, pad: int = 2) -> Path:
    nan = np.float32(np.nan)
    state = np.stack([np.pad(e.observation[STATE], ((0, 0), (0, pad))) for e in episodes])
    action = np.stack([np.pad(e.action, ((1, 0), (0, pad))) for e in episodes])
    action[:, 0] = nan
    reward = np.stack([np.append(nan, e.reward) for e in episodes])
    tasks = np.repeat(np.array(task, np.int64)[:, None], reward.shape[1], axis=1)
    arrays = {"obs": state, "action": action, "reward": reward, "task": tasks}
    return save_tensordict(path, {name: torch.from_numpy(array) for name, array in arrays.items()}, reduced)


# --- LeRobot, by its published layout


def lerobot_features(episode: Episode, images: str, flags: tuple[str, ...]) -> dict[str, Any]:
    table = {}
    for name, values in episode.observation.items():
        dtype = images if name.startswith(IMAGES) else "float32"
        table[name] = {"dtype": dtype, "shape": list(values.shape[1:]), "names": None}
    table["action"] = {"dtype": "float32", "shape": [episode.action.shape[1]], "names": None}
    table["next.reward"] = {"dtype": "float32", "shape": [1], "names": None}
    table |= {flag: {"dtype": "bool", "shape": [1], "names": None} for flag in flags}
    table["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    return table | {
        name: {"dtype": "int64", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index")
    }


def lerobot_table(episode: Episode, index: int, task: int, images: str, flags: tuple[str, ...], fps: int) -> pa.Table:
    steps = len(episode.action)
    last = np.arange(steps) == steps - 1
    values = {
        "next.done": last,
        "next.terminated": last & episode.terminated,
        "next.truncated": last & episode.truncated,
        "next.success": last & bool(episode.success),
    }
    columns: dict[str, Any] = {}
    for name, array in episode.observation.items():
        if not name.startswith(IMAGES):
            columns[name] = pa.array(array[:steps].tolist(), pa.list_(pa.float32()))
        elif images == "image":
            columns[name] = pa.array([{"bytes": png(frame), "path": None} for frame in array[:steps]])
    columns["action"] = pa.array(episode.action.tolist(), pa.list_(pa.float32(), episode.action.shape[1]))
    columns["next.reward"] = pa.array(episode.reward)
    columns |= {flag: pa.array(values[flag]) for flag in flags}
    columns["timestamp"] = pa.array((np.arange(steps) / fps).astype(np.float32))
    columns["frame_index"] = pa.array(np.arange(steps))
    for name, value in (("episode_index", index), ("index", 0), ("task_index", task)):
        columns[name] = pa.array(np.full(steps, value))
    return pa.table(columns)


def write_lerobot(
    folder: Path,
    episodes: list[Episode],
    *,
    version: str,
    images: str = "image",
    flags: tuple[str, ...] = ("next.done", "next.terminated", "next.truncated"),
    fps: int = 10,
    files: int = 2,
) -> Path:
    (folder / "meta").mkdir(parents=True)
    tasks = list(dict.fromkeys(episode.instruction for episode in episodes))
    info = {
        "codebase_version": version,
        "robot_type": "synthetic",
        "fps": fps,
        "total_episodes": len(episodes),
        "chunks_size": 1000,
        "splits": {"train": f"0:{len(episodes)}", "first": "0:1"},
        "features": lerobot_features(episodes[0], images, flags),
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    tables = [
        lerobot_table(episode, i, tasks.index(episode.instruction), images, flags, fps)
        for i, episode in enumerate(episodes)
    ]
    rows = [
        {"episode_index": i, "tasks": [episode.instruction], "length": len(episode.action)}
        for i, episode in enumerate(episodes)
    ]
    if version == "v2.1":
        (folder / "data" / "chunk-000").mkdir(parents=True)
        for i, table in enumerate(tables):
            pq.write_table(table, folder / "data" / "chunk-000" / f"episode_{i:06d}.parquet")
        (folder / "meta" / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = [json.dumps({"task_index": i, "task": task}) + "\n" for i, task in enumerate(tasks)]
        (folder / "meta" / "tasks.jsonl").write_text("".join(lines))
    else:
        (folder / "data" / "chunk-000").mkdir(parents=True)
        for part, indices in enumerate(np.array_split(np.arange(len(tables)), min(files, len(tables)))):
            with pq.ParquetWriter(
                folder / "data" / "chunk-000" / f"file-{part:03d}.parquet", tables[0].schema
            ) as writer:
                for i in indices:
                    writer.write_table(tables[i])
                    rows[i] |= {"data/chunk_index": 0, "data/file_index": part}
        (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
        if images == "video":
            start = 0.0
            for row in rows:
                for name in (key for key in episodes[0].observation if key.startswith(IMAGES)):
                    stop = start + row["length"] / fps
                    row |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": 0}
                    row |= {f"videos/{name}/from_timestamp": start, f"videos/{name}/to_timestamp": stop}
                start = stop
        pq.write_table(pa.Table.from_pylist(rows), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
        table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "__index_level_0__": tasks})
        pq.write_table(table, folder / "meta" / "tasks.parquet")
    return folder


def write_videos(path: Path, episodes: list[Episode], version: str, fps: int = 10) -> None:
    """Write the cameras of a LeRobot dataset as videos: one file per episode (v2.1), or one for all (v3.0)."""
    import av

    for key in (name for name in episodes[0].observation if name.startswith(IMAGES)):
        frames = [episode.observation[key][: len(episode.action)] for episode in episodes]
        if version == "v2.1":
            videos = {path / "videos/chunk-000" / key / f"episode_{i:06d}.mp4": part for i, part in enumerate(frames)}
        else:
            videos = {path / "videos" / key / "chunk-000/file-000.mp4": np.concatenate(frames)}
        for file, images in videos.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with av.open(str(file), "w") as container:
                stream = container.add_stream("mpeg4", rate=fps)
                stream.height, stream.width = images.shape[1:3]
                stream.pix_fmt, stream.bit_rate = "yuv420p", 4_000_000
                for image in images:
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
                container.mux(stream.encode())
