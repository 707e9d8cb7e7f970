"""The structures of PAC: an `Episode` is stored, the model reads an `Observation` and learns from a `Batch`.

Tensors of one structure share their leading axes: one axis for the model, batch and time in a `Batch`. A mask is True
where data is real. Masked entries may hold anything, NaN included, and change nothing. An absent modality is an axis of
length 0, so the model needs no `if None` and computes nothing for it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

# How a policy chooses each dimension of an action: a sample, the likeliest bin, the mean, the median, or a sample
# between the quartiles. All but the first suit noisy data. The mean and the median may lie between two good actions.
Sampling = Literal["sample", "mode", "mean", "median", "interquartile"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One episode on the CPU. In `observation[t]` the robot took `action[t]`, got `reward[t]` and then saw
    `observation[t + 1]`. There are T actions and T + 1 observations, or T if a source does not keep the last one.
    """

    observation: dict[str, np.ndarray]  # LeRobot's names: "observation.state" (T+1, dims) float32,
    # "observation.images.<camera>" (T+1, height, width, 3) uint8
    action: np.ndarray  # (T, actions) float32, raw: bounds belong to the dataset
    reward: np.ndarray  # (T,) float32
    terminated: bool  # the last step ended the task: there are no rewards after it
    truncated: bool  # the last step met a time limit: values bootstrap
    instruction: str = ""
    success: bool | None = None  # None: the source does not say
    goal_images: dict[str, np.ndarray] = field(default_factory=dict)  # camera -> (height, width, 3) uint8
    extra_rewards: dict[str, np.ndarray] = field(default_factory=dict)  # other tasks' rewards for the same steps
    source: str = ""  # file, behaviour or checkpoint it came from
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task of an environment, as an actor needs to know it."""

    name: str  # "control/walker.walk", "metaworld/drawer-open", "gym/Pendulum-v1"
    instruction: str  # for a language-conditioned policy
    state_dim: int
    action_low: tuple[float, ...]  # raw bounds, one per action dimension
    action_high: tuple[float, ...]
    max_steps: int  # the time limit: an episode that reaches it is truncated
    has_success: bool  # the environment says when the task is done
    cameras: tuple[str, ...] = ()  # rendered cameras, named as in "observation.images.<camera>"
    control_rate: float | None = None  # Hz
    # One per state dimension. Only a built environment knows them, so they do not count in comparisons.
    state_names: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """A request of one environment for an action. Random numbers of the reply are keyed on (seed, step). So it does not
    depend on which other environments ask at the same time.
    """

    task: TaskSpec
    observation: dict[str, np.ndarray]  # of one step, Episode's names: (dims,) float32, (height, width, 3) uint8
    seed: int  # of the episode
    step: int
    dataset: str | None = None  # dataset of the training whose statistics apply; None: by sizes and instruction
    any_instruction: bool = False  # an instruction that was not in training is not refused


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """The reply to a query."""

    action: np.ndarray  # (actions,) float32, raw, within the task's bounds
    value: float | None = None  # the critic's estimate, if there is a critic


Struct = TypeVar("Struct", bound="TensorStruct")


class TensorStruct:
    """Base of dataclasses of tensors, which are indexed, reshaped and moved as if they were one tensor.

    A tensor may repeat along an axis without a copy (stride 0). `to` and `pin_memory` keep that.
    """

    def map(self: Struct, change: Callable[[Tensor], Tensor]) -> Struct:
        """Apply `change` to every tensor, also in nested structures."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        changed = {k: v.map(change) if isinstance(v, TensorStruct) else change(v) for k, v in fields.items()}
        return type(self)(**changed)

    def __getitem__(self: Struct, index: Any) -> Struct:
        return self.map(lambda tensor: tensor[index])

    def tensors(self) -> list[Tensor]:
        """Return all tensors, also those of nested structures."""
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
    """Input of the model at one step: the robot's state, its cameras and its task."""

    proprio: Float[Tensor, "*batch proprio"]
    proprio_mask: Bool[Tensor, "*batch proprio"]
    proprio_centre: Float[Tensor, "*batch proprio"]  # mean in the row's dataset, for models that standardise
    proprio_scale: Float[Tensor, "*batch proprio"]  # standard deviation there
    images: UInt8[Tensor, "*batch camera rows columns 3"]
    camera_slots: Int64[Tensor, "*batch camera"]  # the model's slot of each camera: rows may differ
    camera_mask: Bool[Tensor, "*batch camera"]
    goal_images: UInt8[Tensor, "*batch goal goal_rows goal_columns 3"]
    goal_slots: Int64[Tensor, "*batch goal"]
    goal_mask: Bool[Tensor, "*batch goal"]
    text: Int64[Tensor, "*batch text"]  # token ids of the instruction
    text_mask: Bool[Tensor, "*batch text"]

    def __post_init__(self) -> None:
        batch, proprio, images, goals = self.batch_shape, self.proprio.shape, self.images.shape, self.goal_images.shape
        shapes: dict[str, Sequence[int]] = dict.fromkeys(("proprio_mask", "proprio_centre", "proprio_scale"), proprio)
        shapes |= {"images": (*batch, *images[-4:-1], 3), "goal_images": (*batch, *goals[-4:-1], 3)}
        shapes |= dict.fromkeys(("camera_slots", "camera_mask"), images[:-3])
        shapes |= dict.fromkeys(("goal_slots", "goal_mask"), goals[:-3])
        shapes |= {"text": (*batch, *self.text.shape[-1:]), "text_mask": self.text.shape}
        for name, shape in shapes.items():
            expect_shape(f"Observation.{name}", getattr(self, name), tuple(shape))

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
        """Return an observation with these inputs. Other modalities are absent. Masks are True unless given."""
        batch, device = proprio.shape[:-1], proprio.device
        no_image = torch.zeros(*batch, 0, 1, 1, 3, dtype=torch.uint8, device=device)
        images = no_image if images is None else images
        goal_images = no_image if goal_images is None else goal_images
        text = torch.zeros(*batch, 0, dtype=torch.int64, device=device) if text is None else text

        def slots(values: Tensor) -> Tensor:
            return torch.arange(values.shape[-4], device=device).expand(values.shape[:-3])

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(TensorStruct):
    """Windows of T+1 observations and T transitions: in `observation[:, t]` the robot took `action[:, t]`, got
    `reward[:, t]` and then saw `observation[:, t + 1]`.
    """

    observation: Observation  # leading axes: batch, T + 1
    action: Float[Tensor, "batch time action"]  # normalised to [-1, 1]
    action_mask: Bool[Tensor, "batch time action"]
    reward: Float[Tensor, "batch time"]  # scaled, so that returns lie on the model's bins
    discount: Float[Tensor, "batch time"]  # 0 at a true termination, 1 elsewhere, also at time limits
    mask: Bool[Tensor, "batch time"]  # False: padding, or the next observation is unknown
    imitation_weight: Float[Tensor, " batch"]  # alpha of the window's dataset: 1 is pure cloning
    critic_weight: Float[Tensor, " batch"]  # beta of that dataset
    gamma: Float[Tensor, " batch"]  # discount factor of that dataset, in [0, 1)
    row: Int64[Tensor, " batch"]  # index of the window in the batch of all processes: its noise depends on it
    return_to_go: Float[Tensor, " batch"]  # discounted, from the window's end, as far as the data goes; scaled
    # Share of the return that it covers: 1 up to a termination, and 1 - gamma^n for n steps up to a time limit.
    return_to_go_weight: Float[Tensor, " batch"]

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
    """Raise unless the tensor has this shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{where}: expected shape {shape}, found {tuple(tensor.shape)}.")


torch.export.register_dataclass(Observation)
torch.export.register_dataclass(Batch)
