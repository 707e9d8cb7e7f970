"""`evaluate` from Python, and evaluation during training."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import small_model
from rollout.environments import POINT, SEEN
from runs import config, start, write_dataset

from pac.config import EvaluationConfig
from pac.evaluation import Actor, EvaluationInterruptedError, evaluate
from pac.evaluation import read_evaluation as read
from pac.evaluation.in_training import TrainingEvaluator
from pac.evaluation.runner import play_episodes
from pac.files import PlainWarning
from pac.rollout import PersistentWorkers, make_jobs
from pac.types import Query, Reply

POINT_TEXT = "rollout environments:Point"  # the instruction of the environment


@pytest.mark.parametrize(("own", "expected"), [({"discount": 0.6}, 0.6), ({}, 0.9)])
def test_returns_are_discounted_as_the_data_of_their_task(own: dict[str, Any], expected: float, tmp_path: Path) -> None:
    data = tmp_path / "data"
    paths = {"arm": write_dataset(data / "arm", instruction=POINT_TEXT), "leg": write_dataset(data / "leg", dims=5)}
    datasets = [{"name": name, "path": str(path)} for name, path in paths.items()]
    datasets[0] |= own
    groups = [{"name": "all", "weight": 1, "discount": 0.9, "datasets": datasets}]
    run = start(
        config(data, mixture={"groups": groups}, objective={"discount": 0.2}, length="2 steps"), tmp_path / "run"
    )
    run.train()
    actor = Actor(label="ours", checkpoint=str(tmp_path / "run"))
    found = evaluate([actor], [POINT], 3, workers=0)
    played = [result for result, _ in play_episodes(actor, make_jobs([POINT], 3), workers=0)]
    assert len(played) == 3
    for entry, result in zip(found.records, played, strict=True):
        assert result.values is not None
        assert entry.predicted == float(result.values[0])
        rewards = result.episode.reward.astype(np.float64)
        assert len(rewards) > 2
        assert entry.achieved == pytest.approx(sum(r * expected**t for t, r in enumerate(rewards)))
        assert entry.achieved != pytest.approx(sum(r * 0.2**t for t, r in enumerate(rewards)))


def push_right(name: str = "right") -> Any:
    """Return a policy object that always moves to the right."""

    class PushRight:
        asked = 0

        def act(self, queries: Sequence[Query]) -> list[Reply]:
            self.asked += len(queries)
            return [Reply(action=np.array(query.task.action_high, np.float32)) for query in queries]

    policy = PushRight()
    policy.name = name  # type: ignore[attr-defined]
    return policy


def test_a_mapping_gives_labels_to_behaviours_and_policies() -> None:
    found = evaluate({"mine": push_right(), "luck": "random"}, [POINT], 2, workers=0, command="by hand")
    assert [(entry.actor, entry.index) for entry in found.records] == [
        ("mine", 0),
        ("mine", 1),
        ("luck", 0),
        ("luck", 1),
    ]
    assert found.finished
    assert list(found.summaries) == ["mine", "luck"]
    assert found.differences[0].pairs == 2
    assert found.document["settings"]["actors"] == {"mine": {"policy": "right"}, "luck": {"behaviour": "random"}}
    assert found.document["command"] == "by hand"
    with pytest.raises(ValueError, match="randon"):
        evaluate({"luck": "randon"}, [POINT], 2)
    with pytest.raises(ValueError, match="expected a behaviour, a checkpoint or a policy"):
        Actor(label="nobody")


def test_known_episodes_are_not_played_again_and_then_no_policy_is_loaded() -> None:
    policy = push_right()
    first = evaluate({"mine": policy}, [POINT], 2, workers=0)
    assert policy.asked
    lazy = Actor(label="mine", policy=lambda: pytest.fail("nothing is missing"))
    again = evaluate([lazy], [POINT], 2, workers=0, known=first.records)
    assert again.records == first.records
    more = evaluate([Actor(label="mine", policy=push_right)], [POINT], 3, workers=0, known=first.records)
    assert more.records[:2] == first.records
    assert len(more.records) == 3


def test_a_caller_can_stop_an_evaluation_and_continue_it(tmp_path: Path) -> None:
    """Finished episodes stay in the journal. The document appears when all are finished."""
    path, seen = tmp_path / "a.json", list[tuple[str, int, int]]()
    options: dict[str, Any] = {"workers": 0, "journal": path, "progress": lambda *counts: seen.append(counts)}
    part = evaluate({"mine": push_right()}, [POINT], 3, should_stop=lambda: len(seen) == 3, **options)
    assert not part.finished
    assert seen == [("mine", 0, 3), ("mine", 1, 3), ("mine", 2, 3)]
    assert part.records == read(path)[1]
    assert not path.exists()
    whole = evaluate({"mine": push_right()}, [POINT], 3, **options)
    assert whole.finished
    assert whole.records[:2] == part.records
    assert path.exists()
    with pytest.raises(ValueError, match="3 or more, found 2"):
        evaluate({"mine": push_right()}, [POINT], 2, **options)


def test_ctrl_c_hands_over_the_finished_episodes() -> None:
    def stop(label: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        evaluate({"mine": push_right()}, [POINT], 3, workers=0, progress=stop)
    assert isinstance(stopped.value, EvaluationInterruptedError)
    assert len(stopped.value.evaluation.records) == 1
    assert not stopped.value.evaluation.finished


def test_a_caller_can_describe_an_actor_in_the_document(tmp_path: Path) -> None:
    """A checkpoint in a folder that may move has a relative path there."""
    small_model().save_pretrained(tmp_path / "run")
    actor = Actor(label="ours", checkpoint=str(tmp_path / "run"), policy=push_right(), about={"checkpoint": "run"})
    found = evaluate([actor], [POINT], 1, workers=0).document["settings"]["actors"]["ours"]
    assert found["checkpoint"] == "run"
    assert len(found["fingerprint"]) == 12


def test_workers_are_kept_for_the_next_evaluation() -> None:
    with PersistentWorkers() as workers:
        found = [
            evaluate({"luck": "random"}, [POINT], 2, workers=1, envs_per_worker=1, persistent_workers=workers)
            for _ in range(2)
        ]
    assert found[0].records == found[1].records


def test_evaluation_during_training() -> None:
    config, counts = EvaluationConfig(tasks=(POINT,), episodes=3, workers=0), list[tuple[int, int]]()
    evaluator = TrainingEvaluator()
    assert [spec.name for spec in evaluator.specs(config, lambda task: ())] == [POINT]

    def run(stop: bool) -> dict[str, float] | None:
        return evaluator(push_right(), config, progress=lambda *x: counts.append(x), should_stop=lambda: stop)

    found, expected = run(stop=False), evaluate({"mine": push_right()}, [POINT], 3, seed=config.seed, workers=0)
    assert found is not None
    assert found[f"evaluation/{POINT}/return"] == expected.summaries["mine"].overall.returns.mean
    assert found["evaluation/all/return"] == expected.summaries["mine"].overall.returns.mean
    assert counts == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert run(stop=True) is None


def test_each_task_is_rendered_with_its_own_cameras(tmp_path: Path) -> None:
    """In one evaluation. An explicit choice holds for all tasks."""
    data, text = tmp_path / "data", "rollout environments:Seen"
    write_dataset(data / "blind", instruction=POINT_TEXT)
    write_dataset(data / "seeing", dims=4, instruction=text, camera_names=("render",))
    run = start(config(data, mixture={"image_size": [8, 9]}, length="2 steps"), tmp_path / "run")
    run.train()
    actor, jobs = Actor(label="ours", policy=run.policy()), make_jobs([POINT, SEEN], 2)
    played = [result for result, _ in play_episodes(actor, jobs, workers=0)]
    images = "observation.images.render"
    assert [images in result.episode.observation for result in played] == [False, False, True, True]
    assert [result.spec.cameras for result in played] == [(), (), ("render",), ("render",)]
    found = evaluate([actor], [POINT, SEEN], 2, workers=1)
    assert [entry.total for entry in found.records] == [result.total_return for result in played]
    with pytest.raises(ValueError, match=r"Unknown camera 'front'.*Point-v0"):
        evaluate([actor], [POINT, SEEN], 1, workers=0, cameras=["front"])


@pytest.mark.usefixtures("gl")
def test_tasks_of_a_simulator_with_other_cameras_work_in_one_evaluation(tmp_path: Path) -> None:
    one_action = {"low": (-1.0,), "high": (1.0,)}
    tasks = ["control/pendulum.swingup", "control/cartpole.balance"]
    data = tmp_path / "data"
    write_dataset(data / "a", instruction="pendulum swingup", camera_names=("lookat",), **one_action)
    write_dataset(data / "b", instruction="cartpole balance", dims=5, camera_names=("lookatcart",), **one_action)
    run = start(
        config(
            data,
            mixture={"image_size": [8, 9]},
            length="2 steps",
            evaluation={"tasks": tasks, "episodes": 1, "max_steps": 3, "workers": 0},
        ),
        tmp_path / "run",
    )
    run.train()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {f"evaluation/{task}/return" for task in tasks} <= set(rows[-1])
    found = evaluate({"ours": tmp_path / "run"}, tasks, 1, workers=0, max_steps=3)
    assert [entry.length for entry in found.records] == [3, 3]


def test_instructions_that_were_not_in_training(tmp_path: Path) -> None:
    """One known instruction is used, and said. Several are listed, and others refused unless that is allowed."""
    write_dataset(tmp_path / "data" / "arm", instruction="go left")
    settings = config(tmp_path / "data", length="2 steps")
    run = start(settings, tmp_path / "run")
    run.train()
    with pytest.warns(PlainWarning, match="Point' was not in training. The only one that was is used: 'go left'"):
        evaluate({"ours": run.policy()}, [POINT], 2, workers=0)
    (arm,) = run.metadata.embodiments
    several = dataclasses.replace(arm, instructions=("go left", "go right"))
    run.metadata = dataclasses.replace(run.metadata, embodiments=(several,))
    with pytest.raises(ValueError, match=r"has 2: .*'go right'.* found 'rollout.*Point'.*--any-instruction"):
        evaluate({"ours": run.policy()}, [POINT], 2, workers=0)
    found = evaluate({"ours": run.policy()}, [POINT], 2, workers=0, any_instruction=True, journal=tmp_path / "a.json")
    assert found.document["settings"]["any_instruction"]
    with pytest.raises(ValueError, match="other settings"):
        evaluate({"ours": run.policy()}, [POINT], 2, workers=0, journal=tmp_path / "a.json")


def test_no_episodes_are_refused() -> None:
    """The result was an empty table."""
    with pytest.raises(ValueError, match="episodes: expected 1 or more per task, found 0"):
        evaluate({"random": "random"}, [POINT], 0)


def test_a_failure_before_the_first_episode_leaves_no_file(tmp_path: Path) -> None:
    def play(task: str, stop: Any = None) -> None:
        evaluate({"random": "random"}, [task], 2, workers=0, journal=tmp_path / "s.json", should_stop=stop, max_steps=5)

    with pytest.raises(ValueError, match="no-such-task"):
        play("metaworld/no-such-task")
    assert list(tmp_path.iterdir()) == []
    play(POINT, stop=lambda: True)
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["s.json.partial.jsonl"]
    with pytest.raises(ValueError, match="other settings"):
        play("metaworld/no-such-task")
    assert [path.name for path in tmp_path.iterdir()] == names
