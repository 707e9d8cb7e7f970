"""Make the tables and drawings of a Markdown page from the files of episodes beside it.

    python -m tools.refresh results/README.md

    <!-- pac: table study/poor.json -->
    what stands here is made anew
    <!-- end -->

All else is left as it is. Nothing is written unless every block could be made.
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
from pac.files import write_atomically as write_text
from tools import demo_blocks, episode_blocks, round_blocks
from tools.demo_blocks import Demo, read_demo
from tools.episode_blocks import PageBlock, Trials, read_json, read_trials
from tools.round_blocks import Improvement, read_improvement

END = "<!-- end -->"
TASKS, EXPERTS = "tasks=", "experts="
_OPENS = re.compile(r"<!--\s*pac\b")
_BEGIN = re.compile(r"<!-- pac: (.+) -->")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A block of a page: lines from its mark to its end, counted from 0, both with."""

    words: tuple[str, ...]  # kind, then what it is made from
    first: int
    last: int


def find_blocks(lines: list[str], name: str) -> list[Place]:
    """In order. What stands in a code fence outside of blocks is an example, not a block."""
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
            if not (given := _BEGIN.fullmatch(text)):
                raise ValueError(f"{where}: expected `<!-- pac: KIND FILE -->` alone in a line, found {text!r}.")
            begun = number, tuple(_split(given[1], where))
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


class Shelf:
    """The page's folder. What several blocks name is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trials: dict[tuple[tuple[Path, ...], tuple[str, ...], Path | None], Trials] = {}
        self._demos: dict[tuple[Path, ...], Demo] = {}
        self._improvements: dict[Path, Improvement] = {}

    def paths(self, words: Sequence[str]) -> tuple[Path, ...]:
        """A pattern stands for all files it fits, in order."""
        if not words:
            raise ValueError("expected a file after the block's kind, found none.")
        found: list[Path] = []
        for word in words:
            fits = sorted(self.folder.glob(word)) if any(mark in word for mark in "*?[") else [self.folder / word]
            if not fits:
                raise ValueError(f"expected files that fit {word!r} in {self.folder}, found none.")
            found += fits
        return tuple(found)

    def trials(self, words: Sequence[str]) -> Trials:
        """`tasks=NAME,NAME` among the files leaves out all others; `experts=FILE` is another table of what 100% is."""
        tasks = tuple(task for some in _given(words, TASKS) for task in some.split(","))
        others = _given(words, EXPERTS)
        if len(others) > 1:
            raise ValueError(f"expected one {EXPERTS}FILE, found {len(others)}.")
        asked = self.paths(_files(words)), tasks, self.folder / others[0] if others else None
        if asked not in self._trials:
            self._trials[asked] = read_trials(*asked)
        return self._trials[asked]

    def demo(self, words: Sequence[str]) -> Demo:
        paths = self.paths(words)
        if paths not in self._demos:
            self._demos[paths] = read_demo(paths)
        return self._demos[paths]

    def improvements(self, words: Sequence[str]) -> list[Improvement]:
        paths = self.paths(words)
        for path in paths:
            if path not in self._improvements:
                self._improvements[path] = read_improvement(path)
        return [self._improvements[path] for path in paths]

    def holds_demo(self, words: Sequence[str]) -> bool:
        paths = self.paths(_files(words))
        return paths in self._demos or "scores" in read_json(paths[0])


def _files(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith((TASKS, EXPERTS))]


def _given(words: Sequence[str], option: str) -> list[str]:
    return [word.removeprefix(option) for word in words if word.startswith(option)]


def _of_trials(make: Callable[[Trials], str]) -> Callable[[Shelf, Sequence[str]], PageBlock]:
    def block(shelf: Shelf, words: Sequence[str]) -> PageBlock:
        other = "".join(f"\n- 100%: `{name}`.\n" for name in _given(words, EXPERTS))
        return PageBlock(text=make(shelf.trials(words)).rstrip("\n") + "\n" + other)

    return block


def _demo(shelf: Shelf, words: Sequence[str]) -> PageBlock:
    return PageBlock(text=demo_blocks.table(shelf.demo(words)))


def _cost(shelf: Shelf, words: Sequence[str]) -> PageBlock:
    return PageBlock(
        text=demo_blocks.cost(shelf.demo(words))
        if shelf.holds_demo(words)
        else episode_blocks.cost(shelf.trials(words))
    )


def _bars(shelf: Shelf, words: Sequence[str]) -> PageBlock:
    name = _name(words)
    return (
        demo_blocks.bars(shelf.demo(words), name)
        if shelf.holds_demo(words)
        else episode_blocks.bars(shelf.trials(words), name)
    )


def _of_rounds(make: Callable[[Sequence[Improvement]], str]) -> Callable[[Shelf, Sequence[str]], PageBlock]:
    return lambda shelf, words: PageBlock(text=make(shelf.improvements(words)))


def _curves(shelf: Shelf, words: Sequence[str]) -> PageBlock:
    return round_blocks.curves(shelf.improvements(words), _name(words))


def _paper(shelf: Shelf, words: Sequence[str]) -> PageBlock:
    if len(words) != 1:
        raise ValueError(f"expected one key of paper.json, found {len(words)}.")
    where = shelf.folder / "paper.json"
    return PageBlock(text=paper_table(read_json(where), words[0], where))


def paper_table(document: Mapping[str, Any], key: str, where: Path) -> str:
    """The paper's numbers, as printed."""
    known = document.get("numbers", {})
    if key not in known:
        raise ValueError(f"expected a key of {where}, found {key!r}. Keys: {', '.join(known)}.")
    about = known[key]
    lines: list[list[Cell]] = []
    for entry in about["entries"]:
        ends = "" if entry.get("interval") is None else " [{:.1f}, {:.1f}]".format(*entry["interval"])
        lines.append([(entry["name"], False), (f"{entry['value']:.1f}{ends}", False), (entry["from"], False)])
    grid = Grid(f"The paper: {about['about']}", [about["rows"], about["unit"], "printed in"], lines)
    return markdown([grid], about.get("notes", []))


def _name(words: Sequence[str]) -> str:
    """Of a drawing: from the paths as they were given, and how many tasks where they are named."""
    some = [f"{names.count(',') + 1}-tasks" for names in _given(words, TASKS)]
    bare = [re.sub(r"\.json$", "", word) for word in _files(words) + _given(words, EXPERTS)] + some
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-") for word in bare)


KINDS: dict[str, Callable[[Shelf, Sequence[str]], PageBlock]] = {
    "table": _of_trials(episode_blocks.table),
    "pooled": _of_trials(episode_blocks.pooled),
    "seeds": _of_trials(episode_blocks.seeds),
    "differences": _of_trials(episode_blocks.differences),
    "experts": _of_trials(episode_blocks.experts),
    "cost": _cost,
    "bars": _bars,
    "demo": _demo,
    "rounds": _of_rounds(round_blocks.rounds),
    "improvements": _of_rounds(round_blocks.improvements),
    "curves": _curves,
    "paper": _paper,
}


def refreshed(page: Path) -> dict[Path, str]:
    """The files as they should be: drawings, and the page itself last."""
    try:
        lines = page.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{page}: expected a Markdown page, found {error}.") from error
    places = find_blocks(lines, str(page))
    if not places:
        raise ValueError(f"{page}: expected blocks such as `<!-- pac: table FILE -->` ... `{END}`, found none.")
    files, shelf = dict[Path, str](), Shelf(page.parent)
    for place in reversed(places):
        kind, *words = place.words
        where = f"{page}, line {place.first + 1}"
        if kind not in KINDS:
            raise ValueError(f"{where}: expected a kind of block, found {kind!r}.{suggest(kind, KINDS)}")
        try:
            block = KINDS[kind](shelf, words)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        lines[place.first + 1 : place.last] = ["", *block.text.rstrip("\n").split("\n"), ""]
        files |= {page.parent / path: text for path, text in block.files.items()}
    return files | {page: "\n".join(lines)}


def refresh(page: Path) -> list[Path]:
    """Write what is not so already, each file at once or not at all; returns what was written."""
    changed = [(path, text) for path, text in refreshed(page).items() if not path.is_file() or path.read_text() != text]
    for path, text in changed:
        try:
            write_text(path, text)
        except OSError as error:
            raise ValueError(f"{path}: expected a file to write to, found {error}.") from error
    return [path for path, _ in changed]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.refresh", description=__doc__)
    parser.add_argument("page", type=Path, nargs="+", help="Markdown page with blocks, written in place")
    args = parser.parse_args(arguments)
    try:
        for page in args.page:
            written = refresh(page)
            print("\n".join(f"{path}: written." for path in written) or f"{page}: nothing has changed.")
    except ValueError as error:
        print(f"tools.refresh: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
