"""Sampling: a mixture and a step -> the `Batch` of that step.

The batch of a step is a pure function of (mixture, seed, step): a counter-based generator keyed on the two numbers
draws the whole batch, and rank r of W takes every W-th window of it. So there is nothing to save but the step, a run
resumes at any step, and on any number of ranks it sees the same windows.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pac.data.mixture import Mixture
from pac.data.text import Tokenizer
from pac.data.windows import Source, Windows
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
        self.image_size = mixture.image_size or _common_size(self.sources)
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
        return _as_batch(self.gather(step), self.mixture.window)

    def gather(self, step: int) -> dict[str, Tensor]:
        """The tensors of a step's batch, what a window has once not yet repeated for its observations."""
        draws = self.draw(step)
        used, starts = np.unique(draws.dataset, return_index=True)
        ends = [*starts[1:], len(draws.dataset)]
        blocks = [(self.sources[d], slice(int(a), int(b))) for d, a, b in zip(used, starts, ends, strict=True)]
        target = _Assembly(self, len(draws.dataset), [source for source, _ in blocks])
        for source, where in blocks:
            target.fill(source, where, draws[where])
        return target.tensors()

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
        for tensors in loader:
            yield _as_batch(tensors, self.mixture.window)


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

        def zeros(*shape: int, dtype: type = np.float32) -> Tensor:
            return torch.from_numpy(np.zeros(shape, dtype)).to(self.device)  # torch would wake its threads for this

        self.proprio = zeros(size, window, proprio)
        self.proprio_mask = zeros(size, proprio, dtype=bool)
        self.proprio_centre, self.proprio_scale = zeros(size, proprio), zeros(size, proprio) + 1
        self.action = zeros(size, window - 1, actions)
        self.action_mask = zeros(size, actions, dtype=bool)
        self.reward, self.discount = zeros(size, window - 1), zeros(size, window - 1)
        self.mask = zeros(size, window - 1, dtype=bool)
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
            _gather_pictures(source.images[name], rows, out=self.images[i, where])
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
            _gather_pictures(frames, index[:, None], out=self.goals[i, where])
            self.goal_slots[where, i] = self.sampler.goal_slots[name]
            self.goal_mask[where, i] = shown
        if source.config.goals == "hindsight":  # reaching the goal is the task: 1 on arrival, and then it is over
            behind = torch.from_numpy(windows.rows[:, 1:] - rows[:, None]).to(self.device)
            self.reward[where] = (behind == 0).float() * source.config.reward_scale
            self.discount[where] = (behind != 0).float()
            self.mask[where] &= (behind <= 0) & torch.from_numpy(rows >= 0).to(self.device)[:, None]

    def tensors(self) -> dict[str, Tensor]:
        length = int(self.text_mask.sum(1).max())
        shown = slice(None) if self.goal_mask.any() else slice(0)  # what a whole batch lacks is not computed
        return {
            "proprio": self.proprio,
            "proprio_mask": self.proprio_mask,
            "proprio_centre": self.proprio_centre,
            "proprio_scale": self.proprio_scale,
            "images": self.images,
            "camera_slots": self.slots,
            "camera_mask": self.image_mask,
            "goal_images": self.goals[shown],
            "goal_slots": self.goal_slots[:, shown],
            "goal_mask": self.goal_mask[:, shown],
            "text": torch.from_numpy(self.text[:, :length]).to(self.device),
            "text_mask": torch.from_numpy(self.text_mask[:, :length]).to(self.device),
            "action": self.action,
            "action_mask": self.action_mask,
            "reward": self.reward,
            "discount": self.discount,
            "mask": self.mask,
            "imitation_weight": self.imitation_weight,
            "critic_weight": self.critic_weight,
        }


def _as_batch(tensors: dict[str, Tensor], window: int) -> Batch:
    """Pictures with their camera axis in its place, and what a window has once at each of its steps, as views."""
    fields = dict(tensors)
    for name in ("images", "goal_images"):
        fields[name] = fields[name].movedim(0, 2).expand(-1, window, -1, -1, -1, -1)
    for name, tensor in tensors.items():
        if name in Observation.__dataclass_fields__ and name not in ("proprio", "images", "goal_images"):
            fields[name] = tensor[:, None].expand(-1, window, -1)
    fields["action_mask"] = fields["action_mask"][:, None].expand_as(fields["action"])
    observation = Observation(**{name: fields.pop(name) for name in Observation.__dataclass_fields__})
    return Batch(observation=observation, **fields)


def _gather(values: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """`values[rows]`, into `out` if given. On the CPU by numpy: torch would wake its threads for a copy."""
    if values.device.type != "cpu":
        return values[rows] if out is None else out.copy_(values[rows])
    target = None if out is None else out.numpy()
    found = np.take(values.numpy(), rows.numpy(), axis=0, mode="clip", out=target)  # "clip" needs no second buffer
    return torch.from_numpy(found)


def _gather_pictures(values: Tensor, rows: Tensor, out: Tensor) -> None:
    if values.shape[1:] == out.shape[2:]:
        _gather(values, rows, out=out)
    else:
        height, width, _ = out.shape[2:]
        out.copy_(resize_pictures(_gather(values, rows), (height, width)))


def resize_pictures(
    pictures: UInt8[Tensor, "*batch height width 3"], size: tuple[int, int]
) -> UInt8[Tensor, "*batch new_height new_width 3"]:
    """Bilinear, with antialiasing. Whoever runs the policy must resize in the same way."""
    flat = pictures.flatten(0, -4).permute(0, 3, 1, 2).float()
    resized = functional.interpolate(flat, size, mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).byte().permute(0, 2, 3, 1).reshape(*pictures.shape[:-3], *size, 3)


class _Steps(TorchDataset[dict[str, Tensor]]):
    """Step -> tensors, in a plain dict that torch's loader knows how to pin."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        return self.sampler.gather(step)


def _slots(cameras: Iterable[tuple[str, ...]]) -> dict[str, int]:
    """Camera -> slot of the model, in order of first appearance: a dataset added at the end moves no camera."""
    names = dict.fromkeys(name for group in cameras for name in group)
    return {name: slot for slot, name in enumerate(names)}


def _common_size(sources: list[Source]) -> tuple[int, int]:
    sizes = {
        (source.config.name, name): size
        for source in sources
        for name, size in {**source.dataset.spec.cameras, **source.dataset.spec.goal_cameras}.items()
        if name in (*source.cameras, *source.goal_cameras)
    }
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{dataset}/{camera} {h}x{w}" for (dataset, camera), (h, w) in sizes.items())
        raise ValueError(
            f"Mixture: expected pictures of one size, found {found}. Set image_size = [height, width] in the mixture "
            "to resize them, or leave some out with `cameras`."
        )
    return next(iter(sizes.values()), (1, 1))
