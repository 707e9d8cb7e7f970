"""Observations and batches: trimming, indexing, alignment."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from factories import random_batch, random_observation, small_config, trim
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from pac.types import Batch, Observation, expect_shape, without_repeats


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
    assert len(leaves) == 12 + 11


def test_moving_a_batch_copies_what_repeats_once() -> None:
    batch = random_batch(small_config(), batch=2, time=3)
    text = batch.observation.text[:, :1].contiguous().expand(-1, 4, -1)
    images = batch.observation.images.movedim(2, 0).contiguous().movedim(0, 2)
    batch = dataclasses.replace(batch, observation=dataclasses.replace(batch.observation, text=text, images=images))
    moved = batch.to("meta")
    for found, expected in zip(moved.tensors(), batch.tensors(), strict=True):
        assert (found.shape, found.stride(), found.device.type) == (expected.shape, expected.stride(), "meta")
    assert torch.equal(without_repeats(text), text[:, :1])
    assert moved.observation.text.untyped_storage().nbytes() == text[:, :1].nbytes


@given(seed=st.integers(0, 10_000))
def test_trim_keeps_every_real_entry_and_no_empty_column(seed: int) -> None:
    observation = random_observation(small_config(), 3, seed=seed)
    trimmed = trim(observation)
    for row in range(3):
        kept = trimmed.camera_slots[row][trimmed.camera_mask[row]]
        assert torch.equal(kept, observation.camera_slots[row][observation.camera_mask[row]])
        images = trimmed.images[row][trimmed.camera_mask[row]]
        assert torch.equal(images, observation.images[row][observation.camera_mask[row]])
    assert trimmed.camera_mask.shape[1] == observation.camera_mask.sum(1).max()
    assert trimmed.goal_mask.shape[1] == observation.goal_mask.sum(1).max()
    assert trimmed.text_mask.sum() == observation.text_mask.sum()
    assert trimmed.proprio_mask.sum() == observation.proprio_mask.sum()
    assert not trimmed.proprio_mask.shape[1] or trimmed.proprio_mask[:, -1].any()


def test_trim_of_nothing() -> None:
    observation = random_observation(small_config(), 2)
    nothing = {name: torch.zeros_like(getattr(observation, name)) for name in ("proprio_mask", "text_mask")}
    assert trim(dataclasses.replace(observation, **nothing)).proprio.shape == (2, 0)


def test_a_batch_has_one_observation_more_than_actions() -> None:
    batch = random_batch(small_config(), batch=2, time=3)
    fields = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    with pytest.raises(
        ValueError, match=r"Expected observations with leading axes \(batch, time\) = \(2, 4\), found \(2, 3\)"
    ):
        Batch(**(fields | {"observation": batch.observation[:, :-1]}))


# Shapes are checked without beartype too: `expect_shape` speaks to users, who do not run our import hook.
def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"Batch.reward: expected shape \(2, 3\), found \(2, 4\)"):
        expect_shape("Batch.reward", torch.zeros(2, 4), (2, 3))
    script = (
        "import torch; from pac.types import Observation\n"
        "Observation.of(torch.zeros(2, 3), text=torch.zeros(2, 4).long(), text_mask=torch.ones(2, 5).bool())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "Observation.text_mask: expected shape (2, 4), found (2, 5)." in done.stderr
