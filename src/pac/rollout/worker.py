"""The far side of a rollout: environments, and the behaviours that act beside them.

A worker's slots come in groups. A `StepRequest` steps one group; while the policy computes that group's actions
the worker steps the next. The same class serves in this process, in a process of its own, and as a Ray actor.
"""

import contextlib
import mmap
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from pac import envs
from pac.rollout.messages import Failure, Setup, Start, StepRequest, StepResponse, decode_request, encode
from pac.rollout.running import Running

REQUEST_SECONDS = 0.5  # a group of behaviours steps on by itself this long before it reports that it is alive
SPARE_ENVS = 4  # kept for later episodes, beyond as many as were ever in use at once
IDLE = 0  # marker: not inside an environment


class Worker:
    """Environments in groups of slots. `mark` is told in which slot it is at work, so that a culprit can be found."""

    def __init__(self, setup: Setup, mark: Callable[[int], None] = lambda slot: None) -> None:
        self.setup, self.mark = setup, mark
        self.groups: dict[int, dict[int, Running]] = {}
        self.free: dict[str, list[Any]] = {}  # task -> environments between two episodes, the longest unused first
        self.most_in_use = 0
        self.at: Running | Start | None = None  # where it is at work

    def handle(self, turn: StepRequest) -> StepResponse:
        """Do a turn; what goes wrong in it is part of the answer."""
        try:
            return self._play(turn)
        except Exception as error:
            failure = Failure(type(error).__name__, str(error), self._where(), traceback.format_exc())
            return StepResponse(turn.group, failure=failure)
        finally:
            self.mark(IDLE)

    def close(self) -> None:
        slots = [running.env for group in self.groups.values() for running in group.values()]
        for env in [*slots, *(env for free in self.free.values() for env in free)]:
            with contextlib.suppress(Exception):
                env.close()

    def _play(self, turn: StepRequest) -> StepResponse:
        group, answer = self.groups.setdefault(turn.group, {}), StepResponse(turn.group)
        self._step(group, turn.actions, answer)
        for start in turn.starts:
            self.at = start
            self.mark(start.slot + 1)
            running = Running(self._environment(start.job.task), start, self.setup)
            group[start.slot] = running
            self.most_in_use = max(self.most_in_use, sum(map(len, self.groups.values())))
            shapes = {name: values[0].shape for name, values in running.observations.items()}
            answer.started[start.slot] = (running.task, shapes)
        deadline = time.monotonic() + REQUEST_SECONDS
        while group and not answer.finished and all(r.behaviour is not None for r in group.values()):
            self._step(group, None, answer)
            if time.monotonic() > deadline:
                break
        asking = [group[slot] for slot in sorted(group) if group[slot].behaviour is None]
        for name in sorted({name for running in asking for name in running.observations}):
            latest = [r.observations[name][-1].reshape(-1) for r in asking if name in r.observations]
            answer.observations[name] = np.concatenate(latest)
        return answer

    def _step(self, group: dict[int, Running], actions: np.ndarray | None, answer: StepResponse) -> None:
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
        if free := self.free.pop(task, []):
            env = free.pop()
            self.free |= {task: free} if free else {}  # what is empty is not there: `_leave` takes from the first
            return env
        return envs.make(task, cameras=self.setup.cameras, max_steps=self.setup.max_steps)

    def _leave(self, running: Running) -> None:
        """Keep the environment for the next episode of its task; what was kept longest makes room."""
        free = self.free.pop(running.start.job.task, [])
        self.free[running.start.job.task] = [*free, running.env]
        while sum(map(len, self.free.values())) > self.most_in_use + SPARE_ENVS:
            oldest = next(iter(self.free))
            self.free[oldest].pop().close()
            if not self.free[oldest]:
                del self.free[oldest]


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
            connection.send_bytes(encode(worker.handle(decode_request(connection.recv_bytes()))))
    os._exit(0)  # graphics drivers are not always graceful at exit
