"""Tests of collection: the dataset is the same after kills, restarts and a second call."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout.actors import Swaying
from rollout.environments import BROKEN, POINT
from rollout.processes import session
from runs import config, write_dataset
from runs import start as start_run

from pac import envs
from pac.cli import main
from pac.collection import CollectionFolder, CollectionSettings, collect, load_actors
from pac.data.store import Dataset, read_committed, verify
from pac.rollout import ActorMix, Job, links, rollout
from pac.rollout.episodes import EpisodeSettings
from pac.types import Query, Reply


def settings(**given: Any) -> CollectionSettings:
    defaults = {"task": POINT, "behaviours": ("random",), "weights": (1.0,), "seed": 0}
    return CollectionSettings(**(defaults | given))


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_dataset_holds_the_episodes_of_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collect", POINT, "--behaviour", "random", "--behaviour", "random+noise:sigma=0.5@3", "--seed", "7"]
    assert main([*command, "--episodes", "6", "--out", str(tmp_path / "a"), "--workers", "0", "--stop-at-success"]) == 0
    shown = capsys.readouterr().out
    dataset = Dataset(tmp_path / "a")
    assert verify(tmp_path / "a") == []
    assert len(dataset) == 6
    assert dataset.spec.extra_rewards == ("success",)
    assert dataset.spec.action_high == (1.0, 3.0)
    assert dataset.spec.state_names == envs.make(POINT).state_names
    assert dataset.spec.state_names
    mix = ActorMix(("random", "random+noise:sigma=0.5"), (1.0, 3.0))
    for i, episode in enumerate(dataset):
        (result,) = rollout(mix, [Job(POINT, 7, i)], workers=0, stop_at_success=True)
        np.testing.assert_array_equal(episode.action, result.episode.action)
        assert episode.seed == envs.episode_seed(POINT, 7, i)
        assert episode.source == result.episode.source
        assert episode.source.startswith(result.actor)
        assert episode.terminated or not episode.success
    record = json.loads((tmp_path / "a" / "collect.json").read_text())
    assert record["command"].endswith(
        "--seed 7 --behaviour random --behaviour random+noise:sigma=0.5@3 --stop-at-success"
    )
    successes = int((dataset.index["success"] == 1).sum())
    assert f"{100 * successes / 6:.1f}%" in shown


def test_several_calls_give_the_same_bytes_as_one(tmp_path: Path) -> None:
    for episodes in (3, 3, 8):
        collect([CollectionFolder(tmp_path / "parts", settings())], "random", episodes, workers=0)
        assert len(Dataset(tmp_path / "parts")) == episodes
    collect([CollectionFolder(tmp_path / "whole", settings())], "random", 8, workers=0)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_two_at_once_do_not_collect_an_episode_twice(tmp_path: Path) -> None:
    """The second process counted its episodes before the first one wrote any."""
    early = CollectionFolder(tmp_path / "a", settings())
    late = CollectionFolder(tmp_path / "a", settings())
    actor = load_actors(["random"])[0]
    collect([early], actor, 3, workers=0)
    with pytest.raises(ValueError, match=r"expected 0 episodes, as at the start, found 3, because another process"):
        collect([late], actor, 4, workers=0)
    assert len(Dataset(tmp_path / "a")) == 3
    collect([CollectionFolder(tmp_path / "a", settings())], actor, 4, workers=0)
    assert len(Dataset(tmp_path / "a")) == 4


def test_other_settings_and_other_folders_are_refused(tmp_path: Path) -> None:
    collect([CollectionFolder(tmp_path / "a", settings())], "random", 2, workers=0)
    before = contents(tmp_path)
    for change in ({"seed": 1}, {"behaviours": ("scripted",)}, {"max_steps": 5}, {"stop_at_success": True}):
        with pytest.raises(ValueError, match=f"{next(iter(change))}.*choose another --out"):
            CollectionFolder(tmp_path / "a", settings(**change))
    (tmp_path / "a" / "collect.json").unlink()
    with pytest.raises(ValueError, match=r"found 2 episodes and no collect.json"):
        CollectionFolder(tmp_path / "a", settings())
    (tmp_path / "a" / "collect.json").write_bytes(before["a/collect.json"])
    assert contents(tmp_path) == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="found other files"):
        CollectionFolder(tmp_path / "b", settings())


def test_killing_workers_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = (POINT, "control/cartpole.swingup")

    def folders(name: str) -> list[CollectionFolder]:
        return [CollectionFolder(tmp_path / name / task[-5:], settings(task=task, max_steps=60)) for task in tasks]

    collect(folders("calm"), Swaying(), 8, workers=0)
    running: list[links.ProcessLink] = []
    start, append, chance = links.ProcessLink.__init__, CollectionFolder.append, random.Random(0)

    def record(link: links.ProcessLink, settings: EpisodeSettings) -> None:
        start(link, settings)
        running.append(link)

    def killing(self: CollectionFolder, result: Any) -> None:
        append(self, result)
        alive = [link.process.pid for link in running if link.process.poll() is None]
        all_at_once = (self.settings.task, result.index) == (POINT, 2)  # at least one of them is stepping
        for pid in alive if all_at_once else [chance.choice(alive)] if result.index == 6 else []:
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(links.ProcessLink, "__init__", record)
    monkeypatch.setattr(CollectionFolder, "append", killing)
    restarts = collect(folders("shot"), Swaying(), 8, workers=2, envs_per_worker=2)
    assert restarts > 0
    assert len(running) > 2
    assert contents(tmp_path / "shot") == contents(tmp_path / "calm")


def test_ctrl_c_keeps_finished_episodes_and_ends_all_processes(tmp_path: Path) -> None:
    command = ["collect", "control/cartpole.swingup", "--behaviour", "random", "--workers", "1", "--episodes"]
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        f"from pac.cli import main; sys.exit(main({[*command, '1000', '--out', str(tmp_path / 'a')]}))"
    )
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, env=os.environ | {"PYTHONPATH": path}
    )
    while process.poll() is None and read_committed(tmp_path / "a")["episodes"] < 2:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert session(process.pid) == []
    finished = len(Dataset(tmp_path / "a"))
    assert finished >= 2
    assert verify(tmp_path / "a") == []
    for name in ("a", "b"):
        assert main([*command[:-2], "0", "--episodes", str(finished + 1), "--out", str(tmp_path / name)]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


class Nan(Swaying):
    def reply(self, query: Query) -> Reply:
        return Reply(action=np.full(2, np.nan, np.float32))


def test_errors_are_clear_and_leave_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"found nan.*Point-v0, seed 0, episode 0"):
        collect([CollectionFolder(out, settings())], Nan(), 3, workers=0)
    with pytest.raises(LookupError, match="the gripper fell off"):
        collect([CollectionFolder(out, settings(task=BROKEN))], "random", 3, workers=0)
    for wrong, message in (
        (["control/walker.wlk", "--behaviour", "random"], "Did you mean 'control/walker.walk'"),
        ([POINT, "--behaviour", "randm"], "Did you mean 'random'"),
        ([POINT, "--behaviour", "random", "--episodes", "0"], "expected 1 or more, found 0"),
        (["metaworld/reach", "--behaviour", "random", "--cameras", "nose"], "Unknown camera 'nose'"),
        ([POINT, "--behaviour", "scripted"], ""),
    ):
        assert main(["collect", *wrong, "--out", str(out), "--workers", "0"]) == 2
        assert message in capsys.readouterr().err
    assert not out.exists()


def test_behaviours_are_read_with_their_weights(tmp_path: Path) -> None:
    assert load_actors(["random"])[0] == "random"
    assert load_actors(["random@0.5"])[1:] == (("random",), (0.5,))
    mix, names, weights = load_actors(["scripted+noise:sigma=0.1@2", "random"])
    assert isinstance(mix, ActorMix)
    assert (names, weights) == (("scripted+noise:sigma=0.1", "random"), (2.0, 1.0))
    with pytest.raises(ValueError, match="expected a run, a checkpoint"):
        load_actors([str(tmp_path)])


def test_policies_refuse_instructions_that_they_do_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, text in enumerate(("go left", "go right")):
        write_dataset(tmp_path / "data" / f"arm{i}", instruction=text, seed=i)
    start_run(config(tmp_path / "data", length="2 steps"), tmp_path / "run").train()
    out = tmp_path / "out"
    words = ["collect", POINT, "--behaviour", str(tmp_path / "run"), "--workers", "0", "--out", str(out), "--episodes"]
    assert main([*words, "1"]) == 2
    assert "instruction: expected one of the training, which has 2: 'go" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "1", "--any-instruction"]) == 0
    shown = capsys.readouterr().err
    assert shown.count("pac: Task 'gym/rollout.environments:Point-v0': instruction") == 1
    assert "was not in training. The statistics of 'arm" in shown
    assert "--any-instruction" in json.loads((out / "collect.json").read_text())["command"]
    assert main([*words, "2"]) == 2
    assert "any_instruction True before, False now" in capsys.readouterr().err


def test_settings_of_earlier_versions_have_no_choice_of_instructions(tmp_path: Path) -> None:
    collect([CollectionFolder(tmp_path / "a", settings())], "random", 1, workers=0)
    file = tmp_path / "a" / "collect.json"
    record = json.loads(file.read_text())
    del record["settings"]["any_instruction"]
    file.write_text(json.dumps(record))
    assert CollectionFolder(tmp_path / "a", settings()).num_before == 1
