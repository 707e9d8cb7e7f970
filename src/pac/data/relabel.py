"""What episodes are used for: which of them, under which reward, towards which goal.

The functions on an `Episode` change a copy before it is stored; those on a `Dataset` choose rows when it is sampled, so
that one set of episodes serves several tasks (the paper's CHEF data is six rewards over the same episodes).
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from pac.config import suggest
from pac.data.store import GOALS, IMAGES, REWARD, Dataset
from pac.data.writer import add_column
from pac.files import problem
from pac.types import Episode

GoalImages = dict[str, dict[str, np.ndarray]]  # instruction -> camera -> (goals, height, width, 3) uint8
MOST_GOALS = 64  # of a task that a policy is shown, one an episode


def relabel_reward(episode: Episode, reward: str | Callable[[Episode], np.ndarray]) -> Episode:
    """The episode under another reward: one of its extra columns, or what a function of the episode returns (T,)."""
    if callable(reward):
        values = np.asarray(reward(episode), np.float32)
        if values.shape != episode.reward.shape:
            raise ValueError(
                f"Reward function {reward!r}: expected one number for each of {len(episode.action)} actions, found "
                f"shape {values.shape}, for the episode from {episode.source!r}."
            )
        return dataclasses.replace(episode, reward=values)
    if reward not in episode.extra_rewards:
        raise ValueError(f"Unknown extra reward {reward!r}.{suggest(reward, episode.extra_rewards)}")
    return dataclasses.replace(episode, reward=episode.extra_rewards[reward])


def add_reward(path: str | Path, name: str, reward: Callable[[Episode], np.ndarray]) -> None:
    """Store a further reward column, `next.reward.<name>`, for every episode of a dataset."""
    dataset = Dataset(path)
    add_column(dataset, name, (relabel_reward(episode, reward).reward for episode in dataset))


def hindsight(episode: Episode, step: int | None = None) -> Episode:
    """The episode as a success at reaching what it saw at `step` (its last observation unless given): it ends there,
    with a reward of 1 and the pictures of that moment as goal (Andrychowicz et al., 2017).
    """
    last = min(len(array) for array in episode.observation.values()) - 1
    step = last if step is None else step
    if not 1 <= step <= last:
        raise ValueError(f"Hindsight: expected a step in [1, {last}], found {step}: the goal must follow an action.")
    reward = np.zeros(step, np.float32)
    reward[-1] = 1
    pictures = {n.removeprefix(IMAGES): a[step] for n, a in episode.observation.items() if n.startswith(IMAGES)}
    return dataclasses.replace(
        episode,
        observation={name: array[: step + 1] for name, array in episode.observation.items()},
        action=episode.action[:step],
        reward=reward,
        terminated=True,
        truncated=False,
        success=True,
        goal_images=pictures,
        extra_rewards={},
    )


def select_episodes(
    dataset: Dataset, *, success_only: bool = False, return_quantile: float = 0.0, reward: str | None = None
) -> Int64[np.ndarray, " episode"] | None:
    """The episodes a filter keeps, in order; None for all of them, which needs no list.

    The quantile is taken within each instruction: a task with small returns is not filtered away by another's.
    """
    if not success_only and return_quantile <= 0:
        return None
    keep = np.ones(len(dataset), bool)
    success = dataset.index["success"]
    if success_only:
        if (success < 0).all():
            raise problem(
                dataset.path,
                expected="episodes that say whether they succeeded, for success_only",
                found="none that does",
                fix="Use return_quantile instead, or import with success labels.",
            )
        keep &= success == 1
    if return_quantile > 0:
        returns, task = episode_returns(dataset, reward), dataset.index["instruction"]
        for number in np.unique(task):
            keep[task == number] &= returns[task == number] >= np.quantile(returns[task == number], return_quantile)
    if not keep.any():
        raise problem(dataset.path, expected="episodes that pass the filters", found="none", fix="Loosen the filters.")
    return np.flatnonzero(keep)


def episode_returns(dataset: Dataset, reward: str | None = None) -> np.ndarray:
    """The return of every episode, under the stored or an extra reward."""
    if reward is None:
        return np.array(dataset.index["return"])
    column = reward_column(dataset, reward)
    return np.add.reduceat(column, np.array(dataset.index["row"]), dtype=np.float64)  # the last row of each holds 0


def returns_to_go(dataset: Dataset, reward: str | None, discount: float) -> Float32[np.ndarray, "row 2"]:
    """For every row what the log earned from its observation on, discounted, and how much of all there was to earn that
    is: 1 where the episode went on to terminate, less towards a time limit, and 0 at it, where all is still to come.
    """
    earned, index = reward_column(dataset, reward), np.asarray(dataset.index)
    index = index[np.argsort(index["length"])[::-1]]
    found, last = np.zeros((len(earned), 2), np.float32), index["row"] + index["length"]
    found[last, 1] = ~index["terminated"]  # the share that is not known, for now
    for back in range(1, int(index["length"].max()) + 1):
        rows = last[: np.searchsorted(-index["length"], -back, side="right")] - back  # of episodes of that length
        found[rows] = discount * found[rows + 1]
        found[rows, 0] += earned[rows]
    found[:, 1] = 1 - found[:, 1]
    return found


def reward_column(dataset: Dataset, reward: str | None) -> np.ndarray:
    name = REWARD if reward is None else f"{REWARD}.{reward}"
    if name not in dataset.arrays:
        known = dataset.spec.extra_rewards
        raise ValueError(
            f"{dataset.path}: unknown extra reward {reward!r}."
            + (suggest(str(reward), known) if known else " The dataset has none: add one with relabel.add_reward.")
        )
    return dataset.arrays[name]


def success_frames(dataset: Dataset) -> dict[int, Int64[np.ndarray, " goal"]]:
    """Instruction -> rows of the last frames of the episodes that succeeded at it."""
    index = dataset.index
    done = np.flatnonzero(index["success"] == 1)
    rows, tasks = index["row"][done] + index["length"][done], index["instruction"][done]
    return {int(task): rows[tasks == task] for task in np.unique(tasks)}


def find_goal_images(dataset: Dataset, *, stored: bool, instruction: str | None = None) -> GoalImages:
    """What the tasks of a dataset look like when done, for a policy to be shown: the stored goals, or the last frames
    of successes. `instruction`: in place of the stored ones.
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
