"""Tables: the best are bold, missing numbers are left out, markup in a label is printed, and all fits 80 columns."""

import io

from made import make, outcomes, returns
from rich.console import Console

from pac.cli.tables import print_grids
from pac.evaluation import compare, summarise
from pac.evaluation.records import by_actor
from pac.evaluation.tables import grids, markdown


def tables_of(records: list, **given: object) -> str:
    summaries = {label: summarise(group, **given) for label, group in by_actor(records).items()}  # type: ignore[arg-type]
    return markdown(grids(summaries, compare(records, **given)), ["a note"], "pac evaluate ours")  # type: ignore[arg-type]


def test_the_best_are_bold_and_intervals_to_the_digit() -> None:
    records = []
    for task in ("metaworld/push", "metaworld/reach"):
        records += outcomes(task, 55, 100, "ours", seed=1)
        records += outcomes(task, 52, 100, "theirs", seed=2)
        records += outcomes(task, 17, 100, "random", seed=3)
    text = tables_of(records)
    row = "| metaworld/push | 100 | **55.0 [45.2, 64.4]** | **52.0 [42.3, 61.5]** | 17.0 [10.9, 25.5] |"
    assert row in text.splitlines()
    assert "| pooled, 2 tasks | 200 |" in text
    assert "Success, % (95%: Wilson over pooled episodes)" in text
    assert text.startswith("```\npac evaluate ours\n```")
    assert text.endswith("- a note\n")
    assert "| ours - theirs | Success, % | 200 | +3.0 [" in text
    assert "| ours - random | Success, % | 200 | **+38.0 [" in text
    assert "Percent of expert" not in text  # none was measured


def test_a_table_without_success_or_rivals() -> None:
    text = tables_of(returns("control/walker.walk", [900.0, 910.0, 920.0]), experts={"control/walker.walk": 1000.0})
    assert "Success" not in text
    assert "Differences" not in text
    assert "| control/walker.walk | 3 | 91.0 [88.5, 93.5] |" in text
    assert "pooled" not in text.replace("pooled episodes", "")
    assert "910.0 [?]" in tables_of([make(total=910.0)])


def test_suites_have_rows_of_their_own() -> None:
    text = tables_of(returns("control/a", [1.0, 2.0]) + outcomes("metaworld/push", 1, 2))
    assert "| pooled, control, 1 task | 2 |" in text
    assert "| pooled, 2 tasks | 4 |" in text


def test_pooled_rows_count_the_tasks_that_have_the_number() -> None:
    records = returns("control/a", [1.0, 2.0]) + returns("control/b", [1.0, 2.0, 3.0])
    percent, whole = tables_of(records, experts={"control/b": 4.0}).split("**Return")
    assert "| pooled, 1 task | 3 | 50.0" in percent
    assert "| pooled, 2 tasks | 5 |" in whole


def test_labels_are_printed_as_they_are() -> None:
    out = io.StringIO()
    records = returns("control/a", [1.0, 2.0], "ours [red]|x") + returns("control/a", [1.0, 3.0], "theirs")
    summaries = {label: summarise(group) for label, group in by_actor(records).items()}
    print_grids(grids(summaries, compare(records)), Console(file=out, width=200))
    assert "ours [red]|x" in out.getvalue()
    assert "ours [red]\\|x" in markdown(grids(summaries))


def test_an_actor_that_lacks_a_task_has_an_empty_cell() -> None:
    text = tables_of(returns("control/a", [1.0, 2.0]) + returns("control/b", [1.0, 2.0], "theirs"))
    assert "| control/b | 2 | - | 1.5 [" in text


def test_four_actors_fit_80_columns() -> None:
    records, actors = [], ("ours (sample)", "theirs (mode)", "random", "scripted")
    for i, actor in enumerate(actors):
        for task in ("metaworld/button-press-topdown", "metaworld/reach"):
            records += outcomes(task, 10 * i, 100, actor, seed=i)
    summaries = {label: summarise(group) for label, group in by_actor(records).items()}
    made = grids(summaries, compare(records))
    for width, lines_per_task in ((80, 4), (200, 1)):
        out = io.StringIO()
        print_grids(made, Console(file=out, width=width))
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        start = next(i for i, line in enumerate(lines) if "metaworld/button-press-topdown" in line)
        end = next(i for i, line in enumerate(lines) if "metaworld/reach" in line)
        assert len([line for line in lines[start:end] if line.strip()]) == lines_per_task
        assert lines[start].split()[1] == "100"
        assert "0.0 [0.0, 3.7]" in lines[start]
