"""Parts of a run that depend on the data: device, sampler, model configuration, reward scales."""

import dataclasses
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pac
from pac.config import ObjectiveConfig
from pac.data.mixture import MixturePlan
from pac.data.relabel import REWARD_OPTIONS
from pac.data.sampler import Sampler
from pac.files import problem
from pac.model.config import SIZES, ModelConfig, model_config
from pac.model.flops import Load, update_flops
from pac.model.pretrained import load_config
from pac.recipe import RunConfig
from pac.training.distributed import ProcessGroup

GPU_SHARE = 1 / 3  # of the GPU's memory that data may take by default
HEADS = ("q_head", "v_head", "behaviour_head")


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "machine.device: expected a CUDA GPU, found none. Set machine.device=cpu, or install a CUDA build."
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def open_data(config: RunConfig, processes: ProcessGroup) -> Sampler:
    """Return a sampler in memory maps, whose rewards are not scaled for the model yet."""
    return Sampler(
        config.mixture,
        seed=config.seed,
        rank=processes.rank,
        world_size=processes.size,
        discount=config.objective.discount,
        return_to_go=config.objective.monte_carlo_weight > 0,
    )


def make_sampler(config: RunConfig, processes: ProcessGroup, opened: Sampler, model: ModelConfig) -> Sampler:
    """Return the run's sampler: rewards scaled for the model, cameras in its slots, data on the GPU if it fits well."""
    changes: dict[str, Any] = {"value_scales": value_scales(config, opened, model)}
    if config.start is not None:
        start = load_config(config.start)
        changes |= {"camera_slots": start.get("cameras", {}), "goal_slots": start.get("goal_cameras", {})}
    place = config.machine.data
    if processes.device.type == "cpu":
        if place == "gpu":
            raise ValueError("machine.data: expected a GPU to hold the data, found none. Leave it at auto.")
        return opened.replace(**changes)
    size = sum(source.num_bytes for source in opened.sources)
    total = torch.cuda.get_device_properties(processes.device).total_memory
    fits = place == "gpu" or (place == "auto" and size <= GPU_SHARE * total)
    return opened.replace(**changes, device=processes.device if fits else None)


def fit_model(config: RunConfig, sampler: Sampler) -> ModelConfig:
    """Return the model configuration: the start checkpoint's, or the recipe's with sizes from the data."""
    specs = [source.dataset.spec for source in sampler.sources]
    data_sizes = {
        "num_proprio": max(1, *(spec.state_dim for spec in specs)),
        "num_actions": max(spec.action_dim for spec in specs),
        "num_cameras": len(sampler.camera_slots),
        "num_goal_images": len(sampler.goal_slots),
    }
    if config.start is not None:
        return _fit_checkpoint(config, sampler, data_sizes)
    if sampler.camera_slots or sampler.goal_slots:
        data_sizes |= {"image_height": sampler.image_size[0], "image_width": sampler.image_size[1]}
    recipe = config.model_fields
    vocabulary = max(sampler.tokenizer.vocabulary_size, model_config(config.size).vocabulary_size)
    negative = any(source.value_bounds()[0] < 0 for source in sampler.sources)
    values = {"value_min": -1.0} if negative and config.objective.reward_scale is None else {}
    usual = data_sizes | heads(config.objective) | values | {"vocabulary_size": vocabulary, "initial_value": 0.0}
    options = usual | recipe
    for name, least in data_sizes.items():
        if options[name] < least or (options[name] > least and name.startswith("image_")):
            raise ValueError(f"model.{name}: expected the data's {least}, found {options[name]}. Leave it out.")
    for head, needed in heads(config.objective).items():
        if needed and not options[head]:
            raise ValueError(f"model.{head}: method {config.method!r} needs it, found false. Leave it out.")
    return model_config(config.size, **options)


def heads(objective: ObjectiveConfig) -> dict[str, bool]:
    """Return which heads an objective trains."""
    learned = objective.critic == "v" and objective.behaviour == "learned"
    return {"q_head": objective.critic == "q", "v_head": objective.critic == "v", "behaviour_head": learned}


def _fit_checkpoint(config: RunConfig, sampler: Sampler, data_sizes: dict[str, int]) -> ModelConfig:
    """Return the checkpoint's model configuration, with the heads that the objective needs added."""
    assert config.start is not None
    found: ModelConfig = load_config(config.start)["model"]
    for name, least in data_sizes.items():
        if getattr(found, name) < least:
            raise ValueError(
                f"{config.start}: expected a model with {name} of at least the data's {least}, found "
                f"{getattr(found, name)}. Start from a larger model, or leave data out of the mixture."
            )
    size = (found.image_height, found.image_width)
    if (data_sizes["num_cameras"] or data_sizes["num_goal_images"]) and sampler.image_size != size:
        raise ValueError(
            f"{config.start}: expected images of the model's size {size}, found {sampler.image_size} in the data. "
            f"Set mixture.image_size=[{size[0]},{size[1]}] to resize them."
        )
    asked_for = ({} if "size" not in config.model else SIZES[config.size]) | config.model_fields
    for name, value in asked_for.items():
        if name not in (*HEADS, "vocabulary_size") and getattr(found, name) != value:
            raise ValueError(
                f"{config.start}: expected model.{name} to be the checkpoint's {getattr(found, name)!r}, found "
                f"{value!r} in the recipe. Leave [model] out: --start brings its own."
            )
    added = {head: True for head, needed in heads(config.objective).items() if needed}
    return dataclasses.replace(found, **added)  # type: ignore[arg-type]


def size_name(model: ModelConfig) -> str:
    """Return the name of a model in the table of sizes, or "custom"."""
    for name, row in SIZES.items():
        if all(getattr(model, key) == row[key] for key in ("latent_width", "num_blocks", "widening")):
            return name
    return "custom"


def value_scales(config: RunConfig, sampler: Sampler, model: ModelConfig) -> dict[str, float]:
    """Return the factor on each dataset's rewards. By default the largest possible value then fills the bins."""
    objective = config.objective
    if config.machine.on_nonfinite == "stop":
        _check_rewards(sampler)
    if objective.reward_scale is not None:
        return dict.fromkeys((source.config.name for source in sampler.sources), objective.reward_scale)
    scales = {}
    for source in sampler.sources:
        name, (low, high) = source.config.name, source.value_bounds()
        if low < 0 <= model.value_min and objective.critic != "none":
            raise ValueError(
                f"Dataset {name!r}: expected rewards of 0 or more, as the model's values lie in [{model.value_min:g}, "
                f"{model.value_max:g}], found negative ones. Train with model.value_min=-1, or name another `reward`."
            )
        fits = [model.value_max / high] if high > 0 else []
        fits += [model.value_min / low] if low < 0 and model.value_min < 0 else []
        scales[name] = min(fits) if fits else 1.0
    return scales


def check_learnable(config: RunConfig, sampler: Sampler) -> None:
    """Raise if the policy learns from a critic, and no two returns-to-go of the mixture can differ."""
    found = {source.equal_reward() for source in sampler.sources}
    scheduled = config.schedules.imitation_weight is not None
    improves = scheduled or any(source.config.imitation_weight < 1 for source in sampler.sources)
    if not config.objective.improve or not improves or len(found) > 1 or None in found:
        return
    first, *others = (source.config.name for source in sampler.sources)
    where = f"Dataset {first!r}" + (f" and {len(others)} more" if others else "")
    expected = f"rewards from which a critic can learn, as method {config.method!r} needs"
    raise problem(where, expected=expected, found=f"{found.pop():g} at every step", fix=REWARD_OPTIONS)


def _check_rewards(sampler: Sampler) -> None:
    """Raise if a reward is not finite. It would stop the run once a batch draws it."""
    for source in sampler.sources:
        rows = np.flatnonzero(~np.isfinite(source.reward.numpy()))
        episodes = np.unique(np.searchsorted(source.index["row"], rows, side="right") - 1)
        bad = episodes if source.kept is None else np.intersect1d(episodes, source.kept)
        if len(bad) and source.config.goals != "hindsight":
            raise ValueError(
                f"Dataset {source.config.name!r}: expected finite rewards, found others in episode {bad[0]}"
                f"{f' and {len(bad) - 1} more' if len(bad) > 1 else ''}. Repair the data, or refuse the updates "
                "that draw them with machine.on_nonfinite=skip."
            )


def mean_flops(plan: MixturePlan, model: ModelConfig, num_samples: int) -> float:
    """Return the FLOPs of one update, averaged over the mixture."""
    total, mixture = 0.0, plan.mixture
    for row in plan.datasets:
        inputs = {"num_proprio": row.counts.proprio, "num_images": row.counts.images}
        load = Load(**inputs, num_text_tokens=model.num_text_tokens, num_actions=row.counts.actions)
        total += float(row.p_eff) * update_flops(model, load, mixture.batch_size, mixture.window, num_samples)
    return total


def versions() -> dict[str, str]:
    """Return the versions of PAC, PyTorch and Python, and the commit of a checkout."""
    found = {"pac": pac.__version__, "torch": torch.__version__, "python": platform.python_version()}
    root = Path(__file__).parents[3]
    if (root / ".git").exists():  # of an installed PAC the nearest repository would be another project's
        try:
            command = ["git", "-C", str(root), "rev-parse", "HEAD"]
            commit = subprocess.run(command, capture_output=True, text=True, timeout=5)
            found |= {"commit": commit.stdout.strip()} if commit.returncode == 0 else {}
        except (OSError, subprocess.TimeoutExpired):
            pass
    return found
