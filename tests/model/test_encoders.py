"""Encoders: the numbers the paper gives, token structure, and pictures of any size."""

import math

import pytest
import torch
from factories import random_observation, small_config, small_model

from pac.model.encoders import ImageEncoder, MuLawEncoder, MultiScaleEncoder, number_encoder
from pac.model.tokens import ScalarTokens
from pac.types import Observation


def test_multiscale_is_tanh_of_every_gain() -> None:
    """The paper's equation, one token a number and gain, ordered by number."""
    config = small_config()
    values = torch.tensor([[0.5, -200.0]])
    scalars = MultiScaleEncoder(config, 8).scalars(values)
    expected = [math.tanh(gain * value) for value in (0.5, -200.0) for gain in config.gains]
    assert scalars[0].tolist() == pytest.approx(expected)


def test_scalar_tokens_are_the_linear_layer_plus_position() -> None:
    model = small_model(proprio_scaling="raw")
    observation = random_observation(model.config, 2, masks=False)
    group = model.inputs(observation)[0]
    assert isinstance(group, ScalarTokens)
    encoder = model.inputs.proprio
    assert isinstance(encoder, MultiScaleEncoder)
    expected = (
        encoder.linear(encoder.scalars(observation.proprio)[..., None])
        + model.inputs.positions[: 6 * model.config.num_gains]
    )
    torch.testing.assert_close(group.dense().embedding, expected)


@pytest.mark.parametrize("scaling", ["raw", "centre", "standardise"])
def test_input_scaling_uses_the_statistics_of_the_row(scaling: str) -> None:
    config = small_config(proprio_scaling=scaling)
    model = small_model(proprio_scaling=scaling)
    observation = random_observation(config, 3, masks=False)
    centre = 0 if scaling == "raw" else observation.proprio_centre
    scale = observation.proprio_scale if scaling == "standardise" else 1
    by_hand = Observation.of((observation.proprio - centre) / scale)
    plain = small_model(proprio_scaling="raw")
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(
        model.inputs(observation)[0].dense().embedding, plain.inputs(by_hand)[0].dense().embedding
    )


def test_mu_law_bins_are_gatos() -> None:
    """Reed et al. (2022): mu = 100, M = 256, 1024 bins on [-1, 1]; zero in the middle, symmetric, clipped."""
    encoder = MuLawEncoder(small_config(), 8)
    values = torch.tensor([-1e9, -256.0, 0.0, 1.0, 256.0, 1e9])
    one = math.log(101) / math.log(25601)
    assert encoder.bins(values).tolist() == [0, 0, 512, int((one + 1) / 2 * 1024), 1023, 1023]
    assert number_encoder(small_config(number_encoder="mu-law", mu_law_bins=32), 8).table.num_embeddings == 32  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["linear", "mu-law"])
def test_other_encoders_make_one_token_a_number(kind: str) -> None:
    config = small_config(number_encoder=kind)
    model = small_model(number_encoder=kind)
    groups = model.inputs(random_observation(config, 2))
    assert groups[0].mask.shape == (2, 6)
    assert model.inputs.positions.shape[0] == 6 + 5 * 16 + 5


@pytest.mark.parametrize(("height", "width", "tokens"), [(80, 80, 100), (64, 64, 64), (96, 72, 108), (33, 17, 15)])
def test_image_tokens(height: int, width: int, tokens: int) -> None:
    """80x80 gives the paper's 10x10; other sizes work, and the config knows how many tokens they make."""
    config = small_config(image_height=height, image_width=width, image_channels=(4, 4, 4))
    assert config.tokens_per_image == tokens
    pictures = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8)
    assert ImageEncoder(config)(pictures).shape == (2, tokens, config.token_width)


def test_observation_and_goal_images_share_the_encoder() -> None:
    model = small_model()
    observation = random_observation(model.config, 1, masks=False)
    same = Observation.of(observation.proprio, images=observation.images[:, :1], goal_images=observation.images[:, :1])
    _, camera, goal = model.inputs(same)
    positions = model.inputs.positions[6 * model.config.num_gains :]
    torch.testing.assert_close(
        camera.dense().embedding - positions[:16], goal.dense().embedding - positions[3 * 16 : 4 * 16]
    )


@pytest.mark.parametrize("growth", [1, 100])
def test_the_position_of_a_camera_matters_beside_its_image(growth: float) -> None:
    """The tokens of a ResNet are large, and training makes them larger: the position beside them must stay visible."""
    torch.manual_seed(0)
    model = small_model()
    with torch.no_grad():
        model.inputs.image.project.weight.mul_(growth)
    picture = torch.randint(0, 256, (1, 1, 16, 16, 3), dtype=torch.uint8)
    tokens = [
        model.inputs(Observation.of(torch.zeros(1, 6), images=picture, camera_slots=torch.full((1, 1), slot)))[1]
        for slot in (0, 1)
    ]
    first, second = (model.input_attention.source_norm(group.dense().embedding) for group in tokens)
    assert (first - second).pow(2).mean() > 0.1 * first.pow(2).mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"proprio": torch.zeros(2, 6, dtype=torch.float64)},
            "proprio: expected dtype torch.float32, found torch.float64",
        ),
        ({"proprio": torch.zeros(2, 9)}, "at most 6 entries per row, found 9.*num_proprio=9"),
        ({"text": torch.full((2, 3), 20)}, r"text: expected ids from 0 to 19 .*found 20 in row 0, column 0"),
        ({"text": torch.zeros(2, 9, dtype=torch.int64)}, "at most 5 entries per row, found 9"),
        ({"images": torch.zeros(2, 1, 8, 16, 3, dtype=torch.uint8)}, "images of 16x16, found 8x16"),
        ({"goal_images": torch.zeros(2, 4, 16, 16, 3, dtype=torch.uint8)}, "at most 2 entries per row, found 4"),
        (
            {"images": torch.zeros(2, 1, 16, 16, 3, dtype=torch.uint8), "camera_slots": torch.full((2, 1), 3)},
            "camera_slots: expected ids from 0 to 2 .*found 3",
        ),
    ],
)
def test_observations_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    fields = {"proprio": torch.zeros(2, 6)} | change
    with pytest.raises(ValueError, match=message):
        small_model().encode(Observation.of(**fields))


def test_two_batch_axes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one batch axis, found leading axes \(2, 3\)"):
        small_model().encode(Observation.of(torch.zeros(2, 3, 6)))
