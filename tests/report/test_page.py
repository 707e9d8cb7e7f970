"""The page: its numbers are the sources', it is whole by itself, and nothing in a name can break it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from report.made import DOOR, DRAWER, config, episodes, improvement, metrics, write_evaluation, write_run
from report.reading import Page, make_page

from pac.cli import main
from pac.evaluation import experts
from pac.evaluation.intervals import wilson
from pac.report import LoadedEvaluation, write_report

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def show(successes: int, count: int) -> str:
    low, high = wilson(successes, count)
    return f"{100 * successes / count:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def sources(tmp_path: Path) -> list[str]:
    """Return two seeds of PAC and one of BC+Q, evaluated in two tasks, a random actor, and an improvement."""
    paths = []
    actors: dict[str, Any] = {"random": {"behaviour": "random"}}
    records = episodes("random", DOOR, 1, 10) + episodes("random", DRAWER, 0, 10)
    for name, method, seed, wins in (("a", "pac", 0, 6), ("b", "pac", 1, 8), ("c", "bc+q", 0, 3)):
        path = str(write_run(tmp_path / name, config(method, seed), metrics(seed)))
        paths.append(f"{method.upper()}={path}")
        actors[path] = {"checkpoint": path, "fingerprint": name, "sampling": "sample", "best_of": 1}
        records += episodes(path, DOOR, wins, 10, predicted=3.0, achieved=2.0 + seed)
        records += episodes(path, DRAWER, wins - 2, 10)
    paths.append(str(write_evaluation(tmp_path / "e.json", records, actors)))
    (tmp_path / "improve").mkdir()
    (tmp_path / "improve" / "improve.json").write_text(json.dumps(improvement()))
    return [*paths, str(tmp_path / "improve")]


def test_the_numbers_are_those_of_the_sources(tmp_path: Path) -> None:
    page = Page(make_page(sources(tmp_path)))
    success = page.table("Success, %")
    assert success["door-open"]["PAC"] == show(14, 20)
    assert success["door-open"]["BC+Q"] == show(3, 10)
    assert success["pooled, 2 tasks"]["PAC"] == show(24, 40)
    assert success["pooled, 2 tasks"]["random"] == show(1, 20)
    assert success["door-open"]["episodes"] == "10/20"
    percent = page.table("Percent of expert")["door-open"]["random"]
    mean = np.mean([10.0, *(i / 10 for i in range(1, 10))])
    assert float(percent.split()[0]) == round(100 * float(mean) / experts.load()[DOOR].mean, 1)
    each = page.with_header("task", "episodes", "PAC, seed 0", "PAC, seed 1")
    assert each["door-open"]["PAC, seed 1"] == show(8, 10)
    calibration = page.with_header("row", "task", "episodes", "predicted")
    assert calibration["PAC"]["episodes"] == "20"
    assert calibration["PAC"]["predicted"] == "3"
    assert calibration["PAC"]["achieved"].split()[0] == "2.5"
    assert calibration["PAC"]["predicted - achieved"].split()[0] == "+0.5"


def test_runs_curves_and_mixture(tmp_path: Path) -> None:
    page = Page(make_page(sources(tmp_path)))
    table = page.with_header("run", "row", "method", "seed")
    assert table[str(tmp_path / "b")]["seed"] == "1"
    assert table[str(tmp_path / "b")]["updates"] == "100"
    assert table[str(tmp_path / "b")]["time"] == "1.2 min"
    assert (table[str(tmp_path / "b")]["row"], table[str(tmp_path / "b")]["method"]) == ("PAC", "pac")
    loss = {line["name"]: line for line in page.plots["Loss, all terms"]["series"]}
    assert loss["PAC"]["y"] == [step + 0.5 for step in range(10, 101, 10)]  # the mean of the two seeds
    assert (loss["PAC"]["low"][0], loss["PAC"]["high"][0]) == (10.0, 11.0)
    assert loss["BC+Q"]["y"] == list(range(10, 101, 10))
    evaluated = {line["name"]: line for line in page.plots["Success in training, all tasks"]["series"]}
    low, high = wilson(10 + 12, 40)
    assert evaluated["PAC"]["y"] == [55.0]
    assert evaluated["PAC"]["low"] == [float(f"{100 * low:.4g}")]
    assert evaluated["PAC"]["high"] == [float(f"{100 * high:.4g}")]
    data = page.with_header("dataset", "group")["doors"]
    assert [data[k] for k in ("weight λ", "P_eff", "alpha", "beta", "episodes", "transitions")] == [
        *("2", "1", "0.5", "4 (actions)", "20", "≤ 200")
    ]


def test_each_chart_names_its_axes_and_each_table_keeps_to_its_box(tmp_path: Path) -> None:
    text = make_page(sources(tmp_path))
    svgs = re.findall(r'<svg viewBox="0 0 360 .*?</svg>(?=</figure>|</div>)', text, re.DOTALL)
    assert len(svgs) > 8
    for svg in svgs:
        names = re.findall(r'<text class="axis"[^>]*>(.*?)</text>', svg)
        assert len(names) == (1 if "<rect" in svg else 2), svg[:200]  # a bar stands below its name
        assert all(names)
    assert text.count("<table") == text.count('<div class="scroll"><table')
    wide = [table for table in re.findall("<table.*?</table>", text, re.DOTALL) if 'class="list"' in table[:30]]
    assert wide
    for table in wide:
        heads = re.findall(r"<th [^>]*>(.*?)</th>", table)
        assert re.findall(r'data-label="(.*?)"', table)[: len(heads)] == heads


def test_the_page_begins_with_a_sentence_and_a_chart(tmp_path: Path) -> None:
    text = make_page(sources(tmp_path))
    start = text[text.index("<h1>") : text.index("<h2>")]
    assert "PAC succeeds in 60% (95%: 45 to 74) on 2 tasks, over 40 episodes." in start
    assert re.search(r"It is better than .*random \(5%\)", start)
    assert start.count("<svg") == 1
    assert "success, % of episodes" in start
    only_runs = make_page([f"PAC={write_run(tmp_path / 'r', config(), metrics())}"])
    assert "Evaluated in training. PAC: 50% success at update 100." in only_runs
    only_improvement = make_page([sources(tmp_path / "more")[-1]])
    assert (
        "metaworld/door-open: success 60.0% [50.0, 70.0] after round 2, 20.0% [10.0, 30.0] after round 0. 2 of 3"
        in only_improvement
    )


def test_the_better_way_to_act_is_named(tmp_path: Path) -> None:
    """Two seeds with both ways: rows are pooled over the seeds, and pairs are within a seed."""
    records, actors = [], {}
    for seed in (0, 1):
        for way, wins in (("sample", 5), ("mode", 9 + seed)):
            label = f"PAC, seed {seed} ({way})"
            actors[label] = {"checkpoint": f"gone/{seed}", "fingerprint": str(seed), "sampling": way, "best_of": 1}
            records += episodes(label, DOOR, wins, 10)
    page = Page(make_page([write_evaluation(tmp_path / "e.json", records, actors)]))
    assert "PAC: most likely actions are better than sampled actions, by 45.0 points of success [" in page.text
    assert "over 20 pairs" in page.text
    assert page.table("Success, %")["door-open"]["PAC (mode)"] == show(19, 20)


def test_without_a_video_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    file = write_evaluation(tmp_path / "e.json", episodes("a", DOOR, 2, 4))
    page = Page(make_page([file]))
    assert f"pac evaluate x --json {file} --videos {tmp_path / 'videos'}" in page.text


def test_rounds_of_improvement(tmp_path: Path) -> None:
    page = Page(make_page([sources(tmp_path)[-1]]))
    assert page.headings == ["PAC report", "Rounds of improvement", str(tmp_path / "improve"), "Settings", "Commands"]
    assert page.plots[DOOR]["series"][0]["y"] == [20.0, 15.0, 60.0]
    rounds = page.with_header("round")
    assert rounds["1"]["promoted"] == "no"
    assert rounds["2"][DOOR] == "60.0% [50.0, 70.0]"
    assert rounds["2"]["seconds"] == "64"


def test_the_page_needs_nothing_else_and_tells_how_to_make_it_again(tmp_path: Path) -> None:
    given = sources(tmp_path)
    out = tmp_path / "page.html"
    assert main(["report", *given, "--out", str(out)]) == 0
    text = out.read_text()
    page = Page(text)
    assert page.tags["link"] == 0
    outside = [value for _, name, value in page.attributes if name in ("src", "href") and not value.startswith("data:")]
    assert outside == []
    assert "@import" not in text
    assert not re.search(r"url\(|https?://", text)
    assert f"pac report {' '.join(given)} --out {out}" in page.text
    assert "pac train r.toml seed=1" in page.text
    assert "pac evaluate x" in page.text


def test_what_there_is_no_data_for_is_left_out(tmp_path: Path) -> None:
    only_run = Page(make_page([write_run(tmp_path / "a", config(), metrics())]))
    assert only_run.headings == ["PAC report", "Learning curves", "Runs", "Data", "Settings", "Commands"]
    only_episodes = Page(make_page([LoadedEvaluation(name="mine", records=episodes("a", "my/task", 2, 5))]))
    assert only_episodes.headings == ["PAC report", "Results"]
    assert only_episodes.table("Success, %")["my/task"]["a"] == show(2, 5)


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    settings = config(f"m{HOSTILE}")
    settings["config"]["mixture"]["groups"][0]["datasets"][0]["name"] = HOSTILE
    settings["mixture"]["datasets"][0]["name"] = settings["command"] = HOSTILE
    rows = [*metrics(), {"step": 100, HOSTILE: 1.0, f"evaluation/{HOSTILE}/success": 0.5}]
    run = write_run(tmp_path / name, settings, rows, finished=False)
    records = episodes(HOSTILE, HOSTILE, 2, 4, predicted=1.0, achieved=2.0) + episodes("b", HOSTILE, 2, 4)
    rounds = improvement(status=HOSTILE)
    rounds["rounds"][0] |= {"reason": HOSTILE}
    rounds["rounds"][0]["summary"][HOSTILE] = {"mean": 0.5, "low": None, "high": None, "unit": "return"}
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "improve.json").write_text(json.dumps(rounds))
    evaluation = write_evaluation(tmp_path / f"{name}.json", records)
    text = make_page([f"{HOSTILE}={run}", evaluation, tmp_path / "i"], title=HOSTILE, notes=[HOSTILE], command=HOSTILE)
    page = Page(text)
    assert page.tags["script"] == 1
    assert page.tags["img"] == 0
    assert not any(attribute.startswith("on") for _, attribute, _ in page.attributes)
    assert page.text.count("alert(1)") > 10
    assert page.headings[0] == HOSTILE


def test_missing_and_infinite_numbers_leave_no_trace(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": i, "loss/total": None if i % 3 else i, "critic/value": None} for i in range(40)
    ]
    rows.append({"step": 40, "evaluation/all/success": None, "evaluation/all/return": None, "loss/critic": 1e308})
    run = write_run(tmp_path / "a", config(), rows, finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "loss/critic": Infinity}\n{"step": 42, "loss/tot')
    text = make_page([run, LoadedEvaluation(name="one", records=episodes("a", "my/task", 1, 1))])
    page = Page(text)
    drawn = [value for _, name, value in page.attributes if name in ("d", "points", "cx", "cy", "x", "y", "width")]
    assert not any("nan" in value or "inf" in value for value in drawn)
    assert "Value" not in page.plots
    assert page.plots["Loss, all terms"]["series"][0]["x"] == list(range(40))
    assert page.table("Return")["my/task"]["a"] == "10.0 [?]"
    assert page.warnings == [f"{run}: Not finished: step 41 of 100."]


def test_videos_are_embedded_as_far_as_they_fit(tmp_path: Path) -> None:
    file = write_evaluation(tmp_path / "e.json", episodes("a", DOOR, 2, 4))
    for index, suffix in enumerate(("mp4", "gif", "webp")):
        (tmp_path / f"metaworld.door-open.episode{index}.a.{suffix}").write_bytes(b"avc1" + bytes(300_000))
    whole = make_page([file])
    assert [whole.count(f"data:{kind};base64") for kind in ("video/mp4", "image/gif", "image/webp")] == [1, 1, 1]
    assert Page(whole).warnings == []
    some = make_page([file], video_megabytes=0.9)  # two of 0.4 MB
    assert [some.count(f"data:{kind};base64") for kind in ("video/mp4", "image/gif", "image/webp")] == [1, 1, 0]
    assert "episode2.a.webp" in Page(some).warnings[0]
    assert len(make_page([file], video_megabytes=0.0)) < 100_000


def test_an_introduction_and_notes(tmp_path: Path) -> None:
    records = [entry for seed in (0, 1) for entry in episodes(f"PAC, seed {seed}", "my/point", 3, 4)]
    out = write_report(
        [LoadedEvaluation(name="demo", records=records)],
        tmp_path / "deep" / "demo.html",
        title="Demo",
        intro_html="<p>Why <em>this</em>.</p>",
        notes=["Two <b>seeds</b>."],
    )
    page = Page(out.read_text())
    assert "<p>Why <em>this</em>.</p>" in out.read_text()
    assert page.table("Success, %")["my/point"]["PAC"] == show(6, 8)
    assert "Two <b>seeds</b>." in page.text
    assert "Commands" not in page.headings  # nothing on disk to name


def test_trained_on_another_reward_there_is_no_calibration(tmp_path: Path) -> None:
    settings = config()
    settings["config"]["mixture"]["groups"][0]["datasets"][0]["reward"] = "success"
    path = str(write_run(tmp_path / "a", settings, metrics()))
    records = episodes(path, DOOR, 3, 10, predicted=1.0, achieved=2.0)
    file = write_evaluation(tmp_path / "e.json", records, {path: {"checkpoint": path, "fingerprint": "a"}})
    page = Page(make_page([path, file]))
    assert not [table for table in page.tables if "predicted" in table[0]]
    assert page.warnings == [f"Left out, because their critic learned another reward than the environment's: {path}."]


def test_from_training_to_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real runs, their evaluation, and the command."""
    runs.write_dataset(tmp_path / "data" / "pendulum", dims=3, low=(-1.0,), high=(1.0,), instruction="swingup")
    recipe = runs.dump(runs.recipe(tmp_path / "data", objective={"discount": 0.5}), tmp_path / "r.toml")
    folders = [str(tmp_path / f"run{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        assert main(["train", str(recipe), "--out", folder, f"seed={seed}"]) == 0
    task = "control/pendulum.swingup"
    evaluate = ["evaluate", *folders, "--tasks", task, "--episodes", "3", "--max-steps", "6", "--workers", "0"]
    assert main([*evaluate, "--json", str(tmp_path / "e.json")]) == 0
    capsys.readouterr()
    out = tmp_path / "page.html"
    assert (
        main(["report", f"PAC={tmp_path}/run*", str(tmp_path / "e.json"), "--out", str(out), "--title", "Two seeds"])
        == 0
    )
    assert str(out) in capsys.readouterr().out
    page = Page(out.read_text())
    played = json.loads((tmp_path / "e.json").read_text())["episodes"]
    mean = sum(entry["return"] for entry in played) / 6
    assert page.table("Return")["pendulum.swingup"]["PAC"].split()[0] == f"{mean:.1f}"
    predicted = np.mean([entry["predicted"] for entry in played])
    row = page.with_header("row", "task", "episodes", "predicted")["PAC"]
    assert row["predicted"] == f"{predicted:.4g}"
    assert row["episodes"] == "6"
    assert page.warnings == []
    assert f"pac train {recipe} seed=1 --out {folders[1]}" in page.text
    for folder in folders:
        Path(folder).rename(f"{folder}-moved")
    moved = Page(make_page([f"Ours={tmp_path}/run*", f"Ours={tmp_path / 'e.json'}"]))
    assert (
        moved.table("Return")["pendulum.swingup"]["Ours"].split()[0] == f"{mean:.1f}"
    )  # the label of the file pools its actors
    assert main(["report", str(tmp_path), "--out", str(out)]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err
