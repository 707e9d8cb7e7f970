"""Relabelling: which episodes are used, under which reward and towards which goal.

One set of episodes serves several tasks: the paper's CHEF data has six rewards for the same episodes.
"""

import numpy as np
from jaxtyping import Float32, Int64

from pac.config import suggest
from pac.data.store import GOALS, IMAGES, REWARD, Dataset
from pac.files import problem

GoalImages = dict[str, dict[str, np.ndarray]]  # instruction -> camera -> (goals, height, width, 3) uint8
MOST_GOALS = 64  # goals of a task that a policy is shown, one per episode


def select_episodes(
    dataset: Dataset, *, success_only: bool = False, return_quantile: float = 0.0, reward: str | None = None
) -> Int64[np.ndarray, " episode"] | None:
    """Return the episodes that pass the filters, in order, or None if there is no filter.

    The quantile is taken within each instruction, so that tasks with small returns keep their share.
    """
    if not success_only and return_quantile <= 0:
        return None
    keep = np.ones(len(dataset), bool)
    success = dataset.index["success"]
    if success_only:
        if (success < 0).all():
            expected = "episodes that say whether they succeeded, for success_only"
            fix = "Use return_quantile instead, or import with success labels."
            raise problem(dataset.path, expected=expected, found="none that does", fix=fix)
        keep &= success == 1
    if return_quantile > 0:
        returns, task = episode_returns(dataset, reward), dataset.index["instruction"]
        for number in np.unique(task):
            keep[task == number] &= returns[task == number] >= np.quantile(returns[task == number], return_quantile)
    if not keep.any():
        raise problem(dataset.path, expected="episodes that pass the filters", found="none", fix="Loosen the filters.")
    return np.flatnonzero(keep)


def episode_returns(dataset: Dataset, reward: str | None = None) -> np.ndarray:
    """Return the return of every episode, under the stored or an extra reward."""
    if reward is None:
        return np.array(dataset.index["return"])
    column = reward_column(dataset, reward)
    return np.add.reduceat(column, np.array(dataset.index["row"]), dtype=np.float64)  # the last row of each holds 0


def returns_to_go(dataset: Dataset, reward: str | None, discount: float) -> Float32[np.ndarray, "row 2"]:
    """Return for every row the discounted return-to-go of its observation, and the share of the return that it covers.

    The share is 1 if the episode goes on to a termination. It falls towards a time limit, where it is 0.
    """
    rewards, index = reward_column(dataset, reward), np.asarray(dataset.index)
    index = index[np.argsort(index["length"])[::-1]]
    found, last = np.zeros((len(rewards), 2), np.float32), index["row"] + index["length"]
    found[last, 1] = ~index["terminated"]  # the share that is not covered, for now
    for back in range(1, int(index["length"].max()) + 1):
        rows = last[: np.searchsorted(-index["length"], -back, side="right")] - back  # of episodes of that length
        found[rows] = discount * found[rows + 1]
        found[rows, 0] += rewards[rows]
    found[:, 1] = 1 - found[:, 1]
    return found


def reward_column(dataset: Dataset, reward: str | None) -> np.ndarray:
    """Return the stored reward of every row, or an extra reward by name."""
    name = REWARD if reward is None else f"{REWARD}.{reward}"
    if name not in dataset.arrays:
        known = dataset.spec.extra_rewards
        hint = suggest(str(reward), known) if known else " The dataset has none: write it with Episode.extra_rewards."
        raise ValueError(f"{dataset.path}: unknown extra reward {reward!r}.{hint}")
    return dataset.arrays[name]


def success_frames(dataset: Dataset) -> dict[int, Int64[np.ndarray, " goal"]]:
    """Return for each instruction the rows of the last frames of its successful episodes."""
    index = dataset.index
    done = np.flatnonzero(index["success"] == 1)
    rows, tasks = index["row"][done] + index["length"][done], index["instruction"][done]
    return {int(task): rows[tasks == task] for task in np.unique(tasks)}


def find_goal_images(dataset: Dataset, *, stored: bool, instruction: str | None = None) -> GoalImages:
    """Return goal images by instruction: the stored ones, or the last frames of successes.

    `instruction` replaces the stored ones.
    """
    spec, goal = dataset.spec, np.asarray(dataset.index["goal"])
    tasks = np.asarray(dataset.index["instruction"])
    rows = success_frames(dataset)
    if stored:
        rows = {int(task): goal[(tasks == task) & (goal >= 0)] for task in np.unique(tasks)}
    cameras, prefix = (spec.goal_cameras, GOALS) if stored else (spec.cameras, IMAGES)
    arrays = {name: (dataset.goals if stored else dataset.arrays)[prefix + name] for name in cameras}
    found: dict[str, list[int]] = {}
    for task, places in rows.items():
        found.setdefault(instruction or dataset.instructions[task], []).extend(map(int, places))
    return {
        text: {name: np.stack([array[place] for place in places[:MOST_GOALS]]) for name, array in arrays.items()}
        for text, places in found.items()
        if places
    }
