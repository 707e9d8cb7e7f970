"""What the pool and its workers tell each other: turns go out, answers come back."""

import builtins
from dataclasses import dataclass, field

import numpy as np

from pac.rollout.trials import Job, Trial
from pac.types import TaskSpec


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all episodes of a rollout have in common."""

    cameras: tuple[str, ...] = ()
    max_steps: int | None = None
    stop_at_success: bool = False


@dataclass(frozen=True)
class Start:
    """Begin an episode in a slot; without a behaviour its actions come from outside."""

    slot: int
    job: Job
    seed: int
    actor: str
    is_behaviour: bool


@dataclass(frozen=True)
class Turn:
    """Step a group: actions, one behind the other, for its slots that are played from outside, in order of slots."""

    group: int
    actions: np.ndarray | None = None
    starts: tuple[Start, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An error in an environment or a behaviour."""

    kind: str
    message: str
    where: str
    traceback: str

    def error(self) -> Exception:
        """The error again, of its own kind if that is one of Python's."""
        kind = getattr(builtins, self.kind, RuntimeError)
        kind = kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
        text = self.message if kind is not RuntimeError else f"{self.kind}: {self.message}"
        try:
            error: Exception = kind(f"{text} ({self.where})")
        except TypeError:
            error = RuntimeError(f"{self.kind}: {text} ({self.where})")
        error.add_note(f"In a worker:\n{self.traceback}")
        return error


@dataclass
class Answer:
    """What came of a turn: new observations of the slots played from outside, one behind the other a feature."""

    group: int
    started: dict[int, tuple[TaskSpec, dict[str, tuple[int, ...]]]] = field(default_factory=dict)  # slot -> shapes
    observations: dict[str, np.ndarray] = field(default_factory=dict)
    finished: dict[int, Trial] = field(default_factory=dict)
    failure: Failure | None = None
