"""What a learner was at some moment of its life: a small network, kept in a file with what it was before and after.

Those of sixteen Control Suite tasks ship with PAC; `benchmarks/learners.py` makes such files. They hold numbers alone
(safetensors), one file a task.
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
    """Acts as one moment of a learner's life, drawn for each episode from a part of it: `life=0.5-1` is the second
    half, `life=1` what it became. It acts without noise; add some with `+noise`.
    """

    def __init__(self, *, folder: str = "", life: tuple[float, float] = (0.0, 1.0)) -> None:
        if life[1] > 1:
            raise ValueError(f"learner: expected a part of a life such as 0.5-1, found {life[0]:g}-{life[1]:g}.")
        self.folder, self.life = Path(folder) if folder else SHIPPED, life
        self.labels = dict(CLEAN)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        path = self.folder / learner_file(env.task.name)
        layers = read_learner(path)
        sizes = layers[0][0].shape[1], layers[-1][0].shape[2]
        if sizes != (env.task.state_dim, len(env.task.action_low)):
            raise ValueError(
                f"learner: expected {env.task.state_dim} numbers in and {len(env.task.action_low)} out in {path}, as "
                f"{env.task.name} has them, found {sizes[0]} and {sizes[1]}."
            )
        last = len(layers[0][0]) - 1
        moment = round(last * random.uniform(*self.life))
        self.layers = [(weight[moment], bias[moment]) for weight, bias in layers]
        self.bounds = bounds(env)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        action = act(self.layers, observation["observation.state"])
        return (low + (high - low) * (action + 1) / 2).astype(np.float32)


def learner_file(task: str) -> str:
    return f"{task.replace('/', '-')}.safetensors"


@cache
def read_learner(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (moment, in, out) and biases (moment, out) of each layer."""
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.safetensors"))) or "none"
        raise ValueError(
            f"learner: expected {path}, found no such file. Make it with benchmarks/learners.py and name its folder "
            f"(learner:folder=runs/learners). In this one are: {known}."
        )
    try:
        arrays = load_file(path)
        layers = [(arrays[f"{i}.weight"], arrays[f"{i}.bias"]) for i in range(NUM_LAYERS)]
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"learner: expected the layers of a network in {path}, found {error!r}.") from error
    return [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers]


def act(layers: list[tuple[np.ndarray, np.ndarray]], states: np.ndarray) -> np.ndarray:
    """Actions within -1 and 1 of states of any leading shape. Inputs are squashed, hidden layers normalised."""
    x = np.sign(states) * np.log1p(np.abs(states))
    for weight, bias in layers[:-1]:
        x = x @ weight + bias
        x = x - x.mean(-1, keepdims=True)
        x = np.maximum(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), 0)
    weight, bias = layers[-1]
    return np.tanh(x @ weight + bias)
