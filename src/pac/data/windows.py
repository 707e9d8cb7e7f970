"""One dataset of a mixture as windows: their number, their rows and their goals.

A window is T observations and the T - 1 transitions between them. It may hang over either end of an episode by all but
one transition. The part that hangs over is masked. So every transition of a dataset is equally likely, also at the ends
and in short episodes.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from pac.config import suggest
from pac.data.concat import open_dataset
from pac.data.mixture import DatasetConfig
from pac.data.relabel import equal_reward, label, returns_to_go, success_frames
from pac.data.store import ACTION, GOALS, IMAGES, INDEX, STATE, Dataset
from pac.data.tokenizer import Tokenizer
from pac.files import problem


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Places of windows in the arrays of their datasets."""

    episode: Int64[np.ndarray, " batch"]
    rows: Int64[np.ndarray, "batch window"]  # of the observations; the last is repeated where a window hangs over
    last_row: Int64[np.ndarray, " batch"]  # of the episode's last known observation
    instruction: Int64[np.ndarray, " batch"]  # as the store numbers them
    mask: Bool[np.ndarray, "batch time"]

    def __getitem__(self, index: slice) -> "Windows":
        return Windows(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


class WindowedDataset:
    """One dataset of a mixture: its windows, and the arrays on disk as tensors."""

    def __init__(
        self,
        config: DatasetConfig,
        window: int,
        tokenizer: Tokenizer,
        *,
        discount: float,  # gamma, unless the dataset sets its own
        return_to_go: bool = False,
    ) -> None:
        if config.path is None:
            where, fix = f"Dataset {config.name!r}", "Import its data with `pac import`, or give its group weight 0."
            raise problem(where, expected="a `path` to sample from", found="only declared counts", fix=fix)
        self.config, self.num_transitions = config, window - 1
        self.gamma = config.applied_discount(discount)
        self.dataset = dataset = open_dataset(config.path, config.more_paths)
        if not len(dataset):
            raise problem(dataset.path, expected="episodes", found="none", fix="Import or collect some first.")
        dataset.check_index()
        self.proprio_centre, self.proprio_scale = _statistics(config, dataset)
        weight = config.critic_weight
        self.critic_weight = float(dataset.spec.action_dim if weight is None else weight)
        self.labels = label(dataset, config.reward)
        self.index = self.labels.index  # of numpy's plain class: its memmap class is slow
        self.cameras = _choose_cameras(config, dataset, config.cameras)
        self.goal_cameras = _choose_goals(config, dataset, self.cameras)
        self.kept = config.kept_episodes(dataset)
        lengths = dataset.index["length"] if self.kept is None else dataset.index["length"][self.kept]
        self.first_window = np.concatenate([[0], np.cumsum(lengths + (self.num_transitions - 1))])
        self.num_windows = int(self.first_window[-1])
        self.success_frames = success_frames(dataset) if config.goals == "success" else {}
        texts = dataset.instructions if config.instruction is None else [config.instruction]
        self.text, self.text_mask = map(np.stack, zip(*map(tokenizer.encode, texts), strict=True))
        self.num_text = int(self.text_mask.sum(1).max())  # tokens of the longest instruction

        self.state = _tensor(dataset.arrays[STATE]) if STATE in dataset.arrays else None
        self.action, self.terminated = _tensor(dataset.arrays[ACTION]), _tensor(self.labels.terminated)
        self.reward, self.return_to_go = _tensor(self.labels.reward), None
        if return_to_go and config.goals != "hindsight":  # whose rewards depend on the goal drawn
            self.return_to_go = _tensor(returns_to_go(dataset, config.reward, self.gamma))
        stored = config.goals == "stored"
        seen = dict.fromkeys((*self.cameras, *(() if stored else self.goal_cameras)))
        self.images = {name: _tensor(dataset.arrays[IMAGES + name]) for name in seen}
        self.goals = {name: _tensor(dataset.goals[GOALS + name]) for name in self.goal_cameras if stored}

    def with_images_on(self, device: torch.device) -> "WindowedDataset":
        """Return the same dataset with its images on `device`."""
        moved = copy.copy(self)
        moved.images = {name: x.to(device) for name, x in self.images.items()}
        moved.goals = {name: x.to(device) for name, x in self.goals.items()}
        return moved

    def value_bounds(self) -> tuple[float, float]:
        """Return the least and the largest value that the rewards allow, before the sampler's `value_scales`.

        The bound is the extreme reward for ever, or once if only terminations have rewards.
        """
        if self.config.goals == "hindsight":
            return 0.0, 1.0
        finite = np.isfinite(self.reward.numpy())
        reward, ends = self.reward.numpy()[finite] * self.config.reward_scale, self.terminated.numpy()[finite]
        horizon = 1.0 if not np.any(reward[~ends]) else 1 / (1 - self.gamma)
        return float(reward.min(initial=0)) * horizon, float(reward.max(initial=0)) * horizon

    def equal_reward(self) -> float | None:
        """Return the reward of every step if no two returns-to-go can differ, else None."""
        return None if self.config.goals == "hindsight" else equal_reward(self.labels, self.kept)

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays."""
        numbers = [self.state, self.action, self.terminated, self.reward, self.return_to_go]
        arrays = [*numbers, *self.images.values(), *self.goals.values()]
        return sum(array.numel() * array.element_size() for array in arrays if array is not None)

    def goal_rows(self, windows: Windows, share: Float64[np.ndarray, " batch"]) -> Int64[np.ndarray, " batch"]:
        """Return the row of each window's goal images in the arrays that hold goals, or -1 if there is none."""
        if self.config.goals == "stored":
            return np.array(self.index["goal"][windows.episode])
        if self.config.goals == "hindsight":  # any later moment of the same episode
            first = windows.rows[:, 0] + 1
            num_later = windows.last_row + 1 - first
            return np.where(num_later > 0, first + (share * num_later).astype(np.int64), -1)
        rows = np.full(len(share), -1)
        for i, task in enumerate(windows.instruction):
            if (found := self.success_frames.get(int(task))) is not None:
                rows[i] = found[int(share[i] * len(found))]
        return rows


def locate(blocks: Sequence[tuple[WindowedDataset, slice]], window: Int64[np.ndarray, " batch"]) -> Windows:
    """Return the places of numbered windows. The windows of each dataset are one block of the batch.

    Windows have n transitions. Those of an episode of L steps begin at step 1 - n to L - 1.
    """
    num_transitions = blocks[0][0].num_transitions
    episode, begin, record = np.empty_like(window), np.empty_like(window), np.empty(len(window), INDEX)
    for source, where in blocks:
        number = window[where]
        place = np.searchsorted(source.first_window, number, side="right") - 1
        begin[where] = number - source.first_window[place]
        episode[where] = place if source.kept is None else source.kept[place]
        record[where] = source.index[episode[where]]
    begin -= num_transitions - 1
    row, length, known = record["row"], record["length"], record["last_known"]
    end = np.minimum(begin + num_transitions, length)
    begin = np.maximum(begin, 0)
    step = np.minimum(begin[:, None] + np.arange(num_transitions + 1), end[:, None])
    # Without the last observation there is nothing to bootstrap from, unless nothing comes after the last step.
    end = np.minimum(end, length - (~known & ~record["terminated"]))
    return Windows(
        episode=episode,
        rows=row[:, None] + step,
        last_row=row + length - ~known,
        instruction=record["instruction"].astype(np.int64),
        mask=begin[:, None] + np.arange(num_transitions) < end[:, None],
    )


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():  # torch warns of read-only memory; nothing here writes to it
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _statistics(config: DatasetConfig, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale to standardise inputs with: the mixture's, or else the dataset's own."""
    if config.proprio_centre is None or config.proprio_scale is None:
        return dataset.proprio_centre, dataset.proprio_scale
    lengths = len(config.proprio_centre), len(config.proprio_scale)
    if set(lengths) != {dataset.spec.state_dim}:
        expected = f"proprio_centre and proprio_scale of {dataset.spec.state_dim} numbers, as its states have"
        raise ValueError(f"Dataset {config.name!r}: expected {expected}, found {lengths[0]} and {lengths[1]}.")
    return np.array(config.proprio_centre, np.float32), np.array(config.proprio_scale, np.float32)


def _choose_cameras(config: DatasetConfig, dataset: Dataset, names: tuple[str, ...] | None) -> tuple[str, ...]:
    for name in names or ():
        if name not in dataset.spec.cameras:
            raise ValueError(f"Dataset {config.name!r} has no camera {name!r}.{suggest(name, dataset.spec.cameras)}")
    return tuple(dataset.spec.cameras) if names is None else names


def _choose_goals(config: DatasetConfig, dataset: Dataset, cameras: tuple[str, ...]) -> tuple[str, ...]:
    if config.goals == "none":
        return ()
    if config.goals == "stored":
        return tuple(name for name in dataset.spec.goal_cameras if len(dataset.goals[GOALS + name]))
    where = f"Dataset {config.name!r}"
    if config.goals == "success" and not (dataset.index["success"] == 1).any():
        fix = "Set goals to 'stored', 'hindsight' or 'none'."
        raise problem(where, expected="successful episodes for goals = 'success'", found="none", fix=fix)
    if config.goal_cameras is not None:
        cameras = _choose_cameras(config, dataset, config.goal_cameras)
    if not cameras:
        fix = "Set goals to 'none', or use a dataset with images."
        raise problem(where, expected=f"cameras for goals = {config.goals!r}", found="none in use", fix=fix)
    return cameras
