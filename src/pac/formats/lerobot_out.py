"""Writing LeRobot v3.0: frames and images in parquet, key for key as LeRobot's own loader expects.

Time alignment is LeRobot's (see `lerobot`): the observation after the last action has no frame, and is left out.
Images are PNG, without loss. Statistics of an episode are exact, except those of images: at most 100 frames each.
"""

import io
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.spec import IMAGES
from pac.data.store import Dataset
from pac.formats.checks import check, need
from pac.types import Episode

FILES_PER_CHUNK, FILE_MEGABYTES = 1000, 100  # LeRobot's chunks_size and data_files_size_in_mb
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
MAX_STATISTICS_FRAMES = 100
_COUNTERS = {"frame_index": "int64", "episode_index": "int64", "index": "int64", "task_index": "int64"}


def write_dataset(folder: Path, data: Dataset, episodes: Iterable[Episode], fps: float | None) -> list[str]:
    """Write the episodes of a dataset as LeRobot v3.0. Return notes on losses."""
    rate = round(fps or 0)
    check(rate >= 1, "LeRobot export", "a control rate of at least 1 Hz", fps, "Give --fps.")
    arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")
    success_known = bool(np.all(data.index["success"] >= 0))
    features = _features(data, success_known)
    totals: dict[str, Any] = {}
    tasks: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    frames = 0
    with closing(_DataFiles(folder, features)) as files:
        for index, episode in enumerate(episodes):
            task = tasks.setdefault(episode.instruction, len(tasks))
            columns = _columns(episode, index, frames, task, rate, features)
            place = files.write(columns)
            statistics = {name: _statistics(columns[name], feature) for name, feature in features.items()}
            rows.append(_episode_row(index, episode, frames, place, statistics))
            totals = _merge(totals, statistics)
            frames += len(episode.action)
    info = {
        "codebase_version": "v3.0",
        "robot_type": data.spec.robot or None,
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
    bounds = {"action_low": data.action_low.tolist(), "action_high": data.action_high.tolist()}
    meta = folder / "meta"
    (meta / "episodes" / "chunk-000").mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist(rows), meta / "episodes" / "chunk-000" / "file-000.parquet")
    parquet.write_table(_task_table(tasks), meta / "tasks.parquet")
    for name, content in (("info", info), ("stats", totals), ("pac", bounds | {"control_rate": fps})):
        (meta / f"{name}.json").write_text(json.dumps(content, indent=4), encoding="utf-8")
    notes = []
    if lost := int(data.index["last_known"].sum()):
        notes.append(f"LeRobot has no frame after the last action: left out in {lost} episodes.")
    if not success_known:
        notes.append("Success is not known of every episode: next.success is left out.")
    if rate != fps:
        notes.append(f"LeRobot's fps is a whole number: {fps} became {rate}.")
    return notes


class _DataFiles:
    """Parquet files of frames, one row group per episode. A large file is followed by a new one."""

    def __init__(self, folder: Path, features: Mapping[str, Any]) -> None:
        self._folder, self._features, self._number = folder, features, -1
        types = [(name, _arrow_type(feature)) for name, feature in features.items()]
        self._schema = need("pyarrow", "formats").schema(types)
        self._writer: Any = None

    def write(self, columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
        """Add an episode. Return the numbers of its chunk and its file."""
        if self._writer is None or self._path.stat().st_size > FILE_MEGABYTES << 20:
            self._open_next()
        arrays = [_arrow_array(columns[name], feature) for name, feature in self._features.items()]
        self._writer.write_table(need("pyarrow", "formats").Table.from_arrays(arrays, schema=self._schema))
        return divmod(self._number, FILES_PER_CHUNK)

    def _open_next(self) -> None:
        self.close()
        self._number += 1
        chunk, file = divmod(self._number, FILES_PER_CHUNK)
        self._path = self._folder / "data" / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        parquet = need("pyarrow.parquet", "formats")
        self._writer = parquet.ParquetWriter(self._path, self._schema, compression="snappy")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _features(data: Dataset, success_known: bool) -> dict[str, Any]:
    """Return the table of features of info.json, in the order of the columns."""

    def entry(dtype: str, shape: tuple[int, ...] = (1,), names: Any = None) -> dict[str, Any]:
        return {"dtype": dtype, "shape": list(shape), "names": names}

    spec, features = data.spec, {}
    for name, (_, shape) in spec.step_features.items():
        if name.startswith(IMAGES):
            features[name] = entry("image", shape, ["height", "width", "channels"])
        elif name.startswith("observation."):
            features[name] = entry("float32", shape, list(spec.state_names) or None)
    features["action"] = entry("float32", (spec.action_dim,), list(spec.action_names) or None)
    features["next.reward"] = entry("float32")
    features |= {f"next.reward.{name}": entry("float32") for name in spec.extra_rewards}
    flags = ["next.done", "next.terminated", "next.truncated"] + ["next.success"] * success_known
    features |= {name: entry("bool") for name in flags}
    features["timestamp"] = entry("float32")
    return features | {name: entry(dtype) for name, dtype in _COUNTERS.items()}


def _columns(
    episode: Episode, index: int, first_frame: int, task: int, rate: int, features: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return one array of rows per feature."""
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
    """Return min, max, mean, std, count and quantiles. Those of images are per channel, in [0, 1], shaped (3, 1, 1)."""
    is_image = feature["dtype"] == "image"
    if is_image:
        chosen = np.linspace(0, len(values) - 1, min(len(values), MAX_STATISTICS_FRAMES)).round().astype(int)
        values = values[chosen]
    rows = values.reshape(-1, 3) / 255 if is_image else values.reshape(len(values), -1).astype(np.float64)
    extremes = rows if is_image else values.reshape(len(values), -1)  # integers and flags keep their type
    table = {"min": extremes.min(0), "max": extremes.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    table |= dict(zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True))
    shape = (3, 1, 1) if is_image else (-1,)
    return {"count": [len(values)]} | {name: array.reshape(shape).tolist() for name, array in table.items()}


def _merge(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of two sets together. Quantiles are averaged by count, as LeRobot does."""
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
    index: int, episode: Episode, first: int, place: tuple[int, int], statistics: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the row of meta/episodes."""
    row = {
        "episode_index": index,
        "tasks": [episode.instruction],
        "length": len(episode.action),
        "data/chunk_index": place[0],
        "data/file_index": place[1],
        "dataset_from_index": first,
        "dataset_to_index": first + len(episode.action),
    }
    row |= {f"stats/{feature}/{name}": x for feature, table in statistics.items() for name, x in table.items()}
    return row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}


def _task_table(tasks: Mapping[str, int]) -> Any:
    """Return a table that pandas reads as a frame indexed by the task's text, as LeRobot writes it."""
    arrow = need("pyarrow", "formats")

    def column(name: str, kind: str, numpy_kind: str) -> dict[str, Any]:
        return {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}

    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "pandas_version": "2.0.0",
    }
    table = arrow.table({"task_index": arrow.array(tasks.values(), arrow.int64()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
