"""LeRobot v2.x and v3.0 in, v3.0 out, without the `lerobot` package.

Time alignment: a frame holds an observation, the action taken in it, and in `next.*` the result of that action. There
is no frame after the last action: T frames are T observations and T actions.

Ends: a dataset may hold `next.terminated` and `next.truncated` (ours do), and both are then kept. `next.done` with
`next.truncated` is terminal where the latter is not set. `next.done` alone is also set at time limits, so it is
terminal only together with `next.success`. Without any of these every end counts as a time limit. The summary says so.

Images stand in the parquet files (dtype "image") or in videos (dtype "video", read with PyAV). `meta/pac.json` is ours.
It holds the bounds of the action and the exact control rate, for which LeRobot has no place.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.spec import IMAGES, STATE
from pac.files import problem
from pac.formats.checks import check, check_length, load_json, need, reading, require
from pac.formats.common import NO_REWARDS, ForeignDataset, as_vector, build_episode
from pac.formats.lerobot_files import Layout, episode_rows, read_tasks, without_missing
from pac.formats.options import ImportOptions, choose_keys, key_of, used_keys
from pac.types import Episode

NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool")
FLAGS = ("next.done", "next.terminated", "next.truncated", "next.success")


def detect(path: Path) -> bool:
    return (path / "meta" / "info.json").is_file()


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    check(detect(path), path, "meta/info.json", "no such file", "Give the dataset's folder.")
    info_path = path / "meta" / "info.json"
    info = load_json(info_path)
    version = str(require(info, "codebase_version", info_path))
    supported = version.startswith(("v2.", "v3."))
    check(supported, f"{info_path}, key 'codebase_version'", "v2.0, v2.1 or v3.0", version, "Convert it first.")
    ours = load_json(path / "meta" / "pac.json") if (path / "meta" / "pac.json").is_file() else {}
    features = require(info, "features", info_path)
    fps = float(options.fps or ours.get("control_rate") or info.get("fps") or 0)
    layout = Layout(path, version.startswith("v2."), features, fps, int(info.get("chunks_size", 1000)))

    observed = [name for name in features if name.startswith("observation")]
    observed.sort(key=lambda name: name != STATE)  # the state first, then the others in the file's order
    images = [name for name in observed if features[name].get("dtype") in ("image", "video")]
    numbers = [name for name in observed if features[name].get("dtype") in NUMBERS]
    keys = choose_keys(numbers, images, options, f"{info_path}, features")
    action, reward = key_of("action", "action", options), key_of("reward", "next.reward", options)
    require(features, action, f"{info_path}, features")
    extras = [name for name in features if name.startswith(f"{reward}.")]
    flags = [name for name in FLAGS if name in features]
    notes = _notes(features, reward)
    rows = episode_rows(layout, options, info)
    rows = {index: rows[index] for index in options.ranges.choose(rows, path, notes)}
    names = {parts[0]: feature.removeprefix(IMAGES) for feature, parts in keys.items() if feature != STATE}
    cameras = {key: name for key, name in names.items() if features[key].get("dtype") == "video"}
    rows, left_out = without_missing(layout, rows, cameras, options, notes)
    keys = {feature: parts for feature, parts in keys.items() if not left_out & set(parts)}
    fix = "Download a camera, or choose other --keys."
    check(keys, path, "an observation besides the cameras that are left out", "none", fix)
    videos = [key for key in used_keys(keys) if key in cameras]
    columns = [key for key in used_keys(keys) if key not in videos] + [action, *flags, *extras]
    columns += ["episode_index", "task_index"] + [reward] * (reward in features)
    tasks = read_tasks(layout)
    state_names = {key: _dimension_names([features[key]]) for key in keys.get(STATE, ())}
    error_names = state_names | {"action": _dimension_names([features[action]])}

    def episodes() -> Iterator[Episode]:
        missing = set(rows)
        for file, index, table in _tables(layout, rows, columns):
            if index not in rows:
                continue  # not chosen
            where, length = f"{file}, episode {index}", table.num_rows
            check(index in missing, where, "each episode once", "it twice", "Remove the copy.")
            missing.remove(index)
            check_length(length, (rows[index]["length"],), f"{where} (length in meta/episodes)")
            raw = {key: _values(table[key], features.get(key, {}), f"{where}, key {key!r}") for key in columns}
            raw |= {key: _video_frames(layout, key, index, rows[index], length) for key in videos}
            ends = {name: bool(as_vector(raw[name], f"{where}, key {name!r}")[-1]) for name in flags}
            yield build_episode(
                where,
                keys=keys,
                raw=raw,
                action=raw[action],
                reward=raw.get(reward),
                terminated=_is_terminal(ends),
                truncated=ends.get("next.truncated", False),
                instruction=tasks.get(int(np.asarray(raw["task_index"]).flat[0]), ""),
                success=bool(np.any(raw["next.success"])) if "next.success" in raw else None,
                extra_rewards={name.removeprefix(f"{reward}."): raw[name] for name in extras},
                names=error_names,
            )
        expected, found = f"frames of all {len(rows)} episodes", f"none of episodes {sorted(missing)[:5]}"
        fix = "A parquet file is missing or damaged: download it again."
        check(not missing, path / "data", expected, found, fix)

    return ForeignDataset(
        keys=keys,
        episodes=episodes(),
        num_episodes=len(rows),
        fps=fps or None,
        action_low=np.asarray(ours["action_low"], np.float32) if "action_low" in ours else None,
        action_high=np.asarray(ours["action_high"], np.float32) if "action_high" in ours else None,
        state_names=_dimension_names([features[key] for key in keys.get(STATE, ())]),
        action_names=_dimension_names([features[action]]),
        notes=notes,
    )


def _notes(features: Mapping[str, Any], reward: str) -> list[str]:
    notes = ["LeRobot does not keep the observation after the last action of an episode."]
    if reward not in features:
        notes.append(NO_REWARDS)
    if "next.terminated" not in features and not {"next.done", "next.truncated"} <= set(features):
        terminal = "only an end with next.success" if "next.success" in features else "no end"
        notes.append(f"The dataset does not tell a termination from a time limit: {terminal} is terminal.")
    return notes


def _is_terminal(flags: Mapping[str, bool]) -> bool:
    """Return whether an episode ends in a termination, from the flags of its last frame."""
    if "next.terminated" in flags:
        return flags["next.terminated"]
    done = flags.get("next.done", False)
    return done and (not flags["next.truncated"] if "next.truncated" in flags else flags.get("next.success", False))


def _dimension_names(features: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of all dimensions of these vectors, if the dataset has one for each."""
    found: list[str] = []
    for feature in features:
        names = _flat_names(feature.get("names"))
        if feature.get("shape") != [len(names)]:
            return ()
        found += names
    return tuple(found)


def _flat_names(names: Any) -> list[str]:
    """Return the names in a list, in lists within it, or in a dictionary of lists or of positions."""
    if isinstance(names, dict):
        positions = all(type(value) is int for value in names.values())
        names = sorted(names, key=names.__getitem__) if positions else list(names.values())
    if isinstance(names, list):
        return [name for part in names for name in _flat_names(part)]
    return [] if names is None else [str(names)]


def _tables(
    layout: Layout, rows: Mapping[int, Mapping[str, Any]], columns: list[str]
) -> Iterator[tuple[Path, int, Any]]:
    """Yield (file, episode index, table of frames) in the order of the files. One episode is in memory at a time."""
    arrow = need("pyarrow", "formats")
    named = {layout.data_file(index, row) for index, row in rows.items()}
    files = sorted(file for file in (layout.path / "data").glob("*/*.parquet") if None in named or file in named)
    check(files, layout.path / "data", "*/*.parquet", "none", "Download the data folder again.")
    for index, pieces in groupby(_pieces(files, columns), key=itemgetter(1)):
        places, _, batches = zip(*pieces, strict=True)
        with reading(places[0], "parquet"):
            table = arrow.Table.from_batches(batches).combine_chunks()
            table.validate(full=True)
        yield places[0], index, table


def _pieces(files: Sequence[Path], columns: list[str]) -> Iterator[tuple[Path, int, Any]]:
    """Yield (file, episode index, record batch) in the order of the files. A batch holds frames of one episode."""
    parquet = need("pyarrow.parquet", "formats")
    for file in files:
        with reading(file, "parquet"), parquet.ParquetFile(file) as reader:
            known = dict.fromkeys(reader.schema_arrow.names)
            for name in columns:
                require(known, name, file)
            for batch in reader.iter_batches(batch_size=256, columns=columns):
                index = batch["episode_index"].to_numpy(zero_copy_only=False)
                cuts = (np.flatnonzero(np.diff(index)) + 1).tolist()
                for start, stop in zip([0, *cuts], [*cuts, len(index)], strict=True):
                    if stop > start:
                        yield file, int(index[start]), batch.slice(start, stop - start)


def _values(column: Any, feature: Mapping[str, Any], where: str) -> Any:
    """Return a column as an array (frames, values), or as a list of encoded images."""
    arrow = need("pyarrow", "formats")
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, arrow.ChunkedArray) else array
    check(not array.null_count, where, "a value in every frame", f"{array.null_count} nulls")
    if feature.get("dtype") == "image":
        return [row.get("bytes") if isinstance(row, dict) else row for row in array.to_pylist()]
    rows, types = len(array), arrow.types
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        if not types.is_fixed_size_list(array.type):
            lengths = set(np.diff(array.offsets.to_numpy()).tolist())
            check(len(lengths) <= 1, where, "as many values in every frame", f"{sorted(lengths)[:5]} values")
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    shape = tuple(feature.get("shape") or ())
    good = not rows or values.size == rows * int(np.prod(shape, dtype=object))
    check(good, where, f"shape {shape}, as info.json says", f"{values.size} values in {rows} frames")
    return values.reshape(rows, -1)


def _video_frames(layout: Layout, key: str, index: int, row: Mapping[str, Any], num_frames: int) -> np.ndarray:
    """Decode the frames of one episode from a video: uint8 (frames, height, width, 3).

    Frame k is the one whose time is nearest to k / fps. Clocks may be off by up to half a frame.
    """
    file, start = layout.video(key, index, row)
    av = need("av", "video")
    where = f"{file}, episode {index}"
    check(file.is_file(), where, "a video", "no such file", "Download it, or leave the camera out.")
    if not layout.fps:
        raise problem(layout.path / "meta/info.json", expected="key 'fps'", found="none", fix="Give --fps.")
    frames: list[np.ndarray] = []
    with reading(where, "video"), av.open(str(file)) as container:
        stream = container.streams.video[0]
        if start > 0:
            container.seek(int(start / stream.time_base), stream=stream)  # to the key frame before
        for frame in container.decode(stream):
            if round((float(frame.pts * stream.time_base) - start) * layout.fps) >= len(frames):
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == num_frames:
                break
    check_length(len(frames), (num_frames,), where)
    return np.stack(frames)
