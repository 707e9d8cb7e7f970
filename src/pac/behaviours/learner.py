"""A behaviour that acts as a trained agent did at some stage of its training.

A file holds the small networks of one task at all stages, as safetensors. The wheel perceiver-actor-critic-learners has
files for tasks of the Control Suite and Meta-World. `benchmarks/learners.py` and `benchmarks/bc_learners.py` make
others.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pac.behaviours.base import CLEAN, bounds
from pac.files import problem

PACKAGE = "pac_learners"
NUM_LAYERS = 3


class Learner:
    """Agent at a stage of its training, sampled for each episode from a range of stages.

    `stage=0.5-1` is the second half of the training and `stage=1` its end. The agent acts without noise. Add some with
    `+noise`.
    """

    def __init__(self, *, folder: str = "", stage: tuple[float, float] = (0.0, 1.0)) -> None:
        if stage[1] > 1:
            raise ValueError(f"learner: expected stages in [0, 1], such as 0.5-1, found {stage[0]:g}-{stage[1]:g}.")
        self.folder, self.stage = Path(folder) if folder else installed_folder(), stage
        self.labels = dict(CLEAN)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        path = self.folder / learner_file(env.task.name)
        layers = read_learner(path)
        sizes = layers[0][0].shape[1], layers[-1][0].shape[2]
        if sizes != (env.task.state_dim, len(env.task.action_low)):
            raise ValueError(
                f"learner: expected {env.task.state_dim} inputs and {len(env.task.action_low)} outputs for "
                f"{env.task.name}, found {sizes[0]} and {sizes[1]} in {path}. Train a learner for this task."
            )
        last = len(layers[0][0]) - 1
        index = round(last * random.uniform(*self.stage))
        self.layers = [(weight[index], bias[index]) for weight, bias in layers]
        self.bounds = bounds(env)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        action = act(self.layers, observation["observation.state"])
        return (low + (high - low) * (action + 1) / 2).astype(np.float32)


def installed_folder() -> Path:
    """Return the folder of the networks that can be installed beside PAC."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise problem(
            "learner",
            expected="the networks of trained agents",
            found="none installed",
            fix="Install them: pip install perceiver-actor-critic-learners. In a clone: pip install packages/learners. "
            "Or name a folder: learner:folder=runs/learners.",
        )
    return Path(found.origin).parent


def learner_file(task: str) -> str:
    return f"{task.replace('/', '-')}.safetensors"


@cache
def read_learner(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the weights (stage, in, out) and biases (stage, out) of each layer."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.safetensors"))) or "none"
        raise ValueError(
            f"learner: expected {path}, found no such file. Its folder has {known}. Make the file with "
            "benchmarks/learners.py, or with benchmarks/bc_learners.py for Meta-World. Name its folder: "
            "learner:folder=runs/learners."
        )
    try:
        arrays = load_file(path)
        layers = [(arrays[f"{i}.weight"], arrays[f"{i}.bias"]) for i in range(NUM_LAYERS)]
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"learner: expected the layers of a network in {path}, found {error!r}.") from error
    return [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers]


def act(layers: list[tuple[np.ndarray, np.ndarray]], states: np.ndarray) -> np.ndarray:
    """Return actions in [-1, 1]. Inputs are squashed, and hidden layers are normalised."""
    x = np.sign(states) * np.log1p(np.abs(states))
    for weight, bias in layers[:-1]:
        x = x @ weight + bias
        x = x - x.mean(-1, keepdims=True)
        x = np.maximum(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), 0)
    weight, bias = layers[-1]
    return np.tanh(x @ weight + bias)
