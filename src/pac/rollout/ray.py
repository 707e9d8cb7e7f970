"""Workers as Ray actors, for a cluster. Every machine needs this package and the simulators in the same versions.

The same job then gives the same episode on each of them.
"""

import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pac.rollout.episodes import EpisodeSettings
from pac.rollout.links import Link, WorkerLostError
from pac.rollout.worker import StepRequest, StepResponse, Worker


class RayWorker:
    """The Ray actor. Responses travel as bytes, because arrays from Ray's own store are read-only."""

    def __init__(self, settings: EpisodeSettings, path: Sequence[str]) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        self.worker = Worker(settings)

    def handle(self, request: bytes) -> bytes:
        return pickle.dumps(self.worker.handle(pickle.loads(request)), protocol=5)


class RayLink(Link):
    """A worker in a Ray actor with a CPU of its own."""

    def __init__(self, settings: EpisodeSettings) -> None:
        import ray

        self.ray: Any = ray
        self.responses = deque[Any]()
        actor = self.ray.remote(num_cpus=1, max_restarts=0)(RayWorker)
        self.actor = actor.remote(settings, [path for path in sys.path if path])

    def send(self, request: StepRequest) -> None:
        self.responses.append(self.actor.handle.remote(pickle.dumps(request, protocol=5)))

    def receive(self) -> StepResponse:
        try:
            return pickle.loads(self.ray.get(self.responses.popleft()))
        except self.ray.exceptions.RayError as error:
            raise WorkerLostError(f"was lost by Ray ({type(error).__name__})") from error

    @staticmethod
    def wait(links: Sequence["RayLink"], timeout: float) -> list["RayLink"]:
        ray, first = links[0].ray, [link.responses[0] for link in links]
        ready, _ = ray.wait(first, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(first, num_returns=len(first), timeout=0)
        return [link for link in links if link.responses[0] in ready]

    def close(self) -> None:
        self.ray.kill(self.actor)


def connect(address: str, num_workers: int) -> Callable[[], None] | None:
    """Connect to a cluster, or start one on this machine for "local". Return the function that disconnects."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            f"Rollouts on Ray: expected the package ray, found none ({error}). "
            "Do: pip install 'perceiver-actor-critic[ray]'"
        ) from error
    if ray.is_initialized():  # by the caller, who also ends it
        return None
    local: dict[str, Any] = {"num_cpus": num_workers, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **local)
    except ConnectionError as error:
        raise ValueError(
            f"Rollouts on Ray: expected a cluster at {address!r}, found none ({error}). Start one with "
            "`ray start --head`, or use 'local'."
        ) from error
    return ray.shutdown
