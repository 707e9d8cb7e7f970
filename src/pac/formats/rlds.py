"""RLDS, as TensorFlow Datasets writes it: TFRecord files whose examples are whole episodes.

Time alignment: step t holds the observation, the action taken in it and the reward of that action. In the RLDS
specification the last step is only an observation: its action, reward and discount mean nothing. So T + 1 steps are T
transitions. Many robot datasets (Open X-Embodiment) store a real action and reward in the last step, and no observation
after it. There T steps are T transitions. Nothing in a file says which. With --last-step auto the first episode
decides: a last step whose action and reward are all 0 or NaN is an observation. The summary names the decision.

Ends: `is_terminal` of the last step is a true termination, its absence a time limit. Without `is_terminal`, a last
`discount` of 0 is a termination. Without both, every end counts as a time limit.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pac.data.array_checks import dimension_names
from pac.data.spec import STATE
from pac.files import problem
from pac.formats.checks import CHOOSE_KEYS, check, require
from pac.formats.common import NO_REWARDS, ForeignDataset, build_episode
from pac.formats.options import ImportOptions, choose_keys, key_of, used_keys
from pac.formats.tfrecord import Values, parse_example, read_records
from pac.types import Episode

OBSERVATION = "steps/observation/"
TEXTS = (  # features that may hold the instruction
    "steps/language_instruction",
    "steps/observation/natural_language_instruction",
    "steps/observation/language_instruction",
    "episode_metadata/language_instruction",
)


def detect(path: Path) -> bool:
    return ".tfrecord" in path.name or (path.is_dir() and bool(_folder(path)))


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    notes: list[str] = []
    examples = _chosen(chain.from_iterable(map(_examples, _shards(path, options, notes))), path, options)
    first = next(examples, None)
    if first is None:
        raise problem(path, expected="at least one episode", found="none", fix="Check the download.")
    layout = _Layout(*first, options)
    notes += [] if layout.reward in first[1] else [NO_REWARDS]
    if "steps/is_terminal" not in first[1] and "steps/discount" not in first[1]:
        notes.append("Neither is_terminal nor discount: every end counts as a time limit.")
    last_is_observation = options.last_step == "observation"
    if options.last_step == "auto":
        _, action, reward = layout.steps(*first)
        last_is_observation = not np.nan_to_num(np.append(action[-1], reward[-1])).any()
        meaning, other = "an observation only", "transition"
        if not last_is_observation:
            meaning, other = "a transition", "observation"
        notes.append(f"The last step of an episode was taken for {meaning}. If that is wrong: --last-step {other}.")

    def episodes() -> Iterator[Episode]:
        for where, example in chain([first], examples):
            raw, action, reward = layout.steps(where, example)
            stop = len(action) - last_is_observation
            if stop == 0:
                notes.append(f"{where}: one observation and no transition: left out.")
                continue
            yield build_episode(
                where,
                keys=layout.keys,
                raw=raw,
                action=action[:stop],
                reward=reward[:stop],
                terminated=_is_terminal(example),
                instruction=layout.text(example),
            )

    return ForeignDataset(keys=layout.keys, episodes=episodes(), state_names=layout.state_names(first[1]), notes=notes)


def _chosen(
    examples: Iterator[tuple[str, dict[str, Values]]], path: Path, options: ImportOptions
) -> Iterator[tuple[str, dict[str, Values]]]:
    """Yield the examples of --episodes, counted over the shards. Stop reading after the last one."""
    ranges, index = options.ranges, -1
    for index, example in enumerate(examples):
        if ranges.stop is not None and index >= ranges.stop:
            return
        if index in ranges:
            yield example
    ranges.check_within(index + 1, path)


def _examples(file: Path) -> Iterator[tuple[str, dict[str, Values]]]:
    """Yield the place and the features of each example in a file."""
    for number, record in enumerate(read_records(file)):
        where = f"{file}, record {number}"
        yield where, parse_example(record, where)


class _Layout:
    """Names of the features to read, the same for all examples of a source."""

    def __init__(self, where: str, example: Mapping[str, Values], options: ImportOptions) -> None:
        found = {name.removeprefix(OBSERVATION): x for name, x in example.items() if name.startswith(OBSERVATION)}
        images = sorted(name for name, values in found.items() if isinstance(values, list) and _is_encoded(values))
        numbers = sorted(name for name, values in found.items() if isinstance(values, np.ndarray))
        state = tuple(name for name in numbers if "language" not in name)  # no embeddings of the task, unless asked for
        chosen = replace(options, keys={STATE: state, **options.keys})
        self.keys = choose_keys(numbers, images, chosen, f"{where}, steps/observation")
        parts = sorted(name.removeprefix("steps/") for name in example if name.startswith("steps/action/"))
        self.actions = options.keys.get("action", ("action",) if "steps/action" in example else tuple(parts))
        check(self.actions, where, "key 'steps/action'", "none", "Name it with --keys action=KEY.")
        self.reward = f"steps/{key_of('reward', 'reward', options)}"
        self.texts = tuple(f"steps/{key}" for key in options.keys.get("instruction", ())) or TEXTS

    def steps(self, where: str, example: Mapping[str, Values]) -> tuple[dict[str, Values], np.ndarray, np.ndarray]:
        """Return the observations by key, the actions and the rewards of an episode, one row per step."""
        num_steps = len(_step_flags(example, where))

        def rows(name: str, numbers: bool = True) -> Any:
            values: Values = require(example, name, where)
            place, found, expected = f"{where}, key {name!r}", len(values), f"values for {num_steps} steps"
            if isinstance(values, list):
                check(not numbers, place, "numbers", "bytes", CHOOSE_KEYS)
                check(found == num_steps, place, expected, found)
                return values
            check(found % num_steps == 0, place, expected, found)
            return values.reshape(num_steps, found // num_steps)

        raw = {key: rows(OBSERVATION + key, numbers=False) for key in used_keys(self.keys)}
        action = np.concatenate([rows(f"steps/{key}") for key in self.actions], axis=1)
        reward = rows(self.reward) if self.reward in example else np.zeros((num_steps, 1), np.float32)
        return raw, action, reward

    def state_names(self, example: Mapping[str, Values]) -> tuple[str, ...]:
        """Return names of the state's dimensions, if it is made of several keys."""
        num_steps = len(_step_flags(example, "the first episode"))
        return dimension_names({key: len(example[OBSERVATION + key]) // num_steps for key in self.keys.get(STATE, ())})

    def text(self, example: Mapping[str, Values]) -> str:
        """Return the instruction of an episode."""
        for name in self.texts:
            values = example.get(name)
            if isinstance(values, list) and values:
                return values[0].decode("utf-8")
        return ""


def _is_terminal(example: Mapping[str, Values]) -> bool:
    """Return whether the last step is a termination."""
    for name, end in (("steps/is_terminal", 1), ("steps/discount", 0)):
        values = example.get(name)
        if isinstance(values, np.ndarray) and len(values):
            return bool(values[-1] == end)
    return False


def _folder(path: Path) -> Path | None:
    """Return the folder that holds the records: `path` itself, or its newest version."""
    for folder in (path, *sorted((child for child in path.iterdir() if child.is_dir()), reverse=True)):
        if any(folder.glob("*.tfrecord*")):
            return folder
    return None


def _shards(path: Path, options: ImportOptions, notes: list[str]) -> list[Path]:
    """Return all files of one split. Some may be missing with --missing skip-episodes."""
    if path.is_file():
        return [path]
    folder = _folder(path)
    if folder is None:
        raise problem(path, expected="*.tfrecord files", found="none", fix="Give the folder that holds them.")
    splits: dict[str, list[Path]] = {}
    for file in sorted(file for file in folder.glob("*.tfrecord*") if file.is_file()):
        splits.setdefault(file.name.split(".tfrecord")[0].rsplit("-", 1)[-1], []).append(file)
    split = options.split or ("train" if "train" in splits else min(splits))
    chosen: list[Path] = require(splits, split, f"{folder}, splits")
    counts = {int(match[1]) for file in chosen if (match := re.search(r"-of-(\d+)$", file.name))}
    where, expected = f"{folder}, split {split!r}", f"{max(counts, default=0)} shards, as the file names say"
    complete = not counts or counts == {len(chosen)}
    fix = f"Download the missing ones, or read only these {len(chosen)} with --missing skip-episodes."
    check(complete or options.missing == "skip-episodes", where, expected, len(chosen), fix)
    if not complete:
        absent = max(counts) - len(chosen)
        notes.append(f"{absent} of {max(counts)} shards are missing: their episodes are left out.")
    return chosen


def _step_flags(example: Mapping[str, Values], where: str) -> Values:
    """Return `is_last` or `is_first`, one flag per step. A flag inside the episode is an error."""
    name = "steps/is_last" if "steps/is_last" in example else "steps/is_first"
    flags: Values = require(example, name, where)
    edge = np.asarray(flags)[:-1] if name == "steps/is_last" else np.asarray(flags)[1:]
    good = not isinstance(flags, list) and len(flags) and not edge.any()
    check(good, f"{where}, key {name!r}", "one flag per step, set at the edge only", flags)
    return flags


def _is_encoded(values: list[bytes]) -> bool:
    return bool(values) and values[0].startswith((b"\x89PNG", b"\xff\xd8"))
