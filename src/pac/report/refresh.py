"""`pac report --refresh`: a Markdown page whose numbers are made from JSON files beside it.

    <!-- pac: table study/poor.json -->
    what stands here is made anew
    <!-- end -->

All else is left as it is. Nothing is written unless every block could be made.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from pac.config import suggest
from pac.evaluate.records import write_text
from pac.report.blocks import KINDS, Shelf

END = "<!-- end -->"
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
        write_text(path, text)
    return [path for path, _ in changed]
