"""Observations and batches: trimming, indexing, task dropout, alignment."""

import dataclasses

import pytest
import torch
from factories import random_batch, random_observation, small_config
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from pac.types import Batch, Observation


def test_absent_modalities_have_length_zero() -> None:
    observation = Observation.of(torch.randn(2, 3, 5))
    assert observation.images.shape == (2, 3, 0, 1, 1, 3)
    assert observation.text.shape == (2, 3, 0)
    assert observation.proprio_mask.all()
    assert observation.flatten().batch_shape == (6,)


def test_indexing_keeps_the_structure() -> None:
    observation = random_observation(small_config(), 4, 3)
    part = observation[1:, :-1]
    assert part.batch_shape == (3, 2)
    assert torch.equal(part.images, observation.images[1:, :-1])
    leaves = pytree.tree_leaves(random_batch(small_config()))
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert len(leaves) == 12 + 7


@given(seed=st.integers(0, 10_000))
def test_trim_keeps_every_real_entry_and_no_empty_column(seed: int) -> None:
    observation = random_observation(small_config(), 3, seed=seed)
    trimmed = observation.trim()
    for row in range(3):
        kept = trimmed.camera_slots[row][trimmed.camera_mask[row]]
        assert torch.equal(kept, observation.camera_slots[row][observation.camera_mask[row]])
        pictures = trimmed.images[row][trimmed.camera_mask[row]]
        assert torch.equal(pictures, observation.images[row][observation.camera_mask[row]])
    assert trimmed.camera_mask.shape[1] == observation.camera_mask.sum(1).max()
    assert trimmed.goal_mask.shape[1] == observation.goal_mask.sum(1).max()
    assert trimmed.text_mask.sum() == observation.text_mask.sum()
    assert trimmed.proprio_mask.sum() == observation.proprio_mask.sum()
    assert not trimmed.proprio_mask.shape[1] or trimmed.proprio_mask[:, -1].any()


def test_trim_of_nothing() -> None:
    observation = random_observation(small_config(), 2)
    nothing = {name: torch.zeros_like(getattr(observation, name)) for name in ("proprio_mask", "text_mask")}
    assert dataclasses.replace(observation, **nothing).trim().proprio.shape == (2, 0)


def test_task_dropout_keeps_with_the_given_probability() -> None:
    """The paper's p is the probability that a modality is present; steps of a window share their coin."""
    count = 4000
    observation = Observation.of(
        torch.zeros(count, 2, 1),
        goal_images=torch.zeros(count, 2, 1, 8, 8, 3, dtype=torch.uint8),
        text=torch.zeros(count, 2, 3, dtype=torch.int64),
    )
    keep = torch.full((count,), 0.9), torch.full((count,), 0.25)
    dropped = observation.drop_task(*keep, torch.Generator().manual_seed(0))
    goal, text = dropped.goal_mask.float().mean((1, 2)), dropped.text_mask.float().mean((1, 2))
    assert set(goal.tolist()) | set(text.tolist()) == {0.0, 1.0}
    assert goal.mean().item() == pytest.approx(0.9, abs=0.02)
    assert text.mean().item() == pytest.approx(0.25, abs=0.025)
    assert (goal * text).mean().item() == pytest.approx(0.225, abs=0.025)  # independent coins
    always = observation.drop_task(torch.ones(count), torch.ones(count))
    never = observation.drop_task(torch.zeros(count), torch.zeros(count))
    assert always.goal_mask.all()
    assert always.text_mask.all()
    assert not never.goal_mask.any()
    assert not never.text_mask.any()


def test_a_batch_has_one_observation_more_than_actions() -> None:
    batch = random_batch(small_config(), batch=2, time=3)
    fields = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    with pytest.raises(
        ValueError, match=r"Expected observations with leading axes \(batch, time\) = \(2, 4\), found \(2, 3\)"
    ):
        Batch(**(fields | {"observation": batch.observation[:, :-1]}))
