"""`evaluate`: plays the episodes that are missing, records each at once, and summarises all of them.

`pac evaluate`, the trainer, `pac improve`, `pac study` and `pac demo` call it.
"""

import functools
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from pac.envs import spec as task_spec
from pac.evaluation.experts import Expert
from pac.evaluation.experts import load as load_experts
from pac.evaluation.plan import Actor, make_actors, versions
from pac.evaluation.records import EpisodeRecord, Journal, Key, record
from pac.evaluation.result import Evaluation, make_result
from pac.policy import Policy
from pac.rollout import ActorLike, ActorMix, EpisodeResult, Job, PersistentWorkers, PolicyProtocol, make_jobs, rollout

ProgressCallback = Callable[[str, int, int], None]  # label of the actor, its finished episodes, all its episodes


class EvaluationInterruptedError(KeyboardInterrupt):
    """Ctrl-C during an evaluation. `evaluation` holds the episodes until then."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.evaluation = evaluation


def evaluate(
    actors: Sequence[Actor] | Mapping[str, str | Path | PolicyProtocol],
    tasks: Sequence[str],
    episodes: int,
    *,
    seed: int = 0,
    max_steps: int | None = None,
    stop_at_success: bool = False,
    cameras: Sequence[str] = (),
    any_instruction: bool = False,
    workers: int = 1,
    envs_per_worker: int | None = None,
    ray: str | None = None,
    persistent_workers: PersistentWorkers | None = None,
    experts: Mapping[str, Expert] | None = None,
    bootstrap: bool = False,
    journal: Path | None = None,
    known: Iterable[EpisodeRecord] = (),
    command: str = "",
    progress: ProgressCallback | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Play `episodes` episodes per task with every actor, from the same initial states, and return what they show.

    Task, `seed` and index alone decide how an episode begins and which random numbers it uses. The number of workers
    changes nothing. A mapping gives labels to behaviours, folders of checkpoints, or loaded policies; an `Actor` has
    more options. Without `cameras` each task renders those that the policy uses there. `any_instruction` lets a policy
    act on an instruction that was not in its training. `experts` has the returns that count as 100% (default: the table
    that ships with PAC).

    With `journal` each finished episode is on disk at once. The same call continues after a kill, a larger `episodes`
    adds to the file, and the whole document replaces the journal at the end. Episodes in `known` are not played again.
    `command` is copied into the document. `progress` is called for each actor at its start and after every episode.
    When `should_stop` returns True no further episode is awaited and the result is marked as not finished. Ctrl-C
    raises `EvaluationInterruptedError`, a KeyboardInterrupt that holds the result until then.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected 1 or more per task, found {episodes}.")
    chosen = make_actors(actors) if isinstance(actors, Mapping) else list(actors)
    jobs = make_jobs(tasks, episodes, seed)
    order = [_key(actor, job) for actor in chosen for job in jobs]
    limits: dict[str, Any] = {"max_steps": max_steps, "stop_at_success": stop_at_success, "cameras": tuple(cameras)}
    machine: dict[str, Any] = {"workers": workers, "envs_per_worker": envs_per_worker, "ray": ray}
    machine |= {"persistent_workers": persistent_workers, "any_instruction": any_instruction}
    described = {actor.label: actor.describe() for actor in chosen}
    settings = {"seed": seed, "tasks": list(tasks), "actors": described, **limits, "versions": versions()}
    settings |= {"any_instruction": True} if any_instruction else {}  # files of earlier versions have no such entry
    with Journal(journal, settings) as kept:
        _check_nothing_is_lost(kept, order, episodes)
        new = set(order) - kept.records.keys()
        for entry in known:
            if entry.key in new:
                kept.append(entry)

        def result() -> Evaluation:
            records = [kept.records[key] for key in order if key in kept.records]
            return make_result(
                records,
                kept.settings,
                episodes=episodes,
                experts=load_experts() if experts is None else experts,
                bootstrap=bootstrap,
                notes=[note for actor in chosen for note in actor.notes()],
                command=command,
                finished=len(records) == len(order),
            )

        try:
            for actor in chosen:
                if not _play(actor, jobs, kept, limits | machine, progress, should_stop):
                    break
        except KeyboardInterrupt as error:
            raise EvaluationInterruptedError(result()) from error
        found = result()
        if found.finished:
            kept.finish(found.document)
        return found


def _play(
    actor: Actor,
    jobs: Sequence[Job],
    journal: Journal,
    options: Mapping[str, Any],
    progress: ProgressCallback | None,
    should_stop: Callable[[], bool] | None,
) -> bool:
    """Play what the journal does not have of one actor. Return False if `should_stop` ended it."""
    missing = [job for job in jobs if _key(actor, job) not in journal.records]
    done = len(jobs) - len(missing)
    if progress is not None:
        progress(actor.label, done, len(jobs))
    with closing(play_episodes(actor, missing, **options)) as results:
        for number, (result, discount) in enumerate(results, start=done + 1):
            journal.append(record(result, actor.label, discount))
            if progress is not None:
                progress(actor.label, number, len(jobs))
            if should_stop is not None and should_stop():
                return False
    return True


def play_episodes(
    actor: Actor,
    jobs: Sequence[Job],
    *,
    cameras: Sequence[str] = (),
    any_instruction: bool = False,
    max_steps: int | None = None,
    **options: Any,
) -> Generator[tuple[EpisodeResult, float | None], None, None]:
    """Yield each finished episode of one actor, and the discount of its critic there. Closing it ends the workers."""
    if not jobs:
        return
    policy = actor.load()
    discount_at = policy.metadata.discount_at if isinstance(policy, Policy) else lambda spec: None
    rendered = cameras or cameras_of(policy, {job.task for job in jobs}, max_steps, any_instruction)
    limits: dict[str, Any] = {"cameras": rendered, "max_steps": max_steps, "any_instruction": any_instruction}
    results = rollout(policy, jobs, **limits, **options)
    with closing(cast(Generator[EpisodeResult, None, None], results)) as running:
        for result in running:
            yield result, discount_at(result.spec)


def cameras_of(
    actor: ActorLike, tasks: Collection[str], max_steps: int | None, any_instruction: bool = False
) -> dict[str, tuple[str, ...]]:
    """Return the cameras that an actor needs at each task."""
    if isinstance(actor, ActorMix):
        each = [cameras_of(one, tasks, max_steps, any_instruction) for one in actor.actors]
        return {task: tuple(dict.fromkeys(name for found in each for name in found[task])) for task in tasks}
    if not isinstance(actor, Policy):
        return dict.fromkeys(tasks, tuple(getattr(actor, "cameras", ())))
    if len({one.cameras for one in actor.metadata.embodiments}) == 1:
        return dict.fromkeys(tasks, actor.metadata.embodiments[0].cameras)
    choose = functools.partial(actor.metadata.embodiment, any_instruction=any_instruction)
    return {task: choose(task_spec(task, max_steps=max_steps)).cameras for task in tasks}


def _key(actor: Actor, job: Job) -> Key:
    return actor.label, job.task, job.seed, job.index


def _check_nothing_is_lost(journal: Journal, order: Sequence[Key], episodes: int) -> None:
    """Raise if the file holds episodes that are not asked for: it would be replaced by one that holds less."""
    if extra := journal.records.keys() - set(order):
        raise ValueError(
            f"{journal.path} holds {len(extra):,} episodes that are not asked for. Expected --episodes "
            f"{1 + max(key[3] for key in extra)} or more, found {episodes}. Or name another file."
        )
