"""Sampler: from a mixture and a step to the `Batch` of that step.

The batch is a pure function of (mixture, seed, step). A counter-based generator keyed on seed and step draws the whole
batch, and rank r of W takes every W-th window. So a run resumes at any step, and any number of ranks sees the same
windows. There is no state to save.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pac.config import ObjectiveConfig
from pac.data.gpu import GpuDataset, send
from pac.data.images import BufferPool, common_size, gather_images
from pac.data.mixture import Mixture
from pac.data.tables import DatasetTables
from pac.data.tokenizer import Tokenizer
from pac.data.windows import WindowedDataset, locate
from pac.files import problem
from pac.types import Batch, Observation

Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True, kw_only=True)
class BatchIndices:
    """Random choices for the windows of one step, sorted by dataset."""

    row: Int64[np.ndarray, " batch"]  # index in the batch of all ranks
    dataset: Int64[np.ndarray, " batch"]
    window: Int64[np.ndarray, " batch"]  # which of the dataset's windows
    goal: Float64[np.ndarray, " batch"]  # which of the possible goals, as a share of their number
    show_goal: Bool[np.ndarray, " batch"]
    show_text: Bool[np.ndarray, " batch"]

    def __getitem__(self, index: Any) -> "BatchIndices":
        return BatchIndices(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class BatchWidths:
    """Widths of a batch. All ranks must agree on them: they draw noise of this shape, and they reduce the gradients of
    the modules that these inputs use.
    """

    proprio: int
    action: int
    camera: int
    goal: int  # goal images that are shown; an input that no window has is not computed
    goal_camera: int  # goal images that datasets have, shown or not
    text: int


class Sampler:
    """The batches of a mixture by step. A sampler does not change: `replace` makes another one of the same data."""

    def __init__(
        self,
        mixture: Mixture,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        tokenizer: Tokenizer | None = None,
        device: torch.device | str | None = None,  # the data is copied there; None: it stays in its files
        discount: float = ObjectiveConfig.discount,  # gamma of datasets without their own
        return_to_go: bool = False,  # whether batches have the return after each window
        value_scales: Mapping[str, float] | None = None,  # factors on the rewards of each dataset, besides its own
        camera_slots: Mapping[str, int] | None = None,  # those of a model; None: in order of appearance
        goal_slots: Mapping[str, int] | None = None,
        sources: Sequence[WindowedDataset] | None = None,  # the datasets, if they are open already
    ) -> None:
        if not 0 <= rank < world_size or mixture.batch_size % world_size:
            expected = "a rank below the world size and a batch that divides by it"
            found = f"rank {rank}, world size {world_size}, batch {mixture.batch_size}"
            raise problem("Sampler", expected=expected, found=found, fix="Change batch_size in the mixture.")
        if seed < 0:
            raise ValueError(f"Sampler: expected a seed of 0 or more, found {seed}.")
        self.mixture, self.seed, self.rank, self.world_size = mixture, seed, rank, world_size
        self.tokenizer = tokenizer or Tokenizer()
        self.device = torch.device("cpu" if device is None else device)
        self.discount, self.return_to_go = discount, return_to_go
        probability = {name: float(p) for name, p in mixture.probabilities.items() if p}
        configs = [config for config in mixture.datasets if config.name in probability]
        self._opened = sources or [
            WindowedDataset(config, mixture.window, self.tokenizer, discount=discount, return_to_go=return_to_go)
            for config in configs
        ]
        self.sources = [s if device is None else s.with_images_on(self.device) for s in self._opened]
        self.value_scales = dict(value_scales or {config.name: 1.0 for config in configs})
        self._cumulative = np.cumsum([probability[config.name] for config in configs])
        self._cumulative[-1] = 1.0
        self._num_windows = np.array([source.num_windows for source in self.sources])
        self._keep = np.array([(config.keep_goal, config.keep_text) for config in configs])
        self.tables = DatasetTables(self.sources, self.value_scales, camera_slots, goal_slots)
        self.camera_slots, self.goal_slots = self.tables.camera_slots, self.tables.goal_slots
        self.image_size = mixture.image_size or common_size(self.sources)
        self.buffers = BufferPool()
        self.gpu_data = None if device is None else GpuDataset(self.sources, self.tables.constants, self.device)

    def replace(self, **changes: Any) -> "Sampler":
        """Return a sampler of the same open data with other arguments."""
        return Sampler(self.mixture, **(self._arguments() | changes), sources=self._opened)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments: a worker process opens the files itself."""
        return partial(Sampler, **self._arguments()), (self.mixture,)

    def _arguments(self) -> dict[str, Any]:
        names = ["seed", "rank", "world_size", "tokenizer", "discount", "return_to_go", "value_scales"]
        names += ["camera_slots", "goal_slots"]
        device = None if self.gpu_data is None else self.device
        return {name: getattr(self, name) for name in names} | {"device": device}

    def draw(self, step: int) -> BatchIndices:
        """Return this rank's part of the windows of one step."""
        own = self._draw_all(step)[self.rank :: self.world_size]
        return own[np.argsort(own.dataset, kind="stable")]  # each dataset fills a block of the batch

    def _draw_all(self, step: int) -> BatchIndices:
        """Return the windows of one step, of all ranks."""
        random = np.random.Generator(np.random.Philox(key=np.array([self.seed, step], np.uint64)))
        dataset = np.searchsorted(self._cumulative, random.random(self.mixture.batch_size), side="right")
        keep = self._keep[dataset]
        return BatchIndices(
            row=np.arange(self.mixture.batch_size),
            dataset=dataset,
            window=random.integers(self._num_windows[dataset]),
            goal=random.random(self.mixture.batch_size),
            show_goal=random.random(self.mixture.batch_size) < keep[:, 0],
            show_text=random.random(self.mixture.batch_size) < keep[:, 1],
        )

    def batch(self, step: int) -> Batch:
        """Return the batch of one step. It is the same for the same step, whatever was asked for before."""
        indices = self.draw(step)
        used, starts = np.unique(indices.dataset, return_index=True)
        ends = [*starts[1:], len(indices.dataset)]
        blocks = [(self.sources[d], slice(int(a), int(b))) for d, a, b in zip(used, starts, ends, strict=True)]
        widths = self._widths(indices if self.world_size == 1 else self._draw_all(step))
        return _Assembly(self, indices, blocks, widths).batch()

    def _widths(self, indices: BatchIndices) -> BatchWidths:
        """Return the widths of a batch, from its windows on all ranks."""
        sizes, dataset = self.tables.sizes, indices.dataset
        return BatchWidths(
            proprio=int(sizes["proprio"][dataset].max()),
            action=int(sizes["action"][dataset].max()),
            camera=int(sizes["camera"][dataset].max()),
            goal=int(sizes["goal"][dataset[indices.show_goal]].max(initial=0)),
            goal_camera=int(sizes["goal"][dataset].max()),
            text=int(sizes["text"][dataset[indices.show_text]].max(initial=0)),
        )

    def batches(
        self, first_step: int = 0, *, num_workers: int = 0, threads: bool = False, prefetch: int = 2
    ) -> Iterator[Batch]:
        """Yield batches from `first_step` on, without end. Workers prepare them, in pinned memory if there is a GPU.

        Processes suit many small datasets: the work is Python's. Threads suit images: the work is copying, and threads
        need not hand images over between processes.
        """
        if num_workers and not threads and self.device.type != "cpu":
            expected, fix = f"no worker processes for data on {self.device}", "Set num_workers to 0: it is fast there."
            raise problem("Sampler.batches", expected=expected, found=num_workers, fix=fix)
        steps = range(first_step, 2**62)
        if num_workers == 0:
            yield from map(self.batch, steps)
        elif threads:
            yield from self._batches_in_threads(steps, num_workers, prefetch)
        else:
            yield from DataLoader(
                _BatchDataset(self),
                batch_size=None,
                sampler=steps,
                num_workers=num_workers,
                prefetch_factor=prefetch,
                pin_memory=torch.cuda.is_available(),
            )

    def _batches_in_threads(self, steps: Iterable[int], num_threads: int, prefetch: int) -> Iterator[Batch]:
        def prepare(step: int) -> Batch:
            batch = self.batch(step)
            return batch.pin_memory() if self.device.type == "cpu" and torch.cuda.is_available() else batch

        pending: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(num_threads) as pool:
            for step in steps:
                pending.append(pool.submit(prepare, step))
                if len(pending) > num_threads * prefetch:
                    yield pending.popleft().result()


class _BatchDataset(TorchDataset[Batch]):
    """Batches by step, for torch's loader."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __getitem__(self, step: int) -> Batch:
        return self.sampler.batch(step)


class _Assembly:
    """A batch while it is put together. It is as wide as its widest robot, and no wider."""

    def __init__(
        self,
        sampler: Sampler,
        indices: BatchIndices,
        blocks: Sequence[tuple[WindowedDataset, slice]],
        widths: BatchWidths,
    ) -> None:
        self.sampler, self.indices, self.widths, self.device = sampler, indices, widths, sampler.device
        self.windows = locate(blocks, indices.window)
        # Masks are decided on the CPU. They go to the device in one piece at the end.
        self.mask, self.show_goal = self.windows.mask, np.zeros((len(indices.row), 1), bool)
        if sampler.gpu_data is None:
            self._read_files(blocks)
        else:
            self._read_gpu(sampler.gpu_data)
        fewest, fewest_goals = (min(len(s.cameras) for s, _ in blocks), min(len(s.goal_cameras) for s, _ in blocks))
        self.images = self._allocate_images(widths.camera, sampler.mixture.window, fewest)
        self.goals = self._allocate_images(widths.goal_camera, 1, fewest_goals)
        for source, where in blocks:
            for i, name in enumerate(source.cameras):
                gather_images(source.images[name], self.rows[where], out=self.images[i, where])
            if source.goal_cameras:
                self._fill_goals(source, where)

    def _allocate_images(self, num_images: int, num_frames: int, fewest: int) -> Tensor:
        """Return memory for images, with zeros if a dataset has fewer than `num_images`. Cameras are the first axis, so
        that a block of one camera is contiguous.
        """
        size = self.sampler.image_size if num_images else (1, 1)
        shape = (num_images, len(self.indices.row), num_frames, *size, 3)
        if self.device.type != "cpu":
            return (torch.zeros if fewest < num_images else torch.empty)(shape, dtype=torch.uint8, device=self.device)
        images = self.sampler.buffers.allocate(shape)
        if fewest < num_images:
            images[...] = 0
        return torch.from_numpy(images)

    def _cut(self, constants: Mapping[str, Array]) -> dict[str, Array]:
        """Return the columns of the constants that this batch uses. Their names begin with the kind of input."""
        widths = vars(self.widths)
        kinds = {name: name.partition("_")[0] for name in constants}
        return {name: x[:, : widths[kinds[name]]] if kinds[name] in widths else x for name, x in constants.items()}

    def _read_gpu(self, data: GpuDataset) -> None:
        """Read all numbers from a GPU. There the number of launches counts."""
        rows = self.windows.rows
        arrays = [self.indices.dataset, data.place(self.indices.dataset, rows), rows, self.indices.row]
        dataset, place, self.rows, self.row = send(arrays, self.device)
        columns = data.take(dataset, place)
        self.constant = self._cut(data.share(dataset))
        self.proprio = columns["state"][..., : self.widths.proprio]
        self.action = columns["action"][:, :-1, : self.widths.action].contiguous()
        self.reward, self.terminated = columns["reward"][:, :-1, 0], columns["terminated"][:, :-1, 0]
        self.return_to_go = columns["return_to_go"][:, -1]

    def _read_files(self, blocks: Sequence[tuple[WindowedDataset, slice]]) -> None:
        """Read all numbers on the CPU, dataset by dataset."""
        rows, (size, time) = self.windows.rows, self.mask.shape
        proprio = np.zeros((size, time + 1, self.widths.proprio), np.float32)
        action = np.zeros((size, time, self.widths.action), np.float32)
        reward, return_to_go = np.zeros((size, time), np.float32), np.zeros((size, 2), np.float32)
        terminated = np.zeros((size, time), bool)
        for source, where in blocks:
            _take(source.state, rows[where], proprio[where])
            _take(source.action, rows[where, :-1], action[where])
            _take(source.reward, rows[where, :-1], reward[where])
            _take(source.terminated, rows[where, :-1], terminated[where])
            _take(source.return_to_go, rows[where, -1], return_to_go[where])
        numbers = proprio, action, reward, terminated, return_to_go, rows, self.indices.row
        self.proprio, self.action, self.reward, self.terminated, self.return_to_go, self.rows, self.row = map(
            torch.from_numpy, numbers
        )
        tables = self._cut({name: table.numpy() for name, table in self.sampler.tables.constants.items()})
        self.constant = {name: torch.from_numpy(table[self.indices.dataset]) for name, table in tables.items()}

    def _fill_goals(self, source: WindowedDataset, where: slice) -> None:
        windows, indices = self.windows[where], self.indices[where]
        goal = source.goal_rows(windows, indices.goal)
        self.show_goal[where, 0] = (goal >= 0) & indices.show_goal
        (rows,) = send([np.maximum(goal, 0)[:, None]], self.device)
        for i, name in enumerate(source.goal_cameras):
            frames = source.goals[name] if source.config.goals == "stored" else source.images[name]
            gather_images(frames, rows, out=self.goals[i, where])
        if source.config.goals == "hindsight":  # the task is to reach the goal: reward 1 on arrival, and the end
            behind = windows.rows[:, 1:] - goal[:, None]
            (arrived,) = send([behind == 0], self.device)
            self.reward[where], self.terminated[where] = arrived.float(), arrived
            self.mask[where] &= (behind <= 0) & (goal >= 0)[:, None]

    def batch(self) -> Batch:
        """Return the batch. Strides do not depend on where the data lies: an update is captured once for each form."""
        constant, tables, window = self.constant, self.sampler.tables, self.sampler.mixture.window
        _normalise(self.action, constant["action_centre"][:, None], constant["action_half"][:, None])
        lines = tables.instruction_rows(self.indices.dataset, self.windows.instruction)
        text, text_mask = (table[:, : self.widths.text][lines] for table in (tables.tokens, tables.token_mask))
        text_mask &= self.indices.show_text[:, None]
        mask, show_goal, text, text_mask = send([self.mask, self.show_goal, text, text_mask], self.device)

        def at_each_observation(values: Tensor) -> Tensor:
            return _dense(values)[:, None].expand(-1, window, -1)

        observation = Observation(
            proprio=_dense(self.proprio),
            proprio_mask=at_each_observation(constant["proprio_mask"]),
            proprio_centre=at_each_observation(constant["proprio_centre"]),
            proprio_scale=at_each_observation(constant["proprio_scale"]),
            images=_dense(self.images).movedim(0, 2),
            camera_slots=at_each_observation(constant["camera_slots"]),
            camera_mask=at_each_observation(constant["camera_mask"]),
            goal_images=_dense(self.goals[: self.widths.goal]).movedim(0, 2).expand(-1, window, -1, -1, -1, -1),
            goal_slots=at_each_observation(constant["goal_slots"]),
            goal_mask=at_each_observation(constant["goal_mask"] & show_goal),
            text=at_each_observation(text),
            text_mask=at_each_observation(text_mask),
        )
        return Batch(
            observation=observation,
            action=_dense(self.action),
            action_mask=_dense(constant["action_mask"])[:, None].expand_as(self.action),
            reward=self.reward * constant["reward_scale"][:, None],
            discount=1 - self.terminated.float(),
            mask=mask,
            imitation_weight=_dense(constant["imitation_weight"]),
            critic_weight=_dense(constant["critic_weight"]),
            gamma=_dense(constant["gamma"]),
            row=self.row,
            return_to_go=self.return_to_go[:, 0] * constant["reward_scale"],
            return_to_go_weight=_dense(self.return_to_go[:, 1]),
        )


def _dense(values: Tensor) -> Tensor:
    """Return values in order of memory. An empty tensor has strides, too."""
    return values.contiguous() if values.numel() else values.new_empty(values.shape)


def _take(values: Tensor | None, rows: Int64[np.ndarray, "*shape"], out: np.ndarray) -> None:
    """Copy `values[rows]` into the first columns of `out`. numpy stays in this thread, and "clip" needs no buffer."""
    if values is not None:
        array = values.numpy()
        np.take(array, rows, axis=0, mode="clip", out=out[..., : array.shape[1]] if array.ndim > 1 else out)


def _normalise(action: Tensor, centre: Tensor, half: Tensor) -> None:
    """Map actions to [-1, 1] in place. NaN stays."""
    if action.device.type != "cpu":
        action.sub_(centre).div_(half).clamp_(-1, 1)
        return
    values = action.numpy()  # numpy stays in this thread
    values -= centre.numpy()
    values /= half.numpy()
    np.clip(values, -1, 1, out=values)
