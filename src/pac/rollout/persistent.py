"""Workers that stay from one rollout to the next: to start one takes seconds, most of them imports.

with Crew() as crew:
    rollout(policy, jobs, workers=16, crew=crew)
    rollout(policy, more, workers=16, crew=crew)  # the same processes, and environments they have built
"""

from collections.abc import Callable, Sequence
from typing import Any

from pac.rollout.links import Backend, Link
from pac.rollout.messages import Setup


class PersistentWorkers:
    """A backend that hands out the workers of the rollout before, if they are of the same kind, or else new ones."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._kind: Any = None
        self._idle: list[tuple[Setup, Link]] = []

    def __enter__(self) -> "PersistentWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def serve(self, kind: Any, make: Callable[[], Backend]) -> Callable[[], Backend]:
        """Makes the backend of a rollout: this one, over workers of a kind (here, in processes, on a cluster)."""

        def ready() -> Backend:
            if self._backend is None or self._kind != kind:
                self.end()
                self._backend, self._kind = make(), kind
            return self

        return ready

    def start(self, setup: Setup) -> Link:
        assert self._backend is not None
        for i, (known, link) in enumerate(self._idle):
            if known == setup:
                del self._idle[i]
                return link
        self._let_go()  # they were set up for other rollouts
        return self._backend.start(setup)

    def keep(self, links: Sequence[Link], setup: Setup) -> None:
        """Workers that have nothing left to do."""
        self._idle += [(setup, link) for link in links]

    def wait(self, links: Sequence[Any], timeout: float) -> list[Any]:
        assert self._backend is not None
        return self._backend.wait(links, timeout)

    def close(self) -> None:
        """A rollout has ended; the crew has not."""

    def end(self) -> None:
        """End all workers."""
        self._let_go()
        if self._backend is not None:
            self._backend.close()
        self._backend = None

    def _let_go(self) -> None:
        idle, self._idle = self._idle, []
        for _, link in idle:
            link.stop()
        for _, link in idle:
            link.close()
