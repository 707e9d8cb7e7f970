"""RLDS, as TensorFlow Datasets writes it: TFRecord files whose examples are whole episodes.

Time alignment: step t holds the observation, the action taken in it and the reward that action gave. In the RLDS
specification the last step is only an observation (its action, reward and discount mean nothing): T + 1 steps are T
transitions. Many robot datasets (Open X-Embodiment) instead store a real action and reward in the last step, and no
observation after it: T steps are T transitions. Nothing in a file says which. With --last-step auto the first episode
decides: a last step whose action and reward are all 0 or NaN is an observation. The summary says what was decided.

Ends: `is_terminal` of the last step is a true termination, its absence a time limit. Without `is_terminal`, a last
`discount` of 0 is one; without both, every end counts as a time limit.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.formats.common import ImportOptions, Source, SourceError, build_episode, choose_keys, load_json, require
from pac.data.formats.tfrecord import Values, parse_example, records
from pac.types import Episode

OBSERVATION = "steps/observation/"
TEXTS = (  # where an instruction may stand
    "steps/language_instruction",
    "steps/observation/natural_language_instruction",
    "steps/observation/language_instruction",
    "episode_metadata/language_instruction",
)


def detect(path: Path) -> bool:
    return ".tfrecord" in path.name or (path.is_dir() and bool(_folder(path)))


def read(path: Path, options: ImportOptions) -> Source:
    files, shapes = _shards(path, options)
    parsed = ((f"{file}, record {i}", record) for file in files for i, record in enumerate(records(file)))
    examples = ((where, parse_example(record, where)) for where, record in parsed)
    first = next(examples, None)
    if first is None:
        raise SourceError(path, expected="at least one episode", found="none", fix="Check the download.")
    where, example = first
    found = {name.removeprefix(OBSERVATION): x for name, x in example.items() if name.startswith(OBSERVATION)}
    pictures = {name for name, values in found.items() if isinstance(values, list) and _is_encoded(values)}
    numbers = {name for name, values in found.items() if isinstance(values, np.ndarray)}
    keys = choose_keys(sorted(numbers), sorted(pictures), options, f"{where}, steps/observation")
    default = (
        ["action"] if "steps/action" in example else sorted(n[6:] for n in example if n.startswith("steps/action/"))
    )
    actions = options.keys.get("action", tuple(default))
    (reward_key,) = options.keys.get("reward", ("reward",))
    texts = [f"steps/{key}" for key in options.keys.get("instruction", ())] or TEXTS
    notes: list[str] = []
    if f"steps/{reward_key}" not in example:
        notes.append("No rewards: they are 0. Give the dataset rewards with a relabelling.")
    if "steps/is_terminal" not in example and "steps/discount" not in example:
        notes.append("Neither is_terminal nor discount: every end counts as a time limit.")

    def columns(where: str, example: Mapping[str, Values]) -> dict[str, Any]:
        """The steps of an episode: raw observations, action, reward, flags."""
        num_steps = len(_step_flags(example, where))
        parts: dict[str, Any] = {}
        for key in {key for parts in keys.values() for key in parts}:
            name = OBSERVATION + key
            parts[key] = _rows(require(example, name, where), num_steps, f"{where}, key {name!r}", shapes.get(name))
        if not actions:
            raise SourceError(where, expected="key 'steps/action'", found="none", fix="Name it with --keys action=")
        names = [f"steps/{key}" for key in actions]
        rows = [_rows(require(example, n, where), num_steps, f"{where}, key {n!r}", shapes.get(n)) for n in names]
        parts["action"] = np.concatenate([_matrix(row, name, where) for row, name in zip(rows, names, strict=True)], 1)
        reward = example.get(f"steps/{reward_key}", np.zeros(num_steps, np.float32))
        parts["reward"] = _matrix(_rows(reward, num_steps, f"{where}, key 'steps/{reward_key}'"), reward_key, where)
        return parts

    last_step = options.last_step
    if last_step == "auto":
        opening = columns(where, example)
        ending = np.concatenate([opening["action"][-1], opening["reward"][-1]])
        last_step = "observation" if not np.nan_to_num(ending).any() else "transition"
        meaning = "an observation only" if last_step == "observation" else "a real action and reward"
        other = "transition" if last_step == "observation" else "observation"
        notes.append(f"The last step of an episode was taken for {meaning}. If that is wrong: --last-step {other}.")

    def episodes() -> Iterator[Episode]:
        for where, example in _chain(first, examples):
            parts = columns(where, example)
            stop = len(parts["action"]) - (last_step == "observation")
            if stop == 0:
                notes.append(f"{where}: one observation and no transition: left out.")
                continue
            terminal = example.get("steps/is_terminal")
            if terminal is None or not len(terminal):
                discount = example.get("steps/discount", np.ones(1))
                terminal = np.asarray([len(discount) > 0 and float(np.asarray(discount)[-1]) == 0])
            text = next((example[name] for name in texts if name in example), [b""])
            yield build_episode(
                where,
                source=path,
                keys=keys,
                raw=parts,
                action=parts["action"][:stop],
                reward=parts["reward"][:stop],
                terminated=bool(terminal[-1]),
                truncated=not terminal[-1],
                instruction=options.instruction if options.instruction is not None else _decode(text),
            )

    return Source(format="rlds", path=path, keys=keys, episodes=episodes(), fps=options.fps, notes=notes)


def _folder(path: Path) -> Path | None:
    """The folder that holds the records: the one given, or its newest version."""
    for folder in (path, *sorted((child for child in path.iterdir() if child.is_dir()), reverse=True)):
        if any(folder.glob("*.tfrecord*")):
            return folder
    return None


def _shards(path: Path, options: ImportOptions) -> tuple[list[Path], dict[str, tuple[int, ...]]]:
    """The files of one split, all of them, and the shapes of their features where features.json tells."""
    folder = path.parent if path.is_file() else _folder(path) if path.is_dir() else None
    if folder is None:
        raise SourceError(path, expected="*.tfrecord files", found="none", fix="Give the folder that holds them.")
    shapes = _shapes(load_json(folder / "features.json")) if (folder / "features.json").is_file() else {}
    if path.is_file():
        return [path], shapes
    files = sorted(file for file in folder.glob("*.tfrecord*") if file.is_file())
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(file.name.split(".tfrecord")[0].rsplit("-", 1)[-1], []).append(file)
    split = options.split or ("train" if "train" in splits else min(splits))
    chosen: list[Path] = require(splits, split, f"{folder}, splits")
    counts = {int(match[1]) for file in chosen if (match := re.search(r"-of-(\d+)$", file.name))}
    if counts and counts != {len(chosen)}:
        raise SourceError(
            f"{folder}, split {split!r}",
            expected=f"{max(counts)} shards, as the file names say",
            found=len(chosen),
            fix="Download the missing ones.",
        )
    return chosen, shapes


def _shapes(features: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of one step from TFDS's features.json: {"steps/action": (7,)}."""
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(node: Any, name: str) -> None:
        if not isinstance(node, dict):
            return
        if "tensor" in node:
            sizes = node["tensor"].get("shape", {}).get("dimensions", [])
            shapes[name] = tuple(int(size) for size in sizes)
        for key, child in node.get("featuresDict", {}).get("features", {}).items():
            visit(child, f"{name}/{key}" if name else key)
        if "sequence" in node:
            visit(node["sequence"].get("feature"), name)

    visit(features, "")
    return shapes


def _step_flags(example: Mapping[str, Values], where: str) -> Values:
    """`is_last` or `is_first`: one for each step; an end in the middle is an error."""
    name = "steps/is_last" if "steps/is_last" in example else "steps/is_first"
    flags: Values = require(example, name, where)
    edge = np.asarray(flags)[:-1] if name == "steps/is_last" else np.asarray(flags)[1:]
    if isinstance(flags, list) or not len(flags) or edge.any():
        raise SourceError(
            f"{where}, key {name!r}", expected="one flag a step, set at the edge only", found=flags, fix="Repair it."
        )
    return flags


def _rows(values: Values, num_steps: int, where: str, shape: tuple[int, ...] | None = None) -> Values:
    """One row for each step; `shape` is what features.json says of a row."""
    width = None if shape is None or -1 in shape else int(np.prod(shape, dtype=object))
    if isinstance(values, list):
        width = 1
    if len(values) % num_steps or (width is not None and len(values) != num_steps * width):
        wanted = f"{num_steps} x {width}" if width is not None else f"a multiple of {num_steps}"
        raise SourceError(
            where, expected=f"{wanted} values for {num_steps} steps", found=len(values), fix="Repair the episode."
        )
    return values if isinstance(values, list) else values.reshape(num_steps, -1 if len(values) else 0)


def _matrix(values: Values, name: str, where: str) -> np.ndarray:
    if isinstance(values, list):
        raise SourceError(f"{where}, key {name!r}", expected="numbers", found="bytes", fix="Map another key.")
    return values


def _is_encoded(values: list[bytes]) -> bool:
    return bool(values) and values[0].startswith((b"\x89PNG", b"\xff\xd8"))


def _decode(text: Values) -> str:
    return text[0].decode("utf-8") if isinstance(text, list) and text else ""


def _chain(first: tuple[str, Any], rest: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    yield first
    yield from rest
