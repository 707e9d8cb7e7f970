"""Models on disk: a folder with config.json and model.safetensors. Nothing is ever unpickled."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pac.config import override
from pac.model.config import ModelConfig
from pac.old_names import METADATA_KEYS, rename_keys, rename_weight

WEIGHTS, CONFIG = "model.safetensors", "config.json"
TRAIN_CONFIG = "train_config.json"  # beside the weights of a run's checkpoint: how it was trained
HEADS = ("q", "v", "behaviour")  # modules that some objectives need and others do not


def pretrained_folder(path: str | Path) -> Path:
    """Return the folder with the weights of a checkpoint, of a run's last one, or of an improvement's best one."""
    path = Path(path).expanduser()
    inside = ("", "pretrained_model", "checkpoints/last/pretrained_model", "promoted/pretrained_model")
    for folder in (path / place for place in inside):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return folder
    found = "a dataset" if (path / "spec.json").is_file() else "none of them"
    raise ValueError(
        f"{path}: expected a run, a checkpoint, or a folder with {CONFIG} and {WEIGHTS}, found {found}. Train one "
        "with `pac train`."
    )


def load_config(path: str | Path) -> dict[str, Any]:
    """Return the content of config.json, with "model" as a ModelConfig."""
    file = pretrained_folder(path) / CONFIG
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        if not isinstance(content, dict) or content.get("type") != "pac":
            raise ValueError(f'expected "type": "pac", found {str(content)[:80]}')
        return rename_keys(content, METADATA_KEYS) | {"model": parse_model(content["model"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: expected the configuration of a PAC model, found otherwise: {error}.") from error


def parse_model(table: dict[str, Any]) -> ModelConfig:
    """Return the ModelConfig in a config.json."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    required: dict[str, Any] = {name: fields.pop(name) for name in ("latent_width", "num_blocks", "widening")}
    return override(ModelConfig(**required), fields)


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    new_heads: bool = False,
    copy: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> list[str]:
    """Load weights into a model. Heads that the model lacks are left out.

    With `new_heads` the file may lack heads, too. They keep their weights, and their names are returned. `copy` copies
    a whole tensor into the model's, which may be sharded.
    """
    file = pretrained_folder(path) / WEIGHTS
    try:
        found = {rename_weight(name): tensor for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: expected safetensors, found a file that cannot be read: {error}.") from error
    has = {name.partition(".")[0] for name in found}
    expected = model.state_dict()
    extra = [name for name in found if name not in expected and name.partition(".")[0] not in HEADS]
    if extra:
        raise ValueError(
            f"{file}: expected the weights of the model in {CONFIG}, found {extra[0]!r} as well. The two files are not "
            "of one model."
        )
    fresh = {name.partition(".")[0] for name in expected} & set(HEADS) - has if new_heads else set()
    taken = {name: tensor for name, tensor in expected.items() if name.partition(".")[0] not in fresh}
    for name, tensor in taken.items():
        if name not in found:
            raise ValueError(f"{file}: expected weights {name!r}, found none. The checkpoint is of another model.")
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{file}: expected {name!r} of shape {tuple(tensor.shape)}, found {tuple(found[name].shape)}. The "
                "checkpoint is of another model."
            )
        if not (found[name].is_floating_point() and found[name].isfinite().all()):
            raise ValueError(f"{file}: expected finite weights, found {name!r} otherwise. The checkpoint is damaged.")
    with torch.no_grad():
        for name, tensor in taken.items():
            copy(tensor, found[name])
    return sorted(fresh)


def write_pretrained(weights: dict[str, Tensor], folder: Path, config: ModelConfig, extra: dict[str, Any]) -> None:
    """Write whole weights and a configuration into a folder. `extra` joins it, such as the metadata of a policy."""
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    content = {"type": "pac", "model": dataclasses.asdict(config)} | extra
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
