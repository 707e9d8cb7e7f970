"""Training of learners: transitions, critics, files, and the behaviour that reads them."""

import sys
from pathlib import Path

import learners
import numpy as np
import pytest
import torch
from learners import Agents, Shapes, Shared, forward, squash, start_from

from pac.behaviours.learner import act, learner_file, read_learner
from pac.cli import main
from pac.data.store import STATE, Dataset

TASKS = ["control/pendulum.swingup", "control/point_mass.easy"]  # 3 numbers and 1 action, 4 and 2
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "ROWS", 5000)


def test_transitions_stop_at_the_end_of_an_episode() -> None:
    shapes = Shapes.of(TASKS)
    agents = Agents(shapes, [0, 0], CPU)
    rewards = torch.tensor([1.0, 2.0, 4.0, 8.0, 0.0, 16.0, 32.0, 64.0, 128.0])  # row 4 is the last state of an episode
    agents.rows[1, :9, 3, -2] = rewards
    agents.rows[1, 4, 3, -1] = 1
    agents.rows[1, :9, 3, 0] = torch.arange(9.0)
    index, env = torch.tensor([[0] * 5, [0, 2, 3, 4, 5]]), torch.full((2, 5), 3)
    state, _, total, after, ahead, valid = (found[1, :, 0] for found in agents.follow(index, env))
    g = learners.DISCOUNT
    assert state.tolist() == [0, 2, 3, 4, 5]
    assert after.tolist()[:3] == [3, 4, 4]
    assert ahead.tolist()[:3] == [3, 2, 1]
    assert valid.tolist() == [1, 1, 1, 0, 1]
    expected = [1 + 2 * g + 4 * g**2, 4 + 8 * g, 8, None, 16 + 32 * g + 64 * g**2]
    for found, wanted in zip(total.tolist(), expected, strict=True):
        assert wanted is None or found == pytest.approx(wanted)


def test_the_shared_file_holds_the_trained_actor(tmp_path: Path) -> None:
    """Through the shared file, without the padding, in NumPy."""
    shapes = Shapes.of(TASKS)
    agents, shared = Agents(shapes, [0, 0], CPU), Shared(tmp_path, shapes)
    for parameter in agents.actor:
        parameter.data += torch.randn_like(parameter) * 0.1
    agents.write_actor(shared)
    states = torch.randn(2, 6, shapes.state) * 5
    states[0, :, 3:] = 0  # padding
    wanted = torch.tanh(forward(agents.actor, squash(states))).detach().numpy()
    for task, (num_states, num_actions) in enumerate([(3, 1), (4, 2)]):
        layers = Shared(tmp_path, shapes).layers(task)
        found = act(layers, states[task, :, :num_states].numpy())
        assert found.shape == (6, num_actions)
        assert np.allclose(found, wanted[task, :, :num_actions], atol=1e-5)


def test_learners_begin_with_the_episodes_of_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "NUM_ENVS", 2)
    data = tmp_path / "data" / "control-pendulum.swingup"
    rules = ["--behaviour", "random", "--episodes", "5", "--max-steps", "7", "--workers", "0"]
    assert main(["collect", TASKS[0], *rules, "--out", str(data)]) == 0
    shared = Shared(tmp_path / "scratch", Shapes.of(TASKS))
    assert start_from(shared, tmp_path / "data", 0) == 2 * 8  # the fifth has no partner
    third = Dataset(data).episode(2)
    rows = shared.rows[0, 8:16, 0]
    assert np.array_equal(rows[:, :3], third.observation[STATE])
    assert np.allclose(rows[:7, 4], third.action[:, 0])  # the state is padded to four; bounds are -1 and 1
    assert np.array_equal(rows[:7, -2], third.reward)
    assert rows[:, -1].tolist() == [0] * 7 + [1]
    assert shared.filled.tolist() == [16, 0]
    monkeypatch.setattr(learners, "NUM_ENVS", 6)
    with pytest.raises(SystemExit, match="expected 6 episodes or more to begin with, found 5"):
        start_from(shared, tmp_path / "data", 0)


def test_the_critics_learn_the_value_of_a_reward() -> None:
    """With reward 1 for ever both critics learn 1 / (1 - discount), which is 1 in their unit."""
    torch.manual_seed(0)
    shapes = Shapes.of(TASKS)
    agents = Agents(shapes, [0, 0], CPU)
    agents.rows[..., : shapes.state] = torch.randn(2, learners.ROWS, learners.NUM_ENVS, shapes.state)
    agents.rows[..., -2] = 1
    agents.filled[:] = learners.ROWS
    states, actions = squash(torch.randn(2, 50, shapes.state)), torch.zeros(2, 50, shapes.action)
    before = agents.value(agents.critic, states, actions).mean().item()
    for _ in range(60):
        agents.update(with_actor=True)
    after = agents.value(agents.critic, states, actions).mean().item()
    assert before < 0.01
    assert 0.035 < after < 1  # more than the three rewards of a target, 0.03


@pytest.mark.slow
def test_training_keeps_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "STAGES", (0.5, 1.0))
    options = ["--minutes", "0.1", "--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["learners.py", TASKS[0], *options])
    learners.main()
    layers = read_learner(tmp_path / learner_file(TASKS[0]))
    assert [weight.shape for weight, _ in layers] == [(2, 3, 256), (2, 256, 256), (2, 256, 1)]
    assert not np.array_equal(layers[0][0][0], layers[0][0][1])
    assert (tmp_path / "learners.json").is_file()
    assert not (tmp_path / "scratch").exists()
    with pytest.raises(SystemExit, match="has learners already"):
        learners.main()
    actor = f"learner:folder={tmp_path},stage=1"
    assert main(["evaluate", actor, "--tasks", TASKS[0], "--episodes", "1", "--workers", "0"]) == 0
