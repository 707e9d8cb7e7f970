"""`rollout`: hands jobs to workers, acts for all of them with one batched policy, and yields results in job order.

No episode depends on where or when it runs, because its job decides its initial state and its random draws. So an
episode whose worker was lost starts again in another worker.
"""

import dataclasses
import heapq
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pac import behaviours, envs
from pac.envs.rendering import find_gl
from pac.files import problem
from pac.rollout.episodes import ActorLike, ActorMix, EpisodeResult, EpisodeSettings, EpisodeStart, Job, PolicyProtocol
from pac.rollout.links import Link, PersistentWorkers, WorkerLostError, close_all
from pac.rollout.worker import StepRequest, StepResponse
from pac.types import Query, TaskSpec

MAX_FAILURES = 3  # lost workers in the same episode
MAX_ENVS = 256  # per worker: the actions of all must fit a socket's buffer
log = logging.getLogger("pac.rollout")


class RolloutError(ValueError):
    """An error after repeated losses of workers."""


def rollout(
    actor: ActorLike,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    envs_per_worker: int | None = None,
    cameras: Sequence[str] | Mapping[str, Sequence[str]] = (),
    max_steps: int | None = None,
    stop_at_success: bool = False,
    any_instruction: bool = False,
    timeout: float = 120.0,
    ray: str | None = None,
    persistent_workers: PersistentWorkers | None = None,
) -> Iterator[EpisodeResult]:
    """Play every job and yield its result, in the order of the jobs, for any number of workers and environments.

    `actor` is the spec of a behaviour, a policy, or a mix of them. `workers` is the number of processes; 0 plays in
    this process. Each worker has `envs_per_worker` environments (default: 16 for a policy, 2 for behaviours, which gain
    nothing from more). `cameras` holds for all tasks, or names those of each task. With `stop_at_success` an episode
    terminates at its first success. With `any_instruction` a policy does not refuse an instruction that was not in its
    training. A worker that dies, or sends nothing for `timeout` seconds, is replaced. Its episodes start again, a
    warning says so, and `EpisodeResult.restarts` counts it. With `ray` ("local" or the address of a cluster) the
    workers are Ray actors. Closing the iterator ends the workers. After a complete rollout `persistent_workers` keeps
    them for the next one.
    """
    settings = EpisodeSettings(max_steps=max_steps, stop_at_success=stop_at_success)
    tasks = list(dict.fromkeys(job.task for job in jobs))
    rendered = {task: tuple(cameras[task] if isinstance(cameras, Mapping) else cameras) for task in tasks}
    actors = actor.actors if isinstance(actor, ActorMix) else (actor,)
    for name, value, low, high in (
        ("workers", workers, 0, 1024),
        ("envs_per_worker", envs_per_worker, 1, MAX_ENVS),
        ("max_steps", max_steps, 1, math.inf),
        ("timeout", timeout, 1e-3, math.inf),
    ):
        if value is not None and not low <= value <= high:
            raise ValueError(f"rollout: expected {name} within [{low}, {high}], found {value}.")
    for one in actors:
        if isinstance(one, str):
            behaviours.make(one)
    static = {task: names for task, names in rendered.items() if not task.startswith("gym/")}
    for task, names in static.items():  # asking a Gymnasium id loads it, which is left to its worker
        envs.spec(task, cameras=names)
    if any(static.values()) and ray is None:
        find_gl()  # an error now rather than in a worker; workers inherit what was found
    if envs_per_worker is None:
        envs_per_worker = 2 if all(isinstance(one, str) for one in actors) else 16
    pool = _Pool(actor, list(jobs), settings, workers, envs_per_worker, timeout, rendered, any_instruction)
    return pool.play(ray, persistent_workers)


@dataclass(eq=False)
class ActiveEpisode:
    """An episode in a worker, as the pool sees it."""

    position: int  # of its job
    seed: int
    policy: PolicyProtocol | None  # None: a behaviour acts, in the worker
    task: TaskSpec | None = None  # None: not started yet
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    observation: dict[str, np.ndarray] = field(default_factory=dict)
    action: np.ndarray | None = None
    values: list[float] = field(default_factory=list)
    step: int = 0

    def query(self, any_instruction: bool) -> Query:
        assert self.task is not None
        return Query(
            task=self.task,
            observation=self.observation,
            seed=self.seed,
            step=self.step,
            any_instruction=any_instruction,
        )


@dataclass(eq=False)
class SlotGroup:
    """Slots of one worker that are stepped together, in ascending order, and the episode in each."""

    number: int
    slots: dict[int, ActiveEpisode | None]

    def episodes(self) -> list[ActiveEpisode]:
        return [episode for episode in self.slots.values() if episode is not None]

    def played(self) -> list[ActiveEpisode]:
        """Return the started episodes that a policy plays."""
        return [episode for episode in self.episodes() if episode.task and episode.policy]


@dataclass(eq=False)
class WorkerHandle:
    """One worker, as the pool sees it."""

    link: Link
    groups: list[SlotGroup]
    pending: deque[SlotGroup] = field(default_factory=deque)  # groups that were sent, in the order of the responses
    last_response: float = 0.0  # or the first request since
    has_responded: bool = False


class _Pool:
    def __init__(
        self,
        actor: ActorLike,
        jobs: list[Job],
        settings: EpisodeSettings,
        num_processes: int,
        envs_per_worker: int,
        timeout: float,
        cameras: Mapping[str, tuple[str, ...]],
        any_instruction: bool,
    ) -> None:
        self.actor, self.jobs, self.settings, self.timeout = actor, jobs, settings, timeout
        self.cameras, self.any_instruction = cameras, any_instruction
        self.num_processes, self.num_workers = num_processes, max(1, min(num_processes, len(jobs)))
        # Two groups: the worker steps one while the policy computes actions for the other.
        self.num_groups = min(2, envs_per_worker) if num_processes else 1
        # Few jobs are spread over all groups.
        jobs_per_group = math.ceil(len(jobs) / (self.num_workers * self.num_groups))
        self.group_size = min(math.ceil(envs_per_worker / self.num_groups), jobs_per_group)
        num_slots = self.num_workers * self.num_groups * self.group_size
        self.max_unordered = 4 * num_slots + 16  # results kept while an earlier episode still runs
        self.queue = list(range(len(jobs)))  # a heap: episodes that start again come first
        self.failures: dict[int, int] = defaultdict(int)
        self.restarts: dict[int, int] = defaultdict(int)
        self.failed_starts = 0
        self.finished: dict[int, EpisodeResult] = {}
        self.num_yielded = 0
        self.workers: list[WorkerHandle] = []

    def play(self, ray: str | None, persistent: PersistentWorkers | None) -> Iterator[EpisodeResult]:
        """Yield the results in order. Workers start at the first one. They end after the last one, unless kept."""
        if not self.jobs:
            return
        self.persistent_workers = PersistentWorkers() if persistent is None else persistent
        self.persistent_workers.connect(ray, self.num_processes)
        try:
            for _ in range(self.num_workers):
                self.workers.append(WorkerHandle(self.persistent_workers.start(self.settings), self._make_groups()))
            self._send_requests()
            while self.num_yielded < len(self.jobs):
                self._receive_responses()
                ready = self._take_ready()
                self._send_requests()
                yield from ready
            self.persistent_workers.keep([worker.link for worker in self.workers], self.settings)
            self.workers = []
        finally:
            close_all([worker.link for worker in self.workers])
            if persistent is None:
                self.persistent_workers.close()

    def _make_groups(self) -> list[SlotGroup]:
        size = self.group_size
        return [SlotGroup(g, dict.fromkeys(range(g * size, (g + 1) * size))) for g in range(self.num_groups)]

    def _take_ready(self) -> list[EpisodeResult]:
        """Return the finished episodes that are next in the order of the jobs."""
        ready = []
        while self.num_yielded in self.finished:
            ready.append(self.finished.pop(self.num_yielded))
            self.num_yielded += 1
        return ready

    def _send_requests(self) -> None:
        """Compute actions for every group that waits for them, one batch per policy. Fill free slots with jobs."""
        idle = [(worker, group) for worker in self.workers for group in worker.groups if group not in worker.pending]
        self._act([episode for _, group in idle for episode in group.played()])
        for worker, group in idle:
            if group not in worker.groups:  # the worker was replaced within this loop
                continue
            actions = [episode.action for episode in group.played() if episode.action is not None]
            starts = tuple(self._fill(group))
            if not group.episodes():
                continue
            try:
                worker.link.send(StepRequest(group.number, np.concatenate(actions) if actions else None, starts))
            except WorkerLostError as error:
                self._replace(worker, group, str(error))
                continue
            if not worker.pending:
                worker.last_response = time.monotonic()
            worker.pending.append(group)

    def _fill(self, group: SlotGroup) -> Iterator[EpisodeStart]:
        """Give the next jobs to the free slots of a group."""
        for number, episode in group.slots.items():
            if episode or not self.queue or self.queue[0] >= self.num_yielded + self.max_unordered:
                continue
            position = heapq.heappop(self.queue)
            job = self.jobs[position]
            seed = envs.episode_seed(job.task, job.seed, job.index)
            actor = self.actor.pick(seed) if isinstance(self.actor, ActorMix) else self.actor
            policy, name = (None, actor) if isinstance(actor, str) else (actor, actor.name)
            group.slots[number] = ActiveEpisode(position, seed, policy)
            cameras = self.cameras[job.task]
            yield EpisodeStart(
                slot=number, job=job, seed=seed, actor=name, is_behaviour=policy is None, cameras=cameras
            )

    def _act(self, episodes: list[ActiveEpisode]) -> None:
        """Compute the next action of each episode."""
        by_policy = defaultdict(list)
        for episode in episodes:
            by_policy[id(episode.policy)].append(episode)
        for batch in by_policy.values():
            policy = batch[0].policy
            assert policy is not None
            queries = [episode.query(self.any_instruction) for episode in batch]
            replies = policy.act(queries)
            if len(replies) != len(queries):
                raise ValueError(f"Policy {policy.name}: expected {len(queries)} replies, found {len(replies)}.")
            for episode, query, reply in zip(batch, queries, replies, strict=True):
                episode.action = _checked(reply.action, query, policy.name)
                if reply.value is not None:
                    episode.values.append(reply.value)
                episode.step += 1

    def _receive_responses(self) -> None:
        """Wait for responses and take all that are there. Replace workers that died or hang."""
        waiting = [worker for worker in self.workers if worker.pending]
        if not waiting:
            return
        deadline = min(worker.last_response for worker in waiting) + self.timeout
        ready = self.persistent_workers.wait([worker.link for worker in waiting], max(deadline - time.monotonic(), 0))
        for worker in waiting:
            if worker.link in ready:
                try:
                    self._accept(worker, worker.link.receive())
                except WorkerLostError as error:
                    self._replace(worker, worker.pending[0], str(error))
            elif time.monotonic() - worker.last_response > self.timeout:
                self._replace(worker, worker.pending[0], f"gave no answer for {self.timeout:g} s")

    def _accept(self, worker: WorkerHandle, response: StepResponse) -> None:
        """Take new observations and finished episodes from a response."""
        worker.last_response, worker.has_responded, self.failed_starts = time.monotonic(), True, 0
        if response.failure is not None:
            raise response.failure
        group = worker.pending.popleft()
        offsets = dict.fromkeys(response.observations, 0)
        for number, episode in group.slots.items():
            if episode is None:
                continue
            if number in response.started:
                episode.task, episode.shapes = response.started[number]
            if number in response.finished:
                values = np.array(episode.values, np.float32) if episode.values else None
                result, restarts = response.finished[number], self.restarts[episode.position]
                self.finished[episode.position] = dataclasses.replace(result, values=values, restarts=restarts)
                group.slots[number] = None
            elif episode.task and episode.policy:
                episode.observation = {}
                for name, shape in episode.shapes.items():
                    end = offsets[name] + math.prod(shape)
                    episode.observation[name] = response.observations[name][offsets[name] : end].reshape(shape)
                    offsets[name] = end

    def _replace(self, worker: WorkerHandle, group: SlotGroup, reason: str) -> None:
        """Replace a lost worker, and put its episodes back in the queue."""
        at_work = worker.link.slot()
        lost = [episode for each in worker.groups for episode in each.episodes()]
        suspects = group.episodes()
        if at_work is not None:
            found = [each.slots.get(at_work) for each in worker.groups]
            suspects = [episode for episode in found if episode is not None]
        names = ", ".join(str(self.jobs[episode.position]) for episode in suspects)
        self.failed_starts += not worker.has_responded
        where = f"in {names}" if names else "between two requests"
        log.warning("A worker %s %s. Replaced it. %d episodes start again.", reason, where, len(lost))
        for episode in suspects:
            self.failures[episode.position] += 1
        for episode in lost:
            self.restarts[episode.position] += 1
            heapq.heappush(self.queue, episode.position)
        if (worst := max((self.failures[episode.position] for episode in suspects), default=0)) >= MAX_FAILURES:
            raise RolloutError(
                f"{worst} workers were lost in the same episode: {names}. The last one {reason}. Play that episode "
                "alone with workers=0 to see why. A common cause is too little memory."
            )
        if self.failed_starts >= MAX_FAILURES:
            raise RolloutError(
                f"{self.failed_starts} workers in a row were lost before their first response. The last one {reason}. "
                "Read what they wrote to stderr. On Ray, every worker needs a free CPU of the cluster."
            )
        worker.link.close()
        worker.link, worker.groups, worker.has_responded = (
            self.persistent_workers.start(self.settings),
            self._make_groups(),
            False,
        )
        worker.pending.clear()


def _checked(action: np.ndarray, query: Query, name: str) -> np.ndarray:
    """Return the action as float32. Raise if it has another shape than the task's actions."""
    expected = (len(query.task.action_low),)
    if action.shape != expected:
        raise problem(
            f"Policy {name}, {query.task.name}, step {query.step}",
            expected=f"an action of shape {expected}",
            found=action.shape,
            fix="Reply with one raw number per action dimension.",
        )
    return action.astype(np.float32, copy=False)
