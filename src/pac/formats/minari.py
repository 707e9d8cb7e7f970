"""Minari 0.4 and 0.5, in HDF5, Arrow and Parquet: `NAME-vN/data/{metadata.json, ...}`.

Time alignment: T + 1 observations and T actions, rewards and flags, as in an `Episode`: `rewards[t]` is what
`actions[t]` in `observations[t]` gave. (Arrow and Parquet pad everything but the observations with one last row,
dropped here.)

Ends: `terminations` and `truncations` are both kept, and both may be set. Episodes without either are truncated.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats import hdf5
from pac.formats.common import (
    ForeignDataset,
    ImportOptions,
    as_numbers,
    as_vector,
    build_episode,
    choose_keys,
    is_image,
    load_json,
    need,
    reading,
    require,
)
from pac.types import Episode

BARE = "observations"  # the key of an observation that is not a dictionary
Leaf = Mapping[str, Any]  # a space that holds no others, as Minari writes it in JSON


def detect(path: Path) -> bool:
    metadata = _data_folder(path) / "metadata.json"
    return metadata.is_file() and "data_format" in load_json(metadata)


def read(path: Path, options: ImportOptions) -> ForeignDataset:
    folder = _data_folder(path)
    if not (folder / "metadata.json").is_file():
        raise problem(path, expected="data/metadata.json", found="no such file", fix="Give the dataset's folder.")
    metadata = load_json(folder / "metadata.json")
    data_format = require(metadata, "data_format", folder / "metadata.json")
    if data_format not in ("hdf5", "arrow", "parquet"):
        raise problem(
            f"{folder / 'metadata.json'}, key 'data_format'",
            expected="hdf5, arrow or parquet",
            found=repr(data_format),
            fix="Save the dataset with Minari 0.5.",
        )
    spaces = {name: _space(metadata, name, folder) for name in ("observation_space", "action_space")}
    observation, action = spaces["observation_space"], spaces["action_space"]
    texts = {key for key, leaf in observation.items() if leaf["type"] == "Text"}
    pictures = {key for key, leaf in observation.items() if _is_picture(leaf)}
    numbers = observation.keys() - texts - pictures
    keys = choose_keys(sorted(numbers), sorted(pictures), options, f"{folder / 'metadata.json'}, observation_space")
    wanted = {key: observation[key] for parts in keys.values() for key in parts}
    if "instruction" in options.keys:
        wanted |= {key: require(observation, key, folder / "metadata.json") for key in options.keys["instruction"]}
    jpeg = bool(metadata.get("jpeg_encoding", True))
    count = require(metadata, "total_episodes", folder / "metadata.json")
    if not isinstance(count, int) or count < 1:
        raise problem(f"{path}, key 'total_episodes'", expected="at least 1", found=count, fix="Choose another.")
    low, high = _bounds(action)
    notes: list[str] = []
    if jpeg and any(_is_jpeg(wanted[key], jpeg) for key in wanted):
        notes.append("Pictures were stored as JPEG by Minari: they are close to what the robot saw, not equal to it.")
    load = _from_hdf5 if data_format == "hdf5" else _from_arrow

    def episodes() -> Iterator[Episode]:
        open_ends = 0
        for where, parts, attributes in load(folder, data_format, count, wanted, action, jpeg):
            open_ends += not (parts["terminations"][-1:].any() or parts["truncations"][-1:].any())
            yield _episode(where, path, parts, attributes, keys, options)
        if open_ends:
            notes.append(f"{open_ends} episodes end with neither termination nor truncation: kept as truncated.")

    rate = options.fps or metadata.get("fps")
    return ForeignDataset(
        format="minari",
        path=path,
        keys=keys,
        episodes=episodes(),
        num_episodes=count,
        fps=float(rate) if rate else None,
        action_low=low,
        action_high=high,
        notes=notes,
    )


def _episode(
    where: str,
    path: Path,
    parts: Mapping[str, Any],
    attributes: Mapping[str, Any],
    keys: Mapping[str, tuple[str, ...]],
    options: ImportOptions,
) -> Episode:
    terminated, truncated = (_end(parts[name], f"{where}, key {name!r}") for name in ("terminations", "truncations"))
    raw, infos = parts["observations"], parts["infos"]
    if attributes.get("last_observation_unknown"):
        raw = {key: values[:-1] for key, values in raw.items()}
    success = infos.get("success", infos.get("is_success"))
    text = " ".join(str(raw[key][0]) for key in options.keys.get("instruction", ()))
    seed = attributes.get("seed")
    return build_episode(
        where,
        source=path,
        keys=keys,
        raw=raw,
        action=np.concatenate([as_numbers(part, f"{where}, key 'actions'") for part in parts["actions"]], axis=1),
        reward=parts["rewards"],
        terminated=terminated,
        truncated=truncated or not terminated,
        instruction=options.instruction or text or str(attributes.get("instruction", "")),
        success=None if success is None else bool(as_vector(success, f"{where}, key 'infos/success'").any()),
        extra_rewards={k.removeprefix("reward."): v[1:] for k, v in infos.items() if k.startswith("reward.")},
        seed=None if seed is None else int(seed),
    )


def _end(flags: Any, where: str) -> bool:
    """Whether the last step is an end; one before it is an error."""
    flag = as_vector(flags, where)
    if not len(flag) or flag[:-1].any():
        raise problem(
            where,
            expected="an end at the last step only",
            found=f"ends at steps {np.flatnonzero(flag)[:3].tolist()} of {len(flag)}",
            fix="Split the episode at its ends in the source.",
        )
    return bool(flag[-1])


def _data_folder(path: Path) -> Path:
    if path.is_file():
        return path.parent
    return path / "data" if (path / "data" / "metadata.json").is_file() else path


def _space(metadata: Mapping[str, Any], name: str, folder: Path) -> dict[str, Leaf]:
    """The leaves of a space by their path: {"camera/wrist": {"type": "Box", ...}}."""
    where = f"{folder / 'metadata.json'}, key {name!r}"
    leaves: dict[str, Leaf] = {}

    def visit(space: Any, path: str) -> None:
        kind = require(space, "type", where)
        if kind in ("Dict", "Tuple"):
            inner = require(space, "subspaces", where)
            items = inner.items() if kind == "Dict" else ((f"_index_{i}", part) for i, part in enumerate(inner))
            for key, part in items:
                visit(part, f"{path}/{key}" if path else str(key))
        elif kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text"):
            leaves[path or BARE] = space
        else:
            raise problem(where, expected="a space Minari documents", found=kind, fix="Leave it out in the source.")

    visit(json.loads(require(metadata, name, folder / "metadata.json")), "")
    return leaves


def _is_picture(leaf: Leaf) -> bool:
    return leaf["type"] == "Box" and is_image(leaf["shape"], np.dtype(leaf["dtype"]))


def _is_jpeg(leaf: Leaf, jpeg: bool) -> bool:
    """Whether Minari stored this space as JPEG: its own rule, by dtype, size and bounds."""
    if not jpeg or leaf["type"] != "Box" or leaf["dtype"] != "uint8" or len(leaf["shape"]) not in (2, 3):
        return False
    full = not np.any(np.asarray(leaf["low"])) and bool(np.all(np.asarray(leaf["high"]) == 255))
    return full and min(leaf["shape"][:2]) >= 32


def _bounds(action: Mapping[str, Leaf]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Bounds of the concatenated action; None where they are infinite."""
    low, high = [], []
    for leaf in action.values():
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


Parts = tuple[str, dict[str, Any], dict[str, Any]]  # where, arrays by name, attributes


def _from_hdf5(
    folder: Path, _: str, count: int, wanted: Mapping[str, Leaf], action: Mapping[str, Leaf], jpeg: bool
) -> Iterator[Parts]:
    path = folder / "main_data.hdf5"

    def leaf_values(group: Any, base: str, key: str, leaf: Leaf) -> Any:
        values = hdf5.array(group, base if key == BARE else f"{base}/{key}", path)
        if _is_jpeg(leaf, jpeg):
            return [np.asarray(frame, np.uint8).tobytes() for frame in values]
        if leaf["type"] == "Text":
            return [text.decode() if isinstance(text, bytes) else str(text) for text in values]
        return values

    with hdf5.open_hdf5(path) as file:
        for index in range(count):
            group = hdf5.member(file, f"episode_{index}", path)
            infos = hdf5.member(group, "infos", path) if "infos" in group else {}
            names = [k for k in infos if k in ("success", "is_success") or k.startswith("reward.")]
            parts: dict[str, Any] = {
                name: hdf5.array(group, name, path) for name in ("rewards", "terminations", "truncations")
            }
            parts["observations"] = {k: leaf_values(group, "observations", k, leaf) for k, leaf in wanted.items()}
            parts["actions"] = [leaf_values(group, "actions", k, leaf) for k, leaf in action.items()]
            parts["infos"] = {name: hdf5.array(infos, name, path) for name in names}
            attributes = {str(k).removeprefix("options/"): v for k, v in group.attrs.items()}
            yield f"{path}, episode_{index}", parts, attributes


def _from_arrow(
    folder: Path, data_format: str, count: int, wanted: Mapping[str, Leaf], action: Mapping[str, Leaf], jpeg: bool
) -> Iterator[Parts]:
    arrow, parquet = need("pyarrow", "formats"), need("pyarrow.parquet", "formats")

    def leaf_values(table: Any, base: str, key: str, leaf: Leaf, where: Path) -> Any:
        column = require(table, base, where)
        for part in () if key == BARE else key.split("/"):
            name = part.removeprefix("_index_")
            names = {column.type.field(i).name: i for i in range(column.type.num_fields)}
            column = column.field(require(names, name, f"{where}, column {base!r}"))
        if _is_jpeg(leaf, jpeg) or leaf["type"] == "Text":
            return column.to_pylist()
        if arrow.types.is_fixed_size_list(column.type):
            return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *leaf.get("shape", (-1,)))
        return column.to_numpy(zero_copy_only=False)

    for index in range(count):
        files = sorted((folder / str(index)).glob(f"part-*.{data_format}"))
        if not files:
            raise problem(
                folder / str(index), expected=f"part-0.{data_format}", found="no such file", fix="Restore the folder."
            )
        with reading(files[0], data_format):
            if data_format == "parquet":
                tables = [parquet.read_table(file, partitioning=None) for file in files]
            else:
                tables = [arrow.ipc.open_file(arrow.memory_map(str(file))).read_all() for file in files]
            whole = arrow.concat_tables(tables).combine_chunks()
            whole.validate(full=True)
        table = {name: whole[name].chunk(0) for name in whole.column_names if whole.num_rows}
        where = files[0]
        infos = require(table, "infos", where) if "infos" in table else None
        names = [] if infos is None else [infos.type.field(i).name for i in range(infos.type.num_fields)]
        parts: dict[str, Any] = {
            name: np.asarray(require(table, name, where).to_numpy(zero_copy_only=False))[:-1]
            for name in ("rewards", "terminations", "truncations")
        }
        parts["observations"] = {k: leaf_values(table, "observations", k, leaf, where) for k, leaf in wanted.items()}
        parts["actions"] = [leaf_values(table, "actions", k, leaf, where)[:-1] for k, leaf in action.items()]
        parts["infos"] = {
            name: infos.field(i).to_numpy(zero_copy_only=False)
            for i, name in enumerate(names)
            if infos is not None and (name in ("success", "is_success") or name.startswith("reward."))
        }
        attributes = load_json(folder / str(index) / "metadata.json")
        yield str(where), parts, attributes | (attributes.get("options") or {})
