"""Writing LeRobot v3.0: frames and pictures in parquet, key for key what LeRobot's own loader expects.

Time alignment is LeRobot's (see `lerobot`): the observation after the last action has no frame, and is left out.
Pictures are PNG, without loss. Statistics of an episode are exact, but for pictures: at most 100 frames of each.
"""

import io
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.spec import IMAGES
from pac.files import problem
from pac.formats.checks import need
from pac.types import Episode

FILES_PER_CHUNK, FILE_MEGABYTES = 1000, 100  # LeRobot's chunks_size and data_files_size_in_mb
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
MAX_STATISTICS_FRAMES = 100
_COUNTERS = {"frame_index": "int64", "episode_index": "int64", "index": "int64", "task_index": "int64"}


def write(
    folder: Path,
    episodes: Iterable[Episode],
    *,
    fps: float | None,
    action_low: np.ndarray,
    action_high: np.ndarray,
    state_names: tuple[str, ...] = (),
    action_names: tuple[str, ...] = (),
    robot: str = "",
    success_known: bool = False,
) -> list[str]:
    """Write episodes as a LeRobot v3.0 dataset; returns notes on what the format cannot hold."""
    if fps is None or round(fps) < 1:
        raise problem("LeRobot export", expected="a control rate of at least 1 Hz", found=fps, fix="Give --fps.")
    rate = round(fps)
    features: dict[str, Any] = {}
    totals: dict[str, Any] = {}
    tasks: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    frames = lost = goals = 0
    with closing(_DataFiles(folder)) as files:
        for index, episode in enumerate(episodes):
            features = features or _features(episode, success_known, state_names, action_names)
            task = tasks.setdefault(episode.instruction, len(tasks))
            columns = _columns(episode, index, frames, task, rate, features)
            chunk, file = files.write(columns, features)
            statistics = {name: _statistics(columns[name], feature) for name, feature in features.items()}
            rows.append(_episode_row(index, episode, frames, chunk, file, statistics))
            totals = _merge(totals, statistics)
            frames += len(episode.action)
            lost += len(next(iter(episode.observation.values()))) > len(episode.action)
            goals += bool(episode.goal_images)
    if not rows:
        raise problem(folder, expected="at least one episode", found="none", fix="Choose another dataset.")
    info = {
        "codebase_version": "v3.0",
        "robot_type": robot or None,
        "total_episodes": len(rows),
        "total_frames": frames,
        "total_tasks": len(tasks),
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": FILE_MEGABYTES,
        "video_files_size_in_mb": 200,
        "fps": rate,
        "splits": {"train": f"0:{len(rows)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }
    ours = {"action_low": action_low.tolist(), "action_high": action_high.tolist(), "control_rate": fps}
    arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")
    meta = folder / "meta"
    (meta / "episodes" / "chunk-000").mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist(rows), meta / "episodes" / "chunk-000" / "file-000.parquet")
    parquet.write_table(_task_table(tasks), meta / "tasks.parquet")
    for name, content in (("info", info), ("stats", totals), ("pac", ours)):
        (meta / f"{name}.json").write_text(json.dumps(content, indent=4), encoding="utf-8")
    notes = [f"LeRobot has no frame after the last action: left out in {lost} episodes."] if lost else []
    notes += [f"LeRobot has no place for goal images: left out in {goals} episodes."] if goals else []
    notes += [] if success_known else ["Success is not known of every episode: next.success is left out."]
    return notes + ([f"LeRobot's fps is a whole number: {fps} became {rate}."] if rate != fps else [])


class _DataFiles:
    """The parquet files of frames: a new one when the last has grown large, one row group an episode."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._writer: Any = None

    def write(self, columns: Mapping[str, np.ndarray], features: Mapping[str, Any]) -> tuple[int, int]:
        """Add an episode; returns the chunk and the file it went to."""
        arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")
        schema = arrow.schema([(name, _arrow_type(feature)) for name, feature in features.items()])
        if self._writer is not None and self._path().stat().st_size > FILE_MEGABYTES << 20:
            self.close()
            self._number += 1
        if self._writer is None:
            self._path().parent.mkdir(parents=True, exist_ok=True)
            self._writer = parquet.ParquetWriter(self._path(), schema, compression="snappy")
        arrays = [_arrow_array(columns[name], feature) for name, feature in features.items()]
        self._writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
        return divmod(self._number, FILES_PER_CHUNK)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _path(self) -> Path:
        chunk, file = divmod(self._number, FILES_PER_CHUNK)
        return self._folder / "data" / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"


def _features(
    episode: Episode, success_known: bool, state_names: tuple[str, ...], action_names: tuple[str, ...]
) -> dict[str, Any]:
    """The table of features of info.json, in the order of the columns."""

    def entry(dtype: str, shape: tuple[int, ...] = (1,), names: Any = None) -> dict[str, Any]:
        return {"dtype": dtype, "shape": list(shape), "names": names}

    features = {}
    for name, values in episode.observation.items():
        if name.startswith(IMAGES):
            features[name] = entry("image", values.shape[1:], ["height", "width", "channels"])
        else:
            features[name] = entry("float32", values.shape[1:], list(state_names) or None)
    features["action"] = entry("float32", episode.action.shape[1:], list(action_names) or None)
    features["next.reward"] = entry("float32")
    features |= {f"next.reward.{name}": entry("float32") for name in episode.extra_rewards}
    flags = ["next.done", "next.terminated", "next.truncated"] + ["next.success"] * success_known
    features |= {name: entry("bool") for name in flags}
    features["timestamp"] = entry("float32")
    return features | {name: entry(dtype) for name, dtype in _COUNTERS.items()}


def _columns(
    episode: Episode, index: int, first_frame: int, task: int, rate: int, features: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """One array of rows for every feature."""
    length = len(episode.action)
    step = np.arange(length)
    last = step == length - 1
    columns = {name: values[:length] for name, values in episode.observation.items()}
    columns |= {"action": episode.action, "next.reward": episode.reward}
    columns |= {f"next.reward.{name}": values for name, values in episode.extra_rewards.items()}
    columns |= {
        "next.done": last & (episode.terminated or episode.truncated),
        "next.terminated": last & episode.terminated,
        "next.truncated": last & episode.truncated,
        "next.success": last & bool(episode.success),
        "timestamp": (step / rate).astype(np.float32),
        "frame_index": step,
        "episode_index": np.full(length, index),
        "index": first_frame + step,
        "task_index": np.full(length, task),
    }
    return {name: columns[name] for name in features}


def _arrow_type(feature: Mapping[str, Any]) -> Any:
    arrow = need("pyarrow", "formats")
    if feature["dtype"] == "image":
        return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    value = {"float32": arrow.float32(), "int64": arrow.int64(), "bool": arrow.bool_()}[feature["dtype"]]
    return value if feature["shape"] == [1] else arrow.list_(value, feature["shape"][0])


def _arrow_array(values: np.ndarray, feature: Mapping[str, Any]) -> Any:
    arrow = need("pyarrow", "formats")
    kind = _arrow_type(feature)
    if feature["dtype"] == "image":
        rows = [{"bytes": _png(frame), "path": f"frame-{i:06d}.png"} for i, frame in enumerate(values)]
        return arrow.array(rows, kind)
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1), kind if feature["shape"] == [1] else kind.value_type)
    return flat if feature["shape"] == [1] else arrow.FixedSizeListArray.from_arrays(flat, type=kind)


def _png(frame: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    need("PIL.Image", "formats").fromarray(frame).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _statistics(values: np.ndarray, feature: Mapping[str, Any]) -> dict[str, Any]:
    """min, max, mean, std, count and quantiles; of pictures by channel, in [0, 1], shaped (channels, 1, 1)."""
    picture = feature["dtype"] == "image"
    if picture:
        chosen = np.linspace(0, len(values) - 1, min(len(values), MAX_STATISTICS_FRAMES)).round().astype(int)
        values = values[chosen]
    rows = values.reshape(-1, 3) / 255 if picture else values.reshape(len(values), -1).astype(np.float64)
    extremes = rows if picture else values.reshape(len(values), -1)  # integers and flags keep their type
    table = {"min": extremes.min(0), "max": extremes.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    table |= dict(zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True))
    shape = (3, 1, 1) if picture else (-1,)
    return {"count": [len(values)]} | {name: array.reshape(shape).tolist() for name, array in table.items()}


def _merge(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of two sets together. Quantiles cannot be merged: LeRobot averages them by count, and so do we."""
    if not before:
        return dict(new)
    merged = {}
    for feature, right in new.items():
        left = before[feature]
        a, b = left["count"][0], right["count"][0]
        x = {name: np.asarray(value) for name, value in left.items()}
        y = {name: np.asarray(value) for name, value in right.items()}
        table = {name: (a * x[name] + b * y[name]) / (a + b) for name in ("mean", *QUANTILES)}
        spread = (a * (x["std"] ** 2 + x["mean"] ** 2) + b * (y["std"] ** 2 + y["mean"] ** 2)) / (a + b)
        table["std"] = np.sqrt(np.maximum(spread - table["mean"] ** 2, 0))
        table |= {"min": np.minimum(x["min"], y["min"]), "max": np.maximum(x["max"], y["max"])}
        merged[feature] = {"count": [a + b]} | {name: value.tolist() for name, value in table.items()}
    return merged


def _episode_row(
    index: int, episode: Episode, first: int, chunk: int, file: int, statistics: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    row = {
        "episode_index": index,
        "tasks": [episode.instruction],
        "length": len(episode.action),
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": first,
        "dataset_to_index": first + len(episode.action),
    }
    row |= {f"stats/{feature}/{name}": x for feature, table in statistics.items() for name, x in table.items()}
    return row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}


def _task_table(tasks: Mapping[str, int]) -> Any:
    """A table that pandas reads as a frame indexed by the task's text, as LeRobot writes it."""
    arrow = need("pyarrow", "formats")

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": pandas_type,
            "numpy_type": numpy_type,
            "metadata": None,
        }

    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "pandas_version": "2.0.0",
    }
    table = arrow.table({"task_index": arrow.array(tasks.values(), arrow.int64()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
