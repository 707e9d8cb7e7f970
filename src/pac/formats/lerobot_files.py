"""Files of a LeRobot dataset: what meta/ says of its episodes, where their parts are, and which parts are missing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pac.formats.checks import check, read_parquet, reading, require
from pac.formats.choice import leave_out_missing
from pac.formats.options import ImportOptions

DATA = "data"  # the part of an episode that is not a video


@dataclass(frozen=True)
class Layout:
    """Facts of meta/ that reading an episode needs."""

    path: Path
    is_v2: bool
    features: Mapping[str, Any]
    fps: float  # 0: unknown
    chunk_size: int

    def data_file(self, index: int, row: Mapping[str, Any]) -> Path | None:
        """Return the parquet file of an episode, or None if the metadata does not name it."""
        if self.is_v2:
            return self.path / "data" / f"chunk-{index // self.chunk_size:03d}" / f"episode_{index:06d}.parquet"
        chunk, number = row.get("data/chunk_index"), row.get("data/file_index")
        if type(chunk) is not int or type(number) is not int:
            return None
        return self.path / "data" / f"chunk-{chunk:03d}" / f"file-{number:03d}.parquet"

    def video(self, key: str, index: int, row: Mapping[str, Any]) -> tuple[Path, float]:
        """Return the video file of an episode, and the time at which the episode starts in it."""
        folder = self.path / "videos"
        if self.is_v2:
            return folder / f"chunk-{index // self.chunk_size:03d}" / key / f"episode_{index:06d}.mp4", 0.0
        names = ("chunk_index", "file_index", "from_timestamp")
        chunk, number, start = (require(row, f"videos/{key}/{name}", self.path / "meta/episodes") for name in names)
        return folder / key / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4", start


def episode_rows(layout: Layout, options: ImportOptions, info: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the metadata of each episode of the split: its length and the places of its videos."""
    meta = layout.path / "meta"
    rows = {}
    for row in _meta_rows(layout, "episodes"):
        index, length = require(row, "episode_index", meta), require(row, "length", meta)
        good = type(index) is int and type(length) is int and length >= 1
        check(good, f"{meta}, episode {index}", "a length of at least 1", length)
        rows[index] = row
    if options.split is not None:
        span = str(require(info.get("splits", {}), options.split, f"{meta / 'info.json'}, splits"))
        start, _, stop = span.partition(":")
        rows = {index: row for index, row in rows.items() if int(start or 0) <= index < int(stop or 2**62)}
    check(rows, meta, "at least one episode", "none", "Check the download.")
    return rows


def read_tasks(layout: Layout) -> dict[int, str]:
    """Return the instructions by their index."""
    where, tasks = layout.path / "meta" / "tasks", {}
    for row in _meta_rows(layout, "tasks"):
        text = "__index_level_0__" if "__index_level_0__" in row else "task"
        tasks[int(require(row, "task_index", where))] = str(require(row, text, where))
    return tasks


def _meta_rows(layout: Layout, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table in meta/, kept as JSON lines (v2) or in Parquet files (v3)."""
    meta = layout.path / "meta"
    if layout.is_v2:
        path = meta / f"{name}.jsonl"
        with reading(path, "JSON lines"):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return rows
    rows = []
    for file in sorted((meta / name).glob("*/*.parquet")) or [meta / f"{name}.parquet"]:
        table = read_parquet(file)
        with reading(file, "parquet"):
            names = [name for name in table.column_names if not name.startswith("stats/")]
            rows += table.select(names).to_pylist()
    return rows


def without_missing(
    layout: Layout,
    rows: Mapping[int, dict[str, Any]],
    cameras: Mapping[str, str],
    options: ImportOptions,
    notes: list[str],
) -> tuple[dict[int, dict[str, Any]], set[str]]:
    """Return the episodes to read, and the videos to leave out, where files are missing.

    `cameras` maps the keys of videos to the names of the cameras.
    """
    missing: dict[str, dict[int, object]] = {part: {} for part in (DATA, *cameras)}
    there: dict[Path, bool] = {}  # v3 keeps many episodes in one file
    for index, row in rows.items():
        files = {DATA: layout.data_file(index, row)} | {key: layout.video(key, index, row)[0] for key in cameras}
        for part, file in files.items():
            if file is not None and not there.setdefault(file, file.is_file()):
                missing[part][index] = file
    chosen, left_out = leave_out_missing(layout.path, rows, missing, cameras, options.missing, notes)
    return {index: rows[index] for index in chosen}, left_out
