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

from pac.data.spec import IMAGES, STATE, DatasetSpec
from pac.data.store import Dataset
from pac.formats.checks import check, need
from pac.types import Episode

FILES_PER_CHUNK, FILE_MEGABYTES = 1000, 100  # LeRobot's chunks_size and data_files_size_in_mb
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
MAX_STATISTICS_FRAMES = 100


def write_dataset(folder: Path, data: Dataset, episodes: Iterable[Episode], fps: float | None) -> list[str]:
    """Write the episodes of a dataset as LeRobot v3.0. Return notes on losses."""
    rate = round(fps or 0)
    check(rate >= 1, "LeRobot export", "a control rate of at least 1 Hz", fps, "Give --fps.")
    arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")
    success_known = bool(np.all(data.index["success"] >= 0))
    features: dict[str, Any] = {}
    totals: dict[str, Any] = {}
    tasks: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    frames = 0
    with closing(_DataFiles(folder)) as files:
        for index, episode in enumerate(episodes):
            task = tasks.setdefault(episode.instruction, len(tasks))
            columns = _columns(episode, index, frames, task, rate, success_known)
            features = features or _features(columns, data.spec)
            place = files.write(columns)
            statistics = {name: _statistics(values) for name, values in columns.items()}
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

    def __init__(self, folder: Path) -> None:
        self._folder, self._path, self._number = folder, folder, -1
        self._writer: Any = None

    def write(self, columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
        """Add an episode. Return the numbers of its chunk and its file."""
        arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")
        table = arrow.table({name: _arrow_array(values) for name, values in columns.items()})
        if self._writer is None or self._path.stat().st_size > FILE_MEGABYTES << 20:
            self.close()
            self._number += 1
            chunk, file = divmod(self._number, FILES_PER_CHUNK)
            self._path = self._folder / "data" / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = parquet.ParquetWriter(self._path, table.schema, compression="snappy")
        self._writer.write_table(table)
        return divmod(self._number, FILES_PER_CHUNK)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _columns(
    episode: Episode, index: int, first_frame: int, task: int, rate: int, success_known: bool
) -> dict[str, np.ndarray]:
    """Return one array of rows per feature, in LeRobot's order."""
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
    }
    if success_known:
        columns["next.success"] = last & bool(episode.success)
    return columns | {
        "timestamp": (step / rate).astype(np.float32),
        "frame_index": step,
        "episode_index": np.full(length, index),
        "index": first_frame + step,
        "task_index": np.full(length, task),
    }


def _features(columns: Mapping[str, np.ndarray], spec: DatasetSpec) -> dict[str, Any]:
    """Return the table of features of info.json."""
    names = {STATE: list(spec.state_names), "action": list(spec.action_names)}
    features = {}
    for name, values in columns.items():
        features[name] = {
            "dtype": "image" if name.startswith(IMAGES) else values.dtype.name,
            "shape": list(values.shape[1:]) or [1],
            "names": ["height", "width", "channels"] if name.startswith(IMAGES) else names.get(name) or None,
        }
    return features


def _arrow_array(values: np.ndarray) -> Any:
    """Return the rows of a feature as Arrow stores them. Arrays of bytes are images."""
    arrow = need("pyarrow", "formats")
    if values.dtype == np.uint8:
        rows = [{"bytes": _png(frame), "path": f"frame-{i:06d}.png"} for i, frame in enumerate(values)]
        return arrow.array(rows, arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())]))
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    if len(flat) == len(values):
        return flat
    return arrow.FixedSizeListArray.from_arrays(flat, type=arrow.list_(flat.type, values.shape[1]))


def _png(frame: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    need("PIL.Image", "formats").fromarray(frame).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _statistics(values: np.ndarray) -> dict[str, Any]:
    """Return min, max, mean, std, count and quantiles. Those of images are per channel, in [0, 1], shaped (3, 1, 1)."""
    is_image = values.dtype == np.uint8
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
