"""RL on rewards that teach nothing is refused before step 0. A rule trains as stored rewards do."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from runs import assert_same, config, dump, recipe, start, tensors, timeless, write_dataset

from pac.cli import main
from pac.data.relabel import RULES, label_episode
from pac.data.store import Dataset
from pac.data.writer import DatasetWriter
from pac.training.run_dir import read_metrics


def write(path: Path, source: Path, reward: float | str | None, *, terminal: bool = False, **changes: Any) -> Path:
    """Write the episodes of a dataset again, with one reward at every step or with a rule's."""
    data = Dataset(source)
    with DatasetWriter(path, data.spec) as writer:
        for episode in data:
            if isinstance(reward, str):
                changed = label_episode(episode, reward)
            else:
                changed = dataclasses.replace(episode, terminated=terminal, truncated=not terminal)
                if reward is not None:
                    changed.reward[:] = reward
            writer.append(dataclasses.replace(changed, **changes))
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "plain")


def train(data: Path, out: Path, **changes: Any) -> int:
    """Run `pac train` on the datasets in a folder."""
    file = out.parent / f"{out.name}.toml"
    return main(["train", str(dump(recipe(data, length="1 steps", **changes), file)), "--out", str(out)])


METHODS = {"pac": 2, "pac+v": 2, "bc+q": 0, "bc": 0}  # method -> exit code on rewards that are all equal


@pytest.mark.parametrize("method", METHODS)
def test_equal_rewards_are_refused_where_a_critic_improves_the_policy(
    method: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BC+Q trains a critic that the policy ignores: a warning is enough. Cloning needs no rewards."""
    write(tmp_path / "data/arm", plain, 0.0)
    out = tmp_path / "run"
    assert train(tmp_path / "data", out, objective={"method": method}) == METHODS[method]
    printed = capsys.readouterr()
    if METHODS[method]:
        assert not out.exists()
        for text in ("Dataset 'arm'", "0 at every step", '"sparse-success"', '"time-to-go"', "pac relabel", "=bc"):
            assert text in printed.err
    else:
        told = " ".join(printed.err.split()) + " ".join(printed.out.split())
        assert ("arm: Every reward is 0: a critic learns nothing" in told) == (method == "bc+q")


@pytest.mark.parametrize(
    ("rewards", "changes", "code"),
    [
        ([(0.0, True)], {}, 2),
        ([(1.0, False)], {}, 2),
        ([(1.0, False), (1.0, False)], {}, 2),
        ([(1.0, True)], {}, 0),  # as long as a pole stands: episodes that end early have the lower return
        ([(1.0, True), (1.0, False)], {}, 0),
        ([(0.0, False), (1.0, False)], {}, 0),  # one task never saw a reward
        ([(None, False), (0.0, False)], {}, 0),
        ([(0.0, False)], {"imitation_weight": 1.0}, 0),
        ([(0.0, False)], {"reward": "sparse-success"}, 0),
        ([(0.0, False)], {"reward": "time-to-go"}, 0),
    ],
)
def test_which_rewards_teach_nothing(
    rewards: list[tuple[float | None, bool]],
    changes: dict[str, Any],
    code: int,
    plain: Path,
    tmp_path: Path,
) -> None:
    for i, (reward, terminal) in enumerate(rewards):
        write(tmp_path / f"data/d{i}", plain, reward, terminal=terminal)
    mixture = recipe(tmp_path / "data")["mixture"] | {"defaults": changes}
    assert train(tmp_path / "data", tmp_path / "run", mixture=mixture) == code


def test_only_episodes_in_use_count(plain: Path, tmp_path: Path) -> None:
    """Some episodes have a reward, and the filter leaves them out."""
    data = Dataset(plain)
    with DatasetWriter(tmp_path / "data/arm", data.spec) as writer:
        for episode in data:
            writer.append(dataclasses.replace(episode, success=not episode.success))
    mixture = recipe(tmp_path / "data")["mixture"]
    assert train(tmp_path / "data", tmp_path / "all", mixture=mixture) == 0
    for name, defaults, code in (("some", {}, 2), ("rule", {"reward": "time-to-go"}, 0)):
        filtered = mixture | {"defaults": {"success_only": True} | defaults}
        assert train(tmp_path / "data", tmp_path / name, mixture=filtered) == code


def test_a_schedule_of_imitation_needs_rewards(plain: Path, tmp_path: Path) -> None:
    write(tmp_path / "data/arm", plain, 0.0)
    table = recipe(tmp_path / "data")["mixture"] | {"defaults": {"imitation_weight": 1.0}}
    schedule = {"imitation_weight": [[0, 1.0], [1, 0.5]]}
    assert train(tmp_path / "data", tmp_path / "run", mixture=table, schedules=schedule) == 2


def test_a_begun_run_is_resumed(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began with a version that did not check."""
    write(tmp_path / "data/arm", plain, 0.0)
    table = dump(recipe(tmp_path / "data", length="4 steps"), tmp_path / "recipe.toml")
    with monkeypatch.context() as patch:
        patch.setattr("pac.training.run.check_learnable", lambda config, sampler: None)
        assert main(["train", str(table), "--out", str(tmp_path / "run")]) == 0
    longer = ["train", str(table), "--out", str(tmp_path / "run"), "length=8 steps"]
    assert main([*longer, "--resume"]) == 0
    assert main([*longer, "--overwrite"]) == 2
    assert json.loads((tmp_path / "run/summary.json").read_text())["steps"] == 8  # still there


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("objective", [{}, {"method": "pac+v", "monte_carlo_weight": 0.5}])
def test_a_rule_trains_as_stored_rewards_do(rule: str, objective: dict[str, Any], plain: Path, tmp_path: Path) -> None:
    """Bit for bit: weights, optimiser and losses. Negative rewards get bins for negative values."""
    write(tmp_path / "read/arm", plain, None)
    write(tmp_path / "stored/arm", tmp_path / "read/arm", rule)
    found = []
    for name, settings in (("read", {"defaults": {"reward": rule}}), ("stored", {})):
        table = recipe(tmp_path / name)["mixture"] | settings
        run = start(config(tmp_path / name, mixture=table, objective=objective), tmp_path / f"run-{name}")
        assert run.model_config.value_min == (-1.0 if rule == "time-to-go" else 0.0)
        assert run.sampler.value_scales["arm"] == pytest.approx(0.01 if rule == "time-to-go" else 1.0)
        run.train()
        found.append((tensors(run), timeless(read_metrics(tmp_path / f"run-{name}"))))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    written = json.loads((tmp_path / "run-read/config.json").read_text())
    assert written["config"]["mixture"]["groups"][0]["datasets"][0]["reward"] == rule


def test_warnings_of_the_data_come_before_step_0(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning that datasets share is one line. With a rule, the ends are the rule's."""
    for name in ("arm", "leg"):
        write(tmp_path / f"data/{name}", plain, None, instruction="go " * 80)
    table = dump(recipe(tmp_path / "data", length="1 steps"), tmp_path / "recipe.toml")
    assert main(["train", str(table), "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    told = " ".join((captured.out + captured.err).split())
    assert told.count("longer than 50 tokens") == 1
    assert "Warning: arm, leg: 1 instructions are longer" in told
    assert told.index("One epoch of all") < told.index("Warning: ") < told.index("step 1/1")
    assert main(["train", str(table), "--out", str(tmp_path / "run"), "length=2 steps", "--resume"]) == 0
    assert "Warning" not in "".join(capsys.readouterr())


def test_ends_and_rewards_in_warnings_are_those_of_the_mixture(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Dataset(plain)
    with DatasetWriter(tmp_path / "data/arm", data.spec) as writer:
        for i, episode in enumerate(data):
            cut = {name: array[:-1] for name, array in episode.observation.items()}
            failed = i == 0
            ends = {"terminated": failed, "truncated": False, "success": False if failed else None}
            writer.append(dataclasses.replace(episode, observation=cut, **ends))

    def told(**defaults: str) -> str:
        mixture = recipe(tmp_path / "data")["mixture"] | {"defaults": defaults}
        out = tmp_path / ("run" + "".join(defaults.values()))
        assert train(tmp_path / "data", out, mixture=mixture) == 0
        captured = capsys.readouterr()
        return " ".join((captured.out + captured.err).split())

    assert "5 episodes end without their last observation" in told()
    sparse = told(reward="sparse-success")
    assert "without their last observation" not in sparse
    assert "terminal" not in sparse
    assert "1 failures are terminal" in told(reward="time-to-go")
