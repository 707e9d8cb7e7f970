"""The interface of a behaviour, uniform actions, mixtures, and wrappers that add independent noise.

Independent noise is not poor data: a clone that takes the most likely action removes it. `faults` has systematic ones.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np

# A fault mode's index in this tuple is its number in labels.
FAULT_MODES = (
    *("clean", "wrong-goal", "stop-short", "hesitate", "other-skill", "slow", "uniform", "backwards"),
    *("some-dims", "delay", "scaled", "biased", "stale"),
)
CLEAN = {"fault_mode": 0.0}


@runtime_checkable
class Behaviour(Protocol):
    """An actor without a checkpoint, in the process of its environment.

    It draws all random numbers from the generator it is given, so an episode is a function of task, initial state and
    generator. The generator and the environment need different seeds. Else Meta-World's goals would predict the faults.
    """

    labels: dict[str, float]  # of the last step: "fault_mode" (an index of FAULT_MODES), and "actor" in a mixture

    def begin(self, env: Any, random: np.random.Generator) -> None:
        """Start an episode of an environment that was just reset."""

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """Choose an action, raw and within the task's bounds."""


class Random:
    """A behaviour with uniform actions."""

    labels = CLEAN

    def begin(self, env: Any, random: np.random.Generator) -> None:
        self.random, self.bounds = random, bounds(env)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        return (low + (high - low) * self.random.random(len(low))).astype(np.float32)


class Wrapper:
    """A behaviour that changes the actions of another one."""

    def __init__(self, inner: Behaviour) -> None:
        self.inner = inner
        self.labels = dict(inner.labels)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        self.inner.begin(env, random)
        self.random, self.bounds = random, bounds(env)

    def clip(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, *self.bounds).astype(np.float32)

    def label(self, mode: int) -> None:
        """Label this step with a fault mode. For mode 0 the label of the inner behaviour stays."""
        self.labels = {**self.inner.labels, "fault_mode": float(mode or self.inner.labels["fault_mode"])}


class Noise(Wrapper):
    """A wrapper that adds Gaussian noise. `sigma` is a share of half the range of each dimension."""

    def __init__(self, inner: Behaviour, *, sigma: float = 0.3) -> None:
        super().__init__(inner)
        if sigma < 0:
            raise ValueError(f"noise: expected sigma of 0 or more, found {sigma}.")
        self.sigma = sigma

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        action = self.inner.act(observation)
        self.label(0)
        return self.clip(action + self.random.normal(0, self.sigma, len(low)) * (high - low) / 2)


class Uniform(Wrapper):
    """A wrapper that replaces an action by a uniform one with probability `p`."""

    def __init__(self, inner: Behaviour, *, p: float = 0.3) -> None:
        super().__init__(inner)
        if not 0 <= p <= 1:
            raise ValueError(f"uniform: expected a probability p within 0 and 1, found {p}.")
        self.p = p

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        action = self.inner.act(observation)  # also when replaced, so that its plan and its draws continue
        replaced = self.random.random() < self.p
        self.label(FAULT_MODES.index("uniform") if replaced else 0)
        return self.clip(self.random.uniform(*self.bounds)) if replaced else action


class BehaviourMixture:
    """A behaviour that samples one of several for each episode."""

    def __init__(self, parts: list[Behaviour], weights: list[float]) -> None:
        total = float(sum(weights))
        if len(parts) != len(weights) or not parts or min(weights) < 0 or total <= 0:
            raise ValueError(f"mixture: expected {len(parts)} weights of 0 or more, not all 0, found {weights}.")
        self.parts, self.weights = parts, [weight / total for weight in weights]
        self.labels = {**CLEAN, "actor": 0.0}

    def begin(self, env: Any, random: np.random.Generator) -> None:
        self.actor = int(random.choice(len(self.parts), p=self.weights))
        self.parts[self.actor].begin(env, random)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        part = self.parts[self.actor]
        action = part.act(observation)
        self.labels = {**part.labels, "actor": float(self.actor)}
        return action


def bounds(env: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest action of the environment's task."""
    return np.array(env.task.action_low, np.float64), np.array(env.task.action_high, np.float64)
