"""What the pool knows of its workers: which episode is where, and what it waits for."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pac.rollout.episodes import PolicyProtocol
from pac.rollout.links import Link
from pac.types import Query, TaskSpec


@dataclass(eq=False)
class EnvSlot:
    """A place for an environment, and the episode in it."""

    number: int  # within its worker
    position: int = -1  # of its job; -1: free
    seed: int = 0
    policy: PolicyProtocol | None = None  # None: a behaviour plays, on the far side
    task: TaskSpec | None = None  # None: not begun yet
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    observation: dict[str, np.ndarray] = field(default_factory=dict)
    values: list[float] = field(default_factory=list)
    step: int = 0

    def query(self) -> Query:
        assert self.task is not None
        return Query(task=self.task, observation=self.observation, seed=self.seed, step=self.step)

    def free(self) -> None:
        self.position, self.step, self.task, self.policy = -1, 0, None, None
        self.shapes, self.observation, self.values = {}, {}, []


@dataclass(eq=False)
class SlotGroup:
    """Slots that are stepped together."""

    number: int
    slots: list[EnvSlot]
    waiting: bool = False  # for an answer


@dataclass(eq=False)
class WorkerHandle:
    """One worker, as the pool sees it."""

    link: Link
    groups: list[SlotGroup]
    asked: deque[SlotGroup] = field(default_factory=deque)  # in this order the answers come
    heard: float = 0.0
    answered: bool = False  # at least once


def checked(action: np.ndarray, query: Query, name: str) -> np.ndarray:
    expected = (len(query.task.action_low),)
    if action.shape != expected:
        raise ValueError(
            f"Policy {name}, {query.task.name}, step {query.step}: expected an action of shape {expected}, found "
            f"{action.shape}. Reply with one raw number an action dimension."
        )
    return action.astype(np.float32, copy=False)
