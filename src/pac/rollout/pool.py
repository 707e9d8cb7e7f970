"""`rollout`: hands jobs to workers, answers their questions with one batched policy, and gives trials in job order.

Nothing about an episode depends on where or when it runs: its job decides how it starts and what is drawn in it. So an
episode whose worker died is simply begun again elsewhere.
"""

import dataclasses
import heapq
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pac import behaviours, envs
from pac.envs.rendering import find_gl
from pac.rollout.episodes import ActorLike, ActorMix, EpisodeResult, Job, PolicyProtocol
from pac.rollout.links import Backend, LocalBackend, ProcessBackend, WorkerLostError
from pac.rollout.messages import Setup, Start, StepRequest, StepResponse
from pac.rollout.persistent import PersistentWorkers
from pac.rollout.slots import EnvSlot, SlotGroup, WorkerHandle, checked

MAX_FAILURES = 3  # of workers, in the same episode
MAX_ENVS = 256  # a worker: its actions must fit a socket's buffer
log = logging.getLogger("pac.rollout")


class RolloutError(ValueError):
    """Workers are lost again and again."""


def rollout(
    actor: ActorLike,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    envs_per_worker: int | None = None,
    cameras: Sequence[str] = (),
    max_steps: int | None = None,
    stop_at_success: bool = False,
    timeout: float = 120.0,
    ray: str | None = None,
    crew: PersistentWorkers | None = None,
) -> Iterator[EpisodeResult]:
    """Play every job and yield its trial, in the order of the jobs, whatever the workers and environments.

    `actor` is the spec of a behaviour, a policy, or a mix of them. `workers` are processes (0: play in this one), each
    with `envs_per_worker` environments (16 for a policy, 2 for behaviours, which gain nothing from more). With
    `stop_at_success` an episode terminates at its first success. A worker that dies, or gives no answer for `timeout`
    seconds, is replaced and its episodes are begun again; a warning says so, and `Trial.redone` counts it. With `ray`
    ("local" or the address of a cluster) the workers are Ray actors. Closing the iterator ends the
    workers; those of a rollout that came to its end stay with the `crew`, if there is one, for its next rollout.
    """
    setup = Setup(cameras=tuple(cameras), max_steps=max_steps, stop_at_success=stop_at_success)
    actors = actor.actors if isinstance(actor, ActorMix) else (actor,)
    _check(actors, jobs, setup, workers, envs_per_worker, timeout)
    if cameras and ray is None and not all(job.task.startswith("gym/") for job in jobs):
        find_gl()  # an error now rather than in a worker; workers inherit what was found
    if envs_per_worker is None:
        envs_per_worker = 2 if all(isinstance(one, str) for one in actors) else 16
    make = _backend(ray, workers)
    if crew is not None:
        make = crew.serve((ray, workers > 0), make)
    return _Pool(actor, jobs, setup, workers, envs_per_worker, timeout, make).run()


def _backend(address: str | None, workers: int) -> Callable[[], Backend]:
    """Makes the backend, once the first trial is asked for."""
    if address is None:
        return ProcessBackend if workers else LocalBackend
    from pac.rollout.ray import RayBackend

    return lambda: RayBackend(address, max(workers, 1))


class _Pool:
    def __init__(
        self,
        actor: ActorLike,
        jobs: Sequence[Job],
        setup: Setup,
        workers: int,
        envs_per_worker: int,
        timeout: float,
        backend: Callable[[], Backend],
    ) -> None:
        self.actor, self.jobs, self.setup, self.timeout, self.make_backend = actor, list(jobs), setup, timeout, backend
        num_groups = min(2, envs_per_worker) if workers else 1  # one is stepped while the policy thinks of the other
        workers = max(1, min(workers, len(self.jobs)))
        # Few jobs are spread over all groups rather than crowded into the first.
        room = min(math.ceil(envs_per_worker / num_groups), math.ceil(len(self.jobs) / (workers * num_groups)))
        self.shape = (workers, num_groups, room)
        self.ahead = 4 * workers * num_groups * room + 16  # trials kept while an earlier one is still played
        self.queue = list(range(len(self.jobs)))  # a heap: what is begun again comes first
        self.failures: dict[int, int] = defaultdict(int)
        self.redone: dict[int, int] = defaultdict(int)
        self.failed_starts = 0
        self.done: dict[int, EpisodeResult] = {}
        self.given = 0
        self.members: list[WorkerHandle] = []

    def run(self) -> Iterator[EpisodeResult]:
        if not self.jobs:
            return
        self.backend = self.make_backend()
        try:
            for _ in range(self.shape[0]):
                self.members.append(WorkerHandle(self.backend.start(self.setup), self._groups()))
            self._ask()
            while self.given < len(self.jobs):
                self._listen()
                ready = self._take()
                self._ask()
                yield from ready
            self._dismiss()
        finally:
            self.close()

    def _dismiss(self) -> None:
        """All is played and nobody is at work: workers may stay for another rollout."""
        if isinstance(self.backend, PersistentWorkers):
            self.backend.keep([member.link for member in self.members], self.setup)
            self.members = []

    def close(self) -> None:
        for member in self.members:
            member.link.stop()
        for member in self.members:
            member.link.close()
        self.members = []
        self.backend.close()

    def _groups(self) -> list[SlotGroup]:
        _, num_groups, room = self.shape
        return [SlotGroup(g, [EnvSlot(g * room + i) for i in range(room)]) for g in range(num_groups)]

    def _take(self) -> list[EpisodeResult]:
        """The trials whose turn has come."""
        ready = []
        while self.given in self.done:
            ready.append(self.done.pop(self.given))
            self.given += 1
        return ready

    def _ask(self) -> None:
        """Act for every group that waits for it, in one batch a policy, and fill free slots with new jobs."""
        idle = [(member, group) for member in self.members for group in member.groups if not group.waiting]
        actions = self._act([slot for _, group in idle for slot in group.slots if slot.task and slot.policy])
        for member, group in idle:
            if group not in member.groups:  # the worker was lost in this very loop
                continue
            starts = tuple(self._starts(group))
            if all(slot.position < 0 for slot in group.slots):
                continue
            moves = [actions[id(slot)] for slot in group.slots if id(slot) in actions]
            try:
                member.link.send(StepRequest(group.number, np.concatenate(moves) if moves else None, starts))
            except WorkerLostError as loss:
                self._replace(member, group, str(loss))
                continue
            if not member.asked:
                member.heard = time.monotonic()
            member.asked.append(group)
            group.waiting = True

    def _starts(self, group: SlotGroup) -> Iterator[Start]:
        for slot in group.slots:
            if slot.position >= 0 or not self.queue or self.queue[0] >= self.given + self.ahead:
                continue
            slot.position = heapq.heappop(self.queue)
            job = self.jobs[slot.position]
            slot.seed = envs.episode_seed(job.task, job.seed, job.index)
            actor = self.actor.pick(slot.seed) if isinstance(self.actor, ActorMix) else self.actor
            slot.policy = None if isinstance(actor, str) else actor
            name = actor if isinstance(actor, str) else actor.name
            yield Start(slot.number, job, slot.seed, name, slot.policy is None)

    def _act(self, slots: list[EnvSlot]) -> dict[int, np.ndarray]:
        """Every slot's action, by the slot's id."""
        actions = {}
        by_policy = defaultdict(list)
        for slot in slots:
            by_policy[id(slot.policy)].append(slot)
        for asking in by_policy.values():
            policy = asking[0].policy
            assert policy is not None
            queries = [slot.query() for slot in asking]
            replies = policy.act(queries)
            if len(replies) != len(queries):
                raise ValueError(f"Policy {policy.name}: expected {len(queries)} replies, found {len(replies)}.")
            for slot, query, reply in zip(asking, queries, replies, strict=True):
                actions[id(slot)] = checked(reply.action, query, policy.name)
                if reply.value is not None:
                    slot.values.append(reply.value)
                slot.step += 1
        return actions

    def _listen(self) -> None:
        """Wait for answers, and take all that are there; replace workers that died or hang."""
        asked = [member for member in self.members if member.asked]
        if not asked:
            return
        left = min(member.heard for member in asked) + self.timeout - time.monotonic()
        ready = self.backend.wait([member.link for member in asked], max(left, 0))
        for member in asked:
            if member.link in ready:
                self._hear(member)
            elif time.monotonic() - member.heard > self.timeout:
                self._replace(member, member.asked[0], f"gave no answer for {self.timeout:g} s")

    def _hear(self, member: WorkerHandle) -> None:
        try:
            answer = member.link.receive()
        except WorkerLostError as loss:
            self._replace(member, member.asked[0], str(loss))
            return
        member.heard, member.answered, self.failed_starts = time.monotonic(), True, 0
        if answer.failure is not None:
            raise answer.failure.error()
        group = member.asked.popleft()
        group.waiting = False
        self._note(group, answer)

    def _note(self, group: SlotGroup, answer: StepResponse) -> None:
        places = dict.fromkeys(answer.observations, 0)
        for slot in group.slots:
            if slot.number in answer.started:
                slot.task, slot.shapes = answer.started[slot.number]
            if slot.number in answer.finished:
                trial = answer.finished[slot.number]
                values = np.array(slot.values, np.float32) if slot.values else None
                redone = self.redone[slot.position]
                self.done[slot.position] = dataclasses.replace(trial, values=values, redone=redone)
                slot.free()
            elif slot.task and slot.policy:
                slot.observation = {}
                for name, shape in slot.shapes.items():
                    end = places[name] + math.prod(shape)
                    slot.observation[name] = answer.observations[name][places[name] : end].reshape(shape)
                    places[name] = end

    def _replace(self, member: WorkerHandle, group: SlotGroup, reason: str) -> None:
        """Put another worker in the place of one that is lost, and its episodes back in the queue."""
        at = member.link.slot()
        slots = [slot for any_group in member.groups for slot in any_group.slots if slot.position >= 0]
        suspects = [slot for slot in slots if (slot in group.slots if at is None else slot.number == at)]
        lost = ", ".join(str(self.jobs[slot.position]) for slot in suspects)
        self.failed_starts += not member.answered
        place = f"in {lost}" if lost else "between two turns"
        log.warning("A worker %s %s. Replaced it, and began %d episodes again.", reason, place, len(slots))
        for slot in suspects:
            self.failures[slot.position] += 1
        for slot in slots:
            self.redone[slot.position] += 1
            heapq.heappush(self.queue, slot.position)
        if (worst := max((self.failures[slot.position] for slot in suspects), default=0)) >= MAX_FAILURES:
            raise RolloutError(
                f"{worst} workers were lost in the same place: {lost}. The last one {reason}. Play that "
                "episode alone with workers=0 to see why; too little memory is a common cause."
            )
        if self.failed_starts >= MAX_FAILURES:
            raise RolloutError(
                f"{self.failed_starts} workers in a row were lost before they answered; the last {reason}. "
                "What they wrote "
                "to stderr may say why; on Ray, every worker needs a free CPU of the cluster."
            )
        member.link.close()
        member.link, member.groups, member.answered = self.backend.start(self.setup), self._groups(), False
        member.asked.clear()


def _check(
    actors: Sequence[str | PolicyProtocol],
    jobs: Sequence[Job],
    setup: Setup,
    workers: int,
    envs_per_worker: int | None,
    timeout: float,
) -> None:
    """Find what cannot work before a worker is started."""
    for name, value, low, high in (
        ("workers", workers, 0, 1024),
        ("envs_per_worker", envs_per_worker, 1, MAX_ENVS),
        ("max_steps", setup.max_steps, 1, math.inf),
        ("timeout", timeout, 1e-3, math.inf),
    ):
        if value is not None and not low <= value <= high:
            raise ValueError(f"rollout: expected {name} within [{low}, {high}], found {value}.")
    for actor in actors:
        if isinstance(actor, str):
            behaviours.make(actor)
    for task in dict.fromkeys(job.task for job in jobs):
        if not task.startswith("gym/"):  # to ask one of these is to load it: its worker does
            envs.spec(task, cameras=setup.cameras)
