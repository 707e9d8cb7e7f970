"""Persistent workers: the same processes in several rollouts, and the same episodes as from fresh workers."""

import os
import signal
import time

import pytest
from rollout.actors import Swaying, assert_same
from rollout.environments import POINT
from rollout.processes import alive

from pac.rollout import Job, PersistentWorkers, make_jobs, rollout
from pac.rollout.episodes import EpisodeSettings, EpisodeStart
from pac.rollout.worker import StepRequest, StepResponse, Worker

JOBS, MORE = make_jobs([POINT], 5), make_jobs([POINT], 7, seed=1)


def test_persistent_workers_give_the_same_episodes(pids: list[int]) -> None:
    expected = [list(rollout(Swaying(), JOBS, workers=0)), list(rollout("random", MORE, workers=0))]
    with PersistentWorkers() as workers:
        found = [
            list(rollout(Swaying(), JOBS, workers=2, persistent_workers=workers)),
            list(rollout("random", MORE, workers=2, persistent_workers=workers)),
        ]
        assert len(pids) == 2
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def test_closing_a_rollout_ends_its_workers(pids: list[int]) -> None:
    """They still run episodes that nobody needs."""
    with PersistentWorkers() as workers:
        results = rollout(Swaying(), MORE, workers=1, envs_per_worker=2, persistent_workers=workers)
        next(results)
        results.close()  # type: ignore[attr-defined]
        assert not alive(pids[0])
        found = list(rollout(Swaying(), JOBS, workers=1, persistent_workers=workers))
    assert len(pids) == 2
    assert_same(found, list(rollout(Swaying(), JOBS, workers=0)))


def test_other_settings_start_other_workers(pids: list[int]) -> None:
    with PersistentWorkers() as workers:
        list(rollout("random", JOBS, workers=1, persistent_workers=workers))
        short = list(rollout("random", JOBS, workers=1, max_steps=2, persistent_workers=workers))
        assert {result.length for result in short} == {2}
        assert not alive(pids[0])
        list(rollout("random", JOBS, workers=0, max_steps=2, persistent_workers=workers))
        assert not alive(pids[1])
    assert len(pids) == 2


def test_an_idle_worker_that_died_is_replaced(pids: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with PersistentWorkers() as workers:
        list(rollout(Swaying(), JOBS, workers=1, persistent_workers=workers))
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.1)
        found = list(rollout(Swaying(), MORE, workers=1, persistent_workers=workers))
    assert "SIGKILL" in caplog.text
    assert_same(found, list(rollout(Swaying(), MORE, workers=0)))


def test_environments_in_use_are_not_closed() -> None:
    """The first of many tasks is played again between the others."""
    names = ("pendulum.swingup", "cartpole.balance", "cartpole.swingup", "point_mass.easy", "reacher.easy")
    tasks = [f"control/{name}" for name in (*names, "finger.spin", "ball_in_cup.catch", "acrobot.swingup")]
    worker = Worker(EpisodeSettings(max_steps=1))

    def play(group: int, task: str, is_behaviour: bool = True) -> StepResponse:
        start = EpisodeStart(slot=group, job=Job(task, 0, 0), seed=0, actor="random", is_behaviour=is_behaviour)
        return worker.handle(StepRequest(group, None, (start,)))

    responses = [play(0, task) for task in tasks[:5]] + [play(1, tasks[0], is_behaviour=False)]
    responses += [play(0, task) for task in tasks[5:]]
    worker.close()
    assert [response.failure for response in responses] == [None] * len(responses)
