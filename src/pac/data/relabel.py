"""Relabelling: which episodes are used, under which reward and towards which goal.

One set of episodes serves several tasks: the paper's CHEF data has six rewards for the same episodes. A reward is the
stored one, a further stored column, or a rule. A rule is computed when a dataset is opened, and never stored there.
"""

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64, Shaped

from pac.config import suggest
from pac.data.spec import GOALS, IMAGES, REWARD, TERMINATED
from pac.data.store import COMMITTED, SPEC, Dataset, npy_header, read_committed, seal
from pac.data.writer import lock_dataset
from pac.files import problem, write_atomically
from pac.types import Episode

GoalImages = dict[str, dict[str, np.ndarray]]  # instruction -> camera -> (goals, height, width, 3) uint8
MOST_GOALS = 64  # goals of a task that a policy is shown, one per episode

# Rewards for demonstrations: the reward of a step, and of the last step, which is terminal. A labelled failure has the
# first at every step, and keeps its recorded end. An episode of unknown success counts as a success.
RULES: Mapping[str, tuple[float, float]] = {"sparse-success": (0.0, 1.0), "time-to-go": (-1.0, 0.0)}
REWARD_OPTIONS = (
    'Set `reward` of the dataset in the mixture to "sparse-success" (1 at the end), "time-to-go" (-1 per step) or a '
    "stored column (`pac relabel` adds one). Or clone only, with objective.method=bc."
)


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


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Rewards and ends of a dataset's episodes, as stored or by a rule."""

    reward: Float32[np.ndarray, " row"]
    terminated: Bool[np.ndarray, " row"]
    index: Shaped[np.ndarray, " episode"]  # of the store, with these ends; its returns are those of the stored reward


def label(dataset: Dataset, reward: str | None) -> Labels:
    """Return the stored reward, a further stored reward by name, or a rule's, each with the ends that go with it."""
    name, stored = REWARD if reward is None else f"{REWARD}.{reward}", np.asarray(dataset.arrays[TERMINATED])
    if reward is None or reward not in RULES:
        if name not in dataset.arrays:
            hint = suggest(str(reward), (*dataset.spec.extra_rewards, *RULES))
            fix = "" if dataset.spec.extra_rewards else " The dataset has no column: `pac relabel` adds one."
            raise ValueError(f"{dataset.path}: unknown extra reward {reward!r}.{hint}{fix}")
        return Labels(reward=dataset.arrays[name], terminated=stored, index=np.asarray(dataset.index))
    if name in dataset.arrays:
        fix = "Import the data without that column, or add the column under another name with `pac relabel`."
        raise problem(dataset.path, expected=f"{reward!r} to be the rule alone", found="a column of that name", fix=fix)
    index, terminated = np.array(dataset.index), stored.copy()
    step, at_end = RULES[reward]
    solved, last = index["success"] != 0, index["row"] + index["length"] - 1
    rewards = np.full(dataset.num_rows, step, np.float32)
    rewards[last[solved]], rewards[last + 1] = at_end, 0  # the row after the last step has no action
    terminated[last[solved]] = True
    index["terminated"] |= solved
    index["truncated"] &= ~solved
    return Labels(reward=rewards, terminated=terminated, index=index)


def label_episode(episode: Episode, reward: str) -> Episode:
    """Return the episode with a rule's rewards and end, or with a further reward of its own as its reward."""
    if reward not in RULES:
        if reward not in episode.extra_rewards:
            expected = f"{' or '.join(map(repr, RULES))}, or a further reward of the source"
            names = ", ".join(episode.extra_rewards) or "none"
            fix = "Choose one of them. A key of the source that holds rewards goes into --keys reward=KEY."
            raise problem(f"{episode.source}, reward {reward!r}", expected=expected, found=f"these: {names}", fix=fix)
        return dataclasses.replace(episode, reward=episode.extra_rewards[reward])
    step, at_end = RULES[reward]
    rewards = np.full(len(episode.action), step, np.float32)
    if episode.success is False:
        return dataclasses.replace(episode, reward=rewards)
    rewards[-1] = at_end
    return dataclasses.replace(episode, reward=rewards, terminated=True, truncated=False)


def reward_column(dataset: Dataset, reward: str | None) -> np.ndarray:
    """Return the reward of every row: the stored one, a further one by name, or a rule's."""
    return label(dataset, reward).reward


def episode_returns(dataset: Dataset, reward: str | None = None) -> np.ndarray:
    """Return the return of every episode, under the stored reward, a further one or a rule."""
    if reward is None:
        return np.array(dataset.index["return"])
    column = reward_column(dataset, reward)
    return np.add.reduceat(column, np.array(dataset.index["row"]), dtype=np.float64)  # the last row of each holds 0


def returns_to_go(dataset: Dataset, reward: str | None, discount: float) -> Float32[np.ndarray, "row 2"]:
    """Return for every row the discounted return-to-go of its observation, and the share of the return that it covers.

    The share is 1 if the episode goes on to a termination. It falls towards a time limit, where it is 0.
    """
    labels = label(dataset, reward)
    rewards, index = labels.reward, labels.index
    index = index[np.argsort(index["length"])[::-1]]
    found, last = np.zeros((len(rewards), 2), np.float32), index["row"] + index["length"]
    found[last, 1] = ~index["terminated"]  # the share that is not covered, for now
    for back in range(1, int(index["length"].max()) + 1):
        rows = last[: np.searchsorted(-index["length"], -back, side="right")] - back  # of episodes of that length
        found[rows] = discount * found[rows + 1]
        found[rows, 0] += rewards[rows]
    found[:, 1] = 1 - found[:, 1]
    return found


def equal_reward(labels: Labels, episodes: Int64[np.ndarray, " episode"] | None = None) -> float | None:
    """Return the reward of every step if no two returns-to-go can differ, else None. The default is all episodes.

    They differ if two rewards do, or if the same reward that is not 0 ends with a termination.
    """
    index = labels.index if episodes is None else labels.index[episodes]
    if not len(index):
        return None
    value = float(labels.reward[index["row"][0]])
    places = np.stack([index["row"], index["row"] + index["length"]], 1).reshape(-1)  # of the steps, first to behind
    if np.logical_or.reduceat(labels.reward != value, places)[::2].any() or (value and index["terminated"].any()):
        return None
    return value


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


def add_reward(path: str | Path, name: str, function: Callable[[Episode], np.ndarray]) -> None:
    """Store a further reward of an existing dataset. `function` returns one number for each step of an episode.

    It is called once for each episode, in their order. Arrays of its episode are views of the files, so images are
    read only where it looks at them. A kill leaves the dataset as it was, or with the new reward.
    """
    path = Path(path)
    where = f"{path}, reward {name!r}"
    if name in RULES:
        raise problem(where, expected="a name that is no rule's", found=repr(name), fix="Choose another name.")
    dataset = Dataset(path)
    unlock = lock_dataset(path, dataset)
    try:
        dataset = Dataset(path)  # as it is while nobody else writes
        present = dataset.spec.extra_rewards
        if name in present or not len(dataset):
            found = f"{len(dataset)} episodes with the rewards {', '.join(present) or '(none)'}"
            fix = "Choose another name, or collect first."
            raise problem(where, expected="episodes without a reward of that name", found=found, fix=fix)
        spec = dataclasses.replace(dataset.spec, extra_rewards=tuple(sorted((*present, name))))
        column = _compute_reward(dataset, function, where)
        header, content = npy_header(column.dtype, (), len(column)), column.tobytes()
        committed, file = read_committed(path), f"{REWARD}.{name}.npy"
        committed["files"][file] = {"offset": len(header), "bytes": len(content), "crc32": zlib.crc32(content)}
        # A writer with the old spec would take a column without a checksum for a new one, and cut it off. So the spec
        # comes last: until then nothing reads the column.
        write_atomically(path / file, header + content)
        write_atomically(path / COMMITTED, seal(committed))
        write_atomically(path / SPEC, json.dumps(spec.to_json(), indent=2))
    finally:
        unlock()


def _compute_reward(dataset: Dataset, function: Callable[[Episode], np.ndarray], where: str) -> np.ndarray:
    """Return the rows of a further reward. Raise unless `function` gives one finite number for each step."""
    column = np.zeros(dataset.num_rows, "<f4")
    for i, (row, length) in enumerate(dataset.index[["row", "length"]].tolist()):
        values = np.asarray(function(dataset.episode(i, copy=False)))
        fix = "Return one number for each action of the episode."
        if values.shape != (length,) or values.dtype.kind not in "fiub":
            found = f"{values.dtype} of shape {values.shape}"
            raise problem(f"{where}, episode {i}", expected=f"{length} numbers", found=found, fix=fix)
        with np.errstate(over="ignore"):
            column[row : row + length] = values
        if not (finite := np.isfinite(column[row : row + length])).all():
            step = int(np.argmin(finite))
            place = f"{where}, episode {i}, step {step}"
            raise problem(place, expected="a finite number", found=values[step], fix=fix)
    return column
