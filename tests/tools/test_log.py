"""Entries of docs/log have a date, a question, an answer in one sentence, evidence and a command."""

import re
from pathlib import Path

import pytest

ENTRIES = sorted((Path(__file__).parents[2] / "docs/log").glob("2026*.md"))
COMMANDS = re.compile(
    r"Commands?:|\*One-off\*|\*one-off\*|`(?:pac|python|pytest|pip) |^```$|[Rr]esults|commit", re.MULTILINE
)


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_an_entry_has_all_parts_in_order(path: Path) -> None:
    text = path.read_text()
    title, _, date = text.split("\n")[:3]
    assert title.startswith("# ")
    assert date == path.stem[:10]
    marks = ["**Question.**", "**Answer.**", "## Evidence"]
    assert all(mark in text for mark in marks), f"{path}: expected {', '.join(marks)}"
    assert sorted(map(text.index, marks)) == list(map(text.index, marks))
    if "**Later.**" in text:
        assert text.index("**Later.**") < text.index("**Question.**")
    (answer,) = re.findall(r"^\*\*Answer\.\*\* (.*)$", text, re.MULTILINE)
    assert len(re.split(r"(?<=[.!?])\s+(?=[A-Z`0-9])", answer)) == 1, f"{path}: expected one sentence: {answer}"
    assert COMMANDS.search(text), f"{path}: expected the command, or *one-off*"
