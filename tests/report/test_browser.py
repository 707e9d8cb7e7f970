"""The page in a real browser, where there is one."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report.made import config, episodes, improvement, metrics, write_evaluation, write_run

from pac.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--hide-scrollbars")

# A window cannot be as narrow as a phone; a frame can, and its media queries go by its own width.
LOOK = """<body><iframe id="frame" src="page.html" style="width: WIDTHpx; height: 800px; border: 0"></iframe><script>
const errors = [];
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, root = page.documentElement;
  page.defaultView.onerror = text => errors.push(text);
  const plot = page.querySelector("svg[data-plot]"), box = plot.getBoundingClientRect();
  const at = {clientX: box.left + box.width * 0.99, clientY: box.top + 20};
  plot.dispatchEvent(new page.defaultView.PointerEvent("pointermove", at));
  document.title = JSON.stringify({
    page: root.scrollWidth, window: root.clientWidth, tip: page.body.lastElementChild.textContent, errors,
    wide: [...page.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth).length,
    svgs: [...page.querySelectorAll("figure > svg")].map(svg => Math.round(svg.getBoundingClientRect().width)),
  });
}, 200);
</script>"""


@pytest.fixture
def browser() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser was found ({', '.join(NAMES)})")
    return found


def wide_page(folder: Path) -> None:
    """Seven methods of two seeds in nine tasks, with names as long as they come."""
    name = "metaworld/a-task-with-quite-a-long-name-indeed-number"
    records = [
        entry
        for method in (
            "PAC",
            "PAC+V",
            "BC",
            "filtered BC",
            "alpha-PAC",
            "a method with a name that never ends at all",
            "x" * 70,
        )
        for seed in (0, 1)
        for task in range(9)
        for entry in episodes(f"{method}, seed {seed}", f"{name}-{task}", task, 10, predicted=1.0, achieved=2.0)
    ]
    runs = [write_run(folder / ("r" * 90 + str(i)), config("pac", i), metrics(i)) for i in (0, 1)]
    (folder / "improve").mkdir()
    (folder / "improve" / "improve.json").write_text(json.dumps(improvement()))
    evaluation = write_evaluation(folder / f"{'e' * 80}.json", records)
    write_report([*runs, evaluation, folder / "improve"], folder / "page.html")


def look(browser: str, folder: Path, width: int) -> dict[str, Any]:
    (folder / "look.html").write_text(LOOK.replace("WIDTH", str(width)))
    words = [browser, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*words, f"file://{folder}/look.html"], capture_output=True, text=True, timeout=60, check=True
    )
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr[-500:]
    found: dict[str, Any] = json.loads(html.unescape(title[1]))
    return found


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_never_scrolls_sideways_and_its_script_runs(browser: str, tmp_path: Path, width: int) -> None:
    wide_page(tmp_path)
    found = look(browser, tmp_path, width)
    assert found["page"] == found["window"] == width
    assert found["wide"] == 0  # a phone shows wide tables as lists; a screen has a line per actor
    assert found["errors"] == []
    assert "updates 100" in found["tip"]
    assert "rrr0" in found["tip"]
    assert min(found["svgs"]) > 250  # text in the drawings keeps a readable size
