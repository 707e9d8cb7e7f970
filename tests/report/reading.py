"""A page, read back: its tables, its plots, and the tags it is made of."""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pac.report import write_report


def make_page(sources: Sequence[Any], **options: Any) -> str:
    """Return the page that `write_report` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return write_report(sources, Path(folder) / "page.html", **options).read_text()


class Page(HTMLParser):
    """Text is what a reader sees, entities resolved; `<small>` starts after a bar."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.plots: dict[str, Any] = {}  # by title
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.warnings: list[str] = []
        self._into: list[str] | None = None
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in given.items()]
        if tag == "table":
            self.tables.append([])
            self.captions.append("")
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._into = self.tables[-1][-1]
        elif tag == "caption":
            self._into = self.captions
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")
            self._into = self.headings
        elif tag == "p" and given.get("class") == "warning":
            self.warnings.append("")
            self._into = self.warnings
        elif tag == "small" and self._into is not None:
            self._into[-1] += "|"
        if "data-plot" in given:
            self.plots[given["aria-label"]] = json.loads(given["data-plot"])

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "caption", "h1", "h2", "h3", "p"):
            self._into = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._into is not None:
            self._into[-1] += data

    def table(self, caption: str) -> dict[str, dict[str, str]]:
        """The table whose caption begins so: row -> column -> cell."""
        number = next(i for i, text in enumerate(self.captions) if text.startswith(caption))
        return self.rows(self.tables[number])

    def with_header(self, *header: str) -> dict[str, dict[str, str]]:
        """The table whose header begins so."""
        return self.rows(next(table for table in self.tables if tuple(table[0][: len(header)]) == header))

    @staticmethod
    def rows(table: list[list[str]]) -> dict[str, dict[str, str]]:
        return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:]}
