"""What a behaviour is, the simplest one, and the wrappers that mix behaviours or add independent noise to them.

Independent noise is not poor data: a clone that takes the likeliest action removes it. For that see `faults`.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np

# A mood's place is its number in labels.
FAULT_MODES = ("clean", "wrong-goal", "stop-short", "hesitate", "other-skill", "slow", "uniform", "backwards")
CLEAN = {"mood": 0.0}


@runtime_checkable
class Behaviour(Protocol):
    """Acts beside its environment, in the same process, and needs no checkpoint. All that it draws comes from the
    generator it is given, so an episode is a function of (task, initial state, generator). Seed that generator apart
    from the environment: with one stream for both, Meta-World's goals would give the moods away.
    """

    labels: dict[str, float]  # what it did in the last step: "mood" (a place in FAULT_MODES), and "actor" in a mixture

    def begin(self, env: Any, random: np.random.Generator) -> None:
        """Start an episode of an environment that was just reset."""

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """Choose an action, raw and within the task's bounds."""


class Random:
    """Uniform within the bounds, each step anew."""

    def __init__(self) -> None:
        self.labels = dict(CLEAN)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        self.random, self.bounds = random, bounds(env)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        return (low + (high - low) * self.random.random(len(low))).astype(np.float32)


class Wrapper:
    """Another behaviour, changed: what wrappers share."""

    def __init__(self, inner: Behaviour) -> None:
        self.inner = inner
        self.labels = dict(inner.labels)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        self.inner.begin(env, random)
        self.random, self.bounds = random, bounds(env)

    def limit(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, *self.bounds).astype(np.float32)

    def label(self, mode: int) -> None:
        """Note the mood of this step; a fault further inside shows through where this wrapper did nothing."""
        self.labels = {**self.inner.labels, "mood": float(mode or self.inner.labels["mood"])}


class Noise(Wrapper):
    """Adds Gaussian noise to every action: `sigma` is a share of half the range of each dimension."""

    def __init__(self, inner: Behaviour, *, sigma: float = 0.3) -> None:
        super().__init__(inner)
        if sigma < 0:
            raise ValueError(f"noise: expected sigma of 0 or more, found {sigma}.")
        self.sigma = sigma

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        low, high = self.bounds
        action = self.inner.act(observation)
        self.label(0)
        return self.limit(action + self.random.normal(0, self.sigma, len(low)) * (high - low) / 2)


class Uniform(Wrapper):
    """Replaces an action by a uniform one with probability `p`."""

    def __init__(self, inner: Behaviour, *, p: float = 0.3) -> None:
        super().__init__(inner)
        if not 0 <= p <= 1:
            raise ValueError(f"uniform: expected a probability p within 0 and 1, found {p}.")
        self.p = p

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        action = self.inner.act(observation)  # also when replaced: what it plans goes on, and so do its draws
        replaced = self.random.random() < self.p
        self.label(FAULT_MODES.index("uniform") if replaced else 0)
        return self.limit(self.random.uniform(*self.bounds)) if replaced else action


class BehaviourMixture:
    """Draws one of several behaviours for each episode."""

    def __init__(self, parts: list[Behaviour], weights: list[float]) -> None:
        total = float(sum(weights))
        if len(parts) != len(weights) or not parts or min(weights) < 0 or total <= 0:
            raise ValueError(
                f"mixture: expected a weight of 0 or more for each of {len(parts)} parts, found {weights}."
            )
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
    return np.array(env.task.action_low, np.float64), np.array(env.task.action_high, np.float64)
