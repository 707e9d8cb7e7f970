"""Links to workers: in this process, or in processes of their own. `ray` has a third kind.

`PersistentWorkers` starts workers and keeps them from one rollout to the next.
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
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from pac.rollout.episodes import EpisodeSettings
from pac.rollout.worker import IDLE, StepRequest, StepResponse, Worker

START_WORKER = "from pac.rollout.worker import main; main()"


class WorkerLostError(Exception):
    """A worker died or hangs. The message is the end of a sentence that begins with "A worker"."""


class Link:
    """The pool's connection to one worker. Responses come in the order of the requests.

    `send` and `receive` raise `WorkerLostError` if the worker is gone.
    """

    def __init__(self, settings: EpisodeSettings) -> None:
        """Start a worker."""

    def send(self, request: StepRequest) -> None:
        raise NotImplementedError

    def receive(self) -> StepResponse:
        raise NotImplementedError

    @staticmethod
    def wait(links: Sequence[Any], timeout: float) -> list[Any]:
        """Return the links that have a response or lost their worker."""
        raise NotImplementedError

    def slot(self) -> int | None:
        """Return the slot that the worker steps now: IDLE - 1 for none, None if unknown."""
        return None

    def stop(self) -> None:
        """Ask the worker to end."""

    def close(self) -> None:
        """Wait until the worker has ended, or kill it."""


class LocalLink(Link):
    """A worker in this process. It carries out each request as it is sent."""

    def __init__(self, settings: EpisodeSettings) -> None:
        self.worker, self.responses = Worker(settings), deque[StepResponse]()

    def send(self, request: StepRequest) -> None:
        self.responses.append(self.worker.handle(request))

    def receive(self) -> StepResponse:
        return self.responses.popleft()

    @staticmethod
    def wait(links: Sequence["LocalLink"], timeout: float) -> list["LocalLink"]:
        return [link for link in links if link.responses]

    def close(self) -> None:
        self.worker.close()


class ProcessLink(Link):
    """A worker in a fresh interpreter. It inherits no threads, locks or graphics, and does not run the main script.

    It leads a process group of its own, so that Ctrl-C reaches this process alone.
    """

    def __init__(self, settings: EpisodeSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as shared:
            shared.truncate(mmap.PAGESIZE)
            self.marker = mmap.mmap(shared.fileno(), mmap.PAGESIZE)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", START_WORKER, str(theirs.fileno()), str(shared.fileno())],
                pass_fds=(theirs.fileno(), shared.fileno()),
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        self.connection = Connection(ours.detach())
        with contextlib.suppress(WorkerLostError):  # the first request will raise it again
            self.send(settings)

    def send(self, request: StepRequest | EpisodeSettings) -> None:
        try:
            self.connection.send_bytes(pickle.dumps(request, protocol=5))
        except OSError as error:
            raise WorkerLostError(self._reason()) from error

    def receive(self) -> StepResponse:
        try:
            return pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerLostError(self._reason()) from error

    @staticmethod
    def wait(links: Sequence["ProcessLink"], timeout: float) -> list["ProcessLink"]:
        ready = set(wait([link.connection for link in links], timeout))
        return [link for link in links if link.connection in ready]

    def slot(self) -> int | None:
        return int.from_bytes(self.marker[:2], "little") - 1 - IDLE

    def stop(self) -> None:
        self.connection.close()

    def close(self) -> None:
        """Close the socket, which ends the worker. Kill it if it is in a long step: nothing is lost."""
        self.connection.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.marker.close()

    def _reason(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


class PersistentWorkers:
    """Workers that stay from one rollout to the next. Starting one takes seconds, because of its imports.

    with PersistentWorkers() as workers:
        rollout(policy, jobs, workers=16, persistent_workers=workers)
        rollout(policy, more, workers=16, persistent_workers=workers)  # the same processes and environments
    """

    def __init__(self) -> None:
        self._place: tuple[str | None, bool] | None = None  # Ray address, in processes of their own
        self._kind: type[Link] = LocalLink
        self._disconnect: Callable[[], None] | None = None
        self._idle: list[tuple[EpisodeSettings, Link]] = []

    def __enter__(self) -> "PersistentWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, ray: str | None, num_processes: int) -> None:
        """Choose where workers run: in this process (0 processes), in others, or on Ray. End workers elsewhere."""
        place = (ray, num_processes > 0)
        if place == self._place:
            return
        self.close()
        self._kind = ProcessLink if num_processes else LocalLink
        if ray is not None:
            from pac.rollout.ray import RayLink, connect

            self._kind, self._disconnect = RayLink, connect(ray, max(num_processes, 1))
        self._place = place

    def start(self, settings: EpisodeSettings) -> Link:
        """Return an idle worker with these settings, or a new one."""
        for i, (known, link) in enumerate(self._idle):
            if known == settings:
                del self._idle[i]
                return link
        self._close_idle()  # their settings are those of another rollout
        return self._kind(settings)

    def wait(self, links: Sequence[Link], timeout: float) -> list[Link]:
        """Return the links that have a response or lost their worker. The list is empty after `timeout` seconds."""
        return self._kind.wait(links, timeout)

    def keep(self, links: Sequence[Link], settings: EpisodeSettings) -> None:
        """Keep workers that have nothing left to do."""
        self._idle += [(settings, link) for link in links]

    def close(self) -> None:
        """End all workers."""
        self._close_idle()
        if self._disconnect is not None:
            self._disconnect()
        self._place = self._disconnect = None

    def _close_idle(self) -> None:
        links, self._idle = [link for _, link in self._idle], []
        close_all(links)


def close_all(links: Sequence[Link]) -> None:
    """End workers: ask all of them, then wait for each."""
    for link in links:
        link.stop()
    for link in links:
        link.close()
