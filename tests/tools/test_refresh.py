"""The numbers on the pages of results/ come from the files beside them."""

import json
import re
import shutil
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from results_made import DOOR, DRAWER, episodes, write_evaluation

from pac.evaluation import EpisodeRecord, experts, summarise
from pac.evaluation.records import by_actor, write_json
from tools.archive import Folder, read_document
from tools.demo_blocks import read_demo
from tools.refresh import END, KINDS, find_blocks, main, refresh, refreshed
from tools.results import read_results

RESULTS = Path(__file__).parents[2] / "results"
PAGE = RESULTS / "README.md"
MOST_LINES = 250
PAGES = [path for path in sorted(RESULTS.rglob("*.md")) if "<!-- pac: " in path.read_text()]
NAMED = [str(path.relative_to(RESULTS)) for path in PAGES]

# Words and numbers of a page's text that are no results.
ALLOWED = ("95% interval", "two CPU cores", "100%", "alpha 0.5", "Eight episodes", "5m52s", "commit 728760b")
NAMES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WORDS = {word: str(i) for i, word in enumerate(NAMES, 2)}
NUMBER = re.compile(rf"(?<![\w.])(?:\d[\d,]*(?:\.\d+)?|\.\d+)\w*|\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def numbers(text: str) -> set[str]:
    """As they are written, units too, words as digits; what follows a letter (H200) is a name."""
    found = (word.lower().rstrip(",") for word in NUMBER.findall(text))
    return {f"0{word}" if word.startswith(".") else WORDS.get(word, word) for word in found}


def paper_numbers() -> set[str]:
    tables = json.loads((RESULTS / "paper.json").read_text())["numbers"].values()
    entries = [entry for table in tables for entry in table["entries"]]
    values = [value for entry in entries for value in (entry["value"], *(entry["interval"] or ()))]
    return {text for value in values for text in (f"{value:.1f}", f"{value:g}")}


def recipe_numbers(page: str) -> set[str]:
    """Return the sizes of the data and the number of latents in the recipes whose commands are on the page."""
    found = set[str]()
    for name in re.findall(r"^pac study (study/\w+)", page, re.MULTILINE):
        recipe = tomllib.loads((RESULTS.parent / f"recipes/{name}.toml").read_text())
        data = recipe.get("study", {}).get("data", [])
        found |= {f"{each[key]:,}" for each in data for key in ("episodes", "max_steps") if key in each}
        found |= {str(value) for key, value in recipe.get("model", {}).items() if key == "num_latents"}
    return found


def strange_numbers(page: str) -> set[str]:
    """Return the numbers in the text that are in no block of the page, in no recipe of it and not the paper's."""
    lines = page.split("\n")
    text, made = list(lines), ""
    for place in reversed(find_blocks(lines, "page")):
        made += "\n".join(lines[place.first + 1 : place.last])
        del text[place.first : place.last + 1]
    prose = re.sub(r"^```.*?^```", "", "\n".join(text), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)|<img [^>]*>|`[^`\s]*/[^`\s]*`", " ", prose)  # links, drawings and paths
    prose = re.sub(r"\s+", " ", prose)
    for phrase in ALLOWED:
        prose = prose.replace(phrase, "")
    return numbers(prose) - numbers(made) - paper_numbers() - recipe_numbers(page)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Some of the page, and what it is made from."""
    write_json(tmp_path / "study/poor.json", read_document(RESULTS / "study/poor.parquet"))
    (tmp_path / "demo").mkdir()
    shutil.copy(RESULTS / "demo/seed-1.parquet", tmp_path / "demo")
    write_json(tmp_path / "demo/seed-2.json", Folder(RESULTS / "demo/seed-2.parquet").read("demo.json"))
    page = write_page(tmp_path, "table study/poor.json", "bars study/poor.json", "demo demo/seed-*")
    assert len(refresh(page)) == 2
    return page


def change(path: Path, what: Any) -> None:
    document = json.loads(path.read_text())
    what(document)
    path.write_text(json.dumps(document))


def write_page(folder: Path, *blocks: str, after: str = "") -> Path:
    page = folder / "page.md"
    page.write_text("# Title\n\n" + "".join(f"<!-- pac: {block} -->\n{END}\n\n" for block in blocks) + after)
    return page


# ----------------------------------------------------------------------------------------------------- the page itself


def test_pages_and_drawings_match_their_files() -> None:
    assert {"README.md", "improve.md"} <= set(NAMED)
    drawings = set[Path]()
    for page in PAGES:
        files = refreshed(page)
        for path, text in files.items():
            assert path.read_text() == text, f"{path}: run `python -m tools.refresh {page.relative_to(RESULTS.parent)}`"
        drawings |= {path.resolve() for path in files if path.suffix == ".svg"}
    assert len(drawings) > 4
    assert drawings == set((RESULTS / "plots").iterdir())


@pytest.mark.parametrize("page", PAGES, ids=NAMED)
def test_every_number_in_the_text_is_in_a_table(page: Path) -> None:
    assert strange_numbers(page.read_text()) == set()


def test_results_in_the_readme_are_on_a_page_of_results() -> None:
    quoted = set(
        re.findall(r"\d+\.\d(?!\w)", (RESULTS.parent / "README.md").read_text().partition("## What is here")[0])
    )
    assert len(quoted) > 5
    assert quoted <= set[str]().union(*(numbers(page.read_text()) for page in PAGES))


def test_the_page_is_short_and_each_study_page_begins_with_a_conclusion() -> None:
    assert len(PAGE.read_text().split("\n")) <= MOST_LINES
    for page in sorted(RESULTS.rglob("*.md")):
        title, _, conclusion = page.read_text().split("\n")[:3]
        assert title.startswith("# "), page
        assert re.fullmatch(r"\*\*[^*]+\.\*\*", conclusion), (
            f"{page}: expected a conclusion in bold, found {conclusion!r}"
        )


@pytest.mark.parametrize("name", ["suite", "metaworld"])
def test_numbers_in_an_improvement_recipe_are_on_its_page(name: str) -> None:
    recipe = (RESULTS.parent / f"recipes/improve/{name}.toml").read_text()
    promised = set(re.findall(r"\d+\.\d", recipe.partition("# Command")[0]))
    assert len(promised) > 3
    assert promised <= numbers((RESULTS / "improve.md").read_text())


@pytest.mark.parametrize(
    ("claim", "number"),
    [
        ("PAC gets 63.9%.", "63.9"),
        ("On 77 tasks,", "77"),
        ("**1,234** updates", "1,234"),
        ("over Nine seeds", "9"),
        ("alpha .77", "0.77"),
        ("`61x` faster", "61x"),
        ("with 3.5M parameters", "3.5m"),
        ("| a | 99.9 |", "99.9"),
    ],
)
def test_an_invented_number_is_found(claim: str, number: str) -> None:
    page = (RESULTS / "study/poor.md").read_text()
    assert strange_numbers(page.replace("## Limits\n", f"## Limits\n\n{claim}\n")) == {number}


def test_a_number_of_another_page_is_found() -> None:
    page = (RESULTS / "study/beta.md").read_text()
    assert "**60.3 [" in (RESULTS / "study/poor.md").read_text()
    assert strange_numbers(page.replace("## Limits\n", "## Limits\n\nPAC has 60.3.\n")) == {"60.3"}


def test_links_lead_somewhere() -> None:
    count = 0
    for page in sorted(RESULTS.rglob("*.md")):
        text = page.read_text()
        for link in re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text):
            assert (page.parent / link.partition("#")[0]).exists(), f"{page}: {link}"
            count += 1
    assert count > 100


def test_the_claims_show_the_numbers_of_their_pages() -> None:
    document = json.loads((RESULTS / "claims.json").read_text())
    lines = [line for line in PAGE.read_text().split("\n") if line.startswith("| [")]
    assert len(lines) == len(document["claims"])
    for line, entry in zip(lines, document["claims"], strict=True):
        (ours,) = re.findall(r"\| (\d+\.\d)% ", line)
        (other,) = re.findall(r": (\d+\.\d) \|", line)
        assert f"{entry['method']} |" in line
        assert {ours, other} <= numbers((RESULTS / entry["page"]).read_text()), line
        if "other" in entry:
            (score,) = re.findall(r" (\d+\.\d)% \(\[", line)
            assert score in numbers((RESULTS / entry["other"]["page"]).read_text())


def test_a_claim_that_agrees_has_a_paired_difference_without_0() -> None:
    lines = [line.split(" | ") for line in PAGE.read_text().split("\n") if line.startswith("| [")]
    count = 0
    for cells in lines:
        if cells[-1].startswith("yes") and cells[5] != "not paired":
            low, high = re.findall(r"[+-]\d+\.\d", cells[5])[1:]
            assert float(low) * float(high) > 0, cells
            count += 1
    assert count > 8


def test_a_pooled_success_counted_by_hand() -> None:
    episodes = read_document(RESULTS / "study/poor.parquet")["episodes"]
    found = [episode["success"] for episode in episodes if re.fullmatch(r"PAC, seed \d", episode["actor"])]
    page = (RESULTS / "study/poor.md").read_text()
    pooled = next(line for line in page.split("\n") if line.startswith("| pooled, 4 tasks | 600 |"))
    assert f"**{100 * sum(found) / len(found):.1f} [" in pooled


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_demo_numbers_match_its_episodes_and_its_own_table(seed: int) -> None:
    path = RESULTS / f"demo/seed-{seed}.parquet"
    demo, document = read_demo([path]), Folder(path).read("demo.json")
    for method in demo.methods:
        rows = demo.rows(demo.scores(method))
        own = document["table"][method]
        for place, entry in rows.items():
            told = own["pooled" if place.startswith("pooled") else place]
            assert (entry.mean, entry.low, entry.high) == pytest.approx(
                (told["mean"], told["low"], told["high"]), abs=1e-3
            )
    for name in ("metaworld", "control"):
        episodes = Folder(path).read(f"{name}.json")["episodes"]
        for method, records in by_actor(map(EpisodeRecord.from_json, episodes)).items():
            for task, row in summarise(records, experts=document["experts"]).tasks.items():
                said = row.percent.mean if row.percent else 100 * row.success.mean if row.success else None
                assert demo.scores(method)[task].mean() == pytest.approx(said, abs=1e-3)


def test_a_demo_of_the_present_version_has_the_same_cost_table(tmp_path: Path) -> None:
    document = Folder(RESULTS / "demo/seed-1.parquet").read("demo.json")
    document["settings"] = {"seed": 1, "tasks": 3, "collected_episodes": 100, "length": "1k steps", "episodes": 50}
    document["seconds"] = {"data": 60.0, "training": 120.0, "evaluation": 6.0}
    write_json(tmp_path / "demo.json", document)
    assert "| seed 1 | 100 | 1k | 50 | 1.0 | 2.0 | 0.1 |" in made(tmp_path, "cost demo.json")


# --------------------------------------------------------------------------------------------------- what changes it


def test_one_changed_episode_changes_page_and_drawing(copy: Path) -> None:
    before = copy.read_text()

    def flip(document: dict[str, Any]) -> None:
        episode = next(e for e in document["episodes"] if e["actor"] == "PAC, seed 1" and not e["success"])
        episode["success"] = True

    change(copy.parent / "study/poor.json", flip)
    assert {path.name for path in refresh(copy)} == {"page.md", "study-poor.svg"}
    assert "**60.3 [" in before
    assert "**60.5 [" in copy.read_text()  # 363 of 600
    assert refresh(copy) == []


def test_summaries_in_a_file_are_not_used(copy: Path) -> None:
    def boast(document: dict[str, Any]) -> None:
        document["summary"] = {"PAC": {"pooled": {"all": {"success": {"mean": 0.99}}}}}

    change(copy.parent / "study/poor.json", boast)
    change(copy.parent / "demo/seed-2.json", lambda d: d["table"]["PAC"]["pooled"].update(mean=99.0))
    assert refresh(copy) == []


def test_text_outside_of_blocks_stays(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "a.json", episodes("PAC, seed 0", DOOR, 3, 10), seed=0)
    example = f"```\n<!-- pac: nonsense -->\n{END}\n```\n  spaces  and no line at the end"
    page = write_page(tmp_path, "table a.json", after=example)
    refresh(page)
    text = page.read_text()
    assert text.startswith("# Title\n\n<!-- pac: table a.json -->\n\n")
    assert text.endswith(f"{END}\n\n{example}")
    assert "| metaworld/door-open | 10 | 30.0 [" in text


# ---------------------------------------------------------------------------------------------------------- the kinds


def write_study(path: Path, rows: dict[str, int], tasks: tuple[str, ...] = (DOOR, DRAWER), **settings: Any) -> Path:
    """Two seeds of each row: so many successes of ten with the first, one less with the second."""
    records = [
        entry
        for row, successes in rows.items()
        for seed in (1, 2)
        for task in tasks
        for entry in episodes(f"{row}, seed {seed}", task, successes - (seed == 2), 10)
    ]
    write_evaluation(path, records, seed=0, **settings)
    runs = [
        {
            "row": row.removesuffix(", sampled"),
            "seed": seed,
            "seconds": 60.0 * seed,
            "evaluation_seconds": 30.0,
            "steps": 3000,
        }
        for row in rows
        for seed in (1, 2)
        if not row.endswith(", sampled")
    ]
    change(path, lambda document: document.update(runs=runs, created="2026-01-02T03:04:05+00:00"))
    return path


def made(folder: Path, block: str) -> str:
    page = write_page(folder, block)
    refresh(page)
    return page.read_text()


def test_a_policy_with_several_kinds_of_goals_was_trained_once(tmp_path: Path) -> None:
    write_study(tmp_path / "a.json", {"PAC, goal": 8, "PAC, text+goal": 9, "BC, text": 5})

    def trained(document: dict[str, Any]) -> None:
        for run in document["runs"]:
            run |= {"row": "PAC", "parameters": 187_642} if run["row"].startswith("PAC") else {}
        document["runs"] = [run for i, run in enumerate(document["runs"]) if run not in document["runs"][:i]]

    change(tmp_path / "a.json", trained)
    cost = made(tmp_path, "cost a.json")
    assert cost.count("| PAC | 2 | - | 0.19M |") == 1
    assert "| PAC, " not in cost
    assert "| BC, text | 2 |" in cost  # a row of that name, not a kind of goals
    pooled = made(tmp_path, "pooled a.json")
    assert re.search(r"\| PAC, goal image alone \|.*\| 3,000 \|", pooled)
    assert "| BC, text |" in pooled


def test_results_of_peers_join_those_of_a_study(tmp_path: Path) -> None:
    study, peers = tmp_path / "study.json", tmp_path / "peers.json"
    write_study(study, {"PAC": 8})
    change(study, lambda d: d.update(rows={"PAC": {"model": {"size": "nano"}}}))
    change(study, lambda d: [run.update(size="nano") for run in d["runs"]])
    write_study(peers, {"CQL": 5, "CQL, sampled": 3})
    text = made(tmp_path, "pooled study.json peers.json")
    assert re.search(r"\| PAC \| \*\*75.0 \[.*\]\*\* \| 2 \| 40 \| 2 \| nano \| 0.2\dM \| 3,000 \|", text)
    assert re.search(r"\| CQL \| 45.0 \[.*\] \| 2 \| 40 \| 2 \| - \| - \| 3,000 \|", text)
    assert "| CQL, sampled | 25.0 [" in text
    cost = made(tmp_path, "cost study.json peers.json")
    assert "| CQL | 2 | - | - | 3,000 | 1.5 (1.0 to 2.0) | 0.5 (0.5 to 0.5) |" in cost
    assert "| CQL, sampled" not in cost  # the same trainings
    assert cost.count("```\npac evaluate x\n```") == 2
    assert "Made 2026-01-02" in cost


def test_peers_on_some_tasks_join_a_study_of_many(tmp_path: Path) -> None:
    """By the rules of the tasks' own domain; nothing of the others, nor of their notes, is left."""
    write_study(tmp_path / "study.json", {"PAC": 8}, tasks=(DOOR, DRAWER, "control/reacher.easy"))
    own = {"max_steps": 200, "stop_at_success": True}
    domains = {"poor data": {"tasks": [DOOR, DRAWER], **own}}
    domains |= {"Control": {"tasks": ["control/reacher.easy"], "max_steps": None, "stop_at_success": False}}
    change(tmp_path / "study.json", lambda d: d.update(domains=domains, notes=["reacher is weak"]))
    write_study(tmp_path / "peers.json", {"CQL": 5}, tasks=(DOOR,), **own)
    write_study(tmp_path / "whole.json", {"CQL": 5}, tasks=(DOOR,))
    text = made(tmp_path, f"table study.json peers.json tasks={DOOR}")
    assert "| task | episodes | PAC | CQL |" in text
    assert re.search(rf"\| {DOOR} \| 20 \| \*\*75.0 \[.*\]\*\* \| 45.0 \[", text)
    assert not any(word in text for word in ("reacher", "Control", DRAWER, "same episodes"))
    assert "| PAC | **75.0 [" in made(tmp_path, f"pooled study.json peers.json tasks={DOOR}")
    assert "| `PAC` minus `CQL` | Success, % | 20 | **+30.0 [" in made(
        tmp_path, f"differences study.json peers.json tasks={DOOR}"
    )
    assert "| CQL | 2 |" in made(tmp_path, f"cost study.json peers.json tasks={DOOR}")
    with pytest.raises(ValueError, match="expected episodes under the rules of"):
        made(tmp_path, "table study.json peers.json")  # a study of several rules
    with pytest.raises(ValueError, match="expected episodes under the rules of"):
        made(tmp_path, f"table study.json whole.json tasks={DOOR}")  # peers under others
    with pytest.raises(ValueError, match=rf"peers.json: expected episodes of '{DRAWER}', found none"):
        made(tmp_path, f"table study.json peers.json tasks={DOOR},{DRAWER}")
    with pytest.raises(ValueError, match=r"expected the file .*tasks="):
        made(tmp_path, f"demo tasks={DOOR}")


def test_seeds_and_pairs(tmp_path: Path) -> None:
    write_study(tmp_path / "a.json", {"1": 8, "1, then 0": 5})
    assert "| seed 1 | 80.0 [" in made(tmp_path, "seeds a.json")
    assert "| seed 2 | 70.0 [" in made(tmp_path, "seeds a.json")
    assert "| `1` minus `1, then 0` | Success, % | 40 | **+30.0 [" in made(tmp_path, "differences a.json")


def test_suites_are_not_pooled_together(tmp_path: Path) -> None:
    """A success and a percent of expert have no mean."""
    write_study(tmp_path / "a.json", {"PAC": 8, "BC+Q": 5}, (DOOR, DRAWER, "control/walker.walk"))

    def no_success(document: dict[str, Any]) -> None:
        document["experts"] = {"control/walker.walk": {"mean": 20.0}}
        for episode in document["episodes"]:
            episode["success"] = None if episode["task"].startswith("control") else episode["success"]

    change(tmp_path / "a.json", no_success)
    text = made(tmp_path, "table a.json")
    assert "| pooled, 2 tasks | 40 | **75.0 [" in text
    assert "3 tasks" not in text
    assert "**control: Percent of expert (95%" in text
    assert "**Return" not in text
    assert "Percent of expert, control, seed by seed" in made(tmp_path, "seeds a.json")


def test_other_experts_change_the_percentage(tmp_path: Path) -> None:
    """Half the expert, twice the percentage; of the tasks that fit a pattern."""
    walk, run = "control/walker.walk", "control/walker.run"
    write_study(tmp_path / "a.json", {"PAC": 8}, (DOOR, walk, run))

    def measured(document: dict[str, Any]) -> None:
        document["experts"] = {task: {"mean": 40.0, "n": 5, "source": "x"} for task in (walk, run)}
        for episode in document["episodes"]:
            episode |= {"return": 10.0} | ({"success": None} if episode["task"].startswith("control") else {})

    change(tmp_path / "a.json", measured)
    known = {task: experts.Expert(mean=20.0, n=9, source="the best") for task in (walk, run)}
    experts.save(known, tmp_path / "other.json")
    assert "| PAC | 25.0 [" in made(tmp_path, "pooled a.json tasks=control/*")
    text = made(tmp_path, "pooled a.json tasks=control/* experts=other.json")
    assert "| PAC | 50.0 [" in text
    assert "\n\n- 100%: `other.json`.\n" in text
    assert "Success" not in text
    assert 'src="plots/a-other.svg"' in made(tmp_path, "bars a.json experts=other.json")
    assert f"| {walk} | 20.0 | 9 | the best |" in made(tmp_path, "experts a.json experts=other.json")
    experts.save({walk: known[walk]}, tmp_path / "some.json")
    for wrong in ("some.json", "none.json"):
        with pytest.raises(ValueError, match=f"line 3: .*{wrong}: expected .*experts"):
            made(tmp_path, f"pooled a.json experts={wrong}")
    with pytest.raises(ValueError, match="expected one experts=FILE, found 2"):
        made(tmp_path, "pooled a.json experts=other.json experts=some.json")
    with pytest.raises(ValueError, match=r"expected episodes of 'contrl/\*', found none"):
        made(tmp_path, "pooled a.json tasks=contrl/*")


def test_a_drawing_needs_no_other_file(tmp_path: Path) -> None:
    write_study(tmp_path / "a.json", {"PAC <&>": 8, "BC+Q": 5})
    assert '<img src="plots/a.svg" alt="Bars with 95% intervals' in made(tmp_path, "bars a.json")
    text = (tmp_path / "plots/a.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    used, given = set(re.findall(r"var\((--\w+)\)", text)), set(re.findall(r"(--[\w-]+):", text))
    assert used <= given
    assert "prefers-color-scheme: dark" in text
    assert "pooled, 2 tasks" in text
    assert text.count("<circle") == 2 * 2 * 3  # rows, seeds, and two tasks with what pools them


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "a\n<!-- pac: tabel a.json -->\n<!-- end -->",
            "line 2: expected a kind of block, found 'tabel'. Did you mean",
        ),
        ("<!-- pac: table b.json -->\n<!-- end -->", r"line 1: expected the file .*b.json, found none"),
        ("<!-- pac: table -->\n<!-- end -->", "line 1: expected a file after"),
        ("<!-- pac: table x/*.json -->\n<!-- end -->", "line 1: expected files that match"),
        ("a\n\n<!-- pac: table a.json -->\n", "line 3: expected <!-- end -->"),
        ("<!-- pac: table a.json -->\n<!-- pac: seeds a.json -->\n<!-- end -->", "line 2: .* block in line 1 first"),
        ("a\n<!-- end -->", "line 2: expected `<!-- pac"),
        ("<!-- pac table a.json -->\n<!-- end -->", "line 1: expected `<!-- pac: KIND FILE -->`"),
        ("<!-- pac: table 'a.json -->\n<!-- end -->", "line 1: expected words"),
        ("<!-- pac: demo a.json -->\n<!-- end -->", "line 1: .*a.json: expected the demo.json"),
        ("<!-- pac: table paper.json -->\n<!-- end -->", "line 1: .*paper.json: expected the JSON of `pac study`"),
        (
            "<!-- pac: paper nothing -->\n<!-- end -->",
            "line 1: expected a key of .*paper.json, found 'nothing'. Keys: x",
        ),
        ("<!-- pac: paper -->\n<!-- end -->", "line 1: expected one key"),
        ("<!-- pac: table a.json again.json -->\n<!-- end -->", "line 1: .*other names than .*'PAC'"),
        ("<!-- pac: table a.json a.json -->\n<!-- end -->", "line 1: expected each file once, found .*a.json twice"),
        ("<!-- pac: table a.json rules.json -->\n<!-- end -->", "line 1: .*expected episodes under the rules of"),
        ("<!-- pac: table twice.json -->\n<!-- end -->", "line 1: .*expected every episode once"),
        ("<!-- pac: table one.json two.json -->\n<!-- end -->", "line 1: .*two.json: expected the experts"),
        ("<!-- pac: table both.json -->\n<!-- end -->", "line 1: .*expected one actor that is seed 0 of 'PAC'"),
        ("<!-- pac: table none.json -->\n<!-- end -->", "line 1: .*expected episodes, found none"),
        ("<!-- pac: table page.md -->\n<!-- end -->", "line 1: .*page.md: expected JSON"),
        ("nothing", "expected blocks such as"),
    ],
)
def test_errors_name_the_line_and_write_nothing(tmp_path: Path, text: str, error: str) -> None:
    records = episodes("PAC, seed 0", DOOR, 3, 10)
    write_evaluation(tmp_path / "a.json", records, seed=0)
    write_evaluation(tmp_path / "again.json", records, seed=0)
    write_evaluation(tmp_path / "rules.json", episodes("BC, seed 0", DOOR, 3, 10), seed=0, max_steps=5)
    write_evaluation(tmp_path / "twice.json", records + records[:1], seed=0)
    write_evaluation(tmp_path / "none.json", [], seed=0)
    write_evaluation(tmp_path / "both.json", records + episodes("PAC, seed 00", DOOR, 3, 10), seed=0)
    for name, mean in (("one", 10.0), ("two", 20.0)):
        write_evaluation(tmp_path / f"{name}.json", episodes(name, DOOR, 3, 10), seed=0)
        change(tmp_path / f"{name}.json", lambda d, mean=mean: d.update(experts={DOOR: {"mean": mean}}))
    write_json(tmp_path / "paper.json", {"numbers": {"x": {}}})
    page = tmp_path / "page.md"
    text = text if text == "nothing" else f"{text}\n<!-- pac: bars a.json -->\n<!-- end -->" if "end" in text else text
    page.write_text(text)
    with pytest.raises(ValueError, match=error):
        refresh(page)
    assert page.read_text() == text
    assert not (tmp_path / "plots").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(tmp_path / "a.json", episodes("PAC", DOOR, 3, 10), seed=0)
    page = str(write_page(tmp_path, "table a.json"))
    assert main([page]) == 0
    assert "written" in capsys.readouterr().out
    assert main([page, page]) == 0
    assert "nothing has changed" in capsys.readouterr().out
    assert main([str(tmp_path / "none.md")]) == 2
    assert "expected a Markdown page" in capsys.readouterr().err


def test_experts_are_shown_beside_our_best_behaviour(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json", episodes("PAC", DOOR, 3, 10), seed=0)
    page = write_page(tmp_path, "experts a.json")
    with pytest.raises(ValueError, match="expected tasks with an expert, found none"):
        refresh(page)
    document = json.loads(path.read_text())
    about = {"mean": 650.06, "n": 18, "source": "best of 187 episodes"}
    document["experts"] = {"control/walker.walk": about, "control/nobody.knows": about}
    write_json(path, document)
    refresh(page)
    rows = [line for line in page.read_text().split("\n") if line.startswith("| control")]
    ours = experts.load()["control/walker.walk"].mean
    assert rows[0] == f"| control/walker.walk | 650.1 | 18 | best of 187 episodes | {ours:.1f} |"
    assert rows[1].endswith("| - |")


def test_every_kind_is_in_the_docs() -> None:
    text = (RESULTS.parent / "tools/README.md").read_text()
    assert [kind for kind in KINDS if f"`{kind} " not in text] == []


def test_an_actor_without_a_seed_is_a_row(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path / "a.json", episodes("random", DOOR, 3, 10), seed=0)
    found = read_results({path: read_document(path)})
    assert found.members.keys() == {"random"}
    assert found.seeds == [None]
