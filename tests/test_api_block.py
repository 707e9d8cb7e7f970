"""The block of Python that the docs promise, on each kind of data: open, train, act, value, evaluate, save and load."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_api import here, pendulum_arrays  # noqa: F401

import pac

STEPS, EPISODES = 100, 5
QUICK: dict[str, Any] = {"num_latents": 4, "batch_size": 16, "num_samples": 4, "device": "cpu"}
G1 = Path(__file__).parents[2] / "shared/data/g1_bottle"


def use(data: pac.Dataset, *, task: str | None = None, method: str = "pac", **limits: Any) -> pac.Agent:
    """Run the block on a dataset. `task` is where the agent is judged."""
    assert str(len(data)) in str(data)
    agent = pac.train(data, method=method, size="nano", steps=STEPS, out="runs/a", seed=0, **QUICK)
    episode = next(data.episodes())
    observation = {name: values[0] for name, values in episode.observation.items()}
    action = agent.act(observation, instruction=episode.instruction)
    low, high = data.action_low, data.action_high
    assert action.shape == episode.action.shape[1:]
    assert ((action >= low - 1e-4) & (action <= high + 1e-4)).all()
    assert np.isfinite(agent.value(observation, instruction=episode.instruction))
    if method == "pac":
        assert np.isfinite(agent.q(observation, episode.action[0], instruction=episode.instruction))
    if task is not None:
        scores = agent.evaluate(task, episodes=EPISODES, **limits)
        assert scores.returns.n == EPISODES
        other = pac.train(data, method="bc", size="nano", steps=5, out="runs/b", **QUICK)
        found = pac.compare(agent, pac.load("runs/b"), task, episodes=EPISODES, **limits)
        assert {d.pairs for d in found.differences} == {EPISODES}
        assert other.path == Path("runs/b")
        settings = {"episodes": 2, "evaluation_episodes": 2, "steps": 5, **limits}
        assert isinstance(agent.improve(task, rounds=1, **settings), pac.Agent)
    agent.save("my-policy")
    loaded = pac.load("my-policy")
    for one in (agent, loaded):
        one.reset(seed=3)
    texts = {"instruction": episode.instruction}
    assert np.array_equal(agent.act(observation, **texts), loaded.act(observation, **texts))
    return agent


def test_arrays(here: Path) -> None:  # noqa: F811
    data = pac.Dataset.from_arrays(**pendulum_arrays(episodes=10, steps=100), out="data/mine", instruction="Pendulum")
    use(data, task="Pendulum-v1", max_steps=50)


@pytest.mark.slow
def test_meta_world(here: Path) -> None:  # noqa: F811
    data = pac.collect("metaworld/drawer-open", "scripted+faults", episodes=5, max_steps=60)
    use(data, task="metaworld/drawer-open", max_steps=60)


@pytest.mark.slow
def test_a_lerobot_folder(here: Path) -> None:  # noqa: F811
    pac.Dataset.from_arrays(**pendulum_arrays(), out="data/mine", instruction="swing up", control_rate=20.0)
    command = "pac export data/mine --format lerobot --out lerobot"
    subprocess.run([sys.executable, "-m", *command.split()], check=True)
    data = pac.Dataset.open("lerobot", reward="time-to-go")
    assert data.reward == "time-to-go"
    assert use(data).value(np.zeros(3, np.float32)) <= 0


@pytest.mark.slow
@pytest.mark.skipif(not G1.is_dir(), reason="the recordings of a real robot are not here")
def test_a_real_robot(here: Path) -> None:  # noqa: F811
    data = pac.Dataset.open(G1, reward="time-to-go", cameras=(), episodes="0:3")
    use(data, method="pac+v")


@pytest.mark.slow
def test_a_minari_dataset(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here / "minari"))
    pac.Dataset.from_arrays(**pendulum_arrays(4, 40), out="data/mine", control_rate=20.0)
    command = "pac export data/mine --format minari --out minari/pendulum/random-v0"
    subprocess.run([sys.executable, "-m", *command.split()], check=True)
    data = pac.Dataset.open("pendulum/random-v0")
    assert (len(data), data.num_steps) == (4, 160)
    use(data)
    with_minari = pac.Dataset.from_episodes(minari.load_dataset("pendulum/random-v0"), out="data/again")
    assert len(with_minari) == 4
    for first, second in zip(data, with_minari, strict=True):
        assert np.array_equal(first.action, second.action)
        states, others = (one.observation["observation.state"][: len(one.action)] for one in (first, second))
        assert np.array_equal(states, others)


@pytest.mark.slow
def test_a_camera(here: Path) -> None:  # noqa: F811
    use(pac.Dataset.from_arrays(**pendulum_arrays(cameras=True), out="data/mine"))
