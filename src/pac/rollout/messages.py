"""What the pool and its workers tell each other: turns go out, answers come back."""

import builtins
import pickle
from dataclasses import dataclass, field

import numpy as np

from pac.rollout.episodes import EpisodeResult, Job
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
class StepRequest:
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
class StepResponse:
    """What came of a turn: new observations of the slots played from outside, one behind the other a feature."""

    group: int
    started: dict[int, tuple[TaskSpec, dict[str, tuple[int, ...]]]] = field(default_factory=dict)  # slot -> shapes
    observations: dict[str, np.ndarray] = field(default_factory=dict)
    finished: dict[int, EpisodeResult] = field(default_factory=dict)
    failure: Failure | None = None


def encode(message: StepRequest | StepResponse) -> bytes:
    """For the way; what only steps, as nearly all do, goes as bare bytes, at a third of the cost."""
    if isinstance(message, StepRequest) and not message.starts:
        actions = None if message.actions is None else bytearray(message.actions.data)
        return pickle.dumps((message.group, actions), protocol=5)
    if isinstance(message, StepResponse) and not (message.started or message.finished or message.failure):
        plain = {name: (array.dtype.str, bytearray(array.data)) for name, array in message.observations.items()}
        return pickle.dumps((message.group, plain), protocol=5)
    return pickle.dumps(message, protocol=5)


def decode_request(data: bytes) -> StepRequest:
    found = pickle.loads(data)
    if isinstance(found, StepRequest):
        return found
    group, actions = found
    return StepRequest(group, None if actions is None else np.frombuffer(actions, np.float32))


def decode_response(data: bytes) -> StepResponse:
    found = pickle.loads(data)
    if isinstance(found, StepResponse):
        return found
    group, plain = found
    return StepResponse(group, observations={name: np.frombuffer(*reversed(pair)) for name, pair in plain.items()})
