"""Settings: errors name the field, what was expected and what was found."""

from typing import Any

import pytest

from pac.config import ObjectiveConfig, override, parse_overrides
from pac.model.config import SIZES, ModelConfig, model_config


def test_fields_of_a_size_can_be_overridden() -> None:
    config = model_config("XXS", latent_width=512, gains=(1.0, 10.0), number_encoder="linear")
    assert (config.latent_width, config.num_blocks, config.num_gains) == (512, 4, 1)
    assert model_config("XXS", gains=(1.0, 10.0)).num_gains == 2
    for size in SIZES:
        assert isinstance(model_config(size), ModelConfig)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent_widht": 4}, "no field 'latent_widht'. Did you mean 'latent_width'"),
        ({"latent_width": "wide"}, r"latent_width: expected a whole number, found 'wide' \(str\)"),
        ({"latent_width": 2.5}, "latent_width: expected a whole number"),
        ({"latent_width": True}, "latent_width: expected a whole number"),
        ({"latent_width": 100}, "multiple of num_heads, found 100 and 8"),
        ({"num_blocks": 0}, "num_blocks: expected a positive whole number, found 0"),
        ({"num_cameras": -1}, "num_cameras: expected a positive whole number, found -1"),
        ({"gains": ()}, "gains: expected at least one gain"),
        ({"gains": (1.0, -1.0)}, "all positive"),
        ({"gains": ("a",)}, "gains: expected"),
        ({"number_encoder": "cubic"}, "number_encoder: expected '"),
        ({"value_min": 2.0}, "expected low < high"),
        ({"value_max": float("nan")}, "value_max: expected a number"),
        ({"initial_value": 7.0}, r"initial_value: expected a value in \[0.0, 1.0\], found 7.0"),
        ({"mu_law_mu": 0.0}, "mu_law_mu"),
        ({"num_action_bins": 1}, "count >= 2"),
    ],
)
def test_wrong_model_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_config("XXS", **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discount": 1.0}, r"discount: expected a number in \[0, 1\), found 1.0"),
        ({"num_samples": 0}, "num_samples: expected at least 1, found 0"),
        ({"temperature": 0.0}, "temperature: expected a positive number"),
        ({"epsilon": -1.0}, "epsilon: expected a positive number"),
        ({"projection": "cubic"}, "projection: expected '"),
        ({"critic": "none"}, "improve=true needs a critic"),
        ({"alpha": 0.5}, "ObjectiveConfig has no field 'alpha'"),
    ],
)
def test_wrong_objective_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(ObjectiveConfig(), change)


def test_unknown_size() -> None:
    with pytest.raises(ValueError, match="Unknown model size 'XXXL'"):
        model_config("XXXL")
    with pytest.raises(ValueError, match="Did you mean 'nano'"):
        model_config("nanoo")


def test_overrides_are_toml_values() -> None:
    parsed = parse_overrides(["latent_width=64", "gains=[0.5, 2.0]", "number_encoder=linear", "q_head = false"])
    assert parsed == {"latent_width": 64, "gains": (0.5, 2.0), "number_encoder": "linear", "q_head": False}
    with pytest.raises(ValueError, match="form field=value, found 'latent_width'"):
        parse_overrides(["latent_width"])
