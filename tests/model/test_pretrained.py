"""Models on disk: the same after a round trip, from any of the folders they live in, and never from a pickle."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from factories import random_observation, small_config, small_model
from runs import config, start, write_dataset
from safetensors.torch import load as load_file_bytes
from safetensors.torch import save

from pac.model import PAC
from pac.policy import load


def test_a_round_trip(tmp_path: Path) -> None:
    model = small_model(gains=(0.5, 2.0))
    model.save_pretrained(tmp_path / "model", note="mine")
    again = PAC.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert not again.training
    assert json.loads((tmp_path / "model" / "config.json").read_text())["note"] == "mine"
    observation = random_observation(small_config(), 3)
    for name, weights in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights)
    with torch.no_grad():
        found, expected = (m.policy_logits(m.encode(observation)) for m in (again, model))
    assert torch.equal(found, expected)


def test_runs_checkpoints_and_plain_folders(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "arm")
    run = start(config(tmp_path / "data", length="5 steps"), tmp_path / "run")
    run.train()
    last, earlier = (tmp_path / "run" / "checkpoints" / name for name in ("last", "000004"))
    expected = run.state.model.latents
    for folder in (tmp_path / "run", last, last / "pretrained_model", str(tmp_path / "run")):
        assert torch.equal(PAC.from_pretrained(folder).latents, expected)
    assert not torch.equal(PAC.from_pretrained(earlier).latents, expected)
    again = PAC.from_pretrained(tmp_path / "run")
    again.save_pretrained(tmp_path / "plain")
    assert torch.equal(PAC.from_pretrained(tmp_path / "plain").latents, expected)
    with pytest.raises(ValueError, match="Use a checkpoint of `pac train`"):
        load(tmp_path / "plain")


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a run, a checkpoint, or a folder"):
        PAC.from_pretrained(tmp_path / "nothing")
    folder = tmp_path / "model"
    small_model().save_pretrained(folder)
    weights, settings = folder / "model.safetensors", folder / "config.json"
    content, text = weights.read_bytes(), settings.read_text()

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    for bad in (pickle.dumps(Trap()), content[:100], b"", b"\xff" * 64):
        weights.write_bytes(bad)
        with pytest.raises(ValueError, match=r"model.safetensors: expected safetensors"):
            PAC.from_pretrained(folder)
    assert not (tmp_path / "sprung").exists()
    good = load_file_bytes(content)
    name = next(iter(good))
    damaged = {
        "expected finite weights": good | {name: torch.full_like(good[name], float("nan"))},
        "expected finite weights, found": good | {name: good[name].to(torch.int8)},
        "The two files are not of one model": good | {"blocks.9.mlp.0.weight": torch.zeros(2)},
    }
    for message, tensors in damaged.items():
        weights.write_bytes(save(tensors))
        with pytest.raises(ValueError, match=message):
            PAC.from_pretrained(folder)
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="found none of them"):
        PAC.from_pretrained(folder)
    weights.write_bytes(content)
    table = json.loads(text)
    for bad_config in (
        "[]",
        "{",
        '{"model_type": "bert"}',
        '{"type": "pac"}',
        '{"type": "pac", "model": []}',
        json.dumps(table | {"model": table["model"] | {"latent_widht": 3}}),
        json.dumps(table | {"model": table["model"] | {"latent_width": "wide"}}),
    ):
        settings.write_text(bad_config)
        with pytest.raises(ValueError, match=r"config.json: expected the configuration of a PAC model"):
            PAC.from_pretrained(folder)
    settings.write_text(json.dumps(table | {"model": table["model"] | {"num_latents": 5}}))
    with pytest.raises(ValueError, match=r"'latents' of shape \(5, 16\), found \(4, 16\)"):
        PAC.from_pretrained(folder)
