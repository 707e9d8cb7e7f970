"""What goes into a rollout, jobs and those who act, and what comes out: trials."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

import pac
from pac.types import Episode, Query, Reply, TaskSpec

# An episode's seed feeds several generators; these keep them apart.
BEHAVIOUR_STREAM, MIX_STREAM = 1, 2


@runtime_checkable
class PolicyProtocol(Protocol):
    """What a checkpoint gives: one that answers many environments at once.

    The answer to a query may depend on that query alone, never on the others in the batch, nor on their number: batched
    products round differently for different batch sizes, so pad batches to a few fixed sizes. What it draws it draws
    from (query.seed, query.step).
    """

    name: str

    def act(self, queries: Sequence[Query]) -> list[Reply]: ...


@dataclass(frozen=True, eq=False)
class ActorMix:
    """One of several actors for each episode, drawn with the episode's own seed: half-trained agents taking turns."""

    actors: tuple["str | PolicyProtocol", ...]
    weights: tuple[float, ...] = ()  # none given: uniform

    def __post_init__(self) -> None:
        weights = self.weights or (1.0,) * len(self.actors)
        finite = all(math.isfinite(weight) and weight >= 0 for weight in weights)
        if not self.actors or len(weights) != len(self.actors) or not finite or sum(weights) <= 0:
            raise ValueError(
                f"A mix of actors: expected one weight of 0 or more for each of {len(self.actors)} actors, not all 0, "
                f"found {weights}. Give each actor a weight, or none of them."
            )

    def pick(self, seed: int) -> "str | PolicyProtocol":
        weights = np.array(self.weights or (1.0,) * len(self.actors))
        draw = np.random.default_rng([seed, MIX_STREAM]).random() * weights.sum()
        place = int(np.searchsorted(np.cumsum(weights), draw, side="right"))
        return self.actors[min(place, len(self.actors) - 1)]


ActorLike = str | PolicyProtocol | ActorMix  # a string is the spec of a behaviour


@dataclass(frozen=True, order=True)
class Job:
    """Episode `index` of `task` under `seed`: these three alone decide how it starts and what is drawn in it."""

    task: str
    seed: int
    index: int

    def __str__(self) -> str:
        return f"{self.task}, seed {self.seed}, episode {self.index}"


def make_jobs(tasks: Iterable[str], episodes: int, seed: int = 0) -> list[Job]:
    """The first `episodes` of each task."""
    return [Job(task, seed, index) for task in tasks for index in range(episodes)]


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeResult:
    """One finished episode and where it came from."""

    job: Job
    actor: str  # spec of the behaviour or name of the policy
    spec: TaskSpec
    episode: Episode
    values: np.ndarray | None = None  # (T,) float32: what the critic expected before each action
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # (T,) float32: what the behaviour says it was doing
    redone: int = 0  # times it was begun again because its worker died or hung; the result is the same

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def seed(self) -> int:
        """Of the rollout; the episode's own is `episode.seed`."""
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
        """Whether any step succeeded; None where the task does not say."""
        return self.episode.success


def lineage(actor: str, job: Job) -> str:
    """Episode.source: enough to run the episode again."""
    return f"{actor} in {job} (pac {pac.__version__})"
