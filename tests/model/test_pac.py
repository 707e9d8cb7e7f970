"""The model: sizes of the paper, masks to the last one, independence of what must be independent."""

import dataclasses
from typing import Any

import pytest
import torch
from factories import random_mask, random_observation, small_config, small_model, trim
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pac.model import PAC
from pac.model.config import SIZES, model_config
from pac.model.pac import count_parameters
from pac.scaling import published as paper
from pac.types import Observation

seeds = st.integers(0, 10_000)
ENCODERS = ("multiscale", "linear", "mu-law")


def outputs(model: PAC, observation: Observation, actions: Tensor, mask: Tensor) -> list[Tensor]:
    encoded = model.encode(observation)
    return [
        model.policy_logits(encoded),
        model.behaviour_logits(encoded),
        model.q_logits(encoded, actions, mask),
        model.v_logits(encoded),
    ]


def scramble(observation: Observation, seed: int) -> Observation:
    """Other garbage wherever the masks say so: NaN numbers, other pictures, ids out of range."""
    g = torch.Generator().manual_seed(seed)

    def other_pictures(pictures: Tensor, mask: Tensor) -> Tensor:
        noise = torch.randint(0, 256, pictures.shape, generator=g).to(torch.uint8)
        return torch.where(mask[..., None, None, None], pictures, noise)

    broken = observation.proprio_mask.logical_not()
    return dataclasses.replace(
        observation,
        proprio=observation.proprio.masked_fill(broken, float("nan")),
        proprio_scale=observation.proprio_scale.masked_fill(broken, 0.0),
        images=other_pictures(observation.images, observation.camera_mask),
        camera_slots=observation.camera_slots.masked_fill(~observation.camera_mask, 999),
        goal_images=other_pictures(observation.goal_images, observation.goal_mask),
        goal_slots=observation.goal_slots.masked_fill(~observation.goal_mask, -1),
        text=observation.text.masked_fill(~observation.text_mask, 10**9),
    )


def gradients(model: PAC, values: list[Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    sum(value.square().sum() for value in values).backward()  # type: ignore[union-attr]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("size", paper.PARAMETERS)
def test_parameter_counts_round_to_the_papers(size: str) -> None:
    with torch.device("meta"):
        count = count_parameters(PAC(model_config(size)))
    assert round(count / 1e6) == paper.PARAMETERS[size] / 1e6
    assert abs(count / paper.PARAMETERS[size] - 1) < 0.01
    exact = {"XXS": 31_984_970, "XS": 73_389_386, "S": 163_954_762, "M": 391_401_290, "L": 988_413_258}
    assert count == exact[size]  # with the 304 x 768 action-token embedding


@pytest.mark.parametrize(("size", "about"), [("nano", 0.25e6), ("micro", 2e6), ("tiny", 8e6)])
def test_small_sizes(size: str, about: float) -> None:
    with torch.device("meta"):
        assert count_parameters(PAC(model_config(size))) == pytest.approx(about, rel=0.1)
    assert model_config(size).vocabulary_size < 1000
    assert set(SIZES) == {"nano", "micro", "tiny", *paper.PARAMETERS}


@pytest.mark.parametrize("action_as", ["query", "input"])
@pytest.mark.parametrize("encoder", ENCODERS)
@given(seed=seeds)
def test_masked_inputs_change_no_output_and_no_gradient(encoder: str, action_as: str, seed: int) -> None:
    model = small_model(number_encoder=encoder, action_as=action_as, proprio_scaling="standardise")
    observation = random_observation(model.config, 3, seed=seed)
    mask = random_mask(3, 4, generator=torch.Generator().manual_seed(seed))
    actions = torch.rand(3, 2, 4) * 2 - 1
    hidden = actions.masked_fill(~mask[:, None], float("nan"))
    before = outputs(model, observation, actions, mask)
    grads_before = gradients(model, before)
    after = outputs(model, scramble(observation, seed), hidden, mask)
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(gradients(model, after), grads_before)


@pytest.mark.parametrize("encoder", ENCODERS)
@given(seed=seeds)
def test_trimmed_equals_padded(encoder: str, seed: int) -> None:
    model = small_model(number_encoder=encoder)
    observation = random_observation(model.config, 3, seed=seed)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[:, 2:] = False
    actions = torch.rand(3, 2, 4) * 2 - 1
    padded = outputs(model, observation, actions, mask)
    trimmed = outputs(model, trim(observation), actions[..., :2], mask[:, :2])
    torch.testing.assert_close(trimmed, padded, rtol=1e-4, atol=1e-5)
    encoded = model.encode(observation)
    torch.testing.assert_close(model.policy_logits(encoded, 2), padded[0][:, :2])


@given(seed=seeds)
def test_rows_are_independent(seed: int) -> None:
    model = small_model()
    observation = random_observation(model.config, 4, seed=seed)
    actions, mask = torch.rand(4, 3, 4), random_mask(4, 4, generator=torch.Generator().manual_seed(seed))
    together = outputs(model, observation, actions, mask)
    alone = outputs(model, observation[2:3], actions[2:3], mask[2:3])
    torch.testing.assert_close([value[2:3] for value in together], alone)


@pytest.mark.parametrize("action_as", ["query", "input"])
@pytest.mark.parametrize("encoder", ENCODERS)
@given(seed=seeds)
def test_a_queried_action_does_not_affect_another(encoder: str, action_as: str, seed: int) -> None:
    model = small_model(number_encoder=encoder, action_as=action_as)
    g = torch.Generator().manual_seed(seed)
    encoded = model.encode(random_observation(model.config, 2, seed=seed))
    actions, mask = torch.rand(2, 5, 4, generator=g) * 2 - 1, torch.ones(2, 4, dtype=torch.bool)
    together = model.q_logits(encoded, actions, mask)
    torch.testing.assert_close(model.q_logits(encoded, actions[:, 3:4], mask), together[:, 3:4])
    shuffled = torch.randperm(5, generator=g)
    torch.testing.assert_close(model.q_logits(encoded, actions[:, shuffled], mask), together[:, shuffled])


@pytest.mark.parametrize("action_as", ["query", "input"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_permuting_action_dimensions_changes_q(encoder: str, action_as: str) -> None:
    """What a sum over tokens with an added embedding would get wrong."""
    model = small_model(number_encoder=encoder, action_as=action_as)
    encoded = model.encode(random_observation(model.config, 3))
    action, mask = torch.tensor([[0.9, -0.7, 0.2, -0.1]]).expand(3, 4), torch.ones(3, 4, dtype=torch.bool)
    pair = torch.stack([action, action[:, [1, 0, 2, 3]]], 1)
    first, second = model.q_logits(encoded, pair, mask).unbind(1)
    assert ((first - second).abs().amax(-1) > 1e-2).all()


@pytest.mark.parametrize("action_as", ["query", "input"])
def test_the_policy_does_not_depend_on_the_action(action_as: str) -> None:
    model = small_model(action_as=action_as)
    encoded = model.encode(random_observation(model.config, 2))
    before = model.policy_logits(encoded)
    action = torch.rand(2, 3, 4, requires_grad=True)
    values = model.q_logits(encoded, action, torch.ones(2, 4, dtype=torch.bool))
    assert torch.equal(model.policy_logits(encoded), before)
    (gradient,) = torch.autograd.grad(model.policy_logits(encoded).sum() + 0 * values.sum(), action)
    assert gradient.abs().max() == 0
    (gradient,) = torch.autograd.grad(
        model.q_logits(encoded, action, torch.ones(2, 4, dtype=torch.bool))[..., 0].sum(), action
    )
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("action_as", ["query", "input"])
def test_a_row_with_everything_masked_is_finite(encoder: str, action_as: str) -> None:
    model = small_model(number_encoder=encoder, action_as=action_as)
    observation = random_observation(model.config, 2)
    nothing = {name: torch.zeros_like(getattr(observation, name)) for name in MASKS}
    nothing["proprio_mask"][1] = True  # one empty row beside a full one
    values = outputs(
        model, dataclasses.replace(observation, **nothing), torch.rand(2, 2, 4), torch.zeros(2, 4, dtype=torch.bool)
    )
    assert all(torch.isfinite(value).all() for value in values)
    assert all(torch.isfinite(grad).all() for grad in gradients(model, values).values())
    empty = Observation.of(torch.zeros(2, 0))
    assert torch.isfinite(model.policy_logits(model.encode(empty))).all()
    torch.testing.assert_close(model.policy_logits(model.encode(empty))[0], values[0][0])


MASKS = ("proprio_mask", "camera_mask", "goal_mask", "text_mask")


@pytest.mark.parametrize("name", ["proprio", "images", "goal_images", "text"])
def test_every_modality_changes_the_output(name: str) -> None:
    model = small_model()
    observation = random_observation(model.config, 2, masks=False)
    other = random_observation(model.config, 2, seed=1, masks=False)
    changed = dataclasses.replace(observation, **{name: getattr(other, name)})
    logits = [model.policy_logits(model.encode(o)) for o in (observation, changed)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_a_camera_is_known_by_its_slot_not_its_column() -> None:
    model = small_model()
    observation = random_observation(model.config, 2, masks=False)
    order = torch.tensor([2, 0, 1])
    moved = dataclasses.replace(
        observation, images=observation.images[:, order], camera_slots=observation.camera_slots[:, order]
    )
    swapped = dataclasses.replace(observation, images=observation.images[:, order])
    latents = [model.encode(o).latents for o in (observation, moved, swapped)]
    torch.testing.assert_close(latents[1], latents[0], rtol=1e-4, atol=1e-5)
    assert (latents[2] - latents[0]).abs().max() > 1e-3


def test_an_observation_is_encoded_once_for_any_number_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    encoded = model.encode(random_observation(model.config, 2))
    monkeypatch.setattr(model, "_latent_blocks", None)
    assert model.q_logits(encoded, torch.rand(2, 100, 4), torch.ones(2, 4, dtype=torch.bool)).shape == (2, 100, 21)


@pytest.mark.parametrize("value", [0.0, 0.05, 0.5, 0.9])
def test_value_heads_start_at_the_chosen_value(value: float) -> None:
    torch.manual_seed(0)
    model = PAC(small_config(initial_value=value, num_value_bins=101))
    encoded = model.encode(random_observation(model.config, 8))
    bins = model.config.value_bins
    q = bins.mean(model.q_logits(encoded, torch.rand(8, 3, 4), torch.ones(8, 4, dtype=torch.bool)))
    for start in (q, bins.mean(model.v_logits(encoded))):
        torch.testing.assert_close(start, torch.full_like(start, value), rtol=0, atol=0.015)
    entropy = torch.distributions.Categorical(logits=model.policy_logits(encoded)).entropy()
    assert entropy.min() > 0.99 * torch.tensor(11.0).log()  # the policy starts almost uniform


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_bf16_is_close_to_fp32(dtype: torch.dtype) -> None:
    model = small_model()
    observation = random_observation(model.config, 4)
    exact = model.policy_logits(model.encode(observation))
    rounded = model.to(dtype)
    logits = rounded.policy_logits(rounded.encode(observation))
    assert logits.dtype == torch.float32
    assert (logits - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m, e: m.policy_logits(e, 5), "expected from 1 to 4 action dimensions, found 5"),
        (lambda m, e: m.q_logits(e, torch.zeros(2, 1, 9), torch.ones(2, 9, dtype=torch.bool)), "found 9"),
    ],
)
def test_too_many_actions(ask: Any, message: str) -> None:
    model = small_model()
    with pytest.raises(ValueError, match=message):
        ask(model, model.encode(random_observation(model.config, 2)))


@pytest.mark.parametrize(("head", "ask"), [("v_head", "v_logits"), ("behaviour_head", "behaviour_logits")])
def test_missing_heads_are_named(head: str, ask: str) -> None:
    model = small_model(**{head: False})
    with pytest.raises(ValueError, match=f"Build it with {head}=True"):
        getattr(model, ask)(model.encode(random_observation(model.config, 2)))
