"""Workers in processes of their own: what they give, and what becomes of those that die, hang or fail."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rollout.actors import Swaying, assert_same
from rollout.environments import BROKEN, DEADLY, FAULTY, POINT, SLEEPY, SULKY
from rollout.processes import alive, session

from pac import envs
from pac.rollout import ActorMix, Job, RolloutError, make_jobs, rollout

TASKS = ["control/cartpole.swingup", "metaworld/reach", "control/walker.walk", POINT]


def misbehaving(task: str) -> list[int]:
    """Return which of the first episodes show the fault of the environment."""
    env = envs.make(task)
    starts = [env.reset(seed=envs.episode_seed(task, 0, i))[0]["observation.state"] for i in range(20)]
    return [i for i, state in enumerate(starts) if state[0] < FAULTY]


def test_the_number_of_workers_does_not_change_an_episode(pids: list[int]) -> None:
    jobs = [job for i in range(3) for job in make_jobs(TASKS, 3)[i::3]]
    actor = ActorMix((Swaying(), "random"))
    expected = list(rollout(actor, jobs, workers=0, envs_per_worker=1, max_steps=30))
    assert {result.actor for result in expected} == {"swaying", "random"}
    for workers, size in ((1, 5), (2, 2), (4, 3)):
        assert_same(list(rollout(actor, jobs, workers=workers, envs_per_worker=size, max_steps=30)), expected)
    assert len(pids) == 7
    assert not any(map(alive, pids))


def test_dead_workers_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAULT_NOTES", str(tmp_path))
    sulky = misbehaving(SULKY)[1]
    jobs = make_jobs([SULKY], sulky + 1)  # two of which kill their worker, once
    results = list(rollout(Swaying(), jobs, workers=2, envs_per_worker=3))
    assert sum(result.restarts for result in results) >= len(list(tmp_path.iterdir())) == 2
    assert "was killed (SIGKILL) in gym/rollout.environments:Sulky-v0, seed 0, episode" in caplog.text
    assert_same(results, list(rollout(Swaying(), jobs, workers=0)))  # each fault happened already, so no worker dies


def test_an_episode_that_kills_three_workers_is_named(pids: list[int]) -> None:
    deadly = misbehaving(DEADLY)[0]
    jobs = [*make_jobs([POINT], 3), Job(DEADLY, 0, deadly)]
    with pytest.raises(RolloutError, match=rf"3 workers were lost.*Deadly-v0, seed 0, episode {deadly}\. .*SIGKILL"):
        list(rollout(Swaying(), jobs, workers=1, envs_per_worker=4))
    assert len(pids) == 3
    assert not any(map(alive, pids))


def test_a_hanging_worker_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pids: list[int]
) -> None:
    monkeypatch.setenv("FAULT_NOTES", str(tmp_path))
    sleepy = misbehaving(SLEEPY)[0]
    jobs = [Job(SLEEPY, 0, i) for i in (sleepy, next(i for i in range(20) if i not in misbehaving(SLEEPY)))]
    results = list(rollout("random", jobs, workers=1, timeout=8.0))
    assert "gave no answer for 8 s" in caplog.text
    assert len(pids) == 2
    assert_same(results, list(rollout("random", jobs, workers=0)))
    assert not any(map(alive, pids))


def test_an_error_in_a_worker_is_raised_and_ends_all_workers(pids: list[int]) -> None:
    with pytest.raises(LookupError, match=r"the gripper fell off.*Broken-v0, seed 0, episode 2, step 2") as caught:
        list(rollout("random", [Job(POINT, 0, 0), Job(POINT, 0, 1), Job(BROKEN, 0, 2)], workers=2))
    assert "misbehave" in caught.value.__notes__[0]
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_closing_ends_the_workers(pids: list[int]) -> None:
    results = rollout("random", make_jobs([POINT], 200), workers=1)
    assert next(results).index == 0
    assert all(map(alive, pids))
    results.close()  # type: ignore[attr-defined]
    assert len(pids) == 1
    assert not any(map(alive, pids))


@pytest.mark.usefixtures("gl")
def test_images_from_a_worker_are_the_same() -> None:
    jobs, options = make_jobs(["control/cartpole.swingup"], 2), {"cameras": ["fixed"], "max_steps": 4}
    here = list(rollout(Swaying(), jobs, workers=0, **options))
    assert here[0].episode.observation["observation.images.fixed"].shape == (5, 80, 80, 3)
    assert_same(list(rollout(Swaying(), jobs, workers=1, **options)), here)


def test_workers_end_when_their_parent_is_killed() -> None:
    play = f"for result in rollout('random', make_jobs([{POINT!r}], 10**6)): print(result.index, flush=True)"
    code = f"from pac.rollout import make_jobs, rollout\n{play}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0\n"
    assert len(session(parent.pid)) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while session(parent.pid):
        time.sleep(0.05)
