"""Workers as Ray actors, for those with many machines. Every machine needs this package and the simulators, in the same
versions: the same job then gives the same episode there.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from pac.rollout.links import WorkerLostError
from pac.rollout.messages import Setup, StepRequest, StepResponse, decode_request, decode_response, encode
from pac.rollout.worker import Worker


class RayWorker:
    """What runs in the actor. Answers travel as bytes: arrays out of Ray's own store would be read-only."""

    def __init__(self, setup: Setup, path: Sequence[str]) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        self.worker = Worker(setup)

    def handle(self, turn: bytes) -> bytes:
        return encode(self.worker.handle(decode_request(turn)))


class RayLink:
    def __init__(self, ray: Any, setup: Setup) -> None:
        self.ray, self.answers = ray, deque[Any]()
        self.actor = ray.remote(num_cpus=1, max_restarts=0)(RayWorker).remote(setup, [p for p in sys.path if p])

    def send(self, turn: StepRequest) -> None:
        self.answers.append(self.actor.handle.remote(encode(turn)))

    def receive(self) -> StepResponse:
        try:
            return decode_response(self.ray.get(self.answers.popleft()))
        except self.ray.exceptions.RayError as error:
            raise WorkerLostError(f"was lost by Ray ({type(error).__name__})") from error

    def slot(self) -> int | None:
        return None

    def stop(self) -> None:
        self.ray.kill(self.actor)

    def close(self) -> None:
        self.ray.kill(self.actor)


class RayBackend:
    """Connects to a cluster, or with "local" starts one on this machine and ends it afterwards."""

    def __init__(self, address: str, workers: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise ValueError(
                f"Rollouts on Ray need ray, which is not installed ({error}). "
                "Do: pip install 'perceiver-actor-critic[ray]'"
            ) from error
        self.ray: Any = ray
        self.ours = not ray.is_initialized()
        if self.ours:
            local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **local)
            except ConnectionError as error:
                raise ValueError(
                    f"Rollouts on Ray: expected a cluster at {address!r}, found none ({error}). Start one with "
                    "`ray start --head`, or use 'local'."
                ) from error

    def start(self, setup: Setup) -> RayLink:
        return RayLink(self.ray, setup)

    def wait(self, links: Sequence[RayLink], timeout: float) -> list[RayLink]:
        first = [link.answers[0] for link in links]
        ready, _ = self.ray.wait(first, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = self.ray.wait(first, num_returns=len(first), timeout=0)
        return [link for link in links if link.answers[0] in ready]

    def close(self) -> None:
        if self.ours:
            self.ray.shutdown()
