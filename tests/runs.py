"""Little datasets and recipes for the tests of training: an update takes a few milliseconds."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pac.data.store import DatasetSpec
from pac.data.writer import DatasetWriter
from pac.evaluation.in_training import TrainingEvaluator
from pac.recipe import RunConfig, parse_recipe
from pac.training.trainer import Trainer
from pac.types import Episode

TINY = {"size": "nano", "latent_width": 16, "num_blocks": 1, "num_heads": 2, "num_latents": 4, "token_width": 8}
TINY |= {"query_width": 16, "num_action_bins": 11, "num_value_bins": 11, "image_channels": [4, 4], "gains": [1.0, 4.0]}


def write_dataset(
    path: Path,
    *,
    dims: int = 3,
    low: tuple[float, ...] = (-1.0, -2.0),
    high: tuple[float, ...] = (1.0, 3.0),
    cameras: int = 0,
    camera_names: tuple[str, ...] = (),
    goals: bool = False,
    episodes: int = 6,
    instruction: str = "go there",
    reward: float = 1.0,
    seed: int = 0,
) -> Path:
    """Random states far from standard, actions within asymmetric bounds, a reward at the end of every other episode."""
    random = np.random.default_rng(seed)
    names = dict.fromkeys(camera_names or [f"camera{i}" for i in range(cameras)], (12, 10))
    spec = DatasetSpec(
        state_dim=dims,
        action_dim=len(low),
        cameras=names,
        goal_cameras=names if goals else {},
        action_low=low,
        action_high=high,
    )
    with DatasetWriter(path, spec) as writer:
        for number in range(episodes):
            length = int(random.integers(3, 9))
            state = random.normal(5.0, 3.0, (length + 1, dims)).astype(np.float32)
            observation = {"observation.state": state}
            for name, size in names.items():
                observation[f"observation.images.{name}"] = random.integers(0, 256, (length + 1, *size, 3), np.uint8)
            writer.append(
                Episode(
                    observation=observation,
                    action=random.uniform(low, high, (length, len(low))).astype(np.float32),
                    reward=np.r_[np.zeros(length - 1, np.float32), np.float32(reward * (number % 2))],
                    terminated=number % 2 == 1,
                    truncated=number % 2 == 0,
                    instruction=instruction,
                    success=number % 2 == 1,
                    goal_images={k: random.integers(0, 256, (*v, 3), np.uint8) for k, v in names.items() if goals},
                )
            )
    return path


def recipe(path: Path, **changes: Any) -> dict[str, Any]:
    """A recipe over the datasets in a folder; `changes` are sections, merged into it, or plain keys."""
    names = sorted(folder.name for folder in path.iterdir() if (folder / "spec.json").exists())
    table: dict[str, Any] = {
        "length": "12 steps",
        "model": dict(TINY),
        "objective": {"method": "pac", "num_samples": 3},
        "optimiser": {"peak_rate": 1e-3, "target_period": 5},
        "mixture": {
            "batch_size": 4,
            "window": 3,
            "groups": [{"name": "all", "weight": 1, "datasets": [{"name": n, "path": str(path / n)} for n in names]}],
        },
        "checkpoint": {"every": "4 steps"},
        "machine": {"log_every": 3, "workers": 0, "device": "cpu"},
    }
    for key, value in changes.items():
        table[key] = table.get(key, {}) | value if isinstance(value, dict) else value
    return table


def config(path: Path, **changes: Any) -> RunConfig:
    return parse_recipe(recipe(path, **changes))


def start(settings: RunConfig, out: Path, *, resume: bool = False) -> Trainer:
    """A run in its folder, as `pac train` makes it, but for what that prints."""
    run = Trainer(settings, out, evaluator=TrainingEvaluator())
    run.directory.open(resume=resume, overwrite=False)
    if resume:
        run.resume()
    else:
        run.directory.write_json("config.json", run.describe())
    return run


def tensors(run: Trainer) -> dict[str, torch.Tensor]:
    """All that training changes, copied."""
    return {f"{part}.{k}": x.detach().clone() for part, group in run.state.tensors().items() for k, x in group.items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without timings, which alone may differ."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def dump(table: dict[str, Any], file: Path) -> Path:
    """A recipe as TOML: tables inline, which JSON almost is."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {text(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(text, value)) + "]"
        return str(value).lower() if isinstance(value, bool) else repr(value)

    file.write_text("".join(f"{key} = {text(value)}\n" for key, value in table.items()))
    return file
