"""Measure how hard the Markdown pages are to read.

    python tools/prose.py                # README, CONTRIBUTING, docs and results
    python tools/prose.py README.md      # some pages

Prints two measures of each page: commas, semicolons and colons a sentence (marks), and the median words a sentence.
The exit code is 1 if a page is over a limit. Tables, headings, code and HTML are left out. `code` counts as one word.
"""

import argparse
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_MARKS = 1.6  # nanochat, openpi and d3rlpy have 1.0 to 1.6
MAX_WORDS = 16
MAX_WORDS_LOG = 18  # entries of docs/log
MIN_SENTENCES = 5  # a page with fewer is not measured


@dataclass(frozen=True, kw_only=True)
class Prose:
    """What was measured on one page."""

    num_sentences: int
    marks: float  # commas, semicolons and colons a sentence
    words: float  # median of a sentence
    longest: str

    def over(self, max_words: float) -> bool:
        """Return whether the page is over a limit."""
        return self.num_sentences >= MIN_SENTENCES and (self.marks > MAX_MARKS or self.words > max_words)


def sentences(text: str) -> list[str]:
    """Return the sentences of a Markdown page that have more than three words."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(("|", "#", "<", "!")))
    text = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    found = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] ", text)
    return [" ".join(sentence.split()) for sentence in found if len(sentence.split()) > 3]


def measure(text: str) -> Prose:
    """Return the measures of a Markdown page."""
    found = sentences(text)
    if not found:
        return Prose(num_sentences=0, marks=0, words=0, longest="")
    return Prose(
        num_sentences=len(found),
        marks=sum(len(re.findall(r"[,;:]", sentence)) for sentence in found) / len(found),
        words=statistics.median(len(sentence.split()) for sentence in found),
        longest=max(found, key=lambda sentence: len(sentence.split())),
    )


def max_words(page: Path) -> int:
    """Return the limit of words a sentence on a page."""
    is_entry = page.parent.name == "log" and page.name != "README.md"
    return MAX_WORDS_LOG if is_entry else MAX_WORDS


def pages() -> list[Path]:
    """Return the pages that a user reads."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    for folder in ("docs", "results"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return [page for page in found if page.is_file()]


def main() -> int:
    """Print the table; return 1 if a page is over a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown pages; default: all that a user reads")
    chosen = parser.parse_args().pages or pages()
    failed = 0
    print("sentences  marks  words  page")
    for page in chosen:
        found = measure(page.read_text(encoding="utf8"))
        over = found.over(max_words(page.resolve()))
        failed += over
        name = page.resolve()
        shown = name.relative_to(ROOT) if name.is_relative_to(ROOT) else page
        note = "  <- over the limit" if over else ""
        print(f"{found.num_sentences:9} {found.marks:6.2f} {found.words:6g}  {shown}{note}")
        if over:
            print(f"{'':26}longest: {found.longest[:160]}")
    print(f"limits: {MAX_MARKS} marks, {MAX_WORDS} words ({MAX_WORDS_LOG} in docs/log). {failed} pages over a limit.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
