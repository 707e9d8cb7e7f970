"""Numpy arrays to the episode store: flat arrays of steps, or a list of episodes of d3rlpy or Minari.

Row t of flat arrays holds an observation, the action taken in it, and its reward. The next observation is row t + 1 of
the same episode. At the end of an episode it is `next_observations[t]` where that is given, else it is unknown.
`terminals[t]` is a true termination, `timeouts[t]` a time limit. A row with both counts as terminal.

One episode is in memory at a time, so memory-mapped arrays of any size work.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pac.data import array_checks as checks
from pac.data.array_table import by_key, checked_names, default_features, part_names, table_of, to_features, width
from pac.data.spec import STATE, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.files import new_folder, problem
from pac.types import Episode

Progress = Callable[[int, int | None], object]  # (episodes written, all episodes or None)
log = logging.getLogger("pac.data.arrays")


def write_arrays(
    out: str | Path,
    *,
    observations: Any,
    actions: Any,
    rewards: Any = None,
    terminals: Any = None,
    timeouts: Any = None,
    next_observations: Any = None,
    instruction: str | Sequence[str] = "",
    success: Any = None,
    action_low: Any = None,
    action_high: Any = None,
    control_rate: float | None = None,
    state_names: Sequence[str] = (),
    action_names: Sequence[str] = (),
    progress: Progress | None = None,
    notes: list[str] | None = None,
) -> Path:
    """Write flat arrays of steps as a new dataset at `out`. Return its path.

    `observations` is an array (rows, dimensions), or a dictionary: "state" or other numbers, which make the state, and
    images by the camera's name. `instruction` and `success` are one value, or one per episode. Remarks go to `notes`,
    by default to the log.
    """
    table = table_of(
        "arrays",
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminals=terminals,
        timeouts=timeouts,
        next_observations=next_observations,
        instruction=instruction,
        success=success,
        state_names=state_names,
        action_names=action_names,
    )
    known = bounds_of(action_low, action_high, width(table.actions), "arrays")
    known |= {"state_names": table.state_names, "action_names": table.action_names, "control_rate": control_rate}
    _write(Path(out), table.episodes(), len(table.ends), known, progress)
    for note in table.notes:
        log.warning(note) if notes is None else notes.append(note)
    return Path(out)


def write_episodes(
    out: str | Path,
    episodes: Any,
    *,
    instruction: str | Sequence[str] = "",
    action_low: Any = None,
    action_high: Any = None,
    control_rate: float | None = None,
    state_names: Sequence[str] = (),
    action_names: Sequence[str] = (),
    progress: Progress | None = None,
) -> Path:
    """Write episodes as a new dataset at `out`. Return its path.

    `episodes` is a d3rlpy dataset, a Minari dataset, or any iterable of their episodes or of `pac.types.Episode`.
    """
    items, total = _items(episodes)
    first = next(items, None)
    if first is None:
        raise problem("episodes", expected="at least one episode", found="none", fix="Check how they were made.")
    texts = None if isinstance(instruction, str) else list(instruction)
    if texts is not None and len(texts) != total:
        fix = "Give one text for all, or a list of episodes and one text for each."
        raise problem("episodes, instruction", expected=f"{total} texts", found=len(texts), fix=fix)
    keys, parts = ({}, {}) if isinstance(first, Episode) else _observed(first, "episode 0")
    state_names = state_names if len(state_names) else part_names(keys, parts)

    def converted() -> Iterator[Episode]:
        for index, item in enumerate(chain([first], items)):
            text = str(instruction) if texts is None else texts[index]
            yield item if isinstance(item, Episode) else _convert(item, index, text, state_names, action_names)

    found = converted()
    example = next(found)
    num_actions = example.action.shape[-1]
    if action_low is None and action_high is None:
        action_low, action_high = _bounds_of_space(getattr(episodes, "action_space", None))
    state_dim = example.observation[STATE].shape[-1] if STATE in example.observation else 0
    known = bounds_of(action_low, action_high, num_actions, "episodes") | {
        "control_rate": control_rate,
        "state_names": checked_names(state_names, state_dim, "episodes, state_names"),
        "action_names": checked_names(action_names, num_actions, "episodes, action_names"),
    }
    _write(Path(out), chain([example], found), total, known, progress)
    return Path(out)


def bounds_of(low: Any, high: Any, count: int, where: str) -> dict[str, Any]:
    """Return the bounds of the action as fields of a DatasetSpec. A single number holds for every dimension."""
    if low is None and high is None:
        return {}
    bounds = [np.asarray(np.nan if bound is None else bound) for bound in (low, high)]
    good = all(bound.dtype.kind in "fiu" and bound.shape in ((), (1,), (count,)) for bound in bounds)
    bounds = [np.broadcast_to(bound, (count,)) for bound in bounds] if good else bounds
    if not good or not np.isfinite(bounds).all() or (bounds[0] > bounds[1]).any():
        expected, fix = f"{count} finite numbers each, low <= high", "Give both, or neither to have them measured."
        raise problem(f"{where}, action_low and action_high", expected=expected, found=f"{low} and {high}", fix=fix)
    return {"action_low": bounds[0].tolist(), "action_high": bounds[1].tolist()}


def _write(
    out: Path, episodes: Iterable[Episode], total: int | None, known: Mapping[str, Any], progress: Progress | None
) -> None:
    """Write all episodes or nothing."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise problem(out, expected="a new folder", found="other files", fix="Name another folder, or remove this one.")
    with new_folder(out) as place, ExitStack() as writing:
        writer: DatasetWriter | None = None
        for number, episode in enumerate(episodes, start=1):
            if writer is None:
                spec = DatasetSpec.of(episode, **known)
                writer = writing.enter_context(DatasetWriter(place, spec, atomic=True))
            writer.append(episode)
            if progress is not None:
                progress(number, total)


def _items(episodes: Any) -> tuple[Iterator[Any], int | None]:
    """Return the episodes of a dataset or a list, and their number where it is known."""
    if hasattr(episodes, "iterate_episodes"):  # minari.MinariDataset
        return iter(episodes.iterate_episodes()), int(episodes.total_episodes)
    found = getattr(episodes, "episodes", episodes)  # d3rlpy's ReplayBuffer and MDPDataset
    if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
        expected, fix = "a d3rlpy dataset, a Minari dataset or a list of episodes", "Flat arrays go to write_arrays."
        raise problem("episodes", expected=expected, found=type(episodes).__name__, fix=fix)
    return iter(found), len(found) if isinstance(found, Sized) else None


def _observed(item: Any, where: str) -> tuple[dict[str, tuple[str, ...]], dict[str, checks.Rows]]:
    """Return the features of a foreign episode, and its observations by key."""
    if not all(hasattr(item, name) for name in ("observations", "actions", "rewards")):
        expected = "an episode of d3rlpy or Minari: observations, actions, rewards and its end"
        raise problem(where, expected=expected, found=type(item).__name__, fix="Flat arrays go to write_arrays.")
    observations = item.observations
    parts = by_key(tuple(observations) if isinstance(observations, list) else observations, f"{where}, observations")
    return default_features(*checks.split_kinds(parts, where)), parts


def _convert(item: Any, index: int, text: str, state_names: Sequence[str], action_names: Sequence[str]) -> Episode:
    """Convert an episode of d3rlpy (T observations, `terminated`) or of Minari (T + 1 observations, flags per step)."""
    where = f"episode {index}"
    keys, parts = _observed(item, where)
    action = checks.continuous(checks.as_rows(item.actions, f"{where}, actions"), f"{where}, actions")
    steps = action.shape[0]
    for key, rows in parts.items():
        if rows.shape[0] not in (steps, steps + 1):
            expected = f"{steps + 1} observations for {steps} actions, or {steps}"
            fix = "Check which observation belongs to which action."
            raise problem(f"{where}, key {key!r}", expected=expected, found=rows.shape[0], fix=fix)
    reward = checks.column(item.rewards, steps, f"{where}, rewards", "actions")
    terminated, truncated = _ends(item, steps, where)
    infos = getattr(item, "infos", None) or {}
    success = infos.get("success", infos.get("is_success"))
    return Episode(
        observation=to_features(keys, {key: rows[:] for key, rows in parts.items()}, where, state_names=state_names),
        action=checks.numbers(action[:], f"{where}, actions", names=action_names),
        reward=checks.numbers(reward[:], f"{where}, rewards")[:, 0],
        terminated=terminated,
        truncated=truncated or not terminated,
        instruction=text,
        success=None if success is None else bool(np.any(success)),
    )


def _ends(item: Any, steps: int, where: str) -> tuple[bool, bool]:
    """Return whether an episode ends in a termination, and whether in a time limit."""
    if hasattr(item, "terminated"):  # d3rlpy
        return bool(item.terminated), not item.terminated
    found = []
    for name in ("terminations", "truncations"):
        given = getattr(item, name, None)
        if given is None:
            expected, fix = "terminated, or terminations and truncations", "Say how the episode ended."
            raise problem(where, expected=expected, found="neither", fix=fix)
        flags = checks.flags(given, steps, f"{where}, {name}", "actions")
        if flags[:-1].any():
            fix = "Split the episode at its ends."
            found_at = f"ends at steps {np.flatnonzero(flags)[:3].tolist()} of {steps}"
            raise problem(f"{where}, {name}", expected="an end at the last step only", found=found_at, fix=fix)
        found.append(bool(flags[-1]) if steps else False)
    return found[0], found[1]


def _bounds_of_space(space: Any) -> tuple[Any, Any]:
    """Return the bounds of Minari's action space, or None for both where it has none or infinite ones."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or not np.isfinite(low).all() or not np.isfinite(high).all():
        return None, None
    return np.ravel(low), np.ravel(high)
