"""Links and paths on the pages lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
TREES = ("src", "tests", "benchmarks", "recipes", "docs", "results", "tools", "examples", "packages", ".github")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return all anchors of a Markdown page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def exists(path: str) -> bool:
    """Return whether a path that is written in a text is there; results may have lost their file ending."""
    if any(mark in path for mark in "*<>{}"):
        return True
    found = ROOT / path
    return found.exists() or (path.startswith("results/") and bool(list(found.parent.glob(found.name + ".*"))))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (fragment and fragment not in anchors(found)):
            broken.append(target)
    assert not broken, f"{page.relative_to(ROOT)}: links that lead nowhere: {broken}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_text_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(map(re.escape, TREES))})/[\w./*-]+)`", page.read_text())
    assert [path for path in named if not exists(path)] == []


def test_an_anchor_is_what_github_makes_of_a_heading() -> None:
    assert anchor("`pac demo`: 4 tasks, 3 seeds") == "pac-demo-4-tasks-3-seeds"
