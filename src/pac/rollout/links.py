"""How the pool reaches its workers: in this process, or in processes of their own. `ray` is the third way.

A link takes turns and gives their answers in the same order. A worker that is gone raises `WorkerLostError`.
"""

import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

from pac.rollout.messages import Setup, StepRequest, StepResponse, decode_response, encode
from pac.rollout.worker import IDLE, Worker

START_WORKER = "from pac.rollout.worker import main; main()"


class WorkerLostError(Exception):
    """A worker died or hangs; the message says which."""


@runtime_checkable
class Link(Protocol):
    """One worker."""

    def send(self, turn: StepRequest) -> None: ...
    def receive(self) -> StepResponse: ...
    def slot(self) -> int | None:
        """The slot it is at work in; IDLE - 1 if in none; None if that cannot be known."""
        ...

    def stop(self) -> None:
        """Ask it to end."""
        ...

    def close(self) -> None:
        """See to it that it has ended."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Where workers live."""

    def start(self, setup: Setup) -> Link: ...
    def wait(self, links: Sequence[Any], timeout: float) -> list[Any]:
        """Those that have an answer, or are lost; none if the time is over."""
        ...

    def close(self) -> None: ...


class LocalLink:
    """A worker in this process: every turn is done when it is sent."""

    def __init__(self, setup: Setup) -> None:
        self.worker, self.answers = Worker(setup), deque[StepResponse]()

    def send(self, turn: StepRequest) -> None:
        self.answers.append(self.worker.handle(turn))

    def receive(self) -> StepResponse:
        return self.answers.popleft()

    def slot(self) -> int | None:
        return None

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.worker.close()


class LocalBackend:
    def start(self, setup: Setup) -> LocalLink:
        return LocalLink(setup)

    def wait(self, links: Sequence[LocalLink], timeout: float) -> list[LocalLink]:
        return [link for link in links if link.answers]

    def close(self) -> None:
        pass


class ProcessLink:
    """A worker in a fresh interpreter: no threads, locks or graphics of this one are inherited, nor is its main script
    run again. It leads a process group of its own, so that Ctrl-C reaches this process alone.
    """

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as shared:
            shared.truncate(mmap.PAGESIZE)
            self.marker = mmap.mmap(shared.fileno(), mmap.PAGESIZE)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", START_WORKER, str(theirs.fileno()), str(shared.fileno())],
                pass_fds=(theirs.fileno(), shared.fileno()),
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.connection = Connection(ours.detach())
        with contextlib.suppress(WorkerLostError):  # the first turn will find out
            self._send(pickle.dumps(setup))

    def send(self, turn: StepRequest) -> None:
        self._send(encode(turn))

    def _send(self, data: bytes) -> None:
        try:
            self.connection.send_bytes(data)
        except OSError as error:
            raise WorkerLostError(self._death()) from error

    def receive(self) -> StepResponse:
        try:
            return decode_response(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerLostError(self._death()) from error

    def slot(self) -> int | None:
        return int.from_bytes(self.marker[:2], "little") - 1 - IDLE

    def stop(self) -> None:
        self.connection.close()

    def close(self) -> None:
        """The worker ends when its socket does; one that is deep in a long step holds nothing worth waiting for."""
        self.connection.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.marker.close()

    def _death(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


class ProcessBackend:
    def start(self, setup: Setup) -> ProcessLink:
        return ProcessLink(setup)

    def wait(self, links: Sequence[ProcessLink], timeout: float) -> list[ProcessLink]:
        ready = set(wait([link.connection for link in links], timeout))
        return [link for link in links if link.connection in ready]

    def close(self) -> None:
        pass
