"""Make the tables and drawings of Markdown pages from the files of episodes beside them.

    python -m tools.refresh results/README.md results/study/*.md

A block of a page lies between two comments:

    <!-- pac: table vision.parquet -->
    the table, made anew
    <!-- end -->

Paths begin at the page's folder. All other text stays. Nothing is written unless every block of the page could be made.
tools/README.md lists the kinds of blocks.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pac.config import suggest
from pac.evaluation.tables import Cell, Grid, markdown
from pac.files import write_atomically
from tools import claims, demo_blocks, episode_blocks, round_blocks
from tools.archive import Document, Folder, read_document
from tools.demo_blocks import DEMO, Demo, read_demo
from tools.episode_blocks import PageBlock
from tools.results import Results, read_results
from tools.round_blocks import Improvement, read_improvement

END = "<!-- end -->"
TASKS, EXPERTS, LABEL, NAME, POOLED = "tasks=", "experts=", "label=", "name=", "only=pooled"
OPTIONS = (TASKS, EXPERTS, LABEL, NAME, POOLED)
PAPER = "paper.json"
PLOTS = "plots"
_OPENS = re.compile(r"<!--\s*pac\b")
_BEGIN = re.compile(r"<!-- pac: (.+) -->")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A block of a page, from the line of its mark to the line of its end. Lines count from 0."""

    words: tuple[str, ...]  # the kind, then its files and options
    first: int
    last: int


def find_blocks(lines: list[str], name: str) -> list[Place]:
    """Return the blocks of a page in order. A code fence outside of blocks holds examples, not blocks."""
    found: list[Place] = []
    begun: tuple[int, tuple[str, ...]] | None = None
    fence = ""
    for number, line in enumerate(lines):
        text, where = line.strip(), f"{name}, line {number + 1}"
        if begun is None and (mark := re.match(r"`{3,}|~{3,}", text)):
            fence = mark[0] if not fence else "" if text.startswith(fence) else fence
        elif fence:
            continue
        elif _OPENS.match(text):
            if begun is not None:
                raise ValueError(f"{where}: expected {END} of the block in line {begun[0] + 1} first, found {text!r}.")
            if not (block := _BEGIN.fullmatch(text)):
                raise ValueError(f"{where}: expected `<!-- pac: KIND FILE -->` alone in a line, found {text!r}.")
            begun = number, tuple(_split(block[1], where))
        elif text == END:
            if begun is None:
                raise ValueError(f"{where}: expected `<!-- pac: KIND FILE -->` before {END}, found none.")
            found.append(Place(words=begun[1], first=begun[0], last=number))
            begun = None
    if begun is not None:
        raise ValueError(f"{name}, line {begun[0] + 1}: expected {END} after this block, found the end of the page.")
    return found


def _split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{where}: expected words, found {text!r} ({error}).") from error


class Sources:
    """The files below a page's folder. A file that several blocks name is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._documents: dict[Path, Document] = {}
        self._results: dict[tuple[tuple[Path, ...], tuple[str, ...], Path | None, str], Results] = {}
        self._demos: dict[tuple[Path, ...], Demo] = {}
        self._improvements: dict[Path, Improvement] = {}

    def paths(self, words: Sequence[str]) -> tuple[Path, ...]:
        """Return the paths that words name. A pattern gives all files that match, in order."""
        if not words:
            raise ValueError("expected a file after the block's kind, found none.")
        found: list[Path] = []
        for word in words:
            matching = sorted(self.folder.glob(word)) if any(mark in word for mark in "*?[") else [self.folder / word]
            if not matching:
                raise ValueError(f"expected files that match {word!r} in {self.folder}, found none.")
            found += matching
        return tuple(found)

    def results(self, words: Sequence[str]) -> Results:
        """Return the rows of files.

        `tasks=NAME,NAME` keeps some tasks. `experts=FILE` is another table of experts. `label=WORD` is put before the
        name of each row.
        """
        tasks = tuple(task for some in _values(words, TASKS) for task in some.split(","))
        others = _values(words, EXPERTS)
        if len(others) > 1:
            raise ValueError(f"expected one {EXPERTS}FILE, found {len(others)}.")
        label = "".join(f"{word} " for word in _values(words, LABEL))
        asked = self.paths(_files(words)), tasks, self.folder / others[0] if others else None, label
        if asked not in self._results:
            paths, tasks, experts, label = asked
            if twice := [path for i, path in enumerate(paths) if path in paths[:i]]:
                raise ValueError(f"expected each file once, found {twice[0]} twice.")
            documents = {path: labelled(self.document(path), label) for path in paths}
            self._results[asked] = read_results(documents, tasks, experts)
        return self._results[asked]

    def document(self, path: Path) -> Document:
        if path not in self._documents:
            self._documents[path] = read_document(path)
        return self._documents[path]

    def demo(self, words: Sequence[str]) -> Demo:
        paths = self.paths(words)
        if paths not in self._demos:
            self._demos[paths] = read_demo(paths)
        return self._demos[paths]

    def claims(self, words: Sequence[str]) -> str:
        """Return the headline table of a file such as claims.json."""
        (path,) = self.paths(words)
        document = self.document(path)
        tasks = {tuple(entry["files"]) for entry in document["claims"] if "task" in entry}

        def read(files: Sequence[str]) -> Results | Demo | Improvement:
            if tuple(files) in tasks:
                return self.improvements(files)[0]
            return self.demo(files) if self.has_demo(files) else self.results(files)

        about = self.document(self.folder / PAPER)["numbers"] if any("paper" in e for e in document["claims"]) else {}
        printed = {key: {e["name"]: _printed(e["value"]) for e in about[key]["entries"]} for key in about}
        return claims.claims(document, read, printed, path)

    @property
    def plots(self) -> str:
        """The folder of drawings: `plots` of the folder above, where there is one."""
        return f"../{PLOTS}" if (self.folder.parent / PLOTS).is_dir() else PLOTS

    def drawing(self, words: Sequence[str]) -> str:
        """Return a drawing's path. Its name is `name=NAME`, else made of the files and options."""
        some = [f"{names.count(',') + 1}-tasks" for names in _values(words, TASKS)]
        above = [self.folder.name] if self.plots != PLOTS else []
        bare = [re.sub(r"\.(json|parquet)$", "", word) for word in _files(words) + _values(words, EXPERTS)] + some
        made = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.") for word in above + bare)
        return f"{self.plots}/{next(iter(_values(words, NAME)), made)}.svg"

    def improvements(self, words: Sequence[str]) -> list[Improvement]:
        paths = self.paths(words)
        for path in paths:
            if path not in self._improvements:
                self._improvements[path] = read_improvement(path)
        return [self._improvements[path] for path in paths]

    def has_demo(self, words: Sequence[str]) -> bool:
        path = self.paths(_files(words))[0]
        return path.name == DEMO or (path.suffix == ".parquet" and path.exists() and Folder(path).has(DEMO))


def _files(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith(OPTIONS)]


def labelled(document: Document, label: str) -> Document:
    """Return a document in which `label` stands before the name of each row."""
    if not label:
        return document
    named: Document = {key: [dict(row) for row in document.get(key, [])] for key in ("episodes", "runs")}
    for key, field in (("episodes", "actor"), ("runs", "row")):
        for row in named[key]:
            row[field] = f"{label}{row[field]}"
    rows = {f"{label}{name}": settings for name, settings in document.get("rows", {}).items()}
    return document | named | {"rows": rows}


def _values(words: Sequence[str], option: str) -> list[str]:
    return [word.removeprefix(option) for word in words if word.startswith(option)]


# ---------------------------------------------------------------------------------------------------- kinds of blocks

Maker = Callable[[Sources, Sequence[str]], PageBlock]


def _of_results(make: Callable[[Results], str]) -> Maker:
    def block(sources: Sources, words: Sequence[str]) -> PageBlock:
        other = "".join(f"\n- 100%: `{name}`.\n" for name in _values(words, EXPERTS))
        return PageBlock(text=make(sources.results(words)).rstrip("\n") + "\n" + other)

    return block


def _demo(sources: Sources, words: Sequence[str]) -> PageBlock:
    return PageBlock(text=demo_blocks.table(sources.demo(words)))


def _cost(sources: Sources, words: Sequence[str]) -> PageBlock:
    if sources.has_demo(words):
        return PageBlock(text=demo_blocks.cost(sources.demo(words)))
    return PageBlock(text=episode_blocks.cost(sources.results(words)))


def _bars(sources: Sources, words: Sequence[str]) -> PageBlock:
    path = sources.drawing(words)
    if sources.has_demo(words):
        return demo_blocks.bars(sources.demo(_files(words)), path, only_pooled=POOLED in words)
    return episode_blocks.bars(sources.results(words), path, only_pooled=POOLED in words)


def _of_rounds(make: Callable[[Sequence[Improvement]], str]) -> Maker:
    return lambda sources, words: PageBlock(text=make(sources.improvements(words)))


def _curves(sources: Sources, words: Sequence[str]) -> PageBlock:
    return round_blocks.curves(sources.improvements(_files(words)), sources.drawing(words))


def _claims(sources: Sources, words: Sequence[str]) -> PageBlock:
    return PageBlock(text=sources.claims(words))


def _paper(sources: Sources, words: Sequence[str]) -> PageBlock:
    if len(words) != 1:
        raise ValueError(f"expected one key of {PAPER}, found {len(words)}.")
    folders = (sources.folder, sources.folder.parent)
    path = next((folder / PAPER for folder in folders if (folder / PAPER).exists()), sources.folder / PAPER)
    return PageBlock(text=paper_table(read_document(path), words[0], path))


def paper_table(document: Mapping[str, Any], key: str, path: Path) -> str:
    """Return a table of the paper's numbers as printed."""
    known = document.get("numbers", {})
    if key not in known:
        raise ValueError(f"expected a key of {path}, found {key!r}. Keys: {', '.join(known)}.")
    about = known[key]
    lines: list[list[Cell]] = []
    for entry in about["entries"]:
        ends = "" if entry.get("interval") is None else " [{:.1f}, {:.1f}]".format(*entry["interval"])
        lines.append([(entry["name"], False), (f"{_printed(entry['value'])}{ends}", False), (entry["from"], False)])
    grid = Grid(f"The paper: {about['about']}", [about["rows"], about["unit"], "printed in"], lines)
    return markdown([grid], about.get("notes", []))


def _printed(value: float) -> str:
    """Return a number of the paper with as many digits as printed, and one at least."""
    return f"{value:g}" if round(value, 1) != value else f"{value:.1f}"


KINDS: dict[str, Maker] = {
    "table": _of_results(episode_blocks.table),
    "returns": _of_results(episode_blocks.returns),
    "pooled": _of_results(episode_blocks.pooled),
    "seeds": _of_results(episode_blocks.seeds),
    "differences": _of_results(episode_blocks.differences),
    "experts": _of_results(episode_blocks.experts),
    "cost": _cost,
    "bars": _bars,
    "demo": _demo,
    "rounds": _of_rounds(round_blocks.rounds),
    "improvements": _of_rounds(round_blocks.improvements),
    "curves": _curves,
    "paper": _paper,
    "claims": _claims,
}


def refreshed(page: Path) -> dict[Path, str]:
    """Return the files of a page with their new content: its drawings, and the page itself last."""
    try:
        lines = page.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{page}: expected a Markdown page, found {error}.") from error
    places = find_blocks(lines, str(page))
    if not places:
        raise ValueError(f"{page}: expected blocks such as `<!-- pac: table FILE -->` ... `{END}`, found none.")
    files, sources = dict[Path, str](), Sources(page.parent)
    for place in reversed(places):
        kind, *words = place.words
        where = f"{page}, line {place.first + 1}"
        if kind not in KINDS:
            raise ValueError(f"{where}: expected a kind of block, found {kind!r}.{suggest(kind, KINDS)}")
        try:
            block = KINDS[kind](sources, words)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        lines[place.first + 1 : place.last] = ["", *block.text.rstrip("\n").split("\n"), ""]
        files |= {page.parent / path: text for path, text in block.files.items()}
    return files | {page: "\n".join(lines)}


def refresh(page: Path) -> list[Path]:
    """Write the files that changed, each whole or not at all. Return them."""
    changed = [(path, text) for path, text in refreshed(page).items() if not path.is_file() or path.read_text() != text]
    for path, text in changed:
        try:
            write_atomically(path, text)
        except OSError as error:
            raise ValueError(f"{path}: expected a file to write to, found {error}.") from error
    return [path for path, _ in changed]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.refresh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, nargs="+", help="Markdown page with blocks, written in place")
    args = parser.parse_args(arguments)
    try:
        for page in dict.fromkeys(args.page):
            if len(args.page) > 1 and page.is_file() and not _OPENS.search(page.read_text()):
                print(f"{page}: no blocks.")
                continue
            written = refresh(page)
            print("\n".join(f"{path}: written." for path in written) or f"{page}: nothing has changed.")
    except ValueError as error:
        print(f"tools.refresh: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
