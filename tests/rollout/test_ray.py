"""The same rollouts on a Ray cluster."""

import importlib.util
import sys
from pathlib import Path

import pytest
from rollout.actors import Swaying, assert_same
from rollout.environments import POINT, SULKY

from pac.rollout import ActorMix, PersistentWorkers, make_jobs, rollout


def test_a_missing_extra_names_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pip install 'perceiver-actor-critic\[ray\]'"):
        next(rollout("random", make_jobs([POINT], 1), ray="local"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
@pytest.mark.filterwarnings("ignore")  # Ray leaves sockets and processes to the interpreter's end
def test_a_cluster_of_two_workers_gives_the_same_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_NOTES", str(tmp_path))
    jobs = make_jobs(["metaworld/reach", "control/cartpole.swingup"], 4) + make_jobs([SULKY], 6)
    actor = ActorMix((Swaying(), "random"))
    found = list(rollout(actor, jobs, workers=2, envs_per_worker=4, max_steps=25, ray="local"))
    assert len(list(tmp_path.iterdir())) > 0  # of actors that were killed
    assert max(result.restarts for result in found) > 0
    assert_same(found, list(rollout(actor, jobs, workers=0, max_steps=25)))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
@pytest.mark.filterwarnings("ignore")
def test_persistent_workers_keep_its_cluster() -> None:
    import ray

    jobs = make_jobs([POINT], 6)
    with PersistentWorkers() as workers:
        for actor in (Swaying(), "random"):
            found = list(rollout(actor, jobs, workers=2, ray="local", persistent_workers=workers))
            assert ray.is_initialized()
            assert_same(found, list(rollout(actor, jobs, workers=0)))
            assert len(workers._idle) == 2
    assert not ray.is_initialized()
