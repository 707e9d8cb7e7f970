"""Study files: the runs that they ask for, and their mistakes, before anything runs."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pac.config import interpolate, parse_duration
from pac.resources import RECIPES
from pac.study.plan import Study, load_study, parse_study

RECIPE = """
length = "8 steps"
[study]
seeds = [1, 2]
each = ["push", "reach"]
[[study.data]]
name = "poor"
tasks = ["metaworld/push", "metaworld/reach"]
behaviour = "scripted"
[study.rows."BC+Q"]
objective.method = "bc+q"
[study.rows."PAC, far"]
objective = { method = "pac", num_steps = 4 }
mixture.defaults = { imitation_weight = 0.5 }
[objective]
discount = 0.9
[mixture]
batch_size = 4
window = 3
defaults = { reward = "success" }
[[mixture.groups]]
name = "all"
weight = 1
datasets = [{ name = "{each}", path = "{data}/poor/metaworld-{each}" }]
[evaluation]
tasks = ["metaworld/{each}"]
"""


def parsed(change: Any = lambda table: None, only_domains: tuple[str, ...] = ()) -> Study:
    table = tomllib.loads(RECIPE)
    change(table)
    return parse_study(table, Path(), Path("/out"), name="doors", only_domains=only_domains)


def test_rows_join_the_recipe_and_marks_are_replaced() -> None:
    study = parsed()
    assert len(study.runs) == 2 * 2 * 2
    first, last = study.runs[0], study.runs[-1]
    assert (first.name, first.labels) == ("bc+q-push-seed-1", {None: ("BC+Q", "BC+Q, seed 1")})
    assert (last.name, last.labels) == ("pac-far-reach-seed-2", {None: ("PAC, far", "PAC, far, seed 2")})
    assert (first.config.method, first.config.seed, first.config.objective.discount) == ("bc+q", 1, 0.9)
    assert (last.config.objective.num_steps, last.config.objective.discount, last.config.seed) == (4, 0.9, 2)
    [dataset] = last.config.mixture.datasets
    assert (dataset.reward, dataset.imitation_weight) == ("success", 0.5), "a row's table joins, it does not replace"
    assert str(dataset.path) == "/out/data/poor/metaworld-reach"
    assert last.config.evaluation.tasks == ("metaworld/reach",)
    assert study.collections["poor"].tasks == ("metaworld/push", "metaworld/reach")


def test_rows_do_not_change_each_other() -> None:
    by_row = {run.row: run.config for run in parsed().runs}
    assert by_row["BC+Q"].objective.num_steps is None
    assert {d.imitation_weight for d in by_row["BC+Q"].mixture.datasets} == {1.0}


def with_domains(table: dict[str, Any]) -> None:
    del table["evaluation"]["tasks"]
    table["evaluation"]["stop_at_success"] = True
    table["study"]["domains"] = {"mine": {"tasks": ["metaworld/{each}"], "max_steps": 20}}
    table["study"]["domains"]["others"] = {"tasks": ["control/reacher.easy"], "stop_at_success": False}


def test_domains_have_limits_of_their_own() -> None:
    run = parsed(with_domains).runs[-1]
    mine, others = run.domains["mine"], run.domains["others"]
    assert (mine.tasks, mine.max_steps, mine.stop_at_success) == (("metaworld/reach",), 20, True)
    assert (others.tasks, others.max_steps, others.stop_at_success) == (("control/reacher.easy",), None, False)
    assert run.config.evaluation.tasks == ("metaworld/reach", "control/reacher.easy")


def test_one_domain_alone() -> None:
    run = parsed(with_domains, ("others",)).runs[-1]
    assert list(run.domains) == ["others"]
    assert run.config.evaluation.tasks == ("control/reacher.easy",)


@pytest.mark.parametrize(("change", "known"), [(with_domains, "mine, others"), (lambda table: None, "none")])
def test_an_unknown_domain_is_named(change: Any, known: str) -> None:
    with pytest.raises(ValueError, match=f"--domain: .* found 'theirs'. Domains: {known}."):
        parsed(change, ("theirs",))


def test_each_way_to_give_the_task_is_an_actor_and_not_a_run() -> None:
    study = parsed(lambda t: t["study"].update(shows=["goal", "text+goal"]))
    assert len(study.runs) == len(parsed().runs)
    assert study.rows == ["BC+Q", "PAC, far"]
    assert list(study.actors) == ["BC+Q, goal", "BC+Q, text+goal", "PAC, far, goal", "PAC, far, text+goal"]
    assert study.actors["PAC, far, goal"] == {n: f"PAC, far, goal, seed {n}" for n in (1, 2)}
    assert study.runs[0].labels["goal"] == ("BC+Q, goal", "BC+Q, goal, seed 1")


def test_a_row_may_change_one_group() -> None:
    def change(table: dict[str, Any]) -> None:
        table["mixture"]["groups"].append(table["mixture"]["groups"][0] | {"name": "good"})
        table["mixture"]["groups"][1]["datasets"] = [{"name": "more", "path": "more"}]
        table["study"]["rows"]["PAC, far"]["mixture"]["groups"] = {"good": {"imitation_weight": 0.25}}

    by_row = {run.row: {d.name: d.imitation_weight for d in run.config.mixture.datasets} for run in parsed(change).runs}
    assert by_row == {"BC+Q": {"reach": 1.0, "more": 1.0}, "PAC, far": {"reach": 0.5, "more": 0.25}}


def without_tasks(table: dict[str, Any]) -> None:
    table["evaluation"] = {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("study"), "Expected a table [study]"),
        (lambda t: t["study"].pop("rows"), "study.rows"),
        (lambda t: t.update(seed=3), "Expected no 'seed' in a study"),
        (lambda t: t["study"].update(seeds=[1, 1]), "study.seeds: expected different numbers"),
        (lambda t: t["study"].update(shows=["words"]), "study.shows: expected some of text+goal, goal, text, none"),
        (lambda t: t["study"].update(shows=["goal", "goal"]), "each once, found ['goal', 'goal']"),
        (lambda t: t["study"].update(trial=3), "Unknown key 'trial' in [study]"),
        (lambda t: t["study"]["rows"]["BC+Q"].update(objective={"method": "bcq"}), "row 'BC+Q', push: Unknown method"),
        (lambda t: t["study"]["rows"].update({"bc+q": {}}), "names of rows that differ"),
        (lambda t: t["study"]["data"][0].pop("name"), "study.data: expected a name"),
        (lambda t: t["study"]["data"][0].update(tasks=["metaworld/puhs"]), "metaworld/push"),
        (without_tasks, "Expected evaluation.tasks in a study"),
        (lambda t: t["evaluation"].update(tasks=["metaworld/pusch"]), "metaworld/pusch"),
        (
            lambda t: t["study"]["rows"]["BC+Q"].update(mixture={"groups": {"godo": {}}}),
            "groups: expected settings by name (all), found 'godo'",
        ),
        (lambda t: t["study"].update(domains={"a": {"tasks": ["metaworld/push"]}}), "found both"),
        (
            lambda t: (with_domains(t), t["study"]["domains"]["mine"].update(tasks=["control/reacher.easy"])),
            "expected each task in one domain, found control/reacher.easy in two",
        ),
        (
            lambda t: (with_domains(t), t["study"]["domains"]["mine"].update(steps=3)),
            "Unknown key 'steps' in study.domains",
        ),
    ],
)
def test_mistakes_are_named(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parsed(change)


@pytest.mark.parametrize("file", sorted(RECIPES.glob("study/*.toml")), ids=lambda path: path.stem)
def test_studies_that_ship_can_be_read(file: Path, tmp_path: Path) -> None:
    patterns = re.findall(r'"\{data\}/([^"]*\*[^"]*)"', file.read_text())
    given = {(tmp_path / "data" / pattern.replace("*", "000")).resolve() for pattern in patterns}  # made by improvement
    for folder in given:
        folder.mkdir(parents=True)
    study = load_study(file, [], tmp_path)
    assert len(study.config.seeds) >= 3
    made = {(tmp_path / "data" / name / task.replace("/", "-")).resolve()
            for name, collection in study.collections.items() for task in collection.tasks}  # fmt: skip
    used = {Path(p) for run in study.runs for d in run.config.mixture.datasets for p in (d.path, *d.more_paths)}
    text = file.read_text()
    other_data = set(re.findall(r"^#.*data/(\w+)", text, re.MULTILINE))  # of another command, at the top of the file
    assert {path for path in used - made - given if path.parent.name not in other_data} == set()
    assert all(f"# {word}:" in text for word in ("Expected", "Cost", "Command"))
    assert f"pac study study/{file.stem} " in text


@pytest.mark.parametrize(
    ("name", "row", "before", "after"),
    [
        ("bc_to_rl", "1, then 0.25", 500, 0.25),
        ("bc_to_rl", "1, then 0", 500, 0.0),
        ("bc_to_rl_poor", "1, then 0", 1500, 0.0),
    ],
)
def test_cloning_changes_to_rl_half_way_and_at_once(
    name: str, row: str, before: int, after: float, tmp_path: Path
) -> None:
    config = next(run.config for run in load_study(f"study/{name}", [], tmp_path).runs if run.row == row)
    assert parse_duration(config.length, epoch_steps=1, update_flops=1.0) == 2 * before
    points = config.schedules.imitation_weight
    assert points is not None
    assert [interpolate(points, step) for step in range(2 * before)] == [1.0] * before + [after] * before


def test_the_weights_before_the_change_are_kept(tmp_path: Path) -> None:
    """`pac evaluate` evaluates them, as the file says."""
    checkpoint = load_study("study/bc_to_rl_poor", [], tmp_path).runs[0].config.checkpoint
    assert checkpoint.every == checkpoint.keep_every == "1500 steps"
    assert "checkpoints/001500 " in (RECIPES / "study" / "bc_to_rl_poor.toml").read_text()
