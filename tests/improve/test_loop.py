"""The whole loop in small environments: real collection, real training and real evaluation."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from improve.small import contents, improve, recipe, record
from rollout.environments import POINT
from runs import dump

from pac.collection import dataset_spec
from pac.data.store import Dataset
from pac.data.writer import DatasetWriter
from pac.evaluation import read_evaluation as read
from pac.policy import Policy, load
from pac.rollout import make_jobs, rollout
from pac.rollout.links import LocalLink
from pac.training.trainer import Trainer
from pac.types import Query, Reply

HERE = Path(__file__).parent
POINTS = "gym-rollout.environments-Point-v0"


class Constant:
    """A policy that always takes the same action."""

    def __init__(self, action: tuple[float, float]) -> None:
        self.name, self.action = f"constant {action}", np.array(action, np.float32)

    def act(self, queries: Sequence[Query]) -> list[Reply]:
        return [Reply(action=self.action) for _ in queries]


OUT, STAY = Constant((1.0, 0.0)), Constant((0.0, 0.0))


def write(path: Path, actor: Constant, episodes: int = 12, seed: int = 77) -> Path:
    for result in rollout(actor, make_jobs([POINT], episodes, seed=seed), workers=0, stop_at_success=True):
        with DatasetWriter(path, dataset_spec(result)) as writer:
            writer.append(result.episode)
    return path


def cloning(path: Path | None, steps: int, **changes: Any) -> dict[str, Any]:
    """Return changes to the recipe that clone a dataset."""
    group = {"name": "given", "weight": 1, "datasets": [{"name": "given", "path": str(path)}]}
    mixture = {"batch_size": 16, "window": 2, "defaults": {"reward": "success"}}
    given = {
        "steps": f"{steps} steps",
        "rounds": 1,
        "collect": "none",
        "evaluation_episodes": 10,
        "mastery": 2.0,
    } | changes
    return {
        "mixture": mixture | ({"groups": [group]} if path else {}),
        "objective": {"method": "bc"},
        "optimiser": {"peak_rate": 1e-2},
        "improve": given,
    }


def test_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random actions collect first, then the policy. The files on disk say what happened."""
    assert improve(tmp_path) == 0
    shown = capsys.readouterr().err
    assert "round 0: collects 3 episodes each of gym/rollout.environments:Point-v0 with random" in shown
    assert "All rounds are done" in shown
    folder = tmp_path / "run"
    found = record(folder)
    assert list(found) == ["tasks", "others", "config", "rounds", "status"]
    assert (found["tasks"], found["others"], found["status"]) == ([POINT], [], "budget")
    assert [entry["round"] for entry in found["rounds"]] == [0, 1, 2]
    keys = [
        "round",
        "checkpoint",
        "start",
        "episodes",
        "steps",
        "promoted",
        "reason",
        "evaluation",
        "summary",
        "seconds",
    ]
    for entry in found["rounds"]:
        assert list(entry) == keys
        assert entry["episodes"] == {POINT: 3}
        assert entry["summary"][POINT].keys() == {"mean", "low", "high", "unit"}
        assert entry["seconds"].keys() == {"collect", "train", "evaluate"}
        settings, records = read(folder / entry["evaluation"])
        assert [entry.index for entry in records] == [0, 1, 2, 3]
        assert settings["actors"][f"round {entry['round']}"]["checkpoint"] == entry["checkpoint"]
    assert [entry["steps"] for entry in found["rounds"]] == [6, 12, 18]
    # Which checkpoint made which episodes.
    for number in range(3):
        maker = "random" if number == 0 else found["rounds"][number - 1]["checkpoint"]
        plan = json.loads((folder / f"rounds/{number:03d}/round.json").read_text())
        assert [(part["task"], part["made_by"], part["episodes"]) for part in plan["data"]] == [(POINT, maker, 3)]
        place = folder / f"rounds/{number:03d}/data/{POINTS}"
        assert json.loads((place / "collect.json").read_text())["settings"]["behaviours"] == [maker]
        assert all(source.startswith(f"{maker} in ") for source in Dataset(place).sources)
    # The folder is loaded like a run: it is the promoted checkpoint.
    assert (folder / "promoted").resolve() == (folder / found["rounds"][-1]["checkpoint"]).resolve()
    assert load(folder).metadata.embodiments[0].name == f"collected/{POINTS}"


def test_the_mixture_keeps_all_old_data_and_the_first_statistics(tmp_path: Path) -> None:
    assert improve(tmp_path) == 0
    folder = tmp_path / "run"
    numbers = []
    for number in range(3):
        config = json.loads((folder / f"rounds/{number:03d}/train/config.json").read_text())
        (row,) = config["mixture"]["datasets"]
        assert (row["name"], row["episodes"], row["p_eff"]) == (f"collected/{POINTS}", 3 * (number + 1), 1.0)
        (group,) = config["config"]["mixture"]["groups"]
        (dataset,) = group["datasets"]
        paths = [dataset["path"], *dataset["more_paths"]]
        assert paths == [str((folder / f"rounds/{n:03d}/data/{POINTS}").resolve()) for n in range(number + 1)]
        numbers.append((dataset["proprio_centre"], dataset["proprio_scale"]))
    assert numbers[0] == numbers[1] == numbers[2]
    first = Dataset(folder / f"rounds/000/data/{POINTS}")
    np.testing.assert_allclose(numbers[0][0], first.proprio_centre)
    np.testing.assert_allclose(load(folder).metadata.embodiments[0].proprio_scale, first.proprio_scale)


def test_statistics_of_all_data(tmp_path: Path) -> None:
    assert improve(tmp_path, improve={"rounds": 2, "statistics": "all"}) == 0
    states = [Dataset(tmp_path / f"run/rounds/{n:03d}/data/{POINTS}").arrays["observation.state"] for n in range(2)]
    embodiment = load(tmp_path / "run").metadata.embodiments[0]
    np.testing.assert_allclose(embodiment.proprio_centre, np.concatenate(states).mean(0), rtol=1e-4)
    np.testing.assert_allclose(embodiment.proprio_scale, np.concatenate(states).std(0), rtol=1e-3)


def test_training_goes_on_with_its_optimiser_and_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round begins with exactly what the promoted one ended with, in the tensors that a captured update knows."""
    seen: list[tuple[int, dict[str, Any], int]] = []
    train = Trainer.train

    def noting(self: Trainer) -> None:
        copies = {f"{p}.{k}": x.clone() for p, group in self.state.tensors().items() for k, x in group.items()}
        seen.append((self.state.step, copies, next(self.state.model.parameters()).data_ptr()))
        train(self)
        seen.append((self.state.step, {k: x.clone() for k, x in _flat(self).items()}, id(self.update)))

    def _flat(run: Trainer) -> dict[str, Any]:
        return {f"{p}.{k}": x for p, group in run.state.tensors().items() for k, x in group.items()}

    monkeypatch.setattr(Trainer, "train", noting)
    assert improve(tmp_path) == 0
    assert [step for step, _, _ in seen] == [0, 6, 6, 12, 12, 18]
    for end, begin in ((1, 2), (3, 4)):
        assert all(bool((seen[end][1][name] == seen[begin][1][name]).all()) for name in seen[end][1])
    assert any(seen[2][1][name].abs().sum() > 0 for name in seen[2][1] if "exp_avg_sq" in name)
    assert seen[0][2] == seen[2][2] == seen[4][2]
    assert seen[1][2] == seen[3][2] == seen[5][2]
    rates = [json.loads(line) for line in (tmp_path / "run/rounds/002/train/metrics.jsonl").read_text().splitlines()]
    assert {row["optim/learning_rate"] for row in rates} == {1e-3}  # no second warm-up, no decay


def test_cloning_turns_into_rl_over_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule follows the checkpoint's steps, not the round's."""
    seen: list[float | None] = []
    train = Trainer.train

    def noting(self: Trainer) -> None:
        seen.append(self.schedule_values(self.state.step).imitation_weight)
        train(self)

    monkeypatch.setattr(Trainer, "train", noting)
    data = write(tmp_path / "out", OUT, 4)
    group = {"name": "given", "weight": 1, "datasets": [{"name": "given", "path": str(data)}]}
    given = recipe()["mixture"] | {"groups": [group]}
    schedule = {"imitation_weight": [[0, 1.0], [6, 1.0], [18, 0.0]]}
    assert improve(tmp_path, mixture=given, schedules=schedule, improve={"mastery": 2.0, "rounds": 4}) == 0
    assert seen == [1.0, 1.0, 0.5, 0.0]


def test_workers_and_environments_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = LocalLink.__init__
    monkeypatch.setattr(LocalLink, "__init__", lambda link, settings: started.append(link) or start(link, settings))
    assert improve(tmp_path) == 0
    assert len(started) == 1


def test_mastery_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cloning what goes out succeeds often enough; a higher bar on resume goes on."""
    data = write(tmp_path / "out", OUT)
    given = cloning(data, 30, rounds=2, mastery=0.5, collect="policy", episodes=1)
    assert improve(tmp_path, **given) == 0
    assert "Every target is mastered" in capsys.readouterr().err
    found = record(tmp_path / "run")
    assert (found["status"], len(found["rounds"])) == ("mastered", 1)
    assert found["rounds"][0]["summary"][POINT]["mean"] >= 0.5
    given["improve"] |= {"mastery": 1.1}
    assert improve(tmp_path, "--resume", **given) == 0
    assert "improve.mastery: 0.5 before, 1.1 now" in capsys.readouterr().err
    assert (record(tmp_path / "run")["status"], len(record(tmp_path / "run")["rounds"])) == ("budget", 2)


def test_a_worse_round_is_rolled_back_and_its_data_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a policy that goes out, people hand in data that stays: refused; then data that goes out: promoted."""
    assert improve(tmp_path, out="good", **cloning(write(tmp_path / "out", OUT), 30)) == 0
    good = tmp_path / "good"
    write(tmp_path / "run/inbox/stays", STAY)
    given = cloning(None, 40, rounds=2)
    control_group = ("--start", str(good), "--collect", "none")
    assert improve(tmp_path, *control_group, **given) == 0
    shown = capsys.readouterr().err
    assert "REFUSED" in shown
    assert "Waiting for data" in shown
    found = record(tmp_path / "run")
    (first,) = found["rounds"]
    assert (found["status"], first["promoted"], first["start"]) == ("waiting", False, str(good.resolve()))
    assert "targets significantly worse" in first["reason"]
    assert not (tmp_path / "run/promoted").exists()
    write(tmp_path / "run/inbox/goes", OUT, 40, seed=78)
    assert improve(tmp_path, *control_group, "--resume", **given) == 0
    found = record(tmp_path / "run")
    second = found["rounds"][1]
    assert (second["start"], second["episodes"]) == (str(good.resolve()), {POINT: 0, "inbox/goes": 40})
    config = json.loads((tmp_path / "run/rounds/001/train/config.json").read_text())
    assert sum(row["episodes"] for row in config["mixture"]["datasets"]) == 12 + 40
    assert config["start"] == str(good.resolve())


def test_rolled_back_to_a_round_of_its_own(tmp_path: Path) -> None:
    """The round after a refused one begins where that one began, optimiser and all."""
    data = write(tmp_path / "out", OUT)
    assert improve(tmp_path, **cloning(data, 40, rounds=3, weight=50.0)) == 0  # waits after round 0
    write(tmp_path / "run/inbox/stays", STAY, 60)
    assert improve(tmp_path, "--resume", **cloning(data, 40, rounds=3, weight=50.0)) == 0
    (first, refused) = record(tmp_path / "run")["rounds"]
    assert (first["promoted"], refused["promoted"]) == (True, False)
    write(tmp_path / "run/inbox/goes", OUT, 200, seed=78)
    assert improve(tmp_path, "--resume", **cloning(data, 40, rounds=3, weight=50.0)) == 0
    last = record(tmp_path / "run")["rounds"][2]
    assert last["start"] == refused["start"] == first["checkpoint"]
    assert last["checkpoint"].endswith("000080")
    assert last["steps"] == 120


def test_the_inbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inbox, given = tmp_path / "run/inbox", {"improve": {"collect": "none"}}
    assert improve(tmp_path, **given) == 0
    assert "round 0: needs data" in capsys.readouterr().err
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["rounds"]) == ("waiting", [])
    write(inbox / "monday", OUT)
    assert improve(tmp_path, "--resume", **given) == 0
    assert "takes 12 episodes from inbox/monday" in capsys.readouterr().err
    assert record(tmp_path / "run")["rounds"][0]["episodes"] == {POINT: 0, "inbox/monday": 12}

    write(inbox / "tuesday", OUT, seed=79)
    array = inbox / "tuesday/action.npy"
    whole = array.read_bytes()
    array.write_bytes(whole[:-8])
    assert improve(tmp_path, "--resume", **given) == 2
    assert "expected a whole dataset" in capsys.readouterr().err
    array.write_bytes(whole)
    write(inbox / "monday", OUT, 1, seed=80)
    assert improve(tmp_path, "--resume", **given) == 2
    assert "put new episodes into a folder of their own" in capsys.readouterr().err
    shutil.rmtree(inbox / "monday")
    assert improve(tmp_path, "--resume", **given) == 2
    assert "that an earlier round trained on" in capsys.readouterr().err
    write(inbox / "monday", OUT)
    assert improve(tmp_path, "--resume", **given) == 0
    found = record(tmp_path / "run")
    assert [entry["episodes"] for entry in found["rounds"]] == [
        {POINT: 0, f"inbox/{day}": 12} for day in ("monday", "tuesday")
    ]
    assert sorted(path.name for path in inbox.iterdir()) == ["monday", "tuesday"]


def test_a_failed_collection_is_neither_lost_nor_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulator fails in round 1 after two episodes of three; the resumed one equals one that never failed."""
    assert improve(tmp_path, out="whole") == 0
    act = Policy.act
    asked: list[int] = []

    def failing(self: Any, queries: Sequence[Query]) -> list[Reply]:
        asked.append(len(queries))
        if self.name == "rounds/000/train/checkpoints/000006" and len(
            list((tmp_path / "run").glob("rounds/001/data/*/committed.json"))
        ):
            raise ValueError("the simulator is on fire")
        return act(self, queries)

    with monkeypatch.context() as patched:
        patched.setattr(Policy, "act", failing)
        assert improve(tmp_path, improve={"envs_per_worker": 1}) == 2
    assert "on fire" in capsys.readouterr().err
    assert len(record(tmp_path / "run")["rounds"]) == 1
    assert len(Dataset(tmp_path / f"run/rounds/001/data/{POINTS}")) == 1
    assert improve(tmp_path, "--resume") == 0
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("where", ["collect", "train", "evaluate"])
def test_a_signal_ends_it_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    assert improve(tmp_path, out="whole") == 0
    sent: list[str] = []

    def signalling(made: Any, due: Any) -> Any:
        def wrapper(self: Any, *args: Any) -> Any:
            if not sent and due(self):
                sent.append(where)
                os.kill(os.getpid(), signal.SIGTERM)
            return made(self, *args)

        return wrapper

    with monkeypatch.context() as patched:
        if where == "train":
            patched.setattr(
                Trainer, "schedule_values", signalling(Trainer.schedule_values, lambda run: run.state.step == 9)
            )
        else:
            checkpoint = "000006" if where == "collect" else "000012"
            patched.setattr(
                Policy,
                "act",
                signalling(
                    Policy.act,
                    lambda self: (
                        self.name.endswith(checkpoint)
                        and (where == "evaluate" or (tmp_path / "run/rounds/001").exists())
                    ),
                ),
            )
        assert improve(tmp_path) == 128 + signal.SIGTERM
    assert "Continue with --resume" in capsys.readouterr().err
    assert record(tmp_path / "run")["status"] == "running"
    assert improve(tmp_path, "--resume") == 0
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_settings_may_not_change_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert improve(tmp_path, improve={"rounds": 1}) == 0
    assert improve(tmp_path, improve={"rounds": 1}) == 2
    assert "Continue with --resume" in capsys.readouterr().err
    assert improve(tmp_path, "--resume", improve={"evaluation_episodes": 5}) == 2
    assert "improve.evaluation_episodes: 4 before, 5 now" in capsys.readouterr().err
    assert improve(tmp_path, "--resume", improve={"rounds": 2}) == 0
    assert len(record(tmp_path / "run")["rounds"]) == 2
    write(tmp_path / "run/inbox/kept", OUT)
    assert improve(tmp_path, "--overwrite", improve={"rounds": 1}) == 0
    assert len(record(tmp_path / "run")["rounds"]) == 1
    assert (tmp_path / "run/inbox/kept").is_dir()


def test_other_tasks_must_be_known_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert improve(tmp_path, improve={"others": ["control/cartpole.swingup"]}) == 2
    assert "Task 'control/cartpole.swingup': expected state and action sizes" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("rounds/000/train/checkpoints/0*"))


def test_others_are_evaluated_and_not_collected(tmp_path: Path) -> None:
    other = "control/point_mass.easy"
    for result in rollout("random", make_jobs([other], 3), workers=0, max_steps=10):
        with DatasetWriter(tmp_path / "other", dataset_spec(result)) as writer:
            writer.append(result.episode)
    given = cloning(write(tmp_path / "out", OUT), 5, others=[other], collect="policy", rounds=2, episodes=1)
    given["improve"] |= {"max_steps": 10}
    group = {"name": "other", "weight": 1, "datasets": [{"name": "other", "path": str(tmp_path / "other")}]}
    given["mixture"] |= {"groups": [*given["mixture"]["groups"], group], "defaults": {}}
    assert improve(tmp_path, **given) == 0
    last = record(tmp_path / "run")["rounds"][1]
    assert {task: row["unit"] for task, row in last["summary"].items()} == {POINT: "success", other: "return"}
    assert last["episodes"] == {POINT: 1}
    assert "; others " in last["reason"]


def test_one_scale_of_rewards_for_all_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A success that ends the episode counts 1 in every round. Else there is room for 1 at every step."""
    for name, stop, expected in (("once", True, 1.0), ("ever", False, 0.1)):
        assert improve(tmp_path, out=name, improve={"rounds": 2, "stop_at_success": stop}) == 0
        for number in range(2):
            config = json.loads((tmp_path / name / f"rounds/{number:03d}/train/config.json").read_text())
            assert config["objective"]["reward_scale"] == pytest.approx(expected)
    capsys.readouterr()
    mixture = {"defaults": {}}  # the environment's own rewards, of both signs
    assert improve(tmp_path, out="negative", mixture=mixture) == 2
    assert "found negative ones. Begin again with model.value_min=-1" in capsys.readouterr().err
    model = {"value_min": -1.0}
    assert improve(tmp_path, out="fits", mixture=mixture, model=model, improve={"rounds": 1}) == 0
    assert "Values beyond are clipped" not in capsys.readouterr().err
    tight = {"method": "pac", "num_samples": 3, "reward_scale": 1.0}
    assert improve(tmp_path, out="tight", mixture=mixture, model=model, objective=tight, improve={"rounds": 1}) == 0
    assert "Values beyond are clipped" in capsys.readouterr().err


def kill(tmp_path: Path, kills: int, **changes: Any) -> list[int]:
    file = dump(recipe(**changes), tmp_path / "recipe.toml")
    command = [sys.executable, str(HERE / "killing.py"), str(file), str(tmp_path), str(kills), "0"]
    path = os.pathsep.join([str(HERE.parent), *filter(None, sys.path)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    rounds: list[int] = json.loads(done.stdout.splitlines()[-1])
    assert rounds, "it was never killed"
    return rounds


def test_killed_at_random_moments(tmp_path: Path) -> None:
    kill(tmp_path, 3)


@pytest.mark.slow
def test_killed_twenty_times_on_the_suite(tmp_path: Path) -> None:
    given = {"tasks": ["control/cartpole.swingup", "control/reacher.easy"], "max_steps": 25, "stop_at_success": False}
    mixture = {"defaults": {"imitation_weight": 0.5}}
    rounds = kill(tmp_path, 20, improve=given | {"rounds": 8}, mixture=mixture)
    assert len(set(rounds)) > 2
