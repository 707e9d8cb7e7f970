"""Baselines learn from the transitions in our store, and play the evaluation episodes that PAC plays."""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
import torch
from peers import Job, Peer, read_transitions

from pac import cli
from pac.data.statistics import normalise_action
from pac.data.store import STATE, Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.evaluation import read_evaluation as read
from pac.evaluation.records import state_id
from pac.rollout import make_jobs, rollout
from pac.types import Episode, Query, TaskSpec

LOW, HIGH = (-2.0, 5.0, 1.0), (6.0, 7.0, 1.0)  # off centre; the last can be nothing but 1
TASK = TaskSpec(
    name="gym/Some-v0",
    instruction="",
    state_dim=2,
    action_low=LOW,
    action_high=HIGH,
    max_steps=10,
    has_success=False,
)


@pytest.fixture
def d3rlpy() -> Any:
    return pytest.importorskip("d3rlpy", reason="the peers' library is not installed")


def make_episode(first: float, length: int, *, terminated: bool, last: bool = True) -> Episode:
    """Observations count on from `first`, so that what follows what can be seen."""
    state = first + np.arange(length + last, dtype=np.float32)
    action = np.tile(np.array([3.0, 6.5, 1.0], np.float32), (length, 1))
    success = np.zeros(length, np.float32)
    success[-1] = terminated
    return Episode(
        observation={STATE: np.stack([state, -state], 1)},
        action=action,
        reward=np.full(length, 0.5, np.float32),
        terminated=terminated,
        truncated=not terminated,
        extra_rewards={"success": success},
    )


EPISODES = (
    make_episode(100, 4, terminated=True),
    make_episode(200, 3, terminated=False),
    make_episode(300, 5, terminated=False, last=False),
    make_episode(400, 2, terminated=True, last=False),
)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    with DatasetWriter(tmp_path / "data", DatasetSpec.of(EPISODES[0], action_low=LOW, action_high=HIGH)) as writer:
        for episode in EPISODES:
            writer.append(episode)
    return Dataset(tmp_path / "data")


def make_job(method: str = "bc", **changes: Any) -> Job:
    job = Job(
        method=method,
        setting={},
        data="",
        version="",
        task="gym/Some-v0",
        reward="success",
        seed=0,
        steps=10,
        episodes=3,
        max_steps=None,
        stop_at_success=False,
    )
    return dataclasses.replace(job, **changes)


def make_queries(count: int) -> list[Query]:
    states = np.random.default_rng(0).normal(250, 100, (count, 2)).astype(np.float32)
    return [Query(task=TASK, observation={STATE: state}, seed=i, step=3) for i, state in enumerate(states)]


def test_a_time_limit_is_no_terminal_state_and_loses_no_observation(dataset: Dataset) -> None:
    found = read_transitions(dataset, "success")
    first = [100, 101, 102, 103, 200, 201, 202, 300, 301, 302, 303, 400, 401]  # where 304 led to is not known
    np.testing.assert_array_equal(found.observation[:, 0], first)
    np.testing.assert_array_equal(found.terminal, [step in (103, 401) for step in first])
    goes_on = ~found.terminal
    np.testing.assert_array_equal(found.next_observation[goes_on, 0], np.array(first)[goes_on] + 1)
    np.testing.assert_array_equal(found.reward, found.terminal)  # relabelled: 1 at success
    np.testing.assert_array_equal(read_transitions(dataset, None).reward, np.full(13, 0.5))


def test_batches_are_the_librarys_own(d3rlpy: Any, dataset: Dataset) -> None:
    """A row with no meaning after a time limit keeps the library from losing its last transition."""
    made = []
    for stored in (dataset.episode(i) for i in range(len(dataset))):
        padded = len(stored.observation[STATE]) - len(stored.action) if stored.truncated else 0
        actions = np.pad(stored.action, ((0, padded), (0, 0)))
        rewards = np.pad(stored.extra_rewards["success"], (0, padded))[:, None]
        observations = stored.observation[STATE][: len(actions)]
        made.append(d3rlpy.dataset.Episode(observations, actions, rewards, stored.terminated))
    pick = d3rlpy.dataset.BasicTransitionPicker()
    theirs = d3rlpy.dataset.TransitionMiniBatch.from_transitions(
        [pick(episode, i) for episode in made for i in range(episode.transition_count)]
    )
    data = read_transitions(dataset, "success")
    ours = data.batch(np.arange(len(data)))
    for name in ("observations", "actions", "rewards", "next_observations", "terminals", "intervals"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), strict=True, err_msg=name)


def test_actions_go_to_the_unit_box_and_back(d3rlpy: Any, dataset: Dataset) -> None:
    scaler = peers.make(make_job(), dataset, "cpu").config.action_scaler
    raw = np.random.default_rng(0).uniform(LOW, HIGH, (50, 3)).astype(np.float32)
    unit = scaler.transform(torch.from_numpy(raw))
    expected = normalise_action(raw, dataset.action_low, dataset.action_high)
    np.testing.assert_allclose(unit[:, :2], expected[:, :2], atol=1e-6)
    np.testing.assert_allclose(scaler.reverse_transform(unit), raw, atol=1e-5)


def test_a_clone_acts_as_the_data(d3rlpy: Any, dataset: Dataset) -> None:
    """Scaling of states and actions, in training and in acting, and the order of the numbers."""
    job = make_job(steps=400, setting={"learning_rate": 1e-3})
    algorithm, curve = peers.train(job, dataset, "cpu")
    query = dataclasses.replace(make_queries(1)[0], observation={STATE: np.array([202, -202], np.float32)})
    np.testing.assert_allclose(Peer(algorithm, "clone").act([query])[0].action, [3, 6.5, 1], atol=0.15)
    assert curve[-1]["step"] == 400


@pytest.mark.parametrize(
    ("rewards", "expected"), [("as they are", [0, 1]), ("minus one", [-1, 0]), ("by return", [0, 1000])]
)
def test_rewards_are_scaled(d3rlpy: Any, dataset: Dataset, rewards: str, expected: list[float]) -> None:
    config = peers.make(make_job("iql", setting={"rewards": rewards}), dataset, "cpu").config
    given = torch.tensor([0.0, 1.0])
    found = given if config.reward_scaler is None else config.reward_scaler.transform(given)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("method", ["bc", "td3+bc", "iql", "cql"])
def test_a_reply_depends_on_its_own_query_alone(d3rlpy: Any, dataset: Dataset, method: str) -> None:
    algorithm, queries = peers.make(make_job(method), dataset, "cpu"), make_queries(70)  # more than one batch
    for sampled in (False, True) if method in peers.STOCHASTIC else (False,):
        peer = Peer(algorithm, "peer", sampled=sampled)
        together = np.stack([reply.action for reply in peer.act(queries)])
        for i in (0, 5, 69):
            np.testing.assert_array_equal(peer.act([queries[i]])[0].action, together[i], strict=True)
        later = peer.act([dataclasses.replace(query, step=4) for query in queries])
        same = np.array_equal(np.stack([reply.action for reply in later]), together)
        assert same != sampled
        assert (together >= LOW).all()
        assert (together <= HIGH).all()


@pytest.mark.parametrize("method", peers.STOCHASTIC)
def test_samples_are_distributed_as_the_librarys(d3rlpy: Any, dataset: Dataset, method: str) -> None:
    algorithm, query = peers.make(make_job(method), dataset, "cpu"), make_queries(1)[0]
    dict(algorithm.impl.policy.named_parameters())["_mu.bias"].data.fill_(2.0)  # where tanh bends
    queries = [dataclasses.replace(query, seed=seed) for seed in range(2000)]
    ours = np.stack([reply.action for reply in Peer(algorithm, "peer", sampled=True).act(queries)])
    theirs = algorithm.sample_action(np.tile(query.observation[STATE], (2000, 1)))
    quantiles = [0.1, 0.25, 0.5, 0.75, 0.9]
    spread = np.subtract(HIGH, LOW)[:2]
    difference = np.quantile(ours[:, :2], quantiles, axis=0) - np.quantile(theirs[:, :2], quantiles, axis=0)
    assert np.abs(difference / spread).max() < 0.07


@pytest.fixture
def pendulum(tmp_path: Path) -> Path:
    options = ["--episodes", "3", "--max-steps", "20", "--workers", "1", "--out", str(tmp_path / "pendulum")]
    assert cli.main(["collect", "gym/Pendulum-v1", "--behaviour", "random", *options]) == 0
    return tmp_path / "pendulum"


@pytest.mark.slow
def test_episodes_are_those_of_pac_and_a_stopped_command_continues(
    d3rlpy: Any, pendulum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, out = tmp_path / "grid.json", tmp_path / "peers.json"
    same = [str(pendulum), "--methods", "bc", "--steps", "5", "--episodes", "3", "--processes", "1"]
    assert peers.main([*same, "--grid", "--out", str(grid)]) == 0
    assert json.loads(grid.read_text())["chosen"].keys() == {"bc"}
    command = [*same, "--seeds", "1", "2", "--chosen", str(grid), "--out", str(out)]
    assert peers.main(command) == 0
    settings, records = read(out)
    assert list(settings["actors"]) == ["BC, seed 1", "BC, seed 2"]
    random = rollout("random", make_jobs(["gym/Pendulum-v1"], 3, seed=10_000), workers=0, max_steps=20)
    starts = {result.index: state_id(result.episode) for result in random}
    assert len(records) == 6
    assert all(entry.state == starts[entry.index] and entry.length == 20 for entry in records)
    assert {run["seed"]: run["setting"] for run in json.loads(out.read_text())["runs"]}.keys() == {1, 2}

    journal = tmp_path / "peers.json.runs.jsonl"
    first, second = journal.read_text().splitlines()
    journal.write_text(first + "\n" + second[:100])  # killed while writing
    assert peers.main(command) == 0
    assert journal.read_text().splitlines()[0] == first
    assert read(out)[1] == records
    monkeypatch.setattr(peers, "perform", None)  # nothing is left to do
    assert peers.main(command) == 0
    with pytest.raises(ValueError, match="was chosen with seed 0"):
        peers.main([*same, "--seeds", "0", "--chosen", str(grid), "--out", str(out)])
    with pytest.raises(ValueError, match="chose for iql, found none"):
        peers.main([*same[:1], "--methods", "bc", "iql", "--chosen", str(grid), "--out", str(out)])


def asked(data: Path, *more: str) -> list[str]:
    return [str(data), "--methods", "bc", "--device", "cpu", "--processes", "1", *more]


@pytest.mark.slow
def test_episodes_can_have_other_limits_than_the_data_and_a_dead_process_ends_no_other_run(
    d3rlpy: Any, pendulum: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.json"
    rules = ["--episodes", "2", "--max-steps", "7", "--stop-at-success", "--evaluation-seed", "3"]
    assert peers.main(asked(pendulum, *rules, "--steps", "9", "bc=4", "--seeds", "1", "--out", str(out))) == 0
    settings, records = read(out)
    assert (settings["seed"], settings["max_steps"], settings["stop_at_success"]) == (3, 7, True)
    random = rollout("random", make_jobs(["gym/Pendulum-v1"], 2, seed=3), workers=0, max_steps=7)
    assert {entry.index: entry.state for entry in records} == {t.index: state_id(t.episode) for t in random}
    (run,) = json.loads(out.read_text())["runs"]
    assert (run["steps"], run["reward"]) == (4, "world")  # rewards go by the data

    good = make_job(data=str(pendulum), task="gym/Pendulum-v1", reward="world", max_steps=7, episodes=1)
    bad = dataclasses.replace(good, setting={"learning_rate": "none"})
    dead = Deadly(**dataclasses.asdict(good))
    found = list(peers.results([(bad, "BC"), (dead, "BC"), (good, "BC")], 1, "cpu", False))
    assert [job for job, _ in found] == [bad, dead, good]
    assert isinstance(found[0][1], str)
    assert "died (exit code 7)" in str(found[1][1])
    assert isinstance(found[2][1], dict)


class Deadly(Job):
    """Ends the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


@pytest.mark.slow
def test_a_signal_keeps_what_is_done(d3rlpy: Any, pendulum: Path, tmp_path: Path) -> None:
    """The second run would take hours."""
    out, journal = tmp_path / "peers.json", tmp_path / "peers.json.runs.jsonl"
    command = [sys.executable, peers.__file__, *asked(pendulum, "--episodes", "1", "--seeds", "1", "--out", str(out))]
    command[command.index("bc")] = "iql"
    both = [*command, "--methods", "iql", "bc", "--steps", "3", "bc=100000000"]
    with subprocess.Popen(both, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (journal.exists() and journal.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Stopped." in said
    assert {run["method"] for run in json.loads(out.read_text())["runs"]} == {"iql"}


def test_the_grid_of_dense_rewards_has_several_discounts() -> None:
    for method in ("td3+bc", "iql", "cql"):
        found = peers.settings_of(method, "world")
        assert {setting["gamma"] for setting in found} == {0.99, 0.95}
        assert found[0]["gamma"] == 0.99  # the published
        assert {setting["gamma"] for setting in peers.settings_of(method, "world", [0.9])} == {0.9}
    with pytest.raises(argparse.ArgumentTypeError, match="expected N or METHOD=N"):
        peers.updates("sac=3")


def test_the_best_setting_over_all_tasks_is_chosen() -> None:
    def run(setting: float, task: str, returns: float, actor: str = "IQL, seed 0") -> dict[str, Any]:
        entry = {"actor": actor, "task": task, "seed": 0, "index": 0, "state": "", "length": 1}
        return {
            "job": {"method": "iql", "setting": {"expectile": setting}},
            "episodes": [entry | {"return": float(returns), "success": None}],
        }

    runs = [run(0.7, "a", 3), run(0.9, "a", 9), run(0.7, "b", 7), run(0.9, "b", 1)]
    assert peers.choose(runs) == {"iql": {"expectile": 0.7}}  # of equals the first
    assert peers.choose([*runs, run(0.9, "c", 6), run(0.7, "c", 4)]) == {"iql": {"expectile": 0.9}}
    assert peers.choose(runs[:3]) == {"iql": {"expectile": 0.7}}  # 0.9 has only the easy task
    unseen = run(0.7, "c", 100)
    unseen["episodes"].append(unseen["episodes"][0] | {"actor": "IQL, sampled, seed 0", "return": -1e6})
    assert peers.choose([*runs, unseen]) == {"iql": {"expectile": 0.7}}  # samples do not count


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "d3rlpy", None)
    with pytest.raises(ValueError, match="pip install --no-deps d3rlpy"):
        peers.library()


def test_data_of_unknown_rules_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="expected a dataset of `pac collect`"):
        peers.rules_of(dataset.path)
