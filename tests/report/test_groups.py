"""What is pooled, and what is kept apart."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.made import DOOR, DRAWER, config, episodes, metrics, write_evaluation, write_run

from pac.evaluation import EpisodeRecord
from pac.evaluation.intervals import stratified_bootstrap, wilson
from pac.report.groups import ComparisonGroup, compare_evaluations, group_runs, pooling_notes, split_seed
from pac.report.sources import LoadedEvaluation, LoadedRun, Source, read_sources


def evaluation(
    records: list[EpisodeRecord], name: str = "e.json", label: str | None = None, **actors: dict[str, Any]
) -> LoadedEvaluation:
    return LoadedEvaluation(name=name, label=label, records=records, settings={"actors": actors})


def only(*evaluations: Source, runs: list[LoadedRun] | None = None) -> ComparisonGroup:
    given = [one for one in evaluations if isinstance(one, LoadedEvaluation)]
    (group,) = compare_evaluations(given, runs or [])
    return group


def counts(group: ComparisonGroup) -> dict[str, dict[str, int]]:
    return {row: {member: len(part) for member, part in parts.items()} for row, parts in group.members.items()}


def read_runs(*texts: str) -> list[LoadedRun]:
    return [run for text in texts for run in read_sources(text) if isinstance(run, LoadedRun)]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("PAC, seed 3", ("PAC", 3)),
        ("PAC, no camera, seed 12", ("PAC, no camera", 12)),
        ("runs/pac-seed3", ("runs/pac-seed3", None)),
        ("seed 3", ("seed 3", None)),
    ],
)
def test_seeds_in_labels(label: str, expected: tuple[str, int | None]) -> None:
    assert split_seed(label) == expected


def test_runs_of_one_label_are_pooled_and_others_are_rows_of_their_own() -> None:
    runs = [LoadedRun(name=f"r{seed}", label="PAC", settings=config(seed=seed)) for seed in (1, 0)]
    runs += [LoadedRun(name="b", settings=config("bc+q")), LoadedRun(name="c", settings=config("bc+q", 1))]
    rows = group_runs(runs)
    assert {row: [run.name for run in members] for row, members in rows.items()} == {
        "PAC": ["r0", "r1"],
        "b": ["b"],
        "c": ["c"],
    }
    assert pooling_notes(rows) == []


def test_a_label_that_pools_different_settings_has_a_note() -> None:
    runs = [LoadedRun(name=f"r{e}", settings=config(epsilon=e), label="Ours") for e in (1, 2)]
    assert pooling_notes(group_runs(runs)) == ["Ours: its runs differ in more than the seed (objective.epsilon)."]


def test_seeds_are_pooled_over_their_episodes() -> None:
    records = episodes("PAC, seed 0", DOOR, 9, 10) + episodes("PAC, seed 1", DOOR, 1, 30)
    group = only(evaluation(records))
    assert list(group.members) == ["PAC"]
    success = group.pooled["PAC"].overall.success
    assert success is not None
    assert (success.mean, success.n) == (10 / 40, 40)  # not the mean of 90% and 3%
    assert (success.low, success.high) == wilson(10, 40)
    parts = [summary.overall.success for summary in group.by_member["PAC"].values()]
    assert [part.mean for part in parts if part] == [0.9, 1 / 30]
    totals = np.array([entry.total for entry in records])
    returns = group.pooled["PAC"].overall.returns
    assert (returns.low, returns.high) == stratified_bootstrap([totals])
    assert returns.mean == pytest.approx(totals.mean())


def test_a_checkpoint_takes_the_label_and_the_seed_of_its_run(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"r{seed}", config(seed=seed), metrics())
    actors = {
        str(tmp_path / "r0"): {"checkpoint": str(tmp_path / "r0"), "fingerprint": "f0"},
        "mine": {"checkpoint": str(tmp_path / "r1"), "fingerprint": "f1"},
    }
    records = [entry for actor in actors for entry in episodes(actor, DOOR, 5, 10)]
    labelled = only(evaluation(records, **actors), runs=read_runs(f"PAC={tmp_path}/r*"))
    assert counts(labelled) == {"PAC": {"seed 0": 10, "seed 1": 10}}
    plain = only(evaluation(records, **actors), runs=read_runs(f"{tmp_path}/r*"))
    assert counts(plain) == {str(tmp_path / "r0"): {"seed 0": 10}, "mine": {"seed 1": 10}}


def test_runs_of_one_label_and_seed_are_both_pooled(tmp_path: Path) -> None:
    paths = [str(write_run(tmp_path / name, config(epsilon=i), metrics())) for i, name in enumerate("ab")]
    actors = {path: {"checkpoint": path, "fingerprint": path} for path in paths}
    records = [entry for actor in actors for entry in episodes(actor, DRAWER, 5, 10)]
    group = only(evaluation(records, **actors), runs=read_runs(f"Ours={tmp_path}/*"))
    assert counts(group) == {"Ours": dict.fromkeys(paths, 10)}


def test_a_label_of_a_file_pools_its_actors() -> None:
    records = episodes("a", DOOR, 3, 10) + episodes("b", DOOR, 4, 10)
    assert counts(only(evaluation(records, label="PAC"))) == {"PAC": {"a": 10, "b": 10}}
    again = [evaluation(episodes("a", DOOR, 3, 10), name, label="PAC") for name in ("x.json", "y.json")]
    assert counts(only(*again)) == {"PAC": {"a": 10, "a (y.json)": 10}}


def test_two_checkpoints_of_one_run_are_not_pooled(tmp_path: Path) -> None:
    runs = read_runs(f"PAC={write_run(tmp_path / 'r', config(), metrics())}")
    places = {step: str(tmp_path / "r" / "checkpoints" / step) for step in ("000200", "000400")}
    actors = {place: {"checkpoint": place, "fingerprint": step} for step, place in places.items()}
    actors[f"{places['000400']} (greedy)"] = actors[places["000400"]] | {"sampling": "mode"}
    records = [entry for actor in actors for entry in episodes(actor, DOOR, 5, 10)]
    group = only(evaluation(records, **actors), runs=runs)
    assert list(group.members) == ["PAC, 000200", "PAC, 000400", "PAC, 000400 (greedy)"]
    again = {place: {"checkpoint": place, "fingerprint": "other"} for place in places.values()}
    first = evaluation(records[:10], "x.json", **actors)
    later = evaluation(records[:10], "y.json", **again)  # the same folder, written anew in between
    group = only(first, later, runs=runs)
    assert counts(group) == {"PAC, 000200": {"seed 0": 10}, f"{places['000200']} (y.json)": {"seed 0": 10}}


def test_the_same_episodes_in_two_files_count_once() -> None:
    actor = {"behaviour": "random"}
    first = evaluation(episodes("random", DOOR, 5, 10), "a.json", random=actor)
    longer = evaluation(episodes("random", DOOR, 5, 20), "b.json", random=actor)
    assert only(first, longer).pooled["random"].overall.episodes == 20
    other = evaluation(episodes("random", DOOR, 5, 20), "b.json", random={"behaviour": "random+hesitate"})
    assert list(only(first, other).members) == ["random", "random (b.json)"]


def test_episodes_that_ended_by_other_rules_are_another_group() -> None:
    settings = {"max_steps": 100, "stop_at_success": True}
    cut = LoadedEvaluation(name="cut", records=episodes("a", DOOR, 5, 10), settings=settings)
    groups = compare_evaluations([evaluation(episodes("a", DOOR, 5, 10)), cut], [])
    assert [group.rules for group in groups] == ["", "at most 100 steps, ended at success"]
    assert DOOR in groups[0].experts
    assert groups[1].experts == {}


def test_differences_pair_seeds_with_seeds() -> None:
    records = []
    for seed, (ours, theirs) in enumerate([(6, 2), (4, 4)]):
        records += episodes(f"A, seed {seed}", DOOR, ours, 8) + episodes(f"B, seed {seed}", DOOR, theirs, 8)
    found, complaints = only(evaluation(records)).differences()
    assert complaints == []
    success = next(d for d in found if d.metric == "success")
    assert (success.first, success.second, success.pairs) == ("A", "B", 16)
    assert success.difference == pytest.approx(4 / 16)


def test_other_initial_states_are_a_complaint() -> None:
    others = [dataclasses.replace(entry, state="elsewhere") for entry in episodes("B", DOOR, 2, 4)]
    found, complaints = only(evaluation(episodes("A", DOOR, 2, 4) + others)).differences()
    assert found == []
    assert "same state" in complaints[0]


def test_a_file_of_an_evaluation_reads_into_the_same_group(tmp_path: Path) -> None:
    (found,) = read_sources(
        write_evaluation(tmp_path / "e.json", episodes("a", DOOR, 3, 10), {"a": {"behaviour": "x"}})
    )
    assert only(found).members == only(evaluation(episodes("a", DOOR, 3, 10))).members
