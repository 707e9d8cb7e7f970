"""The plain baseline computes what we compute: padded, and token by token, the loss of a batch is the same."""

import dataclasses

import pytest
import torch
from factories import random_batch, small_config, small_model, trim
from plain import PlainPAC, make_update, pad, plain_update

from pac.config import ObjectiveConfig
from pac.model import PAC
from pac.objectives import loss
from pac.types import Batch


def plain_model(model: PAC) -> PlainPAC:
    plain = PlainPAC(model.config)
    plain.load_state_dict(model.state_dict())
    return plain


def small_batch(seed: int, *, images: bool) -> Batch:
    """Two numbers and two words fewer than the model takes, in a trimmed batch, with or without pictures."""
    batch = random_batch(small_config(), seed=seed)
    seen = batch.observation
    seen.proprio_mask[..., 4:] = False
    seen.text_mask[..., 3:] = False
    if not images:
        seen.camera_mask[:], seen.goal_mask[:] = False, False
    return dataclasses.replace(batch, observation=trim(seen))


def test_nothing_of_ours_but_weights() -> None:
    """A baseline that takes our kernels along would hide what they are worth."""
    plain, ours = PlainPAC(small_config()), small_model()
    modules = [m for m in plain.modules() if hasattr(m, "fast")]
    assert len(modules) >= small_config().num_blocks + 4  # the input's two, and those of policy and critic
    assert not any(m.fast for m in modules)
    assert all(m.fast for m in ours.modules() if hasattr(m, "fast"))


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("critic", ["q", "v"])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_loss(critic: str, images: bool, seed: int) -> None:
    model, target = small_model(seed), small_model(seed + 1)
    batch = small_batch(seed, images=images)
    padded = pad(batch, model.config)
    assert padded.observation.proprio.shape[-1] == 6
    assert padded.observation.text.shape[-1] == 5
    assert padded.observation.images.shape[2] == (3 if images else 0)
    assert padded.observation.goal_images.shape[2] == (2 if images else 0)
    objective = ObjectiveConfig(critic=critic)  # type: ignore[arg-type]
    found = [
        loss(ours, theirs, given, objective, torch.Generator().manual_seed(0))[0]
        for ours, theirs, given in [
            (model, target, batch),
            (plain_model(model), plain_model(target), padded),
        ]
    ]
    tolerance = 1e-5 if critic == "q" else 1e-4  # exp(advantage / temperature) magnifies rounding
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


def test_the_same_loss_with_padded_actions() -> None:
    """More action dimensions draw other random numbers: with alpha = 1 and no bootstrap, no sampled action counts."""
    model = small_model()
    batch = random_batch(small_config(), imitation_weight=torch.ones(3), gamma=torch.zeros(3))
    batch = dataclasses.replace(batch, action=batch.action[..., :2], action_mask=batch.action_mask[..., :2])
    padded = pad(batch, model.config)
    assert padded.action.shape[-1] == 4
    assert not padded.action_mask[..., 2:].any()
    objective, plain = ObjectiveConfig(), plain_model(model)
    found, expected = loss(plain, plain, padded, objective)[0], loss(model, model, batch, objective)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_updates_of_both_take_the_same_step() -> None:
    model, batch = small_model(), small_batch(0, images=False)
    batch = dataclasses.replace(batch, imitation_weight=torch.ones(3))
    objective = ObjectiveConfig(critic="none", improve=False)
    plain = plain_model(model)
    ours = make_update(model, batch, objective, compiled=False)
    theirs = make_update(plain, pad(batch, model.config), objective, compiled=False)
    for _ in range(3):
        torch.testing.assert_close(theirs(), ours(), rtol=1e-5, atol=1e-5)
    assert plain_update(model.config, objective, batch, compiled=False)().isfinite()
