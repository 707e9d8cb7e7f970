"""Minari 0.4 and 0.5, in HDF5, Arrow and Parquet: `NAME-vN/data/{metadata.json, ...}`.

Time alignment: T + 1 observations and T actions, rewards and flags, as in an `Episode`. `rewards[t]` is the result of
`actions[t]` in `observations[t]`. Arrow and Parquet pad all other arrays with one last row, which is dropped here.

Ends: `terminations` and `truncations` are both kept, and both may be set. Episodes without either are truncated.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.array_checks import dimension_names, is_image
from pac.data.spec import STATE
from pac.formats import hdf5
from pac.formats.checks import check, load_json, need, reading, require
from pac.formats.choice import leave_out_missing
from pac.formats.common import ForeignDataset, as_numbers, as_vector, build_episode
from pac.formats.options import ImportOptions, choose_keys, used_keys
from pac.types import Episode

BARE = "observations"  # the key of an observation that is not a dictionary
Leaf = Mapping[str, Any]  # a space that holds no others, as Minari writes it in JSON; "jpeg": stored as JPEG


@dataclass(frozen=True)
class _StoredEpisode:
    """One episode on disk. `values` reads the array at a path such as "observations/arm/pose"."""

    where: str
    values: Callable[[str, Leaf], Any]
    info_names: list[str]
    attributes: Mapping[str, Any]


def detect(path: Path) -> bool:
    metadata = _data_folder(path) / "metadata.json"
    return metadata.is_file() and "data_format" in load_json(metadata)


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    folder = _data_folder(path)
    file = folder / "metadata.json"
    check(file.is_file(), path, "data/metadata.json", "no such file", "Give the dataset's folder.")
    metadata = load_json(file)
    data_format = require(metadata, "data_format", file)
    expected, fix = "hdf5, arrow or parquet", "Save the dataset with Minari 0.5."
    check(data_format in ("hdf5", "arrow", "parquet"), f"{file}, key 'data_format'", expected, repr(data_format), fix)
    count = require(metadata, "total_episodes", file)
    good = isinstance(count, int) and count >= 1
    check(good, f"{path}, key 'total_episodes'", "at least 1", count, "Choose another dataset.")

    spaces, action_spaces = (_leaves(metadata, name, file) for name in ("observation_space", "action_space"))
    texts = {key for key, leaf in spaces.items() if leaf["type"] == "Text"}
    boxes = {key for key, leaf in spaces.items() if leaf["type"] == "Box"}
    images = {key for key in boxes if is_image(spaces[key]["shape"], np.dtype(spaces[key]["dtype"]))}
    numbers = spaces.keys() - texts - images
    keys = choose_keys(sorted(numbers), sorted(images), options, f"{file}, observation_space")
    text_keys = options.keys.get("instruction", ())
    spaces = {key: require(spaces, key, file) for key in (*used_keys(keys), *text_keys)}
    widths = {key: int(np.prod(spaces[key].get("shape") or [1])) for key in keys.get(STATE, ())}
    notes: list[str] = []
    if any(leaf["jpeg"] for leaf in spaces.values()):
        notes.append("Minari stored the images as JPEG: they are close to what the camera saw, not equal to it.")

    indices = options.ranges.choose(range(count), path, notes)
    if data_format != "hdf5":
        absent = {i: folder / str(i) / f"part-0.{data_format}" for i in indices if not _parts(folder, i, data_format)}
        indices, _ = leave_out_missing(path, indices, {"arrays": absent}, {}, options.missing, notes)

    def episodes() -> Iterator[Episode]:
        num_open = 0
        for stored in _in_hdf5(folder, indices) if data_format == "hdf5" else _in_arrow(folder, indices, data_format):
            raw = {key: stored.values(_place("observations", key), leaf) for key, leaf in spaces.items()}
            actions = [stored.values(_place("actions", key), leaf) for key, leaf in action_spaces.items()]
            infos = {name: stored.values(f"infos/{name}", {}) for name in stored.info_names}
            terminated, truncated = (_ends(stored, name) for name in ("terminations", "truncations"))
            num_open += not (terminated or truncated)
            if stored.attributes.get("last_observation_unknown"):
                raw = {key: values[:-1] for key, values in raw.items()}
            success = infos.get("success", infos.get("is_success"))
            if success is not None:
                success = bool(as_vector(success, f"{stored.where}, key 'infos/success'").any())
            seed = stored.attributes.get("seed")
            text = " ".join(str(raw[key][0]) for key in text_keys)
            yield build_episode(
                stored.where,
                keys=keys,
                raw=raw,
                action=np.concatenate([as_numbers(part, f"{stored.where}, key 'actions'") for part in actions], axis=1),
                reward=stored.values("rewards", {}),
                terminated=terminated,
                truncated=truncated,
                instruction=text or str(stored.attributes.get("instruction", "")),
                success=success,
                extra_rewards={k.removeprefix("reward."): v[1:] for k, v in infos.items() if k.startswith("reward.")},
                seed=None if seed is None else int(seed),
            )
        if num_open:
            notes.append(f"{num_open} episodes end with neither termination nor truncation: kept as truncated.")

    low, high = _bounds(action_spaces)
    rate = metadata.get("fps")
    return ForeignDataset(
        keys=keys,
        episodes=episodes(),
        num_episodes=len(indices),
        fps=float(rate) if rate else None,
        action_low=low,
        action_high=high,
        state_names=_names(metadata, "state_names") or dimension_names(widths),
        action_names=_names(metadata, "action_names"),
        notes=notes,
    )


def _place(base: str, key: str) -> str:
    return base if key == BARE else f"{base}/{key}"


def _ends(stored: _StoredEpisode, name: str) -> bool:
    """Return whether the last step has this flag. Raise if an earlier one has it."""
    where = f"{stored.where}, key {name!r}"
    flags = as_vector(stored.values(name, {}), where)
    found = f"ends at steps {np.flatnonzero(flags)[:3].tolist()} of {len(flags)}"
    good = len(flags) and not flags[:-1].any()
    check(good, where, "an end at the last step only", found, "Split the episode at its ends in the source.")
    return bool(flags[-1])


def _data_folder(path: Path) -> Path:
    if path.is_file():
        return path.parent
    return path / "data" if (path / "data" / "metadata.json").is_file() else path


def _leaves(metadata: Mapping[str, Any], name: str, file: Path) -> dict[str, Leaf]:
    """Return the leaves of a space by their path: {"camera/wrist": {"type": "Box", ...}}."""
    where = f"{file}, key {name!r}"
    leaves: dict[str, Leaf] = {}

    def visit(space: Any, path: str) -> None:
        kind = require(space, "type", where)
        if kind in ("Dict", "Tuple"):
            inner = require(space, "subspaces", where)
            items = inner.items() if kind == "Dict" else ((f"_index_{i}", part) for i, part in enumerate(inner))
            for key, part in items:
                visit(part, f"{path}/{key}" if path else str(key))
        else:
            known = kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text")
            check(known, where, "a space that Minari documents", kind, "Leave it out in the source.")
            leaves[path or BARE] = space | {"jpeg": metadata.get("jpeg_encoding", True) and _fits_jpeg(space)}

    visit(json.loads(require(metadata, name, file)), "")
    return leaves


def _fits_jpeg(leaf: Leaf) -> bool:
    """Return whether Minari may store this space as JPEG. The rule is its own: dtype, size and bounds."""
    if leaf["type"] != "Box" or leaf["dtype"] != "uint8" or len(leaf["shape"]) not in (2, 3):
        return False
    full = not np.any(np.asarray(leaf["low"])) and bool(np.all(np.asarray(leaf["high"]) == 255))
    return full and min(leaf["shape"][:2]) >= 32


def _bounds(action_spaces: Mapping[str, Leaf]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the bounds of the concatenated action, or None where they are infinite."""
    low, high = [], []
    for leaf in action_spaces.values():
        if leaf["type"] == "Box":
            below, above = np.asarray(leaf["low"], float), np.asarray(leaf["high"], float)
        elif leaf["type"] == "MultiBinary":
            below, above = np.zeros(leaf["n"]), np.ones(leaf["n"])
        else:
            below = np.asarray(leaf.get("start", 0), float)
            above = below + np.asarray(leaf["n"] if leaf["type"] == "Discrete" else leaf["nvec"], float) - 1
        low.append(below.ravel())
        high.append(above.ravel())
    bounds = np.concatenate(low), np.concatenate(high)
    return bounds if np.isfinite(bounds).all() else (None, None)


def _is_read(info: str) -> bool:
    return info in ("success", "is_success") or info.startswith("reward.")


def _names(metadata: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return names of dimensions, which our own export adds to Minari's metadata."""
    found = metadata.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _in_hdf5(folder: Path, indices: Sequence[int]) -> Iterator[_StoredEpisode]:
    path = folder / "main_data.hdf5"
    with hdf5.open_hdf5(path) as file:
        for index in indices:
            group = hdf5.member(file, f"episode_{index}", path)
            infos = filter(_is_read, hdf5.member(group, "infos", path) if "infos" in group else [])
            attributes = {str(key).removeprefix("options/"): value for key, value in group.attrs.items()}
            values = partial(_hdf5_values, group, path)
            yield _StoredEpisode(f"{path}, episode_{index}", values, list(infos), attributes)


def _hdf5_values(group: Any, path: Path, name: str, leaf: Leaf) -> Any:
    values = hdf5.array(group, name, path)
    if leaf.get("jpeg"):
        return [np.asarray(frame, np.uint8).tobytes() for frame in values]
    if leaf.get("type") == "Text":
        return [text.decode() if isinstance(text, bytes) else str(text) for text in values]
    return values


def _parts(folder: Path, index: int, data_format: str) -> list[Path]:
    return sorted((folder / str(index)).glob(f"part-*.{data_format}"))


def _in_arrow(folder: Path, indices: Sequence[int], data_format: str) -> Iterator[_StoredEpisode]:
    arrow_dataset = need("pyarrow.dataset", "formats")
    for index in indices:
        place, files = folder / str(index), _parts(folder, index, data_format)
        with reading(files[0], data_format):
            whole = arrow_dataset.dataset(list(map(str, files)), format=data_format).to_table().combine_chunks()
            whole.validate(full=True)
        table = {name: whole[name].chunk(0) for name in whole.column_names if whole.num_rows}
        infos = filter(_is_read, _fields(table["infos"]) if "infos" in table else [])
        attributes = load_json(place / "metadata.json")
        attributes |= attributes.get("options") or {}
        yield _StoredEpisode(str(files[0]), partial(_arrow_values, table, files[0]), list(infos), attributes)


def _fields(column: Any) -> dict[str, int]:
    """Return the names of a struct's fields and their positions."""
    return {column.type.field(i).name: i for i in range(column.type.num_fields)}


def _arrow_values(table: Mapping[str, Any], where: Path, name: str, leaf: Leaf) -> Any:
    base, *parts = name.split("/")
    column = require(table, base, where)
    for part in parts:
        column = column.field(require(_fields(column), part.removeprefix("_index_"), f"{where}, column {base!r}"))
    if leaf.get("jpeg") or leaf.get("type") == "Text":
        values = column.to_pylist()
    elif need("pyarrow", "formats").types.is_fixed_size_list(column.type):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        values = flat.reshape(len(column), *leaf.get("shape", (-1,)))
    else:
        values = column.to_numpy(zero_copy_only=False)
    return values if base in ("observations", "infos") else values[:-1]  # the last row of the others is padding
