"""Sampling: a mixture and a step -> the `Batch` of that step.

The batch of a step is a pure function of (mixture, seed, step): a counter-based generator keyed on the two numbers
draws the whole batch, and rank r of W takes every W-th window of it. So there is nothing to save but the step, a run
resumes at any step, and on any number of ranks it sees the same windows.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pac.config import ObjectiveConfig
from pac.data.gpu import GpuDataset, send
from pac.data.images import Buffers, common_size, gather_images
from pac.data.mixture import Mixture
from pac.data.tokenizer import Tokenizer
from pac.data.windows import WindowedDataset, locate
from pac.types import Batch, Observation


@dataclass(frozen=True, kw_only=True)
class BatchIndices:
    """What chance decides about the windows of one step, in order of their dataset."""

    row: Int64[np.ndarray, " batch"]  # place in the whole batch, before ranks and datasets part it
    dataset: Int64[np.ndarray, " batch"]
    window: Int64[np.ndarray, " batch"]  # which of the dataset's windows
    goal: Float64[np.ndarray, " batch"]  # which goal, as a share of those there are
    show_goal: Bool[np.ndarray, " batch"]
    show_text: Bool[np.ndarray, " batch"]

    def __getitem__(self, index: Any) -> "BatchIndices":
        return BatchIndices(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


class Sampler:
    """The batches of a mixture, by step. It does not change: `replace` makes another one of the same data."""

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
            raise ValueError(
                f"Sampler: expected a rank below the world size and a batch that divides by it, found rank {rank}, "
                f"world size {world_size}, batch {mixture.batch_size}. Change batch_size in the mixture."
            )
        if seed < 0:
            raise ValueError(f"Sampler: expected a seed of 0 or more, found {seed}.")
        self.mixture, self.seed, self.rank, self.world_size = mixture, seed, rank, world_size
        self.tokenizer = tokenizer or Tokenizer()
        self.device = torch.device("cpu" if device is None else device)
        self.discount, self.return_to_go = discount, return_to_go
        drawn = {name: float(p) for name, p in mixture.probabilities.items() if p}
        used = [config for config in mixture.datasets if config.name in drawn]
        self._opened = sources or [
            WindowedDataset(config, mixture.window, self.tokenizer, discount=discount, return_to_go=return_to_go)
            for config in used
        ]
        self.sources = [s if device is None else s.with_images_on(self.device) for s in self._opened]
        self.value_scales = dict(value_scales or {config.name: 1.0 for config in used})
        self._cumulative = np.cumsum([drawn[source.config.name] for source in self.sources])
        self._cumulative[-1] = 1.0
        self._num_windows = np.array([source.num_windows for source in self.sources])
        self._keep = np.array([(config.keep_goal, config.keep_text) for config in used])
        self._widths = {
            "proprio": np.array([source.dataset.spec.state_dim for source in self.sources]),
            "action": np.array([source.dataset.spec.action_dim for source in self.sources]),
            "camera": np.array([len(source.cameras) for source in self.sources]),
            "goal": np.array([len(source.goal_cameras) for source in self.sources]),
            "text": np.array([source.num_text for source in self.sources]),
        }
        self.texts = _Texts(self.sources)
        self.camera_slots = _slots("camera", [source.cameras for source in self.sources], camera_slots)
        self.goal_slots = _slots("goal camera", [source.goal_cameras for source in self.sources], goal_slots)
        self.image_size = mixture.image_size or common_size(self.sources)
        self.constants = self._constants()
        self.resident: GpuDataset | None = None
        self.buffers = Buffers()
        if device is not None:
            self.resident = GpuDataset(self.sources, self.constants, self.device)

    def replace(self, **changes: Any) -> "Sampler":
        """Return a sampler of the same data, open already, with other arguments."""
        return Sampler(self.mixture, **(self._arguments() | changes), sources=self._opened)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments alone: a worker process opens the files itself."""
        return partial(Sampler, **self._arguments()), (self.mixture,)

    def _arguments(self) -> dict[str, Any]:
        names = ["seed", "rank", "world_size", "tokenizer", "discount", "return_to_go", "value_scales"]
        names += ["camera_slots", "goal_slots"]
        device = None if self.resident is None else self.device
        return {name: getattr(self, name) for name in names} | {"device": device}

    def draw(self, step: int) -> BatchIndices:
        """The windows of one step that belong to this rank."""
        mine = self._draw_all(step)[self.rank :: self.world_size]
        return mine[np.argsort(mine.dataset, kind="stable")]  # each dataset fills a block of the batch

    def _draw_all(self, step: int) -> BatchIndices:
        """The windows of one step, of all ranks."""
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

    def value_bounds(self) -> list[tuple[float, float]]:
        """Return for each dataset the least and the largest value that its rewards allow, before `value_scales`: the
        extreme reward for ever, or, where rewards come only as an episode terminates, once.
        """
        bounds = []
        for source in self.sources:
            if source.config.goals == "hindsight":
                bounds.append((0.0, 1.0))
                continue
            sound = np.isfinite(source.reward.numpy())
            reward = source.reward.numpy()[sound] * source.config.reward_scale
            ends = source.terminated.numpy()[sound]
            horizon = 1.0 if not np.any(reward[~ends]) else 1 / (1 - source.gamma)
            bounds.append((float(reward.min(initial=0)) * horizon, float(reward.max(initial=0)) * horizon))
        return bounds

    def batch(self, step: int) -> Batch:
        """Return the batch of one step: the same for the same step, whatever was asked for before."""
        draws = self.draw(step)
        used, starts = np.unique(draws.dataset, return_index=True)
        ends = [*starts[1:], len(draws.dataset)]
        blocks = [(self.sources[d], slice(int(a), int(b))) for d, a, b in zip(used, starts, ends, strict=True)]
        extent = self._extent(draws if self.world_size == 1 else self._draw_all(step))
        return _Assembly(self, draws, blocks, extent).batch()

    def _extent(self, draws: BatchIndices) -> "_Extent":
        """The extent of a batch, from all its windows on all ranks and from nothing that a rank would have to ask."""
        present, told, shown = map(
            np.unique, (draws.dataset, draws.dataset[draws.show_text], draws.dataset[draws.show_goal])
        )
        return _Extent(
            num_proprio=int(self._widths["proprio"][present].max()),
            num_actions=int(self._widths["action"][present].max()),
            cameras=frozenset(self._widths["camera"][present].tolist()),
            goal_cameras=frozenset(self._widths["goal"][present].tolist()),
            num_goals=int(self._widths["goal"][shown].max(initial=0)),
            num_text=int(self._widths["text"][told].max(initial=0)),
        )

    def _constants(self) -> dict[str, Tensor]:
        """What all windows of a dataset share: a row for each dataset, padded to the widest."""

        def rows(values: Iterable[Any], padding: float = 0.0) -> Tensor:
            return pad_sequence([torch.as_tensor(value) for value in values], True, padding)

        sources, datasets = self.sources, [source.dataset for source in self.sources]
        half = [(dataset.action_high - dataset.action_low) / 2 for dataset in datasets]
        return {
            "proprio_mask": rows(np.ones(dataset.spec.state_dim, bool) for dataset in datasets),
            "proprio_centre": rows(source.proprio_centre for source in sources),
            "proprio_scale": rows((source.proprio_scale for source in sources), padding=1.0),
            "action_mask": rows(np.ones(dataset.spec.action_dim, bool) for dataset in datasets),
            "action_centre": rows((dataset.action_high + dataset.action_low) / 2 for dataset in datasets),
            "action_half": rows((np.where(size > 0, size, np.float32(1)) for size in half), padding=1.0),
            "camera_slots": rows(_slots_of(source.cameras, self.camera_slots) for source in sources),
            "camera_mask": rows(np.ones(len(source.cameras), bool) for source in sources),
            "goal_slots": rows(_slots_of(source.goal_cameras, self.goal_slots) for source in sources),
            "goal_mask": rows(np.ones(len(source.goal_cameras), bool) for source in sources),
            "reward_scale": torch.tensor([float(source.config.reward_scale) for source in sources])
            * torch.tensor([float(self.value_scales[source.config.name]) for source in sources]),
            "imitation_weight": torch.tensor([float(source.config.imitation_weight) for source in sources]),
            "critic_weight": torch.tensor([source.critic_weight for source in sources]),
            "gamma": torch.tensor([float(source.gamma) for source in sources]),
        }

    def batches(
        self, first_step: int = 0, *, num_workers: int = 0, threads: bool = False, prefetch: int = 2
    ) -> Iterator[Batch]:
        """Batches from `first_step` on, without end. Workers prepare the next ones, pinned where there is a GPU.

        Processes suit many small datasets, whose work is Python's; threads suit pictures, whose work is copying: they
        need not hand theirs over between processes.
        """
        if num_workers and not threads and self.device.type != "cpu":
            raise ValueError(
                f"Sampler.batches: expected no worker processes for data resident on {self.device}, found "
                f"{num_workers}. Gathering there is fast; set num_workers to 0."
            )
        steps = range(first_step, 2**62)
        if num_workers == 0:
            stream: Iterable[Batch] = map(self.batch, steps)
        elif threads:
            stream = self._batches_in_threads(steps, num_workers, prefetch)
        else:
            stream = DataLoader(
                _Steps(self),
                batch_size=None,
                sampler=steps,
                num_workers=num_workers,
                prefetch_factor=prefetch,
                pin_memory=torch.cuda.is_available(),
            )
        yield from stream

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


class _Texts:
    """The instructions of all datasets, end to end."""

    def __init__(self, sources: Sequence[WindowedDataset]) -> None:
        self.tokens = np.concatenate([source.text for source in sources])
        self.mask = np.concatenate([source.text_mask for source in sources])
        self._first = np.cumsum([0, *(len(source.text) for source in sources[:-1])])
        self._stored = np.array([source.config.instruction is None for source in sources])

    def lines(
        self, dataset: Int64[np.ndarray, " batch"], instruction: Int64[np.ndarray, " batch"]
    ) -> Int64[np.ndarray, " batch"]:
        """The rows that belong to windows, by what their stores number instructions with."""
        return self._first[dataset] + instruction * self._stored[dataset]


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """How wide a batch is. All ranks must agree on it: they draw noise of this shape, and reduce the gradients of those
    modules that it puts to use.
    """

    num_proprio: int
    num_actions: int
    cameras: frozenset[int]  # how many its datasets have
    goal_cameras: frozenset[int]
    num_goals: int  # that are shown
    num_text: int


class _Assembly:
    """A batch being made. Everything is as wide as the widest robot in the batch, and no wider."""

    def __init__(
        self, sampler: Sampler, draws: BatchIndices, blocks: Sequence[tuple[WindowedDataset, slice]], extent: _Extent
    ) -> None:
        self.sampler, self.draws, self.extent, self.device = sampler, draws, extent, sampler.device
        self.windows = locate(blocks, draws.window)
        # What is decided on the CPU, and sent to the device once it is whole.
        self.mask, self.show_goal = self.windows.mask, np.zeros((len(draws.row), 1), bool)
        if sampler.resident is None:
            self._read_each(blocks)
        else:
            self._read_at_once(sampler.resident)
        self.images = self._images(sampler.mixture.window, extent.cameras)
        self.goals = self._images(1, extent.goal_cameras)
        for source, where in blocks:
            for i, name in enumerate(source.cameras):
                gather_images(source.images[name], self.rows[where], out=self.images[i, where])
            if source.goal_cameras:
                self._fill_goals(source, where)

    def _images(self, frames: int, counts: frozenset[int]) -> Tensor:
        """Memory for pictures, camera first, so that a block of one camera is contiguous."""
        size = self.sampler.image_size if max(counts) else (1, 1)
        shape = (max(counts), len(self.draws.row), frames, *size, 3)
        if self.device.type != "cpu":
            make = torch.zeros if len(counts) > 1 else torch.empty
            return make(shape, dtype=torch.uint8, device=self.device)
        pictures = self.sampler.buffers.take(shape)
        if len(counts) > 1:
            pictures[...] = 0
        return torch.from_numpy(pictures)

    def _widths(self) -> dict[str, int]:
        """How many columns of the sampler's constants the batch has a use for."""
        extent, cameras = self.extent, max(self.extent.cameras)
        return {
            "proprio_mask": extent.num_proprio,
            "proprio_centre": extent.num_proprio,
            "proprio_scale": extent.num_proprio,
            "action_mask": extent.num_actions,
            "action_centre": extent.num_actions,
            "action_half": extent.num_actions,
            "camera_slots": cameras,
            "camera_mask": cameras,
            "goal_slots": extent.num_goals,
            "goal_mask": extent.num_goals,
        }

    def _read_at_once(self, resident: GpuDataset) -> None:
        """The numbers of all windows, on a GPU: there it is the number of launches that counts."""
        rows, extent, widths = self.windows.rows, self.extent, self._widths()
        arrays = [self.draws.dataset, resident.place(self.draws.dataset, rows), rows, self.draws.row]
        dataset, place, self.rows, self.row = send(arrays, self.device)
        found = resident.take(dataset, place)
        self.constant = {
            name: x[:, : widths[name]] if name in widths else x for name, x in resident.share(dataset).items()
        }
        self.proprio = found["state"][..., : extent.num_proprio]
        self.action = found["action"][:, :-1, : extent.num_actions].contiguous()
        self.reward, self.terminated = found["reward"][:, :-1, 0], found["terminated"][:, :-1, 0]
        self.return_to_go = found["return_to_go"][:, -1]

    def _read_each(self, blocks: Sequence[tuple[WindowedDataset, slice]]) -> None:
        """The same on the CPU, dataset by dataset."""
        rows, extent, widths, dataset = self.windows.rows, self.extent, self._widths(), self.draws.dataset
        size, time = self.mask.shape
        proprio = np.zeros((size, time + 1, extent.num_proprio), np.float32)
        action = np.zeros((size, time, extent.num_actions), np.float32)
        reward, return_to_go = np.zeros((size, time), np.float32), np.zeros((size, 2), np.float32)
        terminated = np.zeros((size, time), bool)
        for source, where in blocks:
            _take(source.state, rows[where], proprio[where])
            _take(source.action, rows[where, :-1], action[where])
            _take(source.reward, rows[where, :-1], reward[where])
            _take(source.terminated, rows[where, :-1], terminated[where])
            _take(source.return_to_go, rows[where, -1], return_to_go[where])
        numbers = proprio, action, reward, terminated, return_to_go, rows, self.draws.row
        self.proprio, self.action, self.reward, self.terminated, self.return_to_go, self.rows, self.row = map(
            torch.from_numpy, numbers
        )
        tables = {name: table.numpy() for name, table in self.sampler.constants.items()}
        self.constant = {
            name: torch.from_numpy((table[:, : widths[name]] if name in widths else table)[dataset])
            for name, table in tables.items()
        }

    def _fill_goals(self, source: WindowedDataset, where: slice) -> None:
        windows, draws = self.windows[where], self.draws[where]
        goal = source.goal_rows(windows, draws.goal)
        self.show_goal[where, 0] = (goal >= 0) & draws.show_goal
        (rows,) = send([np.maximum(goal, 0)[:, None]], self.device)
        for i, name in enumerate(source.goal_cameras):
            frames = source.goals[name] if source.config.goals == "stored" else source.images[name]
            gather_images(frames, rows, out=self.goals[i, where])
        if source.config.goals == "hindsight":  # reaching the goal is the task: 1 on arrival, and then it is over
            behind = windows.rows[:, 1:] - goal[:, None]
            (arrived,) = send([behind == 0], self.device)
            self.reward[where], self.terminated[where] = arrived.float(), arrived
            self.mask[where] &= (behind <= 0) & (goal >= 0)[:, None]

    def batch(self) -> Batch:
        """Return the batch. Strides do not depend on where the data lies: an update is captured once for each form."""
        constant, texts, window = self.constant, self.sampler.texts, self.sampler.mixture.window
        _normalise(self.action, constant["action_centre"][:, None], constant["action_half"][:, None])
        lines = texts.lines(self.draws.dataset, self.windows.instruction)
        text, text_mask = (table[:, : self.extent.num_text][lines] for table in (texts.tokens, texts.mask))
        text_mask &= self.draws.show_text[:, None]
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
            # What a whole batch lacks is not computed.
            goal_images=_dense(self.goals[: self.extent.num_goals]).movedim(0, 2).expand(-1, window, -1, -1, -1, -1),
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
    """`values[rows]` into as much of `out` as they are wide. numpy stays in this thread, and "clip" needs no buffer."""
    if values is not None:
        array = values.numpy()
        np.take(array, rows, axis=0, mode="clip", out=out[..., : array.shape[1]] if array.ndim > 1 else out)


def _normalise(action: Tensor, centre: Tensor, half: Tensor) -> None:
    """Actions in place to [-1, 1]; NaN stays."""
    if action.device.type != "cpu":
        action.sub_(centre).div_(half).clamp_(-1, 1)
        return
    values = action.numpy()  # in this thread
    values -= centre.numpy()
    values /= half.numpy()
    np.clip(values, -1, 1, out=values)


class _Steps(TorchDataset[Batch]):
    """Step -> batch, for torch's loader."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __getitem__(self, step: int) -> Batch:
        return self.sampler.batch(step)


def _slots(kind: str, cameras: Iterable[tuple[str, ...]], given: Mapping[str, int] | None) -> dict[str, int]:
    """Return camera -> slot of the model: as given, or in order of first appearance, so that a dataset added at the
    end moves no camera.
    """
    names = dict.fromkeys(name for group in cameras for name in group)
    if given is None:
        return {name: slot for slot, name in enumerate(names)}
    if unknown := sorted(names.keys() - given.keys()):
        raise ValueError(
            f"Expected cameras that the model knows ({sorted(given)}), found {kind} {unknown}. Choose some with "
            "`cameras` in the mixture, or rename them in the data."
        )
    return dict(given)


def _slots_of(cameras: tuple[str, ...], slots: dict[str, int]) -> Int64[Tensor, " camera"]:
    return torch.tensor([slots[name] for name in cameras], dtype=torch.int64)
