"""Flat arrays of steps become episodes: features are chosen, lengths compared, ends found, rows converted.

`pac.data.arrays` does so with arrays in memory, `pac.formats.arrays` with arrays in a file. One episode is in memory at
a time, and arrays are read forward only.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pac.data import array_checks as checks
from pac.data.array_checks import Rows
from pac.data.missing_ends import note_jumps
from pac.data.spec import IMAGES, STATE
from pac.files import problem
from pac.types import Episode

NO_REWARDS = "No rewards: they are 0. For demonstrations choose the reward sparse-success or time-to-go."
BARE = "observations"  # the key of observations that are not a dictionary
Keys = dict[str, tuple[str, ...]]  # PAC feature -> the keys it is made of


@dataclass(frozen=True, kw_only=True)
class ArrayTable:
    """Checked arrays with one row per step. Its episodes are read one at a time, in order."""

    where: str
    keys: Mapping[str, tuple[str, ...]]  # PAC feature -> the keys it is made of
    observations: Mapping[str, Rows]  # by key
    following: Mapping[str, Rows]  # next_observations by key; empty: not given
    actions: Rows
    rewards: Rows | None
    terminals: np.ndarray
    timeouts: np.ndarray
    ends: np.ndarray  # row after the last one of each episode
    instructions: Sequence[str]  # one per episode
    success: Sequence[bool | None]  # one per episode
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def episodes(self, chosen: Container[int] | None = None) -> Iterator[Episode]:
        """Yield the episodes, or those with a chosen index."""
        for index, (start, stop) in enumerate(zip([0, *self.ends[:-1].tolist()], self.ends.tolist(), strict=True)):
            if chosen is None or index in chosen:
                yield self._episode(index, start, stop)

    def _episode(self, index: int, start: int, stop: int) -> Episode:
        def at(row: int) -> str:
            return f"row {start + row} (episode {index}, step {row})"

        rows = {key: array[start:stop] for key, array in self.observations.items()}
        if self.following:
            last = {key: array[stop - 1 : stop] for key, array in self.following.items() if key not in self._state}
            for key in self._state:
                values = np.asarray(self.following[key][start:stop])
                self._check_order(key, np.asarray(rows[key]), values, index, start)
                last[key] = values[-1:]
            rows = {key: np.concatenate([array, last[key]]) for key, array in rows.items()}
        reward = np.zeros(stop - start) if self.rewards is None else self.rewards[start:stop]
        where = f"{self.where}, key 'actions'"
        return Episode(
            observation=to_features(self.keys, rows, self.where, at, self.state_names),
            action=checks.numbers(self.actions[start:stop], where, at, self.action_names),
            reward=checks.numbers(reward, f"{self.where}, key 'rewards'", at)[:, 0],
            terminated=bool(self.terminals[stop - 1]),
            truncated=bool(self.timeouts[stop - 1]),
            instruction=self.instructions[index],
            success=self.success[index],
        )

    @property
    def _state(self) -> tuple[str, ...]:
        return self.keys.get(STATE, ())

    def _check_order(self, key: str, now: np.ndarray, following: np.ndarray, index: int, start: int) -> None:
        """Raise if a row inside the episode is not the observation after the row before it."""
        same = np.isclose(now[1:], following[:-1], rtol=1e-4, atol=1e-6, equal_nan=True)
        wrong = np.flatnonzero(~same.all(axis=tuple(range(1, same.ndim))))
        if len(wrong):
            row = start + int(wrong[0])
            raise problem(
                f"{self.where}, key {key!r}, row {row + 1} (episode {index})",
                expected=f"the observation that next_observations holds in row {row}",
                found="another one",
                fix="Mark row "
                f"{row} as an end in timeouts or terminals. Shuffled transitions must be put back in their order.",
            )


def default_features(numbers: list[str], images: list[str]) -> Keys:
    """Make the state of all numbers, in this order, and a camera of each image."""
    features: Keys = {STATE: tuple(numbers)} if numbers else {}
    for key in images:
        feature = IMAGES + checks.camera_name(key)
        if feature in features:
            found, fix = f"{features[feature][0]!r} and {key!r}", "Rename one of them."
            raise problem("observations", expected="one array per camera", found=found, fix=fix)
        features[feature] = (key,)
    return features


def table_of(
    where: str,
    *,
    observations: Any,
    actions: Any,
    rewards: Any = None,
    terminals: Any = None,
    timeouts: Any = None,
    next_observations: Any = None,
    instruction: str | Sequence[str] = "",
    success: Any = None,
    state_names: Sequence[str] = (),
    action_names: Sequence[str] = (),
    choose: Callable[[list[str], list[str]], Keys] = default_features,
) -> ArrayTable:
    """Check flat arrays and find the episodes in them. `choose` picks features from keys of numbers and of images."""
    arrays = by_key(observations, f"{where}, key {BARE!r}")
    acts = checks.continuous(checks.as_rows(actions, f"{where}, key 'actions'"), f"{where}, key 'actions'")
    num_rows = acts.shape[0]
    if not num_rows:
        raise problem(where, expected="at least one row", found="empty arrays", fix="Check how they were made.")
    for key, rows in arrays.items():
        checks.check_rows(rows.shape[0], num_rows, f"{where}, key {key!r}", "actions")
    keys = choose(*checks.split_kinds(arrays, where))
    used = {key: arrays[key] for parts in keys.values() for key in parts}

    def given_flags(values: Any, name: str) -> np.ndarray:
        place = f"{where}, key {name!r}"
        return np.zeros(num_rows, bool) if values is None else checks.flags(values, num_rows, place, "actions")

    ended, limited = given_flags(terminals, "terminals"), given_flags(timeouts, "timeouts")
    ends = find_ends(ended | limited, where)
    notes = [NO_REWARDS] if rewards is None else []
    if both := int((ended & limited).sum()):
        notes.append(f"{both} episodes end with terminals and timeouts: they count as terminal.")
    if timeouts is None:
        notes.append(f"No timeouts: {len(ends):,} episodes end at terminals only.")
    if next_observations is None:  # else each row is compared with the next observation before it
        notes += note_jumps([used[key] for key in keys.get(STATE, ())], ends)
    names = state_names if len(state_names) else part_names(keys, used)
    state_dim = sum(width(used[key]) for key in keys.get(STATE, ()))
    return ArrayTable(
        where=where,
        keys=keys,
        observations=used,
        following=_following(next_observations, used, where),
        actions=acts,
        rewards=None if rewards is None else checks.column(rewards, num_rows, f"{where}, key 'rewards'", "actions"),
        terminals=ended,
        timeouts=limited,
        ends=ends,
        instructions=_texts(instruction, len(ends), where),
        success=_successes(success, ends, where),
        state_names=checked_names(names, state_dim, f"{where}, state_names"),
        action_names=checked_names(action_names, width(acts), f"{where}, action_names"),
        notes=notes,
    )


def by_key(values: Any, where: str) -> dict[str, Rows]:
    """Return observations by key. Nested dictionaries are joined by "/"; an array alone has the key "observations"."""
    if not isinstance(values, Mapping | tuple):
        return {BARE: checks.as_rows(values, where)}
    items = values.items() if isinstance(values, Mapping) else ((f"_index_{i}", part) for i, part in enumerate(values))
    found: dict[str, Rows] = {}
    for name, part in items:
        inner = by_key(part, f"{where}, key {str(name)!r}")
        found |= {str(name) if key == BARE else f"{name}/{key}": rows for key, rows in inner.items()}
    if not found:
        raise problem(where, expected="at least one array", found="none", fix="Give the state or a camera.")
    return found


def to_features(
    keys: Mapping[str, tuple[str, ...]],
    rows: Mapping[str, Any],
    where: str,
    at: Callable[[int], str] = "step {}".format,
    state_names: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Convert the rows of an episode to the features of an `Episode`. `at` says how errors name a row."""
    observation: dict[str, np.ndarray] = {}
    for feature, parts in keys.items():
        if feature != STATE:
            observation[feature] = checks.to_rgb(np.asarray(rows[parts[0]]))
            continue
        arrays: list[np.ndarray] = []
        for key in parts:
            names = state_names[sum(array.shape[1] for array in arrays) :]
            arrays.append(checks.numbers(rows[key], f"{where}, key {key!r}", at, names))
        observation[STATE] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
    return observation


def width(rows: Rows) -> int:
    """Return the number of dimensions of a vector with one row per step."""
    return int(np.prod(rows.shape[1:]))


def part_names(keys: Keys, arrays: Mapping[str, Rows]) -> tuple[str, ...]:
    """Return names of the state's dimensions if it is made of several keys."""
    widths = {key.removeprefix(f"{BARE}/"): width(arrays[key]) for key in keys.get(STATE, ())}
    return checks.dimension_names(widths)


def checked_names(names: Sequence[str], count: int, where: str) -> tuple[str, ...]:
    """Return the names of dimensions. Raise unless there is one for each, or none."""
    if isinstance(names, str) or len(names) not in (0, count):
        fix = "Give one name per dimension, or none."
        raise problem(where, expected=f"{count} names", found=names, fix=fix)
    return tuple(map(str, names))


def find_ends(flags: np.ndarray, where: str) -> np.ndarray:
    """Return the row after the end of each episode. Raise if the last row is no end."""
    ends = np.flatnonzero(flags) + 1
    last = int(ends[-1]) if len(ends) else 0
    if last < len(flags):
        raise problem(
            f"{where}, keys 'terminals' and 'timeouts'",
            expected="the end of each episode, and so of the last row",
            found=f"{len(ends)} ends, and {len(flags) - last} rows after the last one",
            fix="Missing ends: set timeouts[t] where an episode was cut off, and timeouts[-1] if the last one goes on.",
        )
    return ends


def _following(values: Any, used: Mapping[str, Rows], where: str) -> dict[str, Rows]:
    """Return next_observations by key. Raise unless they are like the observations."""
    if values is None:
        return {}
    name = f"{where}, key 'next_observations'"
    found = by_key(values, name)
    for key, rows in used.items():
        expected = f"{key!r} of {rows.dtype} {tuple(rows.shape)}, as in observations"
        same = key in found and tuple(found[key].shape) == tuple(rows.shape)
        if not same or (found[key].dtype == np.uint8) != (rows.dtype == np.uint8):
            kinds = ", ".join(f"{name!r} of {other.dtype} {tuple(other.shape)}" for name, other in found.items())
            raise problem(name, expected=expected, found=kinds, fix="Give the same arrays one step later, or none.")
    return {key: found[key] for key in used}


def _texts(instruction: Any, count: int, where: str) -> list[str]:
    """Return the instruction of each episode."""
    texts = list(instruction) if isinstance(instruction, Iterable) else [instruction]
    texts = [instruction] * count if isinstance(instruction, str) else texts
    good = len(texts) == count and all(isinstance(text, str) for text in texts)
    if not good:
        found = f"{len(texts)} values such as {texts[0]!r}" if texts else "none"
        fix = "Give one text for all, or one text per episode."
        raise problem(f"{where}, key 'instruction'", expected=f"{count} texts", found=found, fix=fix)
    return list(map(str, texts))


def _successes(success: Any, ends: np.ndarray, where: str) -> list[bool | None]:
    """Return the success of each episode, from one flag per episode or one per row. None: not known."""
    if success is None:
        return [None] * len(ends)
    place = f"{where}, key 'success'"
    if isinstance(success, bool):
        return [success] * len(ends)
    array = np.asarray(checks.as_rows(success, place)[:])
    if len(array) not in (len(ends), int(ends[-1])):
        expected = f"{len(ends)} flags, one per episode, or {ends[-1]}, one per row"
        raise problem(place, expected=expected, found=len(array), fix="Give one flag per episode.")
    found = checks.flags(array, len(array), place, "episodes")
    if len(array) != len(ends):
        found = np.logical_or.reduceat(found, np.append(0, ends[:-1]))
    return [bool(flag) for flag in found]
