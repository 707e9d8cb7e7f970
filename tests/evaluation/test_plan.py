"""Actors and tasks as a command names them, and the table of experts."""

from pathlib import Path
from typing import Any

import pytest
from factories import small_model
from runs import write_dataset

from pac import policy
from pac.cli.evaluate import parse_actors
from pac.envs import TASKS
from pac.evaluation import experts
from pac.evaluation.plan import SHOWS, expand_tasks, versions


def test_tasks_by_name_suite_and_glob() -> None:
    assert len(expand_tasks(["control"])) == 32
    assert len(expand_tasks(["metaworld/"])) == 50
    assert expand_tasks(["control", "metaworld"]) == list(TASKS)
    opened = expand_tasks(["metaworld/*open*"])
    assert "metaworld/drawer-open" in opened
    assert all("open" in task for task in opened)
    assert expand_tasks(["control/walker.walk", "control/walker.*"])[0] == "control/walker.walk"
    assert len(expand_tasks(["control/walker.walk", "control/walker.*"])) == 3
    assert expand_tasks(["gym/Pendulum-v1"]) == ["gym/Pendulum-v1"]


@pytest.mark.parametrize(
    ("pattern", "message"), [("control/wakler.*", "fits none"), ("control/walker.wlak", "control/walker.walk")]
)
def test_unknown_tasks(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_tasks([pattern])


def test_behaviours_and_labels() -> None:
    random, noisy, named = parse_actors(["random", "scripted+noise:sigma=0.3", "bad luck=scripted+uniform:p=0.5"])
    assert (random.label, random.load()) == ("random", "random")
    assert noisy.label == noisy.behaviour == "scripted+noise:sigma=0.3"
    assert (named.label, named.behaviour) == ("bad luck", "scripted+uniform:p=0.5")
    assert named.describe() == {"behaviour": "scripted+uniform:p=0.5"}
    (learner,) = parse_actors(["final=learner:folder=runs/learners,stage=1"])  # a folder's / makes it no checkpoint
    assert (learner.label, learner.load()) == ("final", "learner:folder=runs/learners,stage=1")


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a label of its own"):
        parse_actors(["random", "random"])
    with pytest.raises(ValueError, match="random"):
        parse_actors(["randon"])
    with pytest.raises(ValueError, match="no such folder"):
        parse_actors([f"ours={tmp_path}/nothing"])
    with pytest.raises(ValueError, match="sample, mode, mean"):
        parse_actors(["random"], samplings=["greedy"])
    with pytest.raises(ValueError, match="1 or more"):
        parse_actors(["random"], best_of=[0])


def test_a_checkpoint_comes_once_for_each_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_model().save_pretrained(tmp_path)
    loaded: list[Any] = []
    monkeypatch.setattr(policy, "load", lambda path, **choices: loaded.append((path, choices)) or "policy")
    actors = parse_actors([f"ours={tmp_path}"], samplings=["sample", "mode"], best_of=[1, 8])
    assert [actor.label for actor in actors] == [
        "ours (sample, best of 1)",
        "ours (sample, best of 8)",
        "ours (mode, best of 1)",
        "ours (mode, best of 8)",
    ]
    actors[-1].load()
    assert loaded == [(str(tmp_path), {"sampling": "mode", "best_of": 8, "values": True})]
    (alone,) = parse_actors([f"ours={tmp_path}"])
    before = alone.describe()
    assert (alone.label, before["sampling"], before["best_of"]) == ("ours", "sample", 1)
    small_model(seed=1).save_pretrained(tmp_path)
    assert alone.describe()["fingerprint"] != before["fingerprint"]


def test_a_checkpoint_comes_once_for_each_way_to_give_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_model().save_pretrained(tmp_path / "model")
    data = write_dataset(tmp_path / "data", cameras=1)
    loaded: list[Any] = []
    monkeypatch.setattr(policy, "load", lambda path, **choices: loaded.append(choices) or "policy")
    choices = {"shows": list(SHOWS), "goals": [str(data)]}
    actors = parse_actors([f"ours={tmp_path / 'model'}", "random"], **choices)
    assert [actor.label for actor in actors] == [*(f"ours ({show})" for show in SHOWS), "random"]
    for actor in actors:
        actor.load()
    assert [(c["text"], list(c["goals"])) for c in loaded] == [
        (True, ["go there"]),
        (False, ["go there"]),
        (True, []),
        (False, []),
    ]
    assert ["goals" in actor.describe() for actor in actors] == [True, True, False, False, False]
    (both,) = parse_actors([f"ours={tmp_path / 'model'}"], goals=[str(data)])
    before = both.describe()
    assert (both.label, before["show"]) == ("ours", "text+goal")
    write_dataset(tmp_path / "other", cameras=1, seed=1)
    (tmp_path / "other").rename(data.rename(tmp_path / "gone").parent / "data")
    assert both.describe()["goals"] != before["goals"]  # other images: the episodes do not mix
    with pytest.raises(ValueError, match="expected text\\+goal, goal, text, none, found 'both'"):
        parse_actors(["random"], shows=["both"])


def test_versions_include_the_simulator() -> None:
    assert {"pac", "mujoco", "numpy"} <= set(versions())


def test_the_experts_that_ship_have_sources() -> None:
    for task, expert in experts.load().items():
        assert task in TASKS
        assert expert.source
        assert expert.n > 0
        assert expert.mean <= 1000 or not task.startswith("control/")


def test_a_table_of_experts_needs_returns_and_sources(tmp_path: Path) -> None:
    table = tmp_path / "experts.json"
    table.write_text('{"tasks": {"control/a": {"return": 1, "n": 1}}}')
    with pytest.raises(ValueError, match="a return, n and source for each task"):
        experts.load(table)
    table.write_text('{"tasks": {"control/a": {"return": 0, "n": 1, "source": "?"}}}')
    with pytest.raises(ValueError, match="above 0"):
        experts.load(table)


def test_a_label_may_hold_a_plus() -> None:
    (actor,) = parse_actors(["PAC+V=random"])
    assert actor.label == "PAC+V"
