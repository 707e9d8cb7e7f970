"""Records on disk: written at once, read after any interruption, never mixed with those of other settings."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import make

from pac.evaluation import read_evaluation, record
from pac.evaluation.records import EpisodeRecord, Journal, partial_path, state_id
from pac.files import write_json
from pac.rollout import EpisodeResult, Job
from pac.types import Episode, TaskSpec

SETTINGS: dict[str, Any] = {"seed": 0, "tasks": ["control/a"]}


def episode(state: float = 1.0) -> Episode:
    return Episode(
        observation={"observation.state": np.full((4, 2), state, np.float32)},
        action=np.zeros((3, 1), np.float32),
        reward=np.array([0.1, 0.2, 0.3], np.float32),
        terminated=False,
        truncated=True,
        success=True,
    )


def played(**changes: Any) -> EpisodeResult:
    spec = TaskSpec(
        name="control/a",
        instruction="",
        state_dim=2,
        action_low=(-1.0,),
        action_high=(1.0,),
        max_steps=3,
        has_success=True,
    )
    result = EpisodeResult(job=Job("control/a", 0, 3), actor="random", spec=spec, episode=episode())
    return dataclasses.replace(result, **changes)


def test_an_episode_becomes_a_record() -> None:
    entry = record(played(), "ours")
    assert (entry.task, entry.seed, entry.index, entry.length, entry.success) == ("control/a", 0, 3, 3, True)
    assert entry.total == pytest.approx(0.6)
    assert EpisodeRecord.from_json(json.loads(json.dumps(entry.as_json()))) == entry
    assert entry.as_json()["return"] == entry.total
    assert not {"predicted", "achieved"} & entry.as_json().keys()  # there was no critic


def test_a_record_has_the_value_of_the_critic_and_the_return_that_followed() -> None:
    result = played(values=np.array([0.7, 0.5, 0.3], np.float32))
    entry = record(result, "ours", 0.5)
    assert entry.predicted == pytest.approx(0.7)
    assert entry.achieved == pytest.approx(0.1 + 0.5 * 0.2 + 0.25 * 0.3)
    again = EpisodeRecord.from_json(json.loads(json.dumps(entry.as_json())))
    assert (again.predicted, again.achieved) == (entry.predicted, entry.achieved)
    assert record(result, "ours").predicted is None  # no discount, no discounted return
    assert record(result, "ours") == entry  # it is the same episode


def test_a_return_that_is_not_finite_is_refused() -> None:
    broken = dataclasses.replace(episode(), reward=np.array([0.1, np.nan, 0.3], np.float32))
    with pytest.raises(ValueError, match="control/a, seed 0, episode 3: expected a finite return, found nan"):
        record(played(episode=broken))


def test_the_state_id_is_a_hash_of_the_first_state() -> None:
    assert state_id(episode()) == state_id(episode())
    assert state_id(episode()) != state_id(episode(1.0000001))
    later = episode()
    later.observation["observation.state"][1:] = 5
    assert state_id(later) == state_id(episode())
    assert len(state_id(later)) == 12


def test_finished_episodes_are_readable_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.json"
    journal = Journal(path, SETTINGS).__enter__()
    journal.append(make(index=0))
    journal.append(make(index=1))
    with partial_path(path).open("ab") as file:
        file.write(b'{"actor": "ours", "ta')  # cut off while writing
    settings, records = read_evaluation(path)
    assert settings == SETTINGS
    assert [entry.index for entry in records] == [0, 1]
    with Journal(path, SETTINGS) as again:
        assert len(again.records) == 2
        again.append(make(index=2))
    assert [entry.index for entry in read_evaluation(path)[1]] == [0, 1, 2]
    journal.__exit__()


def test_the_finished_file_replaces_the_journal_and_can_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with Journal(path, SETTINGS) as journal:
        journal.append(make(index=0))
        journal.finish({"settings": SETTINGS, "episodes": [make(index=0).as_json()]})
    assert not partial_path(path).exists()
    with Journal(path, SETTINGS) as journal:
        journal.append(make(index=1))
    assert [entry.index for entry in read_evaluation(path)[1]] == [0, 1]  # both files


def test_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with Journal(path, SETTINGS) as journal:
        journal.append(make())
    with pytest.raises(ValueError, match="expected seed 1; found seed 0"), Journal(path, SETTINGS | {"seed": 1}):
        pass
    assert len(read_evaluation(path)[1]) == 1


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_evaluation(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(ValueError, match="expected the JSON of an evaluation"):
        read_evaluation(tmp_path / "a.json")
    (tmp_path / "b.json.partial.jsonl").write_text('{"settings": {}}\n{"x": 1}\n')
    with pytest.raises(ValueError, match="one episode per line"):
        read_evaluation(tmp_path / "b.json")


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path, entry = tmp_path / "a.json", make(index=0)
    write_json(path, {"format": 1, "settings": SETTINGS, "trials_per_task": 1, "trials": [entry.as_json()]})
    assert read_evaluation(path) == (SETTINGS, [entry])
    with Journal(path, SETTINGS) as journal:
        journal.append(make(index=1))
    assert [entry.index for entry in read_evaluation(path)[1]] == [0, 1]
