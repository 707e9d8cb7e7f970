"""What travels through PAC: an `Episode` is what is stored, an `Observation` what the model reads, a `Batch` what it
learns from.

Tensors of one structure share their leading axes (`*batch`: one axis for the model, batch and time in a `Batch`).
A mask is True where data is real; what is masked may hold anything, NaN included, and changes nothing. An absent
modality is an axis of length 0, so the model has no `if None` and does not compute what a batch does not hold.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

# How a policy acts: a draw from its distribution, or of each dimension the likeliest bin, the mean, the median, or a
# sample between the quartiles ("interquartile"). All but the first suit data with useless noise. Between two ways to
# do a thing, the mean and the median may be neither.
Sampling = Literal["sample", "mode", "mean", "median", "interquartile"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One episode on the CPU: in `observation[t]` the robot took `action[t]`, got `reward[t]`, and then saw
    `observation[t + 1]`. T actions, and T + 1 observations, or T where a source does not keep the last one.
    """

    observation: dict[str, np.ndarray]  # LeRobot's names: "observation.state" (T+1, dims) float32,
    # "observation.images.<camera>" (T+1, height, width, 3) uint8
    action: np.ndarray  # (T, actions) float32, raw: bounds belong to the dataset
    reward: np.ndarray  # (T,) float32
    terminated: bool  # the last step ended the task for good: nothing is to be had after it
    truncated: bool  # the last step met a time limit: the world went on, and values bootstrap
    instruction: str = ""
    success: bool | None = None  # None: the source does not say
    goal_images: dict[str, np.ndarray] = field(default_factory=dict)  # camera -> (height, width, 3) uint8
    extra_rewards: dict[str, np.ndarray] = field(default_factory=dict)  # other tasks' rewards for the same steps
    source: str = ""  # file, behaviour or checkpoint it came from
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task of a world, as those who act in it need to know it."""

    name: str  # "control/walker.walk", "metaworld/drawer-open", "gym/Pendulum-v1"
    instruction: str  # what a language-conditioned policy is told
    state_dim: int
    action_low: tuple[float, ...]  # raw bounds, one an action dimension
    action_high: tuple[float, ...]
    max_steps: int  # the time limit: an episode that reaches it is truncated
    has_success: bool  # the world says when the task is done
    cameras: tuple[str, ...] = ()  # those rendered, named as in "observation.images.<camera>"
    control_rate: float | None = None  # Hz


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """One environment asks for an action. Whatever an answer draws is keyed on (seed, step): so it does not depend on
    which other environments ask at the same time.
    """

    task: TaskSpec
    observation: dict[str, np.ndarray]  # one instant, Episode's names: (dims,) float32, (height, width, 3) uint8
    seed: int  # of the episode
    step: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """The answer to a query."""

    action: np.ndarray  # (actions,) float32, raw, within the task's bounds
    value: float | None = None  # what the critic expects from here, where there is one


Struct = TypeVar("Struct", bound="TensorStruct")


class TensorStruct:
    """Base of dataclasses of tensors, which are indexed, reshaped and moved as if they were one tensor.

    A tensor may repeat along an axis without a copy (stride 0). `to` and `pin_memory` keep that.
    """

    def map(self: Struct, change: Callable[[Tensor], Tensor]) -> Struct:
        """Apply `change` to every tensor, inside nested structures too."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        changed = {k: v.map(change) if isinstance(v, TensorStruct) else change(v) for k, v in fields.items()}
        return type(self)(**changed)

    def __getitem__(self: Struct, index: Any) -> Struct:
        return self.map(lambda tensor: tensor[index])

    def tensors(self) -> list[Tensor]:
        """Return all tensors, those of nested structures too."""
        found: list[Tensor] = []
        for value in vars(self).values():
            found += value.tensors() if isinstance(value, TensorStruct) else [value]
        return found

    def to(self: Struct, device: torch.device | str, *, non_blocking: bool = False) -> Struct:
        return self.map(lambda x: without_repeats(x).to(device, non_blocking=non_blocking).expand_as(x))

    def pin_memory(self: Struct) -> Struct:
        return self.map(lambda x: without_repeats(x).pin_memory().expand_as(x))


def without_repeats(tensor: Tensor) -> Tensor:
    """Return a view with one entry of each axis along which the tensor repeats (stride 0)."""
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation(TensorStruct):
    """What the model reads at one instant: the robot's state, its cameras, and the task it was given."""

    proprio: Float[Tensor, "*batch proprio"]
    proprio_mask: Bool[Tensor, "*batch proprio"]
    proprio_centre: Float[Tensor, "*batch proprio"]  # statistics of the dataset this row came from; read only
    proprio_scale: Float[Tensor, "*batch proprio"]  # by models configured to centre or standardise their input
    images: UInt8[Tensor, "*batch camera rows columns 3"]
    camera_slots: Int64[Tensor, "*batch camera"]  # which of the model's cameras: rows may hold different ones
    camera_mask: Bool[Tensor, "*batch camera"]
    goal_images: UInt8[Tensor, "*batch goal goal_rows goal_columns 3"]
    goal_slots: Int64[Tensor, "*batch goal"]
    goal_mask: Bool[Tensor, "*batch goal"]
    text: Int64[Tensor, "*batch text"]  # token ids of the instruction
    text_mask: Bool[Tensor, "*batch text"]

    def __post_init__(self) -> None:
        batch, pictures = tuple(self.batch_shape), {"images": "camera", "goal_images": "goal"}
        for name in ("proprio_mask", "proprio_centre", "proprio_scale"):
            expect_shape(f"Observation.{name}", getattr(self, name), tuple(self.proprio.shape))
        for name, kind in pictures.items():
            values = getattr(self, name)
            expect_shape(f"Observation.{name}", values, (*batch, *values.shape[-4:-1], 3))
            for field_name in (f"{kind}_slots", f"{kind}_mask"):
                expect_shape(f"Observation.{field_name}", getattr(self, field_name), tuple(values.shape[:-3]))
        expect_shape("Observation.text", self.text, (*batch, *self.text.shape[-1:]))
        expect_shape("Observation.text_mask", self.text_mask, tuple(self.text.shape))

    @classmethod
    def of(
        cls,
        proprio: Float[Tensor, "*batch proprio"],
        *,
        images: UInt8[Tensor, "*batch camera rows columns 3"] | None = None,
        goal_images: UInt8[Tensor, "*batch goal goal_rows goal_columns 3"] | None = None,
        text: Int64[Tensor, "*batch text"] | None = None,
        **given: Tensor,
    ) -> "Observation":
        """Build an observation from what there is; the rest is absent, and masks are True unless given."""
        batch, device = proprio.shape[:-1], proprio.device
        no_image = torch.zeros(*batch, 0, 1, 1, 3, dtype=torch.uint8, device=device)
        images = no_image if images is None else images
        goal_images = no_image if goal_images is None else goal_images
        text = torch.zeros(*batch, 0, dtype=torch.int64, device=device) if text is None else text

        def slots(pictures: Tensor) -> Tensor:
            return torch.arange(pictures.shape[-4], device=device).expand(pictures.shape[:-3])

        def real(values: Tensor) -> Tensor:
            return torch.ones_like(values, dtype=torch.bool)

        fields = {
            "proprio": proprio,
            "proprio_mask": real(proprio),
            "proprio_centre": torch.zeros_like(proprio),
            "proprio_scale": torch.ones_like(proprio),
            "images": images,
            "camera_slots": slots(images),
            "camera_mask": real(slots(images)),
            "goal_images": goal_images,
            "goal_slots": slots(goal_images),
            "goal_mask": real(slots(goal_images)),
            "text": text,
            "text_mask": real(text),
        }
        return cls(**(fields | given))

    @property
    def batch_shape(self) -> torch.Size:
        return self.proprio.shape[:-1]

    def flatten(self) -> "Observation":
        """Merge the leading axes into one."""
        num_axes = len(self.batch_shape)
        return self.map(lambda tensor: tensor.flatten(0, num_axes - 1))

    def trim(self) -> "Observation":
        """Drop what no row holds: dimensions and text past the last real one, pictures past the fullest row.

        Each row's pictures move to the front and keep their slots, so that robots with different cameras share
        columns. The model's output does not change. Sizes depend on values: call this on the CPU, where batches are
        made, since on a GPU it waits for the device.
        """
        width, length = _used(self.proprio_mask), _used(self.text_mask)
        cameras, goals = _compaction(self.camera_mask), _compaction(self.goal_mask)
        return Observation(
            proprio=self.proprio[..., :width],
            proprio_mask=self.proprio_mask[..., :width],
            proprio_centre=self.proprio_centre[..., :width],
            proprio_scale=self.proprio_scale[..., :width],
            images=_pick(self.images, cameras),
            camera_slots=self.camera_slots.gather(-1, cameras),
            camera_mask=self.camera_mask.gather(-1, cameras),
            goal_images=_pick(self.goal_images, goals),
            goal_slots=self.goal_slots.gather(-1, goals),
            goal_mask=self.goal_mask.gather(-1, goals),
            text=self.text[..., :length],
            text_mask=self.text_mask[..., :length],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(TensorStruct):
    """Windows of T+1 observations and the T transitions between them: in `observation[:, t]` the robot took
    `action[:, t]`, got `reward[:, t]`, and then saw `observation[:, t + 1]`.
    """

    observation: Observation  # leading axes: batch, T + 1
    action: Float[Tensor, "batch time action"]  # normalised to [-1, 1]
    action_mask: Bool[Tensor, "batch time action"]
    reward: Float[Tensor, "batch time"]  # scaled: its returns are values on the model's bins
    discount: Float[Tensor, "batch time"]  # 0 at a true termination, 1 elsewhere: a time limit does not end the world
    mask: Bool[Tensor, "batch time"]  # False: padding of a short episode, or the next observation is unknown
    imitation_weight: Float[Tensor, " batch"]  # alpha of the dataset the window came from: 1 is pure cloning
    critic_weight: Float[Tensor, " batch"]  # beta of that dataset
    gamma: Float[Tensor, " batch"]  # discount factor of that dataset, in [0, 1)
    row: Int64[Tensor, " batch"]  # index of the window in the batch of all processes: its noise depends on it
    return_to_go: Float[Tensor, " batch"]  # discounted, after the window, as far as the data goes; scaled like `reward`
    return_to_go_weight: Float[
        Tensor, " batch"
    ]  # how far: 1 to a termination; at a time limit after n steps, 1 - gamma^n

    def __post_init__(self) -> None:
        batch, time = self.action.shape[:2]
        if tuple(self.observation.batch_shape) != (batch, time + 1):
            raise ValueError(
                f"Batch: {time} actions need one observation more than that. Expected observations with leading axes "
                f"(batch, time) = {(batch, time + 1)}, found {tuple(self.observation.batch_shape)}."
            )
        expect_shape("Batch.action_mask", self.action_mask, tuple(self.action.shape))
        for name in ("reward", "discount", "mask"):
            expect_shape(f"Batch.{name}", getattr(self, name), (batch, time))
        for name in ("imitation_weight", "critic_weight", "gamma", "row", "return_to_go", "return_to_go_weight"):
            expect_shape(f"Batch.{name}", getattr(self, name), (batch,))


def expect_shape(where: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{where}: expected shape {shape}, found {tuple(tensor.shape)}.")


def _used(mask: Bool[Tensor, "*batch entry"]) -> int:
    """Length up to and including the last entry that is real in any row."""
    present = mask.reshape(-1, mask.shape[-1]).any(0).nonzero()
    return int(present[-1, 0]) + 1 if len(present) else 0


def _compaction(mask: Bool[Tensor, "*batch entry"]) -> Int64[Tensor, "*batch kept"]:
    """Indices that move each row's real entries to the front, cut at the fullest row."""
    kept = int(mask.sum(-1).max()) if mask.numel() else 0
    return torch.argsort(~mask, dim=-1, stable=True)[..., :kept]


def _pick(
    pictures: UInt8[Tensor, "*batch entry height width 3"], index: Int64[Tensor, "*batch kept"]
) -> UInt8[Tensor, "*batch kept height width 3"]:
    size = pictures.shape[-3:]
    return pictures.gather(-4, index[..., None, None, None].expand(*index.shape, *size))


torch.export.register_dataclass(Observation)
torch.export.register_dataclass(Batch)
