"""Learners: small policy networks of one task, each saved at several stages of its training.

Learners of sixteen Control Suite tasks ship with PAC, one safetensors file per task. `benchmarks/learners.py` makes
such files.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pac.behaviours.base import CLEAN, bounds
from pac.resources import ASSETS

SHIPPED = ASSETS / "learners"
NUM_LAYERS = 3


class Learner:
    """A behaviour that acts with the network of one stage of training, drawn for each episode.

    `life` is the part of training to draw from: `life=0.5-1` is the second half, `life=1` the end. Actions have no
    noise. Add some with `+noise`.
    """

    def __init__(self, *, folder: str = "", life: tuple[float, float] = (0.0, 1.0)) -> None:
        if life[1] > 1:
            raise ValueError(f"learner: expected a part of training such as 0.5-1, found {life[0]:g}-{life[1]:g}.")
        self.folder, self.life = Path(folder) if folder else SHIPPED, life
        self.labels = dict(CLEAN)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        path = self.folder / learner_file(env.task.name)
        layers = read_learner(path)
        sizes = layers[0][0].shape[1], layers[-1][0].shape[2]
        if sizes != (env.task.state_dim, len(env.task.action_low)):
            raise ValueError(
                f"{path}: expected {env.task.state_dim} inputs and {len(env.task.action_low)} outputs, as "
                f"{env.task.name} has them, found {sizes[0]} and {sizes[1]}. Name the folder of this task's learners."
            )
        last = len(layers[0][0]) - 1
        stage = round(last * random.uniform(*self.life))
        self.layers = [(weight[stage], bias[stage]) for weight, bias in layers]
        self.bounds = bounds(env)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        action = act(self.layers, observation["observation.state"])
        return (low + (high - low) * (action + 1) / 2).astype(np.float32)


def learner_file(task: str) -> str:
    return f"{task.replace('/', '-')}.safetensors"


@cache
def read_learner(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the weights (stage, in, out) and biases (stage, out) of each layer."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.safetensors"))) or "none"
        raise ValueError(
            f"learner: expected {path}, found no such file. Make it with benchmarks/learners.py and name its folder "
            f"(learner:folder=runs/learners). This folder has: {known}."
        )
    try:
        arrays = load_file(path)
        layers = [(arrays[f"{i}.weight"], arrays[f"{i}.bias"]) for i in range(NUM_LAYERS)]
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path}: expected the layers of a network, found {error!r}. Make it again.") from error
    return [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers]


def act(layers: list[tuple[np.ndarray, np.ndarray]], states: np.ndarray) -> np.ndarray:
    """Return actions within -1 and 1 for states of any leading shape.

    Inputs are compressed to sign(x) log(1 + |x|). Hidden layers are normalised.
    """
    x = np.sign(states) * np.log1p(np.abs(states))
    for weight, bias in layers[:-1]:
        x = x @ weight + bias
        x = x - x.mean(-1, keepdims=True)
        x = np.maximum(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), 0)
    weight, bias = layers[-1]
    return np.tanh(x @ weight + bias)
