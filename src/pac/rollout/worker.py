"""The worker: steps environments for the pool, and runs the behaviours that act in them.

A worker's slots come in groups. A `StepRequest` steps one group. While the policy computes that group's actions, the
worker steps the next one. The same class runs in this process, in a process of its own, and as a Ray actor.
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

from pac import envs
from pac.rollout.episodes import EpisodeResult, EpisodeSettings, EpisodeStart, RunningEpisode
from pac.types import TaskSpec

REQUEST_SECONDS = 0.5  # a group of behaviours steps this long before it responds, to show that it is alive
SPARE_ENVS = 4  # environments kept for later episodes, beyond the most that were ever in use at once
IDLE = 0  # marker: the worker steps no environment


@dataclass(frozen=True)
class StepRequest:
    """A request to step a group. `actions` are those of the slots that a policy plays, concatenated by slot."""

    group: int
    actions: np.ndarray | None = None
    starts: tuple[EpisodeStart, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle arrays as plain bytes, which takes a third of the time."""
        actions = None if self.actions is None else bytearray(self.actions.data)
        return _load_request, (self.group, actions, self.starts)


def _load_request(group: int, actions: bytearray | None, starts: tuple[EpisodeStart, ...]) -> StepRequest:
    return StepRequest(group, None if actions is None else np.frombuffer(actions, np.float32), starts)


@dataclass
class StepResponse:
    """A group after a step. `observations` are those of the slots that a policy plays, concatenated by slot."""

    group: int
    observations: dict[str, np.ndarray] = field(default_factory=dict)
    started: dict[int, tuple[TaskSpec, dict[str, tuple[int, ...]]]] = field(default_factory=dict)  # slot -> shapes
    finished: dict[int, EpisodeResult] = field(default_factory=dict)
    failure: Exception | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        plain = {name: (bytearray(array.data), array.dtype.str) for name, array in self.observations.items()}
        return _load_response, (self.group, plain, self.started, self.finished, self.failure)


def _load_response(group: int, plain: dict[str, tuple[bytearray, str]], *others: Any) -> StepResponse:
    return StepResponse(group, {name: np.frombuffer(*pair) for name, pair in plain.items()}, *others)


class Worker:
    """Environments in groups of slots. It calls `mark` with the slot that it steps, to find the cause of a crash."""

    def __init__(self, settings: EpisodeSettings, mark: Callable[[int], None] = lambda slot: None) -> None:
        self.settings, self.mark = settings, mark
        self.groups: dict[int, dict[int, RunningEpisode]] = {}
        # task and cameras -> environments without an episode, the longest unused first
        self.spare: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
        self.most_in_use = 0
        self.current: RunningEpisode | EpisodeStart | None = None  # that it steps

    def handle(self, request: StepRequest) -> StepResponse:
        """Carry out a request. An error becomes part of the response."""
        try:
            return self._play(request)
        except Exception as error:
            return StepResponse(request.group, failure=_portable(error, self._where()))
        finally:
            self.mark(IDLE)

    def close(self) -> None:
        in_use = [episode.env for group in self.groups.values() for episode in group.values()]
        for env in [*in_use, *(env for spare in self.spare.values() for env in spare)]:
            with contextlib.suppress(Exception):
                env.close()

    def _play(self, request: StepRequest) -> StepResponse:
        group, response = self.groups.setdefault(request.group, {}), StepResponse(request.group)
        self._step(group, request.actions, response)
        for start in request.starts:
            group[start.slot] = episode = self._start(start)
            self.most_in_use = max(self.most_in_use, sum(map(len, self.groups.values())))
            shapes = {name: values[0].shape for name, values in episode.observations.items()}
            response.started[start.slot] = (episode.task, shapes)
        deadline = time.monotonic() + REQUEST_SECONDS
        while group and not response.finished and all(e.behaviour is not None for e in group.values()):
            self._step(group, None, response)
            if time.monotonic() > deadline:
                break
        played = [group[slot] for slot in sorted(group) if group[slot].behaviour is None]
        for name in sorted({name for episode in played for name in episode.observations}):
            latest = [e.observations[name][-1].reshape(-1) for e in played if name in e.observations]
            response.observations[name] = np.concatenate(latest)
        return response

    def _start(self, start: EpisodeStart) -> RunningEpisode:
        self.current = start
        self.mark(start.slot + 1)
        kind = (start.job.task, start.cameras)
        if spare := self.spare.pop(kind, []):
            env = spare.pop()
            self.spare |= {kind: spare} if spare else {}  # no empty lists: `_keep` takes from the first
        else:
            env = envs.make(start.job.task, cameras=start.cameras, max_steps=self.settings.max_steps)
        return RunningEpisode(env, start, self.settings)

    def _step(self, group: dict[int, RunningEpisode], actions: np.ndarray | None, response: StepResponse) -> None:
        offset = 0
        for slot in sorted(group):
            episode, action = group[slot], None
            self.current = episode
            self.mark(slot + 1)
            if episode.behaviour is None:
                assert actions is not None
                action = actions[offset : offset + episode.num_actions]
                offset += episode.num_actions
            episode.step(action)
            if episode.done:
                response.finished[slot] = episode.result()
                self._keep(group.pop(slot))

    def _keep(self, episode: RunningEpisode) -> None:
        """Keep the environment for the next episode of its task. Close the one that was unused for longest."""
        kind = (episode.start.job.task, episode.start.cameras)
        self.spare[kind] = [*self.spare.pop(kind, []), episode.env]
        while sum(map(len, self.spare.values())) > self.most_in_use + SPARE_ENVS:
            oldest = next(iter(self.spare))
            self.spare[oldest].pop().close()
            if not self.spare[oldest]:
                del self.spare[oldest]

    def _where(self) -> str:
        if isinstance(self.current, RunningEpisode):
            return f"{self.current.start.job}, step {len(self.current.actions)}"
        return f"{self.current.job}, at its start" if self.current else "before its first episode"


def _portable(error: Exception, where: str) -> Exception:
    """Return the error with its place, as a builtin class. The pool may not have other classes.

    Its traceback is added, unless PAC raised it for the user.
    """
    kind, text = type(error), str(error)
    if getattr(builtins, kind.__name__, None) is not kind:
        kind, text = RuntimeError, f"{kind.__name__}: {error}"
    try:
        copy = kind(f"{text} ({where})")
    except TypeError:  # a class that takes more arguments, such as UnicodeDecodeError
        copy = RuntimeError(f"{kind.__name__}: {text} ({where})")
    if not _is_for_users(error):
        copy.add_note(f"In a worker:\n{traceback.format_exc()}")
    return copy


def _is_for_users(error: Exception) -> bool:
    """Return whether PAC raised a ValueError. One of an environment, such as numpy's, needs its traceback."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (
        isinstance(error, ValueError) and bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("pac.")
    )


def main() -> None:
    """Serve requests over the socket named on the command line until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the socket
    connection = Connection(int(sys.argv[1]))
    marker = mmap.mmap(int(sys.argv[2]), mmap.PAGESIZE)

    def mark(slot: int) -> None:
        marker[:2] = slot.to_bytes(2, "little")

    with contextlib.suppress(EOFError, ConnectionError):
        worker = Worker(pickle.loads(connection.recv_bytes()), mark)
        while True:
            connection.send_bytes(pickle.dumps(worker.handle(pickle.loads(connection.recv_bytes())), protocol=5))
    os._exit(0)  # graphics drivers may crash at a normal exit
