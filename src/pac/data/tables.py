"""Tables of what all windows of a dataset share. Each has one row per dataset, padded to the widest dataset."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pac.data.windows import WindowedDataset


class DatasetTables:
    """Sizes, constants and instructions of the datasets of a mixture."""

    def __init__(
        self,
        sources: Sequence[WindowedDataset],
        value_scales: Mapping[str, float],
        camera_slots: Mapping[str, int] | None,
        goal_slots: Mapping[str, int] | None,
    ) -> None:
        self.camera_slots = _choose_slots("camera", [source.cameras for source in sources], camera_slots)
        self.goal_slots = _choose_slots("goal camera", [source.goal_cameras for source in sources], goal_slots)
        self.sizes = {
            "proprio": np.array([source.dataset.spec.state_dim for source in sources]),
            "action": np.array([source.dataset.spec.action_dim for source in sources]),
            "camera": np.array([len(source.cameras) for source in sources]),
            "goal": np.array([len(source.goal_cameras) for source in sources]),
            "text": np.array([source.num_text for source in sources]),
        }
        self.constants = self._constants(sources, value_scales)
        self.tokens = np.concatenate([source.text for source in sources])  # of all instructions, dataset by dataset
        self.token_mask = np.concatenate([source.text_mask for source in sources])
        self._first_instruction = np.cumsum([0, *(len(source.text) for source in sources[:-1])])
        self._stored_instruction = np.array([source.config.instruction is None for source in sources])

    def instruction_rows(
        self, dataset: Int64[np.ndarray, " batch"], instruction: Int64[np.ndarray, " batch"]
    ) -> Int64[np.ndarray, " batch"]:
        """Return the rows of `tokens` for instructions as their stores number them."""
        return self._first_instruction[dataset] + instruction * self._stored_instruction[dataset]

    def _constants(self, sources: Sequence[WindowedDataset], value_scales: Mapping[str, float]) -> dict[str, Tensor]:
        def rows(values: Iterable[Any], padding: float = 0.0) -> Tensor:
            return pad_sequence([torch.as_tensor(value) for value in values], True, padding)

        def masks(kind: str) -> Tensor:
            return rows(np.ones(size, bool) for size in self.sizes[kind])

        def numbers(values: Iterable[float]) -> Tensor:
            return torch.tensor([float(value) for value in values])

        datasets = [source.dataset for source in sources]
        half = [(dataset.action_high - dataset.action_low) / 2 for dataset in datasets]
        return {
            "proprio_mask": masks("proprio"),
            "proprio_centre": rows(source.proprio_centre for source in sources),
            "proprio_scale": rows((source.proprio_scale for source in sources), padding=1.0),
            "action_mask": masks("action"),
            "action_centre": rows((dataset.action_high + dataset.action_low) / 2 for dataset in datasets),
            "action_half": rows((np.where(size > 0, size, np.float32(1)) for size in half), padding=1.0),
            "camera_slots": rows(_slots_of(source.cameras, self.camera_slots) for source in sources),
            "camera_mask": masks("camera"),
            "goal_slots": rows(_slots_of(source.goal_cameras, self.goal_slots) for source in sources),
            "goal_mask": masks("goal"),
            "reward_scale": numbers(source.config.reward_scale for source in sources)
            * numbers(value_scales[source.config.name] for source in sources),
            "imitation_weight": numbers(source.config.imitation_weight for source in sources),
            "critic_weight": numbers(source.critic_weight for source in sources),
            "gamma": numbers(source.gamma for source in sources),
        }


def _choose_slots(
    kind: str, cameras: Iterable[tuple[str, ...]], model_slots: Mapping[str, int] | None
) -> dict[str, int]:
    """Return each camera's slot in the model. The default is the order of first appearance, which a dataset added at
    the end does not change.
    """
    names = dict.fromkeys(name for group in cameras for name in group)
    if model_slots is None:
        return {name: slot for slot, name in enumerate(names)}
    if unknown := sorted(names.keys() - model_slots.keys()):
        expected, found = f"cameras that the model knows ({sorted(model_slots)})", f"{kind} {unknown}"
        fix = "Choose some with `cameras` in the mixture, or rename them in the data."
        raise ValueError(f"Expected {expected}, found {found}. {fix}")
    return dict(model_slots)


def _slots_of(cameras: tuple[str, ...], slots: dict[str, int]) -> Int64[Tensor, " camera"]:
    return torch.tensor([slots[name] for name in cameras], dtype=torch.int64)
