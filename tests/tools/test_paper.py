"""docs/paper.md answers every numbered equation, table and figure of the paper."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/paper.md"


@pytest.mark.parametrize(("heading", "last"), [("Equations", 16), ("Tables", 19), ("Figures", 9)])
def test_every_number_of_the_paper_has_a_row(heading: str, last: int) -> None:
    _, _, after = PAGE.read_text().partition(f"\n## {heading}\n")
    section = after.partition("\n## ")[0]
    found = set[int]()
    for row in re.findall(r"^\| (\d[\d, to]*) \|(.+)$", section, re.MULTILINE):
        for part in row[0].split(","):
            first, _, end = part.partition(" to ")
            found |= set(range(int(first), int(end or first) + 1))
        assert row[1].rpartition("|")[0].split("|")[-1].strip(), f"row {row[0]}: expected an answer or 'not done'"
    assert found == set(range(1, last + 1))
