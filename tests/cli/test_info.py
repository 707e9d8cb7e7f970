"""`pac info`: parameters by component, tokens, and the JSON that other programs read."""

import io
import json

import pytest
import torch
from rich.console import Console

from pac.cli import main
from pac.cli.info import components, render, report, short
from pac.model import PAC
from pac.model.config import SIZES, model_config
from pac.model.pac import count_parameters

# Counted by hand, component by component; the action encoder has the 304 x 768 token embedding (233,472) on top.
BY_HAND = {
    "language table": [8_192_000] * 5,
    "position embedding": [674_304] * 5,
    "number encoder": [512] * 5,
    "image encoder": [405_376] * 5,
    "latents": [24_576, 32_768, 40_960, 49_152, 65_536],
    "input attention": [2_760_704, 4_729_344, 10_500_352, 24_399_872, 43_018_752],
    "self-attention": [14_186_496, 50_413_568, 131_212_800, 339_978_240, 906_448_896],
    "policy queries": [29_184] * 5,
    "policy attention": [2_365_440, 3_939_840, 5_907_456, 8_268_288, 14_169_600],
    "policy head": [77_669, 103_525, 129_381, 155_237, 206_949],
    "action encoder": [592_128 + 233_472] * 5,
    "q attention": [2_365_440, 3_939_840, 5_907_456, 8_268_288, 14_169_600],
    "q head": [77_669, 103_525, 129_381, 155_237, 206_949],
}


@pytest.mark.parametrize("column", range(5))
def test_every_component_has_the_count_by_hand(column: int) -> None:
    size = ["XXS", "XS", "S", "M", "L"][column]
    with torch.device("meta"):
        counted = components(PAC(model_config(size)))
    assert counted == {name: counts[column] for name, counts in BY_HAND.items()}


@pytest.mark.parametrize(
    "options",
    [{"v_head": True, "behaviour_head": True}, {"action_as": "input"}, {"number_encoder": "mu-law"}, {"q_head": False}],
)
def test_components_add_up(options: dict[str, object]) -> None:
    with torch.device("meta"):
        model = PAC(model_config("nano", **options))
    assert sum(components(model).values()) == count_parameters(model)


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert list(sizes) == list(SIZES)
    row = sizes["XXS"]
    assert row["parameters"] == 31_984_970 == sum(row["components"].values())
    assert row["tokens"] == {"proprioception": 1784, "image": 800, "text": 50, "action": 304}
    assert sum(row["tokens"].values()) == 2634 + 304
    assert set(row["flops"]) == {"forward", "backward", "update"} == set(row["paper"]["flops"])
    assert row["paper"]["parameters"] == 32e6
    assert row["bytes"]["inference"] == {"fp32": 4 * 31_984_970, "bf16": 2 * 31_984_970}
    assert "paper" not in sizes["nano"]


def test_the_table_shows_ours_beside_the_papers() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    render(report(["XXS", "L"], {}), console)
    text = console.export_text()
    for expected in ("31,984,970", "988,413,258", "988M", "+0.04%", "7.826e+09", "one-hot"):
        assert expected in text


def test_the_tables_fit_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    render(report(list(SIZES), {}), console)
    assert "…" not in console.export_text()


def test_numbers_have_a_unit() -> None:
    numbers = {0: "0", 999: "999", 1_000: "1k", 8_192_000: "8.19M", 999_600: "1M", 4.31e11: "431G", 1.2e13: "12T"}
    assert {number: short(number) for number in numbers} == numbers


def test_fields_can_be_overridden_and_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "nano", "--json", "--set", "num_actions=2", "--set", "gains=[1.0]"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"]["nano"]["tokens"]["action"] == 2
    assert main(["info", "huge"]) == 2
    assert main(["info", "nano", "--set", "latent_widht=2"]) == 2
    error = capsys.readouterr().err
    assert "pac info: Unknown model size 'huge'. Choose from: L, M" in error
    assert "Did you mean 'latent_width'?" in error
