"""`import pac`: from own data to an agent that acts, is judged, improves and is saved."""

import importlib
import json
import pkgutil
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from runs import TINY

import pac
from pac.cli import main
from pac.training.run_dir import read_metrics

SMALL: dict[str, Any] = {**TINY, "batch_size": 4, "window": 3, "num_samples": 3, "target_period": 5}
SMALL |= {"machine.workers": 0, "device": "cpu"}


def pendulum_arrays(episodes: int = 4, steps: int = 30, cameras: bool = False) -> dict[str, Any]:
    """Return flat arrays of random play, with a reward that differs between steps."""
    env, random = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    for number in range(episodes):
        state, _ = env.reset(seed=number)
        for step in range(steps):
            action = random.uniform(-2, 2, 1).astype(np.float32)
            rows["observations"].append(state)
            rows["actions"].append(action)
            state, reward, *_ = env.step(action)
            rows["rewards"].append(float(reward))
            rows["terminals"].append(False)
            rows["timeouts"].append(step == steps - 1)
    arrays: dict[str, Any] = {name: np.array(values) for name, values in rows.items()}
    if cameras:
        images = random.integers(0, 256, (episodes * steps, 12, 10, 3), np.uint8)
        arrays["observations"] = {"state": arrays["observations"], "front": images}
    return arrays


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAC_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def agent(here: Path) -> pac.Agent:
    data = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/pendulum")
    return pac.train(data, method="pac", steps=12, out="runs/a", seed=0, **SMALL)


def tensors(run: str | Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(Path(run) / "checkpoints/last/pretrained_model/model.safetensors")


def assert_same_weights(first: str | Path, second: str | Path) -> None:
    left, right = tensors(first), tensors(second)
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)


# ---------------------------------------------------------------------------------------------------------- the names


def test_names_are_imported_when_used() -> None:
    code = (
        "import sys, time; start = time.process_time(); import pac; print(time.process_time() - start);"
        "print('torch' in sys.modules, 'numpy' in sys.modules, 'rich' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert shown[1:] == ["False", "False", "False"]
    assert set(pac.__all__) <= set(dir(pac))
    with pytest.raises(AttributeError, match="It has Agent, Dataset"):
        _ = pac.Agents


def test_no_function_has_the_name_of_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(pac.__path__)}
    assert modules.isdisjoint(pac.__all__)
    for name in modules - {"__main__"}:
        importlib.import_module(f"pac.{name}")
    assert callable(pac.train)
    assert callable(pac.collect)


def test_a_users_script_has_types(here: Path) -> None:
    (here / "script.py").write_text(
        "import numpy as np\n"
        "import pac\n"
        "data = pac.Dataset.from_arrays(observations=np.zeros((4, 2)), actions=np.zeros((4, 1)))\n"
        "agent: pac.Agent = pac.train(data, method='pac', size='nano', steps=2_000, out='runs/a', discount=0.9)\n"
        "action: np.ndarray = agent.act(np.zeros(2))\n"
        "print(data, data[0].action, [x.reward for x in data.episodes()], agent.evaluate('Pendulum-v1').success)\n"
        "print(pac.compare(agent, pac.load('runs/b'), 'metaworld/drawer-open').differences)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(here / "cache"), "script.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=here)
    assert found.returncode == 0, found.stdout


# ------------------------------------------------------------------------------------------------------------ training


def test_the_printed_command_gives_the_same_weights(agent: pac.Agent, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(Path("runs/a/config.json").read_text())
    words = shlex.split(config["command"])
    assert words[:2] == ["pac", "train"]
    words[words.index("runs/a")] = "runs/b"
    assert main(words[1:]) == 0
    assert_same_weights("runs/a", "runs/b")
    timeless = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(run)]
        for run in ("runs/a", "runs/b")
    ]
    assert timeless[0] == timeless[1]


def test_a_second_call_goes_on(agent: pac.Agent, capfd: pytest.CaptureFixture[str]) -> None:
    before = Path("runs/a/checkpoints/last/pretrained_model/model.safetensors").stat().st_mtime_ns
    again = pac.train("data/pendulum", method="pac", steps=12, out="runs/a", seed=0, **SMALL)
    assert Path("runs/a/checkpoints/last/pretrained_model/model.safetensors").stat().st_mtime_ns == before
    assert "is finished: 12 steps" in capfd.readouterr().err
    state = np.array([1.0, 0.0, 0.5], np.float32)
    assert np.array_equal(agent.act(state), again.act(state))
    longer = pac.train("data/pendulum", method="pac", steps=14, out="runs/a", seed=0, **SMALL)
    assert read_metrics(longer.path)[-1]["step"] == 14
    with pytest.raises(ValueError, match=r"objective.discount: 0.99 before, 0.9 now"):
        pac.train("data/pendulum", method="pac", steps=14, out="runs/a", seed=0, discount=0.9, **SMALL)
    other = pac.train("data/pendulum", steps=3, out="runs/a", discount=0.9, overwrite=True, **SMALL)
    assert read_metrics(other.path)[-1]["step"] == 3


def test_an_interrupt_keeps_the_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from pac.training.step import TrainStep

    data, update = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/p"), TrainStep.__call__

    def interrupted(self: TrainStep, *arguments: Any) -> None:
        update(self, *arguments)
        if self.state.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainStep, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"Stopped at step 5\. The same call continues in runs/a"):
        pac.train(data, steps=12, out="runs/a", **SMALL)
    monkeypatch.setattr(TrainStep, "__call__", update)
    pac.train(data, steps=12, out="runs/a", **SMALL)
    pac.train(data, steps=12, out="runs/whole", **SMALL)
    assert_same_weights("runs/a", "runs/whole")


def test_a_mixture_has_weights_and_rewards(here: Path) -> None:
    first = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/a", instruction="one")
    second = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/b", instruction="two", reward="time-to-go")
    agent = pac.train([first, second], weights=[3, 1], steps=2, out="runs/a", **SMALL)
    groups = json.loads(Path("runs/a/config.json").read_text())["config"]["mixture"]["groups"]
    assert [(group["name"], group["weight"]) for group in groups] == [("a", 3.0), ("b", 1.0)]
    assert [group["datasets"][0]["reward"] for group in groups] == [None, "time-to-go"]
    state = np.zeros(3, np.float32)
    agent.act(state, instruction="two")
    with pytest.raises(ValueError, match="one"):
        agent.act(state, instruction="three")
    with pytest.warns(UserWarning, match="'three' was not in training"):
        agent.act(state, instruction="three", any_instruction=True)


WRONG_TRAINING = {
    "an unknown setting": ({"bath_size": 3}, "Did you mean 'batch_size'"),
    "a setting of two sections": ({"every": "3 steps"}, "checkpoint.every, evaluation.every"),
    "an unknown method": ({"method": "pca"}, "Unknown method 'pca'"),
    "an unknown size": ({"size": "nanno"}, "nano"),
    "no steps": ({"steps": 0}, "expected a duration"),
    "a wrong type": ({"discount": "high"}, "objective.discount: expected a number, found"),
    "an object": ({"discount": object()}, "expected a number, a text, a list or a table"),
    "a weight too many": ({"weights": [1, 2]}, "a weight of 0 or more for each of 1 datasets"),
    "no such start": ({"start": "runs/none"}, "runs/none"),
    "no such recipe": ({"recipe": "none.toml"}, "a recipe that ships with PAC"),
}


@pytest.mark.parametrize("case", WRONG_TRAINING)
def test_wrong_training_is_one_clear_error(here: Path, case: str) -> None:
    data, (changes, expected) = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/p"), WRONG_TRAINING[case]
    with pytest.raises(ValueError, match=r"\S") as caught:
        pac.train(data, **{"steps": 2, "out": "runs/a", **(SMALL if "size" not in changes else {}), **changes})
    assert expected in str(caught.value)
    assert not Path("runs/a/config.json").exists()


def test_wrong_data_is_one_clear_error(here: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a pac.Dataset or a folder, found ndarray"):
        pac.train(np.zeros(3), out="runs/a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected data or a recipe, found neither"):
        pac.train(out="runs/a")
    with pytest.raises(ValueError, match="data/none"):
        pac.train("data/none", out="runs/a")


# -------------------------------------------------------------------------------------------------------------- agents


def test_an_agent_acts_on_one_and_on_many(agent: pac.Agent) -> None:
    states = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    one = agent.act(states[0])
    assert one.shape == (1,)
    assert one.dtype == np.float32
    agent.reset()
    many = agent.act(states)
    assert many.shape == (5, 1)
    assert np.array_equal(many[0], one)  # an answer does not depend on other rows
    assert not np.array_equal(agent.act(states), many)  # the next step has other noise
    agent.reset()
    assert np.array_equal(agent.act({"state": states}), many)
    assert (np.abs(many) <= 2).all()
    modes = pac.load(agent.path, sampling="mode")
    assert np.array_equal(modes.act(states), modes.act(states))


def test_a_critic_gives_values(agent: pac.Agent) -> None:
    states, actions = np.zeros((3, 3), np.float32), np.array([[-1.0], [0.0], [1.0]], np.float32)
    assert isinstance(agent.value(states[0]), float)
    assert agent.q(states, actions).shape == (3,)  # type: ignore[union-attr]
    assert agent.q(states[0], actions[0]) == agent.q(states, actions)[0]  # type: ignore[index]
    assert "method pac, trained on pendulum" in repr(agent)
    assert agent.critic == "q"


def test_a_missing_head_names_the_methods_that_have_it(here: Path) -> None:
    data, state = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/p"), np.zeros(3, np.float32)
    with_v = pac.train(data, method="pac+v", steps=2, out="runs/v", **SMALL)
    assert isinstance(with_v.value(state), float)
    with pytest.raises(ValueError, match=r"pac.*bc\+q"):
        with_v.q(state, np.zeros(1))
    cloned = pac.train(data, method="bc", steps=2, out="runs/bc", **SMALL)
    with pytest.raises(ValueError, match=r"pac\+v"):
        cloned.value(state)


def test_an_agent_is_saved_and_loaded(agent: pac.Agent) -> None:
    state = np.array([0.3, 0.2, 0.1], np.float32)
    expected = agent.act(state)
    assert agent.save("my-policy") == Path("my-policy")
    loaded = pac.load("my-policy")
    assert np.array_equal(loaded.act(state), expected)
    agent.save("my-policy")  # again
    assert {file.name for file in Path("my-policy").iterdir()} == {
        "config.json",
        "model.safetensors",
        "train_config.json",
    }
    tuned = pac.train("data/pendulum", start="my-policy", steps=3, out="runs/tuned", batch_size=4, window=3, seed=1)
    assert tuned.policy.model.config == loaded.policy.model.config
    with pytest.raises(ValueError, match="expected a new folder or one of `save`, found other files"):
        agent.save("runs")


def test_agents_are_evaluated_and_compared(agent: pac.Agent, capfd: pytest.CaptureFixture[str]) -> None:
    scores = agent.evaluate("Pendulum-v1", episodes=3, max_steps=20, workers=0)
    assert "pac evaluate runs/a --tasks gym/Pendulum-v1 --episodes 3 --max-steps 20" in capfd.readouterr().err
    assert scores.returns.n == 3
    assert scores.success is None
    assert "Return" in str(scores)
    env = gymnasium.make("Pendulum-v1")
    by_env = agent.evaluate(env, episodes=3, max_steps=20)
    by_factory = agent.evaluate(lambda: gymnasium.make("Pendulum-v1"), episodes=3, max_steps=20)
    assert np.isfinite([by_env.returns.mean, by_factory.returns.mean]).all()
    env.reset(seed=0)  # still open
    modes = pac.compare(
        agent, pac.load(agent.path, sampling="mode"), "Pendulum-v1", episodes=3, max_steps=20, workers=0
    )
    assert modes.differences[0].pairs == 3
    assert "The same as" not in capfd.readouterr().err  # no command gives each checkpoint a sampling of its own
    named = agent.evaluate("Pendulum-v1", episodes=3, max_steps=20, workers=0, instruction="swing up")
    assert named.returns == scores.returns  # one instruction was known, and none was shown in training
    assert "--instruction 'swing up'" in capfd.readouterr().err
    found = pac.compare(agent, "random", "Pendulum-v1", episodes=3, max_steps=20, workers=0)
    assert list(found.summaries) == ["a", "random"]
    assert found.differences[0].pairs == 3
    with pytest.raises(ValueError, match="expected one actor, found a, random"):
        _ = found.returns


def test_the_printed_evaluation_gives_the_same_numbers(agent: pac.Agent, capfd: pytest.CaptureFixture[str]) -> None:
    scores = agent.evaluate("Pendulum-v1", episodes=2, max_steps=20, workers=0, json="scores.json")
    (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("The same as: "))
    words = shlex.split(line.removeprefix("The same as: pac "))
    words[words.index("scores.json")] = "again.json"
    assert main([*words, "--workers", "0"]) == 0
    first, second = (json.loads(Path(name).read_text())["episodes"] for name in ("scores.json", "again.json"))
    assert [row["return"] for row in first] == [row["return"] for row in second]
    assert len(scores.records) == 2


def test_an_agent_improves(agent: pac.Agent, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {
        "episodes": 2,
        "evaluation_episodes": 2,
        "max_steps": 20,
        "improve.workers": 0,
        "improve.steps": "4 steps",
    }
    better = agent.improve("Pendulum-v1", rounds=2, out="runs/better", **settings)
    assert np.isfinite(better.act(np.zeros(3, np.float32))).all()
    rounds = json.loads(Path("runs/better/improve.json").read_text())["rounds"]
    assert len(rounds) == 2
    assert "pac improve runs/a 'improve.tasks=" in capfd.readouterr().err
    agent.improve("Pendulum-v1", rounds=2, out="runs/better", **settings)  # finished: nothing is left to do
    assert json.loads(Path("runs/better/improve.json").read_text())["rounds"] == rounds
    with pytest.raises(ValueError, match="Did you mean 'episodes'"):
        agent.improve("Pendulum-v1", episods=3)
    by_env = agent.improve(gymnasium.make("Pendulum-v1"), rounds=1, out="runs/env", **settings)
    assert np.isfinite(by_env.act(np.zeros(3, np.float32))).all()


# ---------------------------------------------------------------------------------------------------------------- data


def test_a_dataset_shows_itself(here: Path) -> None:
    data = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/p", instruction="swing up")
    text = str(data)
    assert "4 episodes, 120 steps" in text
    assert "'swing up'" in text
    assert "warning: Action bounds were measured" in text
    assert data[0].action.shape == (30, 1)
    assert [len(episode.reward) for episode in data.episodes()] == [30] * 4
    assert len(data) == 4


def test_the_same_arrays_may_be_written_again(here: Path) -> None:
    arrays = pendulum_arrays()
    first = pac.Dataset.from_arrays(**arrays, out="data/p").add_reward("mine", lambda episode: episode.reward + 1)
    again = pac.Dataset.from_arrays(**arrays, out="data/p")
    assert again.spec.extra_rewards == ("mine",)
    assert first.add_reward("mine", lambda episode: episode.reward + 1).reward == "mine"  # a script runs twice
    with pytest.raises(ValueError, match="mine"):
        first.add_reward("mine", lambda episode: episode.reward + 2)
    other = arrays | {"rewards": arrays["rewards"] + 1}
    with pytest.raises(ValueError, match=r"a dataset of other episodes\. Pass overwrite=True"):
        pac.Dataset.from_arrays(**other, out="data/p")
    assert pac.Dataset.open("data/p").spec.extra_rewards == ("mine",)
    replaced = pac.Dataset.from_arrays(**other, out="data/p", overwrite=True)
    assert np.array_equal(replaced[0].reward, other["rewards"][:30].astype(np.float32))
    assert [path.name for path in Path("data").iterdir()] == ["p"]
    with pytest.raises(ValueError, match="Did you mean 'timeouts'"):
        pac.Dataset.from_arrays(arrays["observations"], arrays["actions"], timeout=arrays["timeouts"])
    with pytest.raises(ValueError, match="Pass the column as `rewards`"):
        pac.Dataset.from_arrays(arrays["observations"], arrays["actions"], reward=arrays["rewards"])


def test_a_temporary_dataset_goes_with_its_object(here: Path) -> None:
    data = pac.Dataset.from_arrays(**pendulum_arrays())
    place = data.path
    assert data.with_reward("time-to-go").reward == "time-to-go"
    assert place.exists()
    del data
    assert not place.exists()


def test_a_folder_of_another_format_is_imported_once(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez("mine.npz", **pendulum_arrays())
    data = pac.Dataset.open("mine.npz", episodes="0:3")
    assert len(data) == 3
    assert f"pac import mine.npz --out {data.path} --episodes 0:3" in capfd.readouterr().err
    assert pac.Dataset.open("mine.npz", episodes="0:3").path == data.path
    assert "Imports" not in capfd.readouterr().err
    with pytest.raises(ValueError, match="Did you mean 'episodes'"):
        pac.Dataset.open("mine.npz", episods="0:3")


def test_a_users_reward_is_stored(here: Path) -> None:
    data = pac.Dataset.from_arrays(**pendulum_arrays(), out="data/p")
    mine = data.add_reward("upright", lambda episode: episode.observation["observation.state"][:30, 0])
    agent = pac.train(mine, steps=2, out="runs/a", **SMALL)
    (group,) = json.loads(Path("runs/a/config.json").read_text())["config"]["mixture"]["groups"]
    assert group["datasets"][0]["reward"] == "upright"
    assert isinstance(agent.value(np.zeros(3, np.float32)), float)


def test_collected_episodes_are_those_of_the_command(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = pac.collect("Pendulum-v1", "random", episodes=2, max_steps=15, workers=0)
    assert data.path == Path("data/gym-Pendulum-v1")
    (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("The same as: "))
    words = shlex.split(line.removeprefix("The same as: pac "))
    words[words.index(str(data.path))] = "data/again"
    assert main([*words, "--workers", "0"]) == 0
    again = pac.Dataset.open("data/again")
    assert all(np.array_equal(a.action, b.action) for a, b in zip(data, again, strict=True))
    more = pac.collect(gymnasium.make("Pendulum-v1"), "random", episodes=2, max_steps=15, out="data/env")
    assert more.num_steps == 30


def test_a_camera_goes_all_the_way(here: Path) -> None:
    data = pac.Dataset.from_arrays(**pendulum_arrays(cameras=True), out="data/p")
    agent = pac.train(data, steps=2, out="runs/a", **SMALL)
    observation = {"state": np.zeros(3, np.float32), "front": np.zeros((12, 10, 3), np.uint8)}
    assert agent.act(observation).shape == (1,)
    with pytest.raises(ValueError, match="front"):
        agent.act({"state": np.zeros(3, np.float32)})
    batch = {name: np.stack([value] * 3) for name, value in observation.items()}
    assert agent.act(batch).shape == (3, 1)


class Seen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Pendulum with an image among its observations."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        image = gymnasium.spaces.Box(0, 255, (12, 10, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"front": image, "state": self.env.observation_space})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {"front": np.full((12, 10, 3), 7, np.uint8), "state": observation}


def test_an_agent_plays_own_environments_with_its_cameras_and_continues(here: Path) -> None:
    data = pac.Dataset.from_arrays(**pendulum_arrays(cameras=True), out="data/p")
    agent = pac.train(data, steps=2, out="runs/a", **SMALL)
    play: dict[str, Any] = {"episodes": 2, "max_steps": 5}
    first = agent.evaluate(lambda: Seen(), json="scores.json", **play)
    again = agent.evaluate(lambda: Seen(), json="scores.json", **play)
    assert first.returns.mean == again.returns.mean
    collected = pac.collect(Seen(), agent, out="data/c", **play)
    assert collected[0].observation["observation.images.front"].shape == (6, 12, 10, 3)
    assert len(pac.collect(Seen(), agent, out="data/c", **(play | {"episodes": 3}))) == 3
    assert main(["collect", "gym/Pendulum-v1", "--behaviour", "runs/a", "--episodes", "1", "--workers", "0"]) == 2
