"""An environment without a simulator, for tests of wrappers."""

from types import SimpleNamespace

import numpy as np

from pac.behaviours import Behaviour
from pac.behaviours.base import CLEAN


def still_env(num_actions: int = 2, name: str = "gym/Nothing") -> SimpleNamespace:
    return SimpleNamespace(
        task=SimpleNamespace(name=name, action_low=(-1.0,) * num_actions, action_high=(3.0,) * num_actions)
    )


class Ones:
    """A behaviour with constant actions, so that every difference comes from a wrapper."""

    def __init__(self, num_actions: int = 2) -> None:
        self.labels, self.num_actions = dict(CLEAN), num_actions

    def begin(self, env: object, random: np.random.Generator) -> None:
        pass

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        return np.ones(self.num_actions, np.float32)


def play(
    behaviour: Behaviour, steps: int, seed: int = 0, env: SimpleNamespace | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return actions and fault modes of an episode with observations of zeros."""
    behaviour.begin(env or still_env(), np.random.default_rng(seed))
    actions, modes = [], []
    for _ in range(steps):
        actions.append(behaviour.act({"observation.state": np.zeros(39, np.float32)}))
        modes.append(behaviour.labels["fault_mode"])
    return np.array(actions), np.array(modes)
