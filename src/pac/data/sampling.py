"""Sampling: a mixture and a step -> the `Batch` of that step.

The batch of a step is a pure function of (mixture, seed, step): a counter-based generator keyed on the two numbers
draws the whole batch, and rank r of W takes every W-th window of it. So there is nothing to save but the step, a run
resumes at any step, and on any number of ranks it sees the same windows.

A window is T observations and the T - 1 transitions between them. It may hang over either end of an episode by all but
one transition; what hangs over is masked. So every transition of a dataset is equally likely, the last one as much as
those in the middle, and a short episode counts for what it holds.
"""

import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pac.config import suggest
from pac.data.episodes import ACTION, GOALS, IMAGES, STATE, TERMINATED, Dataset, store_error
from pac.data.mixture import DatasetConfig, Mixture
from pac.data.relabel import reward_column, select_episodes, success_frames
from pac.data.text import Tokenizer
from pac.types import Batch, Observation


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What chance decides about the windows of one step, in order of their dataset."""

    dataset: Int64[np.ndarray, " batch"]
    window: Int64[np.ndarray, " batch"]  # which of the dataset's windows
    goal: Float64[np.ndarray, " batch"]  # which goal, as a share of those there are
    show_goal: Bool[np.ndarray, " batch"]
    show_text: Bool[np.ndarray, " batch"]

    def __getitem__(self, index: Any) -> "Draws":
        return Draws(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Where windows lie in the arrays of their dataset."""

    episode: Int64[np.ndarray, " batch"]
    rows: Int64[np.ndarray, "batch window"]  # of the observations; past `length` the last one is repeated
    length: Int64[np.ndarray, " batch"]  # transitions that exist
    last_row: Int64[np.ndarray, " batch"]  # of the episode's last known observation
    mask: Bool[np.ndarray, "batch time"]


class Source:
    """One dataset of a mixture: its windows, and its arrays as tensors where the gather happens."""

    def __init__(self, config: DatasetConfig, window: int, device: torch.device) -> None:
        if config.path is None:
            raise ValueError(
                f"Dataset {config.name!r}: expected a `path` to sample from, found only declared counts. Import its "
                "data with `pac import`, or set its group's weight to 0."
            )
        self.config, self.num_transitions = config, window - 1
        self.dataset = dataset = Dataset(config.path)
        if not len(dataset):
            raise store_error(dataset.path, expected="episodes", found="none", fix="Import or collect some first.")
        self.cameras = _choose_cameras(config, dataset)
        self.goal_cameras = _choose_goals(config, dataset, self.cameras)
        self.kept = select_episodes(
            dataset,
            success_only=config.success_only,
            return_quantile=config.return_quantile,
            reward=config.reward,
        )
        lengths = dataset.index["length"] if self.kept is None else dataset.index["length"][self.kept]
        self.first_window = np.concatenate([[0], np.cumsum(lengths + (self.num_transitions - 1))])
        self.num_windows = int(self.first_window[-1])
        self.success_frames = success_frames(dataset) if config.goals == "success" else {}

        def put(array: np.ndarray) -> Tensor:
            with warnings.catch_warnings():  # torch warns of read-only memory; nothing here writes to it
                warnings.simplefilter("ignore", UserWarning)
                return torch.from_numpy(array).to(device)

        self.state = put(dataset.arrays[STATE]) if STATE in dataset.arrays else None
        self.action, self.terminated = put(dataset.arrays[ACTION]), put(dataset.arrays[TERMINATED])
        self.reward = put(reward_column(dataset, config.reward))
        self.images = {name: put(dataset.arrays[IMAGES + name]) for name in self.cameras}
        self.goals = {name: put(dataset.goals[GOALS + name]) for name in self.goal_cameras if config.goals == "stored"}
        low, high = torch.from_numpy(dataset.action_low), torch.from_numpy(dataset.action_high)
        half = (high - low) / 2
        self.action_centre = ((low + high) / 2).to(device)
        self.action_half = torch.where(half > 0, half, 1).to(device)
        self.proprio_centre = torch.from_numpy(dataset.proprio_centre).to(device)
        self.proprio_scale = torch.from_numpy(dataset.proprio_scale).to(device)

    def locate(self, window: Int64[np.ndarray, " batch"]) -> Windows:
        """Window number -> rows. Those of an episode of L steps begin at step 1 - n to L - 1, n transitions each."""
        place = np.searchsorted(self.first_window, window, side="right") - 1
        episode = place if self.kept is None else self.kept[place]
        record = self.dataset.index[episode]
        begin = window - self.first_window[place] - (self.num_transitions - 1)
        end = np.minimum(begin + self.num_transitions, record["length"])
        begin = np.maximum(begin, 0)
        step = np.minimum(begin[:, None] + np.arange(self.num_transitions + 1), end[:, None])
        mask = begin[:, None] + np.arange(self.num_transitions) < end[:, None]
        # Without the last observation there is nothing to bootstrap from, unless nothing comes after the last step.
        unknown = ~record["last_known"] & ~record["terminated"]
        mask &= step[:, :-1] < (record["length"] - unknown)[:, None]
        return Windows(
            episode=episode,
            rows=record["row"][:, None] + step,
            length=end - begin,
            last_row=record["row"] + record["length"] - ~record["last_known"],
            mask=mask,
        )

    def goal_rows(self, windows: Windows, share: Float64[np.ndarray, " batch"]) -> Int64[np.ndarray, " batch"]:
        """The row of each window's goal images, in the arrays that hold goals; -1 where there is none."""
        if self.config.goals == "stored":
            return np.array(self.dataset.index["goal"][windows.episode])
        if self.config.goals == "hindsight":  # any later moment of the same episode
            first = windows.rows[:, 0] + 1
            later = windows.last_row + 1 - first
            return np.where(later > 0, first + (share * later).astype(np.int64), -1)
        rows = np.full(len(share), -1)
        for i, task in enumerate(self.dataset.index["instruction"][windows.episode]):
            if (found := self.success_frames.get(int(task))) is not None:
                rows[i] = found[int(share[i] * len(found))]
        return rows


class Sampler:
    """Draws the batches of a mixture. With a device other than the CPU the data is copied there, and gathered there."""

    def __init__(
        self,
        mixture: Mixture,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        tokenizer: Tokenizer | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0 <= rank < world_size or mixture.batch_size % world_size:
            raise ValueError(
                f"Sampler: expected a rank below the world size and a batch that divides by it, found rank {rank}, "
                f"world size {world_size}, batch {mixture.batch_size}. Change batch_size in the mixture."
            )
        self.mixture, self.seed, self.rank, self.world_size = mixture, seed, rank, world_size
        self.tokenizer = tokenizer or Tokenizer()
        self.device = torch.device(device)
        drawn = {name: float(p) for name, p in mixture.probabilities.items() if p}
        self.sources = [Source(c, mixture.window, self.device) for c in mixture.datasets if c.name in drawn]
        self._cumulative = np.cumsum([drawn[source.config.name] for source in self.sources])
        self._cumulative[-1] = 1.0
        self._num_windows = np.array([source.num_windows for source in self.sources])
        self.camera_slots = _slots(source.cameras for source in self.sources)
        self.goal_slots = _slots(source.goal_cameras for source in self.sources)
        self.image_size = _image_size(self.sources)
        self.buffers = _Buffers()

    def __reduce__(self) -> tuple[Any, ...]:  # a worker process opens the files itself
        settings = {name: getattr(self, name) for name in ("seed", "rank", "world_size", "tokenizer", "device")}
        return partial(Sampler, **settings), (self.mixture,)

    def draw(self, step: int) -> Draws:
        """The windows of one step that belong to this rank."""
        random = np.random.Generator(np.random.Philox(key=np.array([self.seed, step], np.uint64)))
        dataset = np.searchsorted(self._cumulative, random.random(self.mixture.batch_size), side="right")
        keep = np.array([(source.config.keep_goal, source.config.keep_text) for source in self.sources])[dataset]
        whole = Draws(
            dataset=dataset,
            window=random.integers(self._num_windows[dataset]),
            goal=random.random(self.mixture.batch_size),
            show_goal=random.random(self.mixture.batch_size) < keep[:, 0],
            show_text=random.random(self.mixture.batch_size) < keep[:, 1],
        )
        mine = whole[self.rank :: self.world_size]
        return mine[np.argsort(mine.dataset, kind="stable")]  # each dataset fills a block of the batch

    def batch(self, step: int) -> Batch:
        """The batch of one step: the same for the same step, whatever was asked for before."""
        draws = self.draw(step)
        used, starts = np.unique(draws.dataset, return_index=True)
        ends = [*starts[1:], len(draws.dataset)]
        blocks = [(self.sources[d], slice(int(a), int(b))) for d, a, b in zip(used, starts, ends, strict=True)]
        target = _Assembly(self, len(draws.dataset), [source for source, _ in blocks])
        for source, where in blocks:
            target.fill(source, where, draws[where])
        return target.batch()

    def batches(self, first_step: int = 0, *, num_workers: int = 0, prefetch: int = 2) -> Iterator[Batch]:
        """Batches from `first_step` on, without end. Workers prepare the next ones, pinned where there is a GPU."""
        steps = range(first_step, 2**62)
        if num_workers == 0:
            yield from (self.batch(step) for step in steps)
        loader = DataLoader(
            _Steps(self),
            batch_size=None,
            sampler=steps,
            num_workers=num_workers,
            prefetch_factor=prefetch,
            pin_memory=torch.cuda.is_available(),
        )
        for fields in loader:
            yield Batch(observation=Observation(**fields.pop("observation")), **fields)


class _Buffers:
    """Memory for pictures, used again once no tensor refers to it: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape)
        for array in self._arrays:  # a tensor made of it would be a fourth reference
            if len(array) >= size and sys.getrefcount(array) == 3:
                return array[:size].reshape(shape)
        self._arrays = [array for array in self._arrays if sys.getrefcount(array) > 3]  # too small, and free
        self._arrays.append(np.empty(size, np.uint8))  # numpy asks for huge pages, torch would not
        return self._arrays[-1].reshape(shape)


class _Assembly:
    """A batch being filled. Everything is as wide as the widest robot in the batch, and no wider."""

    def __init__(self, sampler: Sampler, size: int, sources: list[Source]) -> None:
        self.sampler, self.device = sampler, sampler.device
        window, num_tokens = sampler.mixture.window, sampler.tokenizer.num_tokens
        proprio = max(0 if source.state is None else source.state.shape[1] for source in sources)
        actions = max(source.action.shape[1] for source in sources)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        self.proprio = zeros(size, window, proprio)
        self.proprio_mask = zeros(size, proprio, dtype=torch.bool)
        self.proprio_centre, self.proprio_scale = zeros(size, proprio), zeros(size, proprio) + 1
        self.action = zeros(size, window - 1, actions)
        self.action_mask = zeros(size, actions, dtype=torch.bool)
        self.reward, self.discount = zeros(size, window - 1), zeros(size, window - 1)
        self.mask = zeros(size, window - 1, dtype=torch.bool)
        self.imitation_weight, self.critic_weight = zeros(size), zeros(size)
        self.images, self.slots, self.image_mask = self._pictures(size, window, [s.cameras for s in sources])
        self.goals, self.goal_slots, self.goal_mask = self._pictures(size, 1, [s.goal_cameras for s in sources])
        self.text = np.zeros((size, num_tokens), np.int64)
        self.text_mask = np.zeros((size, num_tokens), bool)

    def _pictures(self, size: int, frames: int, cameras: list[tuple[str, ...]]) -> tuple[Tensor, Tensor, Tensor]:
        """Pictures, camera first so that a block of one camera is contiguous; their slots; their mask."""
        count = max(len(names) for names in cameras)
        shape = (count, size, frames, *(self.sampler.image_size if count else (1, 1)), 3)
        if self.device.type == "cpu":
            pictures = torch.from_numpy(self.sampler.buffers.take(shape))
        else:
            pictures = torch.empty(shape, dtype=torch.uint8, device=self.device)
        if len({len(names) for names in cameras}) > 1:
            pictures.zero_()
        slots = torch.zeros(size, count, dtype=torch.int64, device=self.device)
        return pictures, slots, torch.zeros(size, count, dtype=torch.bool, device=self.device)

    def fill(self, source: Source, where: slice, draws: Draws) -> None:
        """Gather one dataset's windows into their block."""
        windows = source.locate(draws.window)
        rows = torch.from_numpy(windows.rows).to(self.device)
        steps = rows[:, :-1]
        if source.state is not None:
            width = source.state.shape[1]
            _gather(source.state, rows, out=self.proprio[where, :, :width])
            self.proprio_mask[where, :width] = True
            self.proprio_centre[where, :width] = source.proprio_centre
            self.proprio_scale[where, :width] = source.proprio_scale
        width = source.action.shape[1]
        action = (_gather(source.action, steps) - source.action_centre) / source.action_half
        self.action[where, :, :width] = action.clamp_(-1, 1)
        self.action_mask[where, :width] = True
        self.reward[where] = _gather(source.reward, steps) * source.config.reward_scale
        self.discount[where] = 1 - _gather(source.terminated, steps).float()
        self.mask[where] = torch.from_numpy(windows.mask).to(self.device)
        self.imitation_weight[where] = source.config.imitation_weight
        self.critic_weight[where] = source.config.critic_weight
        self._fill_text(source, where, windows, draws)
        for i, name in enumerate(source.cameras):
            _gather(source.images[name], rows, out=self.images[i, where])
            self.slots[where, i] = self.sampler.camera_slots[name]
            self.image_mask[where, i] = True
        if source.goal_cameras:
            self._fill_goals(source, where, windows, draws)

    def _fill_text(self, source: Source, where: slice, windows: Windows, draws: Draws) -> None:
        if source.config.instruction is None:
            tasks, task = np.unique(source.dataset.index["instruction"][windows.episode], return_inverse=True)
            texts = [source.dataset.instructions[i] for i in tasks]
        else:
            texts, task = [source.config.instruction], np.zeros(len(windows.episode), np.int64)
        ids, masks = zip(*map(self.sampler.tokenizer.encode, texts), strict=True)
        self.text[where] = np.stack(ids)[task]
        self.text_mask[where] = np.stack(masks)[task] & draws.show_text[:, None]

    def _fill_goals(self, source: Source, where: slice, windows: Windows, draws: Draws) -> None:
        rows = source.goal_rows(windows, draws.goal)
        index = torch.from_numpy(np.maximum(rows, 0)).to(self.device)
        shown = torch.from_numpy((rows >= 0) & draws.show_goal).to(self.device)
        for i, name in enumerate(source.goal_cameras):
            frames = source.goals.get(name, source.images.get(name))
            assert frames is not None
            _gather(frames, index[:, None], out=self.goals[i, where])
            self.goal_slots[where, i] = self.sampler.goal_slots[name]
            self.goal_mask[where, i] = shown
        if source.config.goals == "hindsight":  # reaching the goal is the task: 1 on arrival, and then it is over
            behind = torch.from_numpy(windows.rows[:, 1:] - rows[:, None]).to(self.device)
            self.reward[where] = (behind == 0).float() * source.config.reward_scale
            self.discount[where] = (behind != 0).float()
            self.mask[where] &= (behind <= 0) & torch.from_numpy(rows >= 0).to(self.device)[:, None]

    def batch(self) -> Batch:
        window = self.sampler.mixture.window
        length = int(self.text_mask.sum(1).max())
        shown = slice(None) if self.goal_mask.any() else slice(0)  # what a whole batch lacks is not computed

        def every_step(tensor: Tensor, steps: int = window) -> Tensor:
            return tensor[:, None].expand(-1, steps, *tensor.shape[1:])

        observation = Observation(
            proprio=self.proprio,
            proprio_mask=every_step(self.proprio_mask),
            proprio_centre=every_step(self.proprio_centre),
            proprio_scale=every_step(self.proprio_scale),
            images=self.images.movedim(0, 2),
            camera_slots=every_step(self.slots),
            camera_mask=every_step(self.image_mask),
            goal_images=self.goals[shown].movedim(0, 2).expand(-1, window, -1, -1, -1, -1),
            goal_slots=every_step(self.goal_slots[:, shown]),
            goal_mask=every_step(self.goal_mask[:, shown]),
            text=every_step(torch.from_numpy(self.text[:, :length]).to(self.device)),
            text_mask=every_step(torch.from_numpy(self.text_mask[:, :length]).to(self.device)),
        )
        return Batch(
            observation=observation,
            action=self.action,
            action_mask=every_step(self.action_mask, window - 1),
            reward=self.reward,
            discount=self.discount,
            mask=self.mask,
            imitation_weight=self.imitation_weight,
            critic_weight=self.critic_weight,
        )


def _gather(values: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """`values[rows]`, into `out` if given. On the CPU by numpy: torch would wake its threads for a copy."""
    if values.device.type != "cpu":
        return values[rows] if out is None else out.copy_(values[rows])
    target = None if out is None else out.numpy()
    found = np.take(values.numpy(), rows.numpy(), axis=0, mode="clip", out=target)  # "clip" needs no second buffer
    return torch.from_numpy(found)


class _Steps(TorchDataset[dict[str, Any]]):
    """Step -> batch, as the plain dicts that torch's loader knows how to pin."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __getitem__(self, step: int) -> dict[str, Any]:
        batch = self.sampler.batch(step)
        fields = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
        observation = {name: getattr(batch.observation, name) for name in Observation.__dataclass_fields__}
        return fields | {"observation": observation}


def _choose_cameras(config: DatasetConfig, dataset: Dataset) -> tuple[str, ...]:
    for name in config.cameras or ():
        if name not in dataset.spec.cameras:
            raise ValueError(f"Dataset {config.name!r} has no camera {name!r}.{suggest(name, dataset.spec.cameras)}")
    return tuple(dataset.spec.cameras) if config.cameras is None else config.cameras


def _choose_goals(config: DatasetConfig, dataset: Dataset, cameras: tuple[str, ...]) -> tuple[str, ...]:
    if config.goals == "none":
        return ()
    if config.goals == "stored":
        return tuple(dataset.spec.goal_cameras)
    if not cameras:
        raise ValueError(
            f"Dataset {config.name!r}: expected cameras for goals = {config.goals!r}, found none in use. Set goals to "
            "'none', or use a dataset with pictures."
        )
    return cameras


def _slots(cameras: Iterable[tuple[str, ...]]) -> dict[str, int]:
    """Camera -> slot of the model, in order of first appearance: a dataset added at the end moves no camera."""
    names = dict.fromkeys(name for group in cameras for name in group)
    return {name: slot for slot, name in enumerate(names)}


def _image_size(sources: list[Source]) -> tuple[int, int]:
    sizes = {
        (source.config.name, name): size
        for source in sources
        for name, size in {**source.dataset.spec.cameras, **source.dataset.spec.goal_cameras}.items()
        if name in (*source.cameras, *source.goal_cameras)
    }
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{dataset}/{camera} {h}x{w}" for (dataset, camera), (h, w) in sizes.items())
        raise ValueError(
            f"Mixture: expected pictures of one size, found {found}. Leave some out with `cameras`, or resize them at "
            "their source."
        )
    return next(iter(sizes.values()), (1, 1))
