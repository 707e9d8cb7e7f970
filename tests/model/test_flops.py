"""FLOPs counted by hand against PyTorch's counter on the model, every token written out, and the published table."""

import pytest
import torch
from factories import random_observation
from input_cost import Shape, dense_cost, fast_cost
from plain import PlainPAC
from torch.utils.flop_counter import FlopCounterMode

from pac.model import PAC
from pac.model.config import ModelConfig, model_config
from pac.model.flops import Load, forward_flops, update_flops
from pac.scaling import published as paper


def measured(config: ModelConfig, batch: int, num_samples: int, kind: type[PAC] = PlainPAC) -> float:
    with torch.device("meta"):
        model = kind(config)
    observation = random_observation(config, batch, masks=False).to("meta")
    actions, mask = torch.zeros(batch, num_samples, config.num_actions), torch.ones(batch, config.num_actions).bool()
    with FlopCounterMode(display=False) as counter:
        encoded = model.encode(observation)
        model.policy_logits(encoded)
        model.q_logits(encoded, actions.to("meta"), mask.to("meta"))
    return counter.get_total_flops()


@pytest.mark.parametrize("size", ["nano", "micro", "tiny", "XXS", "XS", "S", "M", "L"])
def test_analytic_flops_agree_with_the_counter(size: str) -> None:
    config = model_config(size)
    analytic = sum(forward_flops(config, Load.full(config)).values())
    assert analytic == pytest.approx(measured(config, 1, 1), rel=0.02)


def test_batches_and_samples_are_counted_too() -> None:
    config = model_config("micro", number_encoder="mu-law", image_height=50, image_width=70)
    analytic = sum(forward_flops(config, Load.full(config, num_samples=10), batch=3).values())
    assert analytic == pytest.approx(measured(config, 3, 10), rel=0.02)


@pytest.mark.parametrize("size", ["tiny", "XXS", "L"])
def test_the_counter_confirms_what_the_input_attention_saves(size: str) -> None:
    """With numbers alone: so counted in benchmarks/input_cost.py."""
    config = model_config(size, num_cameras=0, num_goal_images=0, num_text_tokens=0)
    saved = measured(config, 3, 1) - measured(config, 3, 1, PAC)
    shape = Shape.of(config, num_numbers=config.num_proprio, num_trained=0, num_target=3)
    assert saved == pytest.approx(dense_cost(shape).flops - fast_cost(shape).flops, rel=0.02)


@pytest.mark.parametrize(
    ("size", "chinchilla"), [("XXS", 7.423e9), ("XS", 1.0825e10), ("S", 1.7364e10), ("M", 3.2659e10), ("L", 7.2352e10)]
)
def test_counting_the_text_table_as_a_product_gives_chinchillas_count(size: str, chinchilla: float) -> None:
    config = model_config(size)
    one_hot = 2 * config.num_text_tokens * config.vocabulary_size * config.token_width
    assert sum(forward_flops(config, Load.full(config)).values()) + one_hot == pytest.approx(chinchilla, rel=0.001)


@pytest.mark.parametrize("size", paper.FLOPS)
def test_the_published_table_follows_its_own_rule(size: str) -> None:
    """ScalarBackward = 2.01 forward and update = 512 (forward + backward), to the printed digits."""
    row = paper.FLOPS[size]
    assert row["backward"] == pytest.approx(2.01 * row["forward"], rel=1e-3)
    assert row["update"] == pytest.approx(512 * 3.01 * row["forward"], rel=1e-3)


def test_flops_of_an_update() -> None:
    """Four trained steps forward and backward and five target steps: 17 forwards a window, and the samples."""
    config = model_config("XXS")
    load = Load.full(config)
    one = sum(forward_flops(config, load, 512).values())
    assert 17 * one < update_flops(config, load) < 17.6 * one
    assert update_flops(config, load, num_samples=40) < 1.1 * update_flops(config, load)
