"""LeRobot v2.x and v3.0 in, v3.0 out, without the `lerobot` package.

Time alignment: a frame holds an observation, the action taken in it, and in `next.*` what that action gave. There is no
frame after the last action: T frames are T observations and T actions.

Ends: `next.terminated` and `next.truncated` are both believed where a dataset has them (ours do). `next.done` with
`next.truncated` is terminal where the latter is not set. `next.done` alone is also set at time limits: it is terminal
only together with `next.success`. Without any of these every end counts as a time limit. The summary says so.

Pictures stand in the parquet files (dtype "image") or in videos (dtype "video", read with PyAV). `meta/pac.json` is
ours: the bounds of the action and the exact control rate, for which LeRobot has no place.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats.common import (
    STATE,
    ForeignDataset,
    ImportOptions,
    as_vector,
    build_episode,
    check_length,
    choose_keys,
    key_of,
    load_json,
    need,
    reading,
    require,
)
from pac.types import Episode

NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")


def detect(path: Path) -> bool:
    return (path / "meta" / "info.json").is_file()


def read(path: Path, options: ImportOptions) -> ForeignDataset:
    if not detect(path):
        raise problem(path, expected="meta/info.json", found="no such file", fix="Give the dataset's folder.")
    info_path = path / "meta" / "info.json"
    info = load_json(info_path)
    version = str(require(info, "codebase_version", info_path))
    if not version.startswith(("v2.", "v3.")):
        raise problem(
            f"{info_path}, key 'codebase_version'",
            expected="v2.0, v2.1 or v3.0",
            found=version,
            fix="Convert it first.",
        )
    features = require(info, "features", info_path)
    observed = [name for name in features if name.startswith("observation")]
    observed.sort(key=lambda name: name != STATE)  # the state first, then what else there is, in the file's order
    pictures = [name for name in observed if features[name].get("dtype") in ("image", "video")]
    numbers = [name for name in observed if features[name].get("dtype") in NUMBERS]
    keys = choose_keys(numbers, pictures, options, f"{info_path}, features")
    action, reward = key_of("action", "action", options), key_of("reward", "next.reward", options)
    require(features, action, f"{info_path}, features")
    episodes_table = _episodes(path, version, options, info)
    tasks = _tasks(path, version)
    notes = _notes(features, reward)
    extras = [name for name in features if name.startswith(f"{reward}.")]
    flags = [name for name in ("next.done", "next.terminated", "next.truncated", "next.success") if name in features]
    used = [key for parts in keys.values() for key in parts]
    videos = [key for key in used if features[key].get("dtype") == "video"]
    columns = [key for key in used if key not in videos] + [action, *flags, *extras, "episode_index", "task_index"]
    columns += [reward] if reward in features else []
    chunk_size = int(info.get("chunks_size", 1000))
    ours = load_json(path / "meta" / "pac.json") if (path / "meta" / "pac.json").is_file() else {}
    fps = options.fps or ours.get("control_rate") or info.get("fps")

    def episodes() -> Iterator[Episode]:
        left = dict(episodes_table)
        for file, index, table in _tables(path, columns):
            if index not in episodes_table:
                continue  # of another split
            where = f"{file}, episode {index}"
            row = left.pop(index, None)
            if row is None:
                raise problem(where, expected="each episode once", found="it twice", fix="Remove the copy.")
            check_length(table.num_rows, (row["length"],), f"{where} (length in meta/episodes)")
            part = {key: _values(table[key], features.get(key, {}), f"{where}, key {key!r}") for key in columns}
            for key in videos:
                part[key] = _video(path, version, key, index, row, chunk_size, fps, table.num_rows)
            ends = {name: bool(as_vector(part[name], f"{where}, key {name!r}")[-1]) for name in flags}
            terminated, truncated = _ends(ends)
            task = int(np.asarray(part["task_index"]).flat[0])
            yield build_episode(
                where,
                source=path,
                keys=keys,
                raw=part,
                action=part[action],
                reward=part[reward] if reward in part else np.zeros(table.num_rows, np.float32),
                terminated=terminated,
                truncated=truncated,
                instruction=options.instruction if options.instruction is not None else tasks.get(task, ""),
                success=bool(np.any(part["next.success"])) if "next.success" in part else None,
                extra_rewards={name[len(reward) + 1 :]: part[name] for name in extras},
            )
        if left:
            raise problem(
                path / "data",
                expected=f"frames of all {len(episodes_table)} episodes in meta/episodes",
                found=f"none of episodes {sorted(left)[:5]}",
                fix="A parquet file is missing or damaged: download it again.",
            )

    return ForeignDataset(
        format="lerobot",
        path=path,
        keys=keys,
        episodes=episodes(),
        num_episodes=len(episodes_table),
        fps=float(fps) if fps else None,
        action_low=np.asarray(ours["action_low"], np.float32) if "action_low" in ours else None,
        action_high=np.asarray(ours["action_high"], np.float32) if "action_high" in ours else None,
        state_names=_names([features[key] for key in keys.get(STATE, ())]),
        action_names=_names([features[action]]),
        notes=notes,
    )


def _notes(features: Mapping[str, Any], reward: str) -> list[str]:
    notes = ["LeRobot does not keep the observation after the last action of an episode."]
    if reward not in features:
        notes.append(f"No {reward}: rewards are 0. Give the dataset rewards with a relabelling.")
    if "next.terminated" not in features and not {"next.done", "next.truncated"} <= set(features):
        rule = (
            "only an end with next.success is terminal" if "next.success" in features else "every end is a time limit"
        )
        notes.append(f"The dataset does not tell a termination from a time limit: {rule}.")
    return notes


def _ends(flag: Mapping[str, bool]) -> tuple[bool, bool]:
    """(terminated, truncated) from the flags of the last frame."""
    truncated = flag.get("next.truncated", False)
    if "next.terminated" in flag:
        terminated = flag["next.terminated"]
    elif "next.truncated" in flag:
        terminated = flag.get("next.done", False) and not truncated
    else:
        terminated = flag.get("next.done", False) and flag.get("next.success", False)
    return terminated, truncated or not terminated


def _names(features: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of all dimensions of these vectors, where the dataset gives one for each."""
    found: list[str] = []
    for feature in features:
        names = feature.get("names")
        if isinstance(names, dict):
            names = [name for part in names.values() for name in (part if isinstance(part, list) else [part])]
        if not isinstance(names, list) or feature.get("shape") != [len(names)]:
            return ()
        found += map(str, names)
    return tuple(found)


def _episodes(path: Path, version: str, options: ImportOptions, info: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """What meta/ says of each episode of the split: its length and where its videos are."""
    if version.startswith("v2."):
        rows = _json_lines(path / "meta" / "episodes.jsonl")
    else:
        parquet = need("pyarrow.parquet", "formats")
        rows = []
        for file in sorted((path / "meta" / "episodes").glob("*/*.parquet")):
            with reading(file, "parquet"):
                table = parquet.read_table(file, partitioning=None)
                wanted = [name for name in table.column_names if not name.startswith("stats/")]
                rows += table.select(wanted).to_pylist()
    table_of = {}
    for row in rows:
        index, length = require(row, "episode_index", path / "meta"), require(row, "length", path / "meta")
        if type(index) is not int or type(length) is not int or length < 1:
            raise problem(
                f"{path / 'meta'}, episode {index}", expected="a length of at least 1", found=length, fix="Repair it."
            )
        table_of[index] = row
    if options.split is not None:
        span = str(require(info.get("splits", {}), options.split, f"{path / 'meta/info.json'}, splits"))
        start, _, stop = span.partition(":")
        table_of = {index: row for index, row in table_of.items() if int(start or 0) <= index < int(stop or 2**62)}
    if not table_of:
        raise problem(path / "meta", expected="at least one episode", found="none", fix="Check the download.")
    return table_of


def _tasks(path: Path, version: str) -> dict[int, str]:
    if version.startswith("v2."):
        rows = _json_lines(path / "meta" / "tasks.jsonl")
        return {int(require(row, "task_index", path / "meta/tasks.jsonl")): str(row.get("task", "")) for row in rows}
    file = path / "meta" / "tasks.parquet"
    parquet = need("pyarrow.parquet", "formats")
    with reading(file, "parquet"):
        table = parquet.read_table(file, partitioning=None)
        columns = {name: table[name].to_pylist() for name in table.column_names}
    text = next((name for name in ("task", "__index_level_0__") if name in columns), "task")
    pairs = zip(require(columns, "task_index", file), require(columns, text, file), strict=True)
    return {int(index): str(task) for index, task in pairs}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise problem(path, expected="a file", found="none", fix="Download the dataset's meta folder again.")
    with reading(path, "JSON lines"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise problem(f"{path}, line {number + 1}", expected="a JSON object", found=row, fix="Repair the line.")
    return rows


def _tables(path: Path, columns: list[str]) -> Iterator[tuple[Path, int, Any]]:
    """(file, episode index, table of its frames), in the order of the files, one episode in memory at a time."""
    arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")
    files = sorted((path / "data").glob("*/*.parquet"))
    if not files:
        raise problem(path / "data", expected="*/*.parquet", found="none", fix="Download the data folder again.")
    pieces: list[Any] = []
    current, origin = -1, files[0]

    def flush() -> Iterator[tuple[Path, int, Any]]:
        if pieces:
            table = arrow.Table.from_batches(pieces).combine_chunks()
            table.validate(full=True)
            yield origin, current, table

    for file in files:
        with reading(file, "parquet"), parquet.ParquetFile(file) as reader:
            known = dict.fromkeys(reader.schema_arrow.names)
            for name in columns:
                require(known, name, file)
            for batch in reader.iter_batches(batch_size=256, columns=columns):
                index = batch["episode_index"].to_numpy(zero_copy_only=False)
                cuts = np.flatnonzero(np.diff(index)) + 1
                for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(index)], strict=True):
                    if stop > start and int(index[start]) != current:
                        yield from flush()
                        pieces, current, origin = [], int(index[start]), file
                    pieces.append(batch.slice(start, stop - start))
    yield from flush()


def _values(column: Any, feature: Mapping[str, Any], where: str) -> Any:
    """A column as an array (frames, ...), or as encoded pictures."""
    arrow = need("pyarrow", "formats")
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, arrow.ChunkedArray) else array
    if array.null_count:
        raise problem(where, expected="a value in every frame", found=f"{array.null_count} nulls", fix="Repair it.")
    if feature.get("dtype") == "image":
        return [row.get("bytes") if isinstance(row, dict) else row for row in array.to_pylist()]
    rows = len(array)
    while arrow.types.is_list(array.type) or arrow.types.is_large_list(array.type) or _is_fixed(array.type):
        if not _is_fixed(array.type):
            lengths = np.diff(array.offsets.to_numpy())
            if len(lengths) and (lengths != lengths[0]).any():
                raise problem(
                    where, expected=f"{lengths[0]} values in every frame", found="frames with others", fix="Repair it."
                )
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    shape = tuple(feature.get("shape") or ())
    if rows and values.size != rows * int(np.prod(shape, dtype=object)):
        raise problem(where, expected=f"shape {shape}, as info.json says", found=values.size // rows, fix="Repair it.")
    return values.reshape(rows, -1)


def _is_fixed(kind: Any) -> bool:
    return bool(need("pyarrow", "formats").types.is_fixed_size_list(kind))


def _video(
    path: Path, version: str, key: str, index: int, row: Mapping[str, Any], chunk_size: int, fps: Any, frames: int
) -> np.ndarray:
    """The frames of one episode from a video: (frames, height, width, 3) uint8.

    Frame k is the one whose time is nearest to k / fps; clocks may be off by up to half a frame.
    """
    if version.startswith("v2."):
        file = path / "videos" / f"chunk-{index // chunk_size:03d}" / key / f"episode_{index:06d}.mp4"
        start = 0.0
    else:
        names = ("chunk_index", "file_index", "from_timestamp")
        chunk, number, start = (require(row, f"videos/{key}/{name}", path / "meta/episodes") for name in names)
        file = path / "videos" / key / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4"
    av = need("av", "video")
    where = f"{file}, episode {index}"
    if not file.is_file():
        raise problem(where, expected="a video", found="no such file", fix="Download it, or leave the camera out.")
    if not fps:
        raise problem(path / "meta/info.json", expected="key 'fps'", found="none", fix="Give --fps.")
    found: list[np.ndarray] = []
    with reading(where, "video"), av.open(str(file)) as container:
        stream = container.streams.video[0]
        if start > 0:
            container.seek(int(start / stream.time_base), stream=stream)  # to the key frame before
        for frame in container.decode(stream):
            if round((float(frame.pts * stream.time_base) - start) * float(fps)) >= len(found):
                found.append(frame.to_ndarray(format="rgb24"))
            if len(found) == frames:
                break
    check_length(len(found), (frames,), where)
    return np.stack(found)
