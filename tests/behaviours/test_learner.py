from pathlib import Path

import numpy as np
import pytest
from pac_learners import FOLDER
from safetensors.numpy import save_file

from pac import envs
from pac.behaviours import learner as learner_module
from pac.behaviours import make
from pac.behaviours.learner import Learner, act, learner_file, read_learner
from pac.old_names import OldNameWarning

TASK = "control/pendulum.swingup"  # three numbers in, one out


def save_learner(folder: Path, outputs: list[float], *, task: str = TASK, state_dim: int = 3) -> None:
    """Save a learner whose stages each act with one number, whatever the observation."""
    count = len(outputs)
    bias = np.arctanh(np.array(outputs, np.float32))[:, None]
    arrays = {
        "0.weight": np.zeros((count, state_dim, 8), np.float16),
        "0.bias": np.zeros((count, 8), np.float16),
        "1.weight": np.zeros((count, 8, 8), np.float16),
        "1.bias": np.zeros((count, 8), np.float16),
        "2.weight": np.zeros((count, 8, 1), np.float16),
        "2.bias": bias.astype(np.float16),
    }
    save_file(arrays, folder / learner_file(task))


def first_actions(spec: str, episodes: int) -> list[float]:
    behaviour, env = make(spec), envs.make(TASK)
    found = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        behaviour.begin(env, np.random.default_rng(seed))
        found.append(round(float(behaviour.act(observation)[0]), 2))
        assert found[-1] == round(float(behaviour.act(observation)[0]), 2)  # one stage per episode
    return found


def test_each_episode_samples_a_stage_of_the_range(tmp_path: Path) -> None:
    save_learner(tmp_path, [-0.5, 0.0, 0.25, 0.5])
    assert set(first_actions(f"learner:folder={tmp_path}", 40)) == {-0.5, 0.0, 0.25, 0.5}
    assert set(first_actions(f"learner:folder={tmp_path},stage=0.5-1", 40)) == {0.25, 0.5}
    assert set(first_actions(f"learner:folder={tmp_path},stage=1", 10)) == {0.5}
    assert set(first_actions(f"learner:folder={tmp_path},stage=0-0", 10)) == {-0.5}


def test_the_same_generator_gives_the_same_stage(tmp_path: Path) -> None:
    save_learner(tmp_path, [-0.5, 0.0, 0.25, 0.5])
    assert first_actions(f"learner:folder={tmp_path}", 10) == first_actions(f"learner:folder={tmp_path}", 10)


def test_actions_are_brought_to_the_tasks_bounds(tmp_path: Path) -> None:
    save_learner(tmp_path, [0.9])
    env = envs.make(TASK)
    env.task = env.task.__class__(**{**vars(env.task), "action_low": (2.0,), "action_high": (4.0,)})
    behaviour = Learner(folder=str(tmp_path))
    behaviour.begin(env, np.random.default_rng(0))
    assert behaviour.act(env.reset(seed=0)[0]) == pytest.approx(3.9, abs=1e-3)


def test_inputs_are_squashed_and_layers_normalised() -> None:
    random = np.random.default_rng(0)
    layers = [(random.normal(size=(3, 8)), random.normal(size=8)) for _ in range(1)]
    layers += [(random.normal(size=(8, 8)), random.normal(size=8)), (random.normal(size=(8, 2)), random.normal(size=2))]
    states = random.normal(size=(5, 3)) * 100
    one, all_ = act(layers, states[0]), act(layers, states)
    assert all_.shape == (5, 2)
    assert np.allclose(one, all_[0])
    assert np.abs(all_).max() < 1
    assert not np.allclose(act(layers, -states), all_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("stage=0.5-2", r"stages in \[0, 1\]"),
        ("stage=1-0.5", "from low to high"),
        ("stag=1", "Did you mean"),
    ],
)
def test_wrong_options_are_refused(options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(f"learner:folder=x,{options}")


def test_installed_learners_fit_and_solve_their_tasks() -> None:
    tasks = sorted(path.stem.replace("-", "/", 1) for path in FOLDER.glob("*.safetensors"))
    assert sum(task.startswith("control/") for task in tasks) == 16
    for task in tasks:
        layers = read_learner(FOLDER / learner_file(task))
        spec, stages = envs.spec(task), 4 if task.startswith("control/") else 3
        assert (layers[0][0].shape[:2], layers[-1][0].shape[2]) == ((stages, spec.state_dim), len(spec.action_low))
    assert episode_return("control/cartpole.swingup", "learner:stage=1") > 50
    assert episode_return("control/cartpole.swingup", "random") < 20


def episode_return(task: str, spec: str, steps: int = 200) -> float:
    behaviour, env = make(spec), envs.make(task)
    observation, _ = env.reset(seed=0)
    behaviour.begin(env, np.random.default_rng(0))
    total = 0.0
    for _ in range(steps):
        observation, reward, *_ = env.step(behaviour.act(observation))
        total += float(reward)
    return total


def test_a_task_without_a_learner_lists_the_others() -> None:
    env = envs.make("control/acrobot.swingup")
    with pytest.raises(ValueError, match=r"control-walker\.walk"):
        make("learner").begin(env, np.random.default_rng(0))


def test_a_missing_file_names_the_script_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"learners\.py"):
        first_actions(f"learner:folder={tmp_path}", 1)


def test_a_file_without_a_network_is_refused(tmp_path: Path) -> None:
    (tmp_path / learner_file(TASK)).write_bytes(b"not a network")
    with pytest.raises(ValueError, match="layers of a network"):
        first_actions(f"learner:folder={tmp_path}", 1)


def test_a_network_of_another_task_is_refused(tmp_path: Path) -> None:
    save_learner(tmp_path, [0.0], state_dim=5)
    with pytest.raises(ValueError, match="expected 3 inputs and 1 outputs"):
        first_actions(f"learner:folder={tmp_path}", 1)


def test_without_the_wheel_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "PACKAGE", "pac_learners_absent")
    with pytest.raises(ValueError, match="pip install perceiver-actor-critic-learners"):
        make("learner")


def test_the_old_name_of_the_stage_still_works(tmp_path: Path) -> None:
    save_learner(tmp_path, [-0.5, 0.0, 0.25, 0.5])
    with pytest.warns(OldNameWarning, match="learner:stage"):
        assert set(first_actions(f"learner:folder={tmp_path},life=1", 3)) == {0.5}
