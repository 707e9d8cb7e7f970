"""Jobs and actors of a rollout, the `EpisodeResult` of each job, and `RunningEpisode`, which records one."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

import pac
from pac import behaviours
from pac.files import problem
from pac.types import Episode, Query, Reply, TaskSpec

# An episode's seed feeds several generators. These numbers keep their streams apart.
BEHAVIOUR_STREAM, MIX_STREAM = 1, 2


@runtime_checkable
class PolicyProtocol(Protocol):
    """A policy that acts in many environments at once, such as one loaded from a checkpoint.

    A reply depends on its own query alone, never on the other queries of the batch or on their number. Matrix products
    round differently for different batch sizes, so pad batches to a few fixed sizes. Draw random numbers from
    (query.seed, query.step).
    """

    name: str

    def act(self, queries: Sequence[Query]) -> list[Reply]: ...


@dataclass(frozen=True, eq=False)
class ActorMix:
    """Several actors, one of which is drawn for each episode with the episode's own seed."""

    actors: tuple["str | PolicyProtocol", ...]
    weights: tuple[float, ...] = ()  # empty: uniform

    def __post_init__(self) -> None:
        weights = self.weights or (1.0,) * len(self.actors)
        finite = all(math.isfinite(weight) and weight >= 0 for weight in weights)
        if not self.actors or len(weights) != len(self.actors) or not finite or sum(weights) <= 0:
            expected = f"one weight of 0 or more for each of {len(self.actors)} actors, not all 0"
            raise problem("A mix of actors", expected=expected, found=weights, fix="Give every actor a weight or none.")

    def pick(self, seed: int) -> "str | PolicyProtocol":
        """Return the actor of the episode with this seed."""
        weights = np.array(self.weights or (1.0,) * len(self.actors))
        draw = np.random.default_rng([seed, MIX_STREAM]).random() * weights.sum()
        index = int(np.searchsorted(np.cumsum(weights), draw, side="right"))
        return self.actors[min(index, len(self.actors) - 1)]


ActorLike = str | PolicyProtocol | ActorMix  # a string is the spec of a behaviour


@dataclass(frozen=True, order=True)
class Job:
    """Episode `index` of `task` under `seed`. These three determine its initial state and all its random numbers."""

    task: str
    seed: int
    index: int

    def __str__(self) -> str:
        return f"{self.task}, seed {self.seed}, episode {self.index}"


def make_jobs(tasks: Iterable[str], episodes: int, seed: int = 0) -> list[Job]:
    """Return the jobs for the first `episodes` of each task."""
    return [Job(task, seed, index) for task in tasks for index in range(episodes)]


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings:
    """Settings that all episodes of a rollout share."""

    max_steps: int | None = None
    stop_at_success: bool = False


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """A request to start an episode in a worker's slot."""

    slot: int
    job: Job
    seed: int
    actor: str  # spec of the behaviour or name of the policy
    is_behaviour: bool  # the worker runs it; a policy's actions are sent
    cameras: tuple[str, ...] = ()  # those that its task renders


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeResult:
    """One finished episode, its job and its actor."""

    job: Job
    actor: str  # spec of the behaviour or name of the policy
    spec: TaskSpec
    episode: Episode
    values: np.ndarray | None = None  # (T,) float32: the critic's value before each action
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # (T,) float32: the behaviour's labels of each step
    restarts: int = 0  # times it started again because its worker was lost; the result is the same

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def seed(self) -> int:
        """Seed of the rollout. The episode's own seed is `episode.seed`."""
        return self.job.seed

    @property
    def index(self) -> int:
        return self.job.index

    @property
    def length(self) -> int:
        return len(self.episode.action)

    @property
    def total_return(self) -> float:
        """Sum of the rewards, as in the index of the episode store."""
        return float(self.episode.reward.sum(dtype=np.float64))

    @property
    def success(self) -> bool | None:
        """Whether any step succeeded. None if the task does not report success."""
        return self.episode.success


class RunningEpisode:
    """An episode that is not finished, with its environment, its behaviour if it has one, and its record so far."""

    def __init__(self, env: Any, start: EpisodeStart, settings: EpisodeSettings) -> None:
        self.env, self.start, self.settings = env, start, settings
        self.task: TaskSpec = env.task
        self.num_actions = len(self.task.action_low)
        first, _ = env.reset(seed=start.seed)
        self.observations = {name: [np.array(value)] for name, value in first.items()}
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.labels: dict[str, list[float]] = {}
        self.first_success: int | None = None
        self.terminated = self.truncated = False
        self.behaviour = None
        if start.is_behaviour:
            self.behaviour = behaviours.make(start.actor)
            self.behaviour.begin(env, np.random.default_rng([start.seed, BEHAVIOUR_STREAM]))

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def step(self, action: np.ndarray | None) -> None:
        """Take `action`, or ask the behaviour for one."""
        if self.behaviour is not None:
            current = {name: values[-1] for name, values in self.observations.items()}
            action = np.array(self.behaviour.act(current), np.float32)
            for name, label in getattr(self.behaviour, "labels", {}).items():
                recorded = self.labels.setdefault(name, [])
                recorded += [0.0] * (len(self.actions) - len(recorded)) + [label]
        assert action is not None
        observation, reward, self.terminated, self.truncated, info = self.env.step(action)
        self.actions.append(action)
        self.rewards.append(reward)
        for name, value in observation.items():
            self.observations[name].append(np.array(value))
        if self.first_success is None and info.get("success"):
            self.first_success = len(self.actions) - 1
            self.terminated = self.terminated or self.settings.stop_at_success
        if not self.terminated and len(self.actions) >= self.task.max_steps:
            self.truncated = True

    def result(self) -> EpisodeResult:
        """Return the finished episode."""
        start, length, extra = self.start, len(self.actions), {}
        if self.task.has_success:
            extra["success"] = np.zeros(length, np.float32)
            extra["success"][[] if self.first_success is None else self.first_success] = 1
        episode = Episode(
            observation={name: np.stack(values) for name, values in self.observations.items()},
            action=np.stack(self.actions).astype(np.float32),
            reward=np.array(self.rewards, np.float32),
            terminated=bool(self.terminated),
            truncated=bool(self.truncated and not self.terminated),
            instruction=self.task.instruction,
            success=self.first_success is not None if self.task.has_success else None,
            extra_rewards=extra,
            source=f"{start.actor} in {start.job} (pac {pac.__version__})",  # enough to play the episode again
            seed=start.seed,
        )
        labels = {k: np.array(v + [0.0] * (length - len(v)), np.float32) for k, v in self.labels.items()}
        return EpisodeResult(job=start.job, actor=start.actor, spec=self.task, episode=episode, labels=labels)
