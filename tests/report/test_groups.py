"""What is pooled, and above all what is not."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.made import DOOR, DRAWER, config, metrics, trials, write_evaluation, write_run

from pac.evaluation import EpisodeRecord
from pac.evaluation.intervals import stratified_bootstrap, wilson
from pac.report.groups import ComparisonGroup, contests, name_runs, split_seed
from pac.report.sources import Evaluation, LoadedRun, read


def evaluation(records: list[EpisodeRecord], name: str = "e.json", **actors: dict[str, Any]) -> Evaluation:
    return Evaluation(name=name, records=records, settings={"actors": actors})


def only(*evaluations: Evaluation, runs: list[LoadedRun] | None = None) -> ComparisonGroup:
    made, _ = contests(evaluations, runs or [])
    assert len(made) == 1
    return made[0]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("PAC, seed 3", ("PAC", 3)),
        ("pac-seed12", ("pac", 12)),
        ("pac_seed=0", ("pac", 0)),
        ("runs/a", ("runs/a", None)),
        ("seed 3", ("seed 3", None)),
        ("proceed 3", ("proceed 3", None)),
    ],
)
def test_seeds_in_labels(label: str, expected: tuple[str, int | None]) -> None:
    assert split_seed(label) == expected


def test_runs_that_differ_in_the_seed_alone_are_one_method() -> None:
    runs = [
        LoadedRun(name=f"r{i}", config=config(method, seed))
        for i, (method, seed) in enumerate([("pac", 0), ("pac", 1)])
    ]
    runs += [LoadedRun(name="b", config=config("bc+q")), LoadedRun(name="c", config=config(), label="Ours")]
    assert list(name_runs(runs).values()) == ["Ours", "pac", "pac", "bc+q"]


def test_runs_with_other_settings_are_kept_apart_and_named_by_them() -> None:
    runs = [LoadedRun(name=f"r/{e}", config=config(epsilon=e)) for e in (0.1, 0.3)]
    names = name_runs(runs)
    assert [names[id(run)] for run in runs] == ["pac, objective.epsilon=0.1", "pac, objective.epsilon=0.3"]
    many = [LoadedRun(name=f"r/{e}", config=config(epsilon=e, a=e, b=e)) for e in (0.1, 0.3)]
    names = name_runs(many)
    assert [names[id(run)] for run in many] == ["pac, 0.1", "pac, 0.3"]


def test_seeds_are_pooled_over_their_trials() -> None:
    records = trials("PAC, seed 0", DOOR, 9, 10) + trials("PAC, seed 1", DOOR, 1, 30)
    contest = only(evaluation(records))
    assert list(contest.members) == ["PAC"]
    success = contest.pooled["PAC"].overall.success
    assert success is not None
    assert (success.mean, success.n) == (10 / 40, 40)  # not the mean of 90% and 3%
    assert (success.low, success.high) == wilson(10, 40)
    parts = [summary.overall.success for summary in contest.single["PAC"].values()]
    assert [part.mean for part in parts if part] == [0.9, 1 / 30]
    totals = np.array([entry.total for entry in records])
    returns = contest.pooled["PAC"].overall.returns
    assert (returns.low, returns.high) == stratified_bootstrap([totals])
    assert returns.mean == pytest.approx(totals.mean())


def test_checkpoints_find_their_run_and_its_seed(tmp_path: Path) -> None:
    runs = [read(write_run(tmp_path / f"r{seed}", config(seed=seed), metrics())) for seed in (0, 1)]
    assert all(isinstance(run, LoadedRun) for run in runs)
    actors = {
        str(tmp_path / "r0"): {"checkpoint": str(tmp_path / "r0"), "fingerprint": "f0"},
        "r1": {"checkpoint": str(tmp_path / "r1" / "checkpoints" / "last"), "fingerprint": "f1"},
    }
    records = [entry for label in actors for entry in trials(label, DOOR, 5, 10)]
    contest = only(evaluation(records[:10], **actors), runs=[run for run in runs if isinstance(run, LoadedRun)])
    assert {name: list(parts) for name, parts in contest.members.items()} == {"pac": ["seed 0"]}
    both = only(evaluation(records, **actors), runs=[run for run in runs if isinstance(run, LoadedRun)])
    assert list(both.members) == ["pac", "r1"]  # a label that a person gave stays


def test_two_checkpoints_of_one_run_are_not_pooled(tmp_path: Path) -> None:
    run = read(write_run(tmp_path / "r", config(), metrics()))
    assert isinstance(run, LoadedRun)
    places = {step: str(tmp_path / "r" / "checkpoints" / step) for step in ("000200", "000400")}
    actors = {place: {"checkpoint": place, "fingerprint": step} for step, place in places.items()}
    records = [entry for label in actors for entry in trials(label, DOOR, 5, 10)]
    contest = only(evaluation(records, **actors), runs=[run])
    assert list(contest.members) == ["pac, 000200", "pac, 000400"]
    again = {place: {"checkpoint": place, "fingerprint": "other"} for place in places.values()}
    first = evaluation(records[:10], "x.json", **actors)
    later = evaluation(records[:10], "y.json", **again)  # the same folder, written anew in between
    contest = only(first, later, runs=[run])
    assert {name: sum(map(len, parts.values())) for name, parts in contest.members.items()} == {
        "pac, 000200": 10,
        "pac, 000200 (y)": 10,
    }


def test_the_same_trials_in_two_files_count_once() -> None:
    actor = {"behaviour": "random"}
    first = evaluation(trials("random", DOOR, 5, 10), "a.json", random=actor)
    longer = evaluation(trials("random", DOOR, 5, 20), "b.json", random=actor)
    assert only(first, longer).pooled["random"].overall.episodes == 20
    other = evaluation(trials("random", DOOR, 5, 20), "b.json", random={"behaviour": "random+hesitate"})
    assert list(only(first, other).members) == ["random", "random (b)"]


def test_trials_that_ended_by_other_rules_are_another_contest() -> None:
    first = evaluation(trials("a", DOOR, 5, 10))
    cut = Evaluation(name="cut", records=trials("a", DOOR, 5, 10), settings={"max_steps": 100, "stop_at_success": True})
    made, _ = contests([first, cut], [])
    assert [contest.rules for contest in made] == ["", "at most 100 steps, ended at success"]
    assert made[0].experts.keys() == {DOOR}
    assert made[1].experts == {}


def test_differences_pair_seeds_with_seeds() -> None:
    records = []
    for seed, (ours, theirs) in enumerate([(6, 2), (4, 4)]):
        records += trials(f"A, seed {seed}", DOOR, ours, 8) + trials(f"B, seed {seed}", DOOR, theirs, 8)
    found, complaints = only(evaluation(records)).differences()
    assert complaints == []
    success = next(d for d in found if d.metric == "success")
    assert (success.first, success.second, success.pairs) == ("A", "B", 16)
    assert success.difference == pytest.approx(4 / 16)


def test_other_initial_states_are_said_not_paired() -> None:
    others = [dataclasses.replace(entry, state="elsewhere") for entry in trials("B", DOOR, 2, 4)]
    found, complaints = only(evaluation(trials("A", DOOR, 2, 4) + others)).differences()
    assert found == []
    assert "same state" in complaints[0]


def test_a_label_that_pools_different_settings_says_so(tmp_path: Path) -> None:
    runs = [LoadedRun(name=f"r{e}", path=tmp_path / f"r{e}", config=config(epsilon=e), label="Ours") for e in (1, 2)]
    actors = {str(run.path): {"checkpoint": str(run.path), "fingerprint": run.name} for run in runs}
    records = [entry for label in actors for entry in trials(label, DRAWER, 5, 10)]
    contest = only(evaluation(records, **actors), runs=runs)
    assert list(contest.members) == ["Ours"]
    assert contest.pooled["Ours"].overall.episodes == 20
    assert contest.notes == ["Ours: its runs differ in more than the seed (objective.epsilon)."]


def test_a_file_of_an_evaluation_reads_into_the_same_contest(tmp_path: Path) -> None:
    found = read(write_evaluation(tmp_path / "e.json", trials("a", DOOR, 3, 10), {"a": {"behaviour": "random"}}))
    assert isinstance(found, Evaluation)
    assert only(found).members == only(evaluation(trials("a", DOOR, 3, 10))).members
