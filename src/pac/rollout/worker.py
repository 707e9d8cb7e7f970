"""The far side of a rollout: environments, the behaviours that act beside them, and the recording of episodes.

A worker's places ("slots") come in groups. A `Turn` steps one group; while the policy thinks about that group's answer
the worker steps the next. The same class serves in this process, in a process of its own, and as a Ray actor.
"""

import builtins
import contextlib
import mmap
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pac import behaviours, envs
from pac.rollout.trials import BEHAVIOUR_STREAM, Job, Trial, lineage
from pac.types import Episode, TaskSpec

TURN_SECONDS = 0.5  # a group of behaviours steps on by itself this long before it reports that it is alive
IDLE = 0  # marker: not inside an environment


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


class Running:
    """One episode under way."""

    def __init__(self, env: Any, start: Start, setup: Setup) -> None:
        self.env, self.start, self.setup = env, start, setup
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
        """Take `action`, or the behaviour's."""
        if self.behaviour is not None:
            now = {name: values[-1] for name, values in self.observations.items()}
            action = np.array(self.behaviour.act(now), np.float32)
            for name, label in getattr(self.behaviour, "labels", {}).items():
                noted = self.labels.setdefault(name, [])
                noted += [0.0] * (len(self.actions) - len(noted)) + [label]
        assert action is not None
        observation, reward, self.terminated, self.truncated, info = self.env.step(action)
        self.actions.append(action)
        self.rewards.append(reward)
        for name, value in observation.items():
            self.observations[name].append(np.array(value))
        if self.first_success is None and info.get("success"):
            self.first_success = len(self.actions) - 1
            self.terminated = self.terminated or self.setup.stop_at_success
        if not self.terminated and len(self.actions) >= self.task.max_steps:
            self.truncated = True

    def trial(self) -> Trial:
        """The finished episode."""
        job, length = self.start.job, len(self.actions)
        extra = {}
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
            source=lineage(self.start.actor, job),
            seed=self.start.seed,
        )
        labels = {k: np.array(v + [0.0] * (length - len(v)), np.float32) for k, v in self.labels.items()}
        return Trial(job=job, actor=self.start.actor, spec=self.task, episode=episode, labels=labels)


class Worker:
    """Environments in groups of slots. `mark` is told in which slot it is at work, so that a culprit can be found."""

    def __init__(self, setup: Setup, mark: Callable[[int], None] = lambda slot: None) -> None:
        self.setup, self.mark = setup, mark
        self.groups: dict[int, dict[int, Running]] = {}
        self.free: dict[str, list[Any]] = {}
        self.at: Running | Start | None = None  # where it is at work

    def handle(self, turn: Turn) -> Answer:
        """Do a turn; what goes wrong in it is part of the answer."""
        try:
            return self._play(turn)
        except Exception as error:
            failure = Failure(type(error).__name__, str(error), self._where(), traceback.format_exc())
            return Answer(turn.group, failure=failure)
        finally:
            self.mark(IDLE)

    def close(self) -> None:
        slots = [running.env for group in self.groups.values() for running in group.values()]
        for env in [*slots, *(env for free in self.free.values() for env in free)]:
            with contextlib.suppress(Exception):
                env.close()

    def _play(self, turn: Turn) -> Answer:
        group, answer = self.groups.setdefault(turn.group, {}), Answer(turn.group)
        self._step(group, turn.actions, answer)
        for start in turn.starts:
            self.at = start
            self.mark(start.slot + 1)
            running = Running(self._environment(start.job.task), start, self.setup)
            group[start.slot] = running
            shapes = {name: values[0].shape for name, values in running.observations.items()}
            answer.started[start.slot] = (running.task, shapes)
        deadline = time.monotonic() + TURN_SECONDS
        while group and not answer.finished and all(r.behaviour is not None for r in group.values()):
            self._step(group, None, answer)
            if time.monotonic() > deadline:
                break
        asking = [group[slot] for slot in sorted(group) if group[slot].behaviour is None]
        for name in sorted({name for running in asking for name in running.observations}):
            latest = [r.observations[name][-1].reshape(-1) for r in asking if name in r.observations]
            answer.observations[name] = np.concatenate(latest)
        return answer

    def _step(self, group: dict[int, Running], actions: np.ndarray | None, answer: Answer) -> None:
        place = 0
        for slot in sorted(group):
            running, action = group[slot], None
            self.at = running
            self.mark(slot + 1)
            if running.behaviour is None:
                assert actions is not None
                action = actions[place : place + running.num_actions]
                place += running.num_actions
            running.step(action)
            if running.done:
                answer.finished[slot] = running.trial()
                self._leave(group.pop(slot))

    def _where(self) -> str:
        if isinstance(self.at, Running):
            return f"{self.at.start.job}, step {len(self.at.actions)}"
        return f"{self.at.job}, at its start" if self.at else "before its first episode"

    def _environment(self, task: str) -> Any:
        if free := self.free.get(task):
            return free.pop()
        return envs.make(task, cameras=self.setup.cameras, max_steps=self.setup.max_steps)

    def _leave(self, running: Running) -> None:
        """Keep the environment for the next episode of its task; those of other tasks make room once no slot is."""
        self.free.setdefault(running.start.job.task, []).append(running.env)
        in_use = sum(len(group) for group in self.groups.values())
        while sum(map(len, self.free.values())) > in_use + 4:
            task = next(name for name, free in self.free.items() if free)
            self.free[task].pop(0).close()


def dumps(message: object) -> bytes:
    return pickle.dumps(message, protocol=5)


def main() -> None:
    """A worker process: turns come in and answers go out over the socket it was given, until that closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the socket
    connection = Connection(int(sys.argv[1]))
    marker = mmap.mmap(int(sys.argv[2]), mmap.PAGESIZE)

    def mark(slot: int) -> None:
        marker[:2] = slot.to_bytes(2, "little")

    with contextlib.suppress(EOFError, ConnectionError):
        worker = Worker(pickle.loads(connection.recv_bytes()), mark)
        while True:
            connection.send_bytes(dumps(worker.handle(pickle.loads(connection.recv_bytes()))))
    os._exit(0)  # graphics drivers are not always graceful at exit
