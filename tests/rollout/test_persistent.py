"""Workers that stay between rollouts: the same processes, the same trials as from fresh ones."""

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


def test_the_same_processes_give_the_same_trials(pids: list[int]) -> None:
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


def test_a_rollout_that_was_broken_off_leaves_no_workers(pids: list[int]) -> None:
    """They are in the midst of episodes that nobody asks for any more."""
    with PersistentWorkers() as workers:
        trials = rollout(Swaying(), MORE, workers=1, envs_per_worker=2, persistent_workers=workers)
        next(trials)
        trials.close()  # type: ignore[attr-defined]
        assert not alive(pids[0])
        found = list(rollout(Swaying(), JOBS, workers=1, persistent_workers=workers))
    assert len(pids) == 2
    assert_same(found, list(rollout(Swaying(), JOBS, workers=0)))


def test_another_set_up_gets_other_workers(pids: list[int]) -> None:
    with PersistentWorkers() as workers:
        list(rollout("random", JOBS, workers=1, persistent_workers=workers))
        short = list(rollout("random", JOBS, workers=1, max_steps=2, persistent_workers=workers))
        assert {trial.length for trial in short} == {2}
        assert not alive(pids[0])
        list(rollout("random", JOBS, workers=0, max_steps=2, persistent_workers=workers))
        assert not alive(pids[1])
    assert len(pids) == 2


def test_a_worker_that_died_in_between_is_replaced(pids: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with PersistentWorkers() as workers:
        list(rollout(Swaying(), JOBS, workers=1, persistent_workers=workers))
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.1)
        found = list(rollout(Swaying(), MORE, workers=1, persistent_workers=workers))
    assert "SIGKILL" in caplog.text
    assert_same(found, list(rollout(Swaying(), MORE, workers=0)))


def test_an_environment_in_use_is_not_what_makes_room_for_others() -> None:
    """Of many tasks, the first is played again while others come and go."""
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
