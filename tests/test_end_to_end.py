"""From episodes on disk to a gradient: two robots, one with cameras, in one mixture and one model."""

import copy
from pathlib import Path

import numpy as np
import torch

from pac.config import ObjectiveConfig
from pac.data.mixture import parse_mixture
from pac.data.sampler import Sampler
from pac.data.store import DatasetSpec
from pac.data.writer import DatasetWriter
from pac.model import PAC
from pac.model.config import model_config
from pac.objectives import loss
from pac.types import Episode


def write(path: Path, dims: int, actions: int, cameras: int, random: np.random.Generator) -> None:
    """Write episodes in which the right action is a function of the state."""
    with DatasetWriter(path, make_spec(dims, actions, cameras)) as writer:
        for number in range(20):
            length = int(random.integers(1, 12))
            state = random.normal(size=(length + 1, dims)).astype(np.float32)
            observation = {"observation.state": state}
            for i in range(cameras):
                images = random.integers(0, 256, (length + 1, 16, 16, 3), dtype=np.uint8)
                observation[f"observation.images.camera{i}"] = images
            writer.append(
                Episode(
                    observation=observation,
                    action=np.tanh(state[:-1, :actions]),
                    reward=np.r_[np.zeros(length - 1, np.float32), np.float32(number % 2)],
                    terminated=number % 2 == 1,
                    truncated=number % 2 == 0,
                    instruction=path.name,
                    success=number % 2 == 1,
                )
            )


def make_spec(dims: int, actions: int, cameras: int) -> DatasetSpec:
    return DatasetSpec(
        state_dim=dims,
        action_dim=actions,
        cameras={f"camera{i}": (16, 16) for i in range(cameras)},
        action_low=(-1.0,) * actions,
        action_high=(1.0,) * actions,
    )


def test_two_robots_train_one_model(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write(tmp_path / "arm", dims=5, actions=3, cameras=2, random=random)
    write(tmp_path / "walker", dims=3, actions=1, cameras=0, random=random)
    mixture = parse_mixture(
        {
            "batch_size": 16,
            "groups": [
                {"name": "good", "weight": 1, "imitation_weight": 1.0, "critic_weight": 3.0, "goals": "success",
                 "datasets": [{"name": "arm", "path": "arm"}]},
                {"name": "poor", "weight": 1, "imitation_weight": 0.25, "critic_weight": 1.0,
                 "datasets": [{"name": "walker", "path": "walker"}]},
            ],
        },
        root=tmp_path,
    )  # fmt: skip
    sampler = Sampler(mixture, seed=0)
    torch.manual_seed(0)
    small = {"num_latents": 4, "num_blocks": 1, "image_height": 16, "image_width": 16, "image_channels": (4, 4)}
    model = PAC(model_config("nano", **small, proprio_scaling="standardise", initial_value=0.0))
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    curve = []
    for batch in sampler.batches():
        assert set(batch.imitation_weight.tolist()) <= {1.0, 0.25}
        per_example, metrics = loss(model, target, batch, ObjectiveConfig(), torch.Generator().manual_seed(len(curve)))
        optimizer.zero_grad()
        (per_example.sum() / batch.mask.sum()).backward()
        optimizer.step()
        target.load_state_dict(model.state_dict())
        dimensions = batch.action_mask[batch.mask].sum(-1).float().mean()  # batches hold more of one robot or the other
        curve.append((metrics["loss/imitation"] / dimensions).item())
        if len(curve) == 150:
            break
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert np.mean(curve[-10:]) < 0.9 * np.mean(curve[:10]), curve
