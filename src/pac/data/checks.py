"""Checks of an episode before it is stored: features, shapes, types, finite values and action bounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pac.data.array_checks import dimension
from pac.data.spec import ACTION, GOALS, REWARD, STATE, TERMINATED, TRUNCATED, DatasetSpec, Feature
from pac.files import problem
from pac.types import Episode

BOUND_SLACK = 1e-4  # of the range: actions this far outside are rounding errors; reading clips them


def episode_rows(episode: Episode, spec: DatasetSpec, where: str) -> dict[str, np.ndarray]:
    """Check an episode against the spec and return the rows to store, by feature."""
    length, rows = len(episode.action), num_observations(episode)
    if length == 0:
        raise problem(where, expected="at least one step", found="none", fix="Leave the episode out.")
    if rows not in (length, length + 1):
        expected = f"{length + 1} observations for {length} actions, or {length} where the last is not known"
        raise problem(where, expected=expected, found=rows, fix="Check which observation belongs to which action.")
    given = dict(episode.observation)
    given |= {ACTION: episode.action, REWARD: episode.reward}
    given |= {f"{REWARD}.{name}": values for name, values in episode.extra_rewards.items()}
    ends = np.zeros((2, length), bool)
    ends[:, -1] = episode.terminated, episode.truncated
    given |= {TERMINATED: ends[0], TRUNCATED: ends[1]}
    _check_names(given, spec.step_features, where)
    if episode.goal_images:
        goals = {GOALS + name: image for name, image in episode.goal_images.items()}
        _check_names(goals, spec.goal_features, where)
        for name, (dtype, shape) in spec.goal_features.items():
            _check_array(goals[name], dtype, shape, f"{where}, key {name!r}")
    steps = {}
    for name, (dtype, shape) in spec.step_features.items():
        is_observation = name.startswith("observation.")
        names = {STATE: spec.state_names, ACTION: spec.action_names}.get(name, ())
        _check_array(given[name], dtype, (rows if is_observation else length, *shape), f"{where}, key {name!r}", names)
        values = given[name].astype(dtype, copy=False)
        if len(values) == length:  # the last row repeats the observation, and holds zeros otherwise
            values = np.concatenate([values, values[-1:] if is_observation else np.zeros_like(values[-1:])])
        steps[name] = values
    _check_bounds(episode.action, spec, where)
    return steps


def num_observations(episode: Episode) -> int:
    """Return the number of rows of the longest observation."""
    return max((len(array) for array in episode.observation.values()), default=0)


def _check_array(
    array: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, names: Sequence[str] = ()
) -> None:
    """Raise unless the array has this kind of values, this shape, and only finite numbers."""
    kinds = "fiu" if dtype.kind == "f" else dtype.kind
    if array.dtype.kind not in kinds or (dtype.kind == "u" and array.dtype != dtype):
        raise problem(where, expected=f"{dtype.name} values", found=array.dtype, fix="Convert them first.")
    if array.shape != shape:
        raise problem(where, expected=f"shape {shape}", found=array.shape, fix="Check the episode's arrays.")
    if dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        where += f", step {place[0]}" + (f", {dimension(place[1], names)}" if len(place) > 1 else "")
        fix = "Remove or repair the episode at its source."
        raise problem(where, expected="a finite number", found=array[place], fix=fix)


def _check_names(found: dict[str, np.ndarray], expected: dict[str, Feature], where: str) -> None:
    if found.keys() != expected.keys():
        missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        message = f"missing {missing}, not in the dataset {unknown}"
        fix = "Import the other features into a separate dataset, and mix the two. They need not agree."
        raise problem(where, expected=f"the features of the dataset: {', '.join(expected)}", found=message, fix=fix)


def _check_bounds(action: np.ndarray, spec: DatasetSpec, where: str) -> None:
    if spec.action_low is None or spec.action_high is None:
        return
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    slack = BOUND_SLACK * np.maximum(high - low, 1e-3)
    outside = (action < low - slack) | (action > high + slack)
    if outside.any():
        step, place = (int(i) for i in np.argwhere(outside)[0])
        where = f"{where}, key 'action', step {step}, {dimension(place, spec.action_names)}"
        expected = f"a value in [{low[place]:g}, {high[place]:g}], the bounds of the dataset"
        fix = "Correct the bounds, or pass none to have them measured."
        raise problem(where, expected=expected, found=f"{action[step, place]:g}", fix=fix)
