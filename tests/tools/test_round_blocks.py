"""Blocks of an improvement come from its evaluation episodes, and these are of the promoted policy."""

import dataclasses
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from results_made import DOOR, episodes, write_evaluation

from pac.evaluation import EpisodeRecord
from pac.files import write_json
from pac.improve.gate import judge, mastered
from tools.archive import Folder
from tools.refresh import END, refresh
from tools.round_blocks import read_improvement

IMPROVE = Path(__file__).parents[2] / "results/improve"
WALK = "control/walker.walk"
MARKS = ["fingerprint 0", "fingerprint 1", "fingerprint 2"]


def walks(actor: str, total: float, count: int, seed: int) -> list[EpisodeRecord]:
    """Returns that are one more and one less by turns."""
    made = episodes(actor, WALK, 0, count, seed=seed)
    return [dataclasses.replace(entry, success=None, total=total + (-1) ** i) for i, entry in enumerate(made)]


def write_episodes(
    path: Path, actor: str, doors: int, total: float, *, mark: str, seed: int = 5, count: int = 10
) -> None:
    records = episodes(actor, DOOR, doors, count, seed=seed) + walks(actor, total, count, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_evaluation(path, records, {actor: {"fingerprint": mark}}, seed=seed)
    change(path, lambda document: document.update(experts={WALK: {"mean": 20.0}}))


def change(path: Path, what: Any) -> None:
    document = json.loads(path.read_text())
    what(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Round 1 was refused; round 2, from round 0 again, is the promoted one."""
    folder = tmp_path / "both"
    reasons = [
        "the first: nothing to be compared with",
        "targets surely worse: -9.0 [-9.5, -8.5] points",
        "targets surely better: +7.0 [+6.0, +8.0] points; "
        "others no worse, as far as can be told: +0.0 [-1.0, +1.0] points",
    ]
    starts = ["nothing", *["rounds/000/train/checkpoints/000100"] * 2]
    rounds = []
    for number, (doors, total) in enumerate([(2, 10.0), (1, 4.0), (8, 19.0)]):
        evaluation = f"rounds/{number:03d}/evaluation.json"
        write_episodes(folder / evaluation, f"round {number}", doors, total, mark=MARKS[number])
        rounds.append(
            {
                "round": number,
                "start": starts[number],
                "episodes": {DOOR: 30},
                "steps": 1000 * (number + 1),
                "promoted": number != 1,
                "reason": reasons[number],
                "evaluation": evaluation,
                "summary": {DOOR: {"mean": 0.99, "low": 0.99, "high": 0.99, "unit": "success"}},
                "seconds": {"collect": 1.4, "train": 60.0, "evaluate": 2.0},
            }
        )
    write_episodes(folder / "final.json", "final", 95, 18.0, mark=MARKS[2], seed=1, count=100)
    improve = {"mastery": 0.9, "rounds": 5, "steps": "1k steps", "episodes": 30, "trials": 10, "first": "random"}
    recipe = {"model": {"size": "nano"}, "objective": {"discount": 0.97}}
    document = {"tasks": [DOOR], "others": [WALK], "config": {"improve": improve, "recipe": recipe}, "rounds": rounds}
    write_json(folder / "improve.json", document | {"status": "running"})
    return write_page(tmp_path, "rounds both", "improvements both", "curves b*")


def write_page(folder: Path, *blocks: str) -> Path:
    path = folder / "page.md"
    path.write_text("# Title\n\n" + "".join(f"<!-- pac: {block} -->\n{END}\n" for block in blocks))
    return path


def test_rounds_counted_by_hand(page: Path) -> None:
    refresh(page)
    text = page.read_text()
    assert "| 0 | nothing | 30 | 1,000 | 20.0 [5.7, 51.0] | 50.0 [46.2, 53.8] | promoted |  | 1 / 60 / 2 |" in text
    assert re.search(
        r"\| 1 \| round 0 \| 30 \| 2,000 \| 10.0 \[.*\*\*refused\*\* \| -9.0 \[-9.5, -8.5\] \| 1 / 60 / 2 \|", text
    )
    assert re.search(
        r"\| 2 \| round 0 \| .*promoted \| targets \+7.0 \[\+6.0, \+8.0\]; others \+0.0 \[-1.0, \+1.0\] \|", text
    )
    assert re.search(
        r"\| other initial states, 100 episodes a task \|  \|  \|  \| 95.0 \[88.8, 97.8\] \| 90.0 \[", text
    )
    assert "- Stopped from outside: 3 of at most 5 rounds were done." in text
    assert "Most returns are equal" not in text


def test_improvements_counted_by_hand(page: Path) -> None:
    refresh(page)
    lines = page.read_text().split("\n")
    door, walk = (next(line for line in lines if line.startswith(f"| {task} |")) for task in (DOOR, WALK))
    assert door.startswith(
        f"| {DOOR} | success, % | 20.0 [5.7, 51.0] | 80.0 [49.0, 94.3] | **95.0 [88.8, 97.8]** | 100 | yes |"
    )
    assert door.endswith("| 3 | 1 | 3,000 | 90 | 3.2 |")
    assert walk.startswith(
        f"| {WALK} | % of expert | 50.0 [46.2, 53.8] | 95.0 [91.2, 98.8] | **90.0 [89.0, 91.0]** | 100 | yes |"
    )
    assert walk.endswith("| 3 | 1 | 3,000 | 0 | 3.2 |")  # tasks that must not get worse collect nothing
    assert "| both | nano | 30 episodes a task, random | 1k | 1k | 30 | 10 | 5 | 0 | 0.97 |" in lines


def test_mastery_needs_other_initial_states_and_best_a_promoted_round(page: Path) -> None:
    folder = page.parent / "both"
    write_episodes(folder / "final.json", "final", 89, 17.9, mark=MARKS[2], seed=1, count=100)
    write_episodes(folder / "rounds/001/evaluation.json", "round 1", 10, 20.0, mark=MARKS[1])
    refresh(page)
    for task, best, final in ((DOOR, "80.0", "89.0"), (WALK, "95.0", "89.5")):
        line = next(line for line in page.read_text().split("\n") if line.startswith(f"| {task} |"))
        assert re.search(rf"\| {best} \[[^|]*\] \| {final} \[[^|]*\] \| 100 \| no \|", line)


def test_nothing_is_reached_without_a_final_evaluation(page: Path) -> None:
    (page.parent / "both/final.json").unlink()
    refresh(page)
    assert "other initial states, " not in page.read_text().split("pac: improvements")[0]
    assert f"| {DOOR} | success, % | 20.0 [5.7, 51.0] | 80.0 [49.0, 94.3] | - | - | - | 3 |" in page.read_text()
    assert (page.parent / "plots/b.svg").read_text().count("<circle") == 2 * 3


def test_scores_come_from_episodes_not_from_recorded_summaries(page: Path) -> None:
    refresh(page)
    folder = page.parent / "both"
    change(folder / "improve.json", lambda d: d["rounds"][0]["summary"][DOOR].update(mean=0.5))
    assert refresh(page) == []
    change(folder / "rounds/000/evaluation.json", lambda d: d["episodes"][2].update(success=True))
    assert {path.name for path in refresh(page)} == {"page.md", "b.svg"}
    assert "| 0 | nothing | 30 | 1,000 | 30.0 [" in page.read_text()


def test_a_note_says_where_most_returns_are_equal(page: Path) -> None:
    def flat(document: dict[str, Any]) -> None:
        for episode in document["episodes"]:
            episode["return"] = 10.0 if episode["index"] else 11.0

    change(page.parent / "both/rounds/001/evaluation.json", flat)
    refresh(page)
    assert "- Most returns are equal in round 1: the interval there is too short." in page.read_text()


def test_a_refused_round_is_hollow_and_off_the_line(page: Path) -> None:
    refresh(page)
    text = (page.parent / "plots/b.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"var\((--\w+)\)", text)) <= set(re.findall(r"(--[\w-]+):", text))
    assert text.count("<circle") == 2 * 4  # tasks, rounds and the other states
    assert text.count('style="fill:var(--paper);stroke:var(--s0)') == 2
    assert text.count(">90%</text>") == 2
    line = re.search(r'<path d="(M[^"]*)" stroke-width="2"', text)
    assert line
    assert line[1].count("L") == 1  # from round 0 to round 2


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda f: (f / "improve.json").unlink(), "line 3: expected the file .*both/improve.json, found none"),
        (
            lambda f: (f / "rounds/001/evaluation.json").unlink(),
            "line 3: expected the file .*both/rounds/001/evaluation.json, found none",
        ),
        (lambda f: change(f / "improve.json", lambda d: d.pop("tasks")), "line 3: .*expected the improve.json of `pac"),
        (
            lambda f: change(f / "improve.json", lambda d: d["rounds"][1].pop("seconds")),
            "line 3: .*expected the improve.json of `pac improve`, found KeyError..seconds",
        ),
        (lambda f: change(f / "improve.json", lambda d: d.update(rounds=[])), "line 3: .*promoted round, found none"),
        (
            lambda f: write_episodes(f / "rounds/001/evaluation.json", "round 7", 1, 4.0, mark="x"),
            "line 3: .*001/evaluation.json: expected episodes of 'round 1', found none",
        ),
        (
            lambda f: change(f / "improve.json", lambda d: d["others"].append("control/other")),
            "line 3: .*000/evaluation.json: expected episodes of 'round 0', found none of control/other",
        ),
        (
            lambda f: write_episodes(f / "final.json", "final", 9, 18.0, mark=MARKS[1], seed=1),
            "line 3: .*final.json: expected the promoted policy of round 2, fingerprint fingerprint 2, found",
        ),
        (
            lambda f: write_episodes(f / "final.json", "final", 9, 18.0, mark=MARKS[2], seed=5),
            "line 3: .*final.json: expected another seed than the rounds' 5",
        ),
        (
            lambda f: change(f / "final.json", lambda d: d["settings"].update(max_steps=7)),
            "line 3: .*final.json: expected max_steps of the rounds, None, found 7",
        ),
        (
            lambda f: change(f / "final.json", lambda d: d.update(experts={WALK: {"mean": 30.0}})),
            "line 3: .*final.json: expected the experts of the rounds",
        ),
    ],
)
def test_errors_name_the_line_and_write_nothing(page: Path, spoil: Any, error: str) -> None:
    shutil.copytree(page.parent / "both", page.parent / "good")
    write_page(page.parent, "rounds both", "curves good")
    before = page.read_text()
    spoil(page.parent / "both")
    with pytest.raises(ValueError, match=error):
        refresh(page)
    assert page.read_text() == before
    assert not (page.parent / "plots").exists()


# --------------------------------------------------------------------------------------------------------- our records


def signed_numbers(reason: str) -> list[str]:
    return re.findall(r"[+-]\d+\.\d", reason)


@pytest.mark.parametrize("path", sorted(IMPROVE.iterdir()), ids=lambda path: path.stem)
def test_the_gate_decides_from_the_episodes_as_recorded(path: Path) -> None:
    """The recorded decisions and their numbers must be those that the episodes give."""
    folder, document = Folder(path), read_improvement(path).document
    settings, kept = document["config"]["improve"], list[EpisodeRecord]()
    for entry in document["rounds"]:
        evaluation = folder.read(entry["evaluation"])
        experts = {task: about["mean"] for task, about in evaluation["experts"].items()}
        new = [EpisodeRecord.from_json(episode) for episode in evaluation["episodes"]]
        if kept:
            verdict = judge(new, kept, {"targets": document["tasks"]}, experts=experts, tolerance=settings["tolerance"])
            assert verdict.promoted == entry["promoted"]
            assert signed_numbers(verdict.reason) == signed_numbers(entry["reason"])
        kept = new if entry["promoted"] else kept
    done = mastered(kept, document["tasks"], experts, settings["mastery"])
    assert document["status"] == ("mastered" if done else "running")
