"""The builder of PAC's pages: style, tables, warnings and the document around them.

A page is one file and needs no network. It has a light and a dark scheme, and fits a phone and paper. Colours are CSS
variables, so that drawings follow the reader's scheme. The series (--s0 to --s6) use Okabe and Ito's palette for
colour-blind readers, made darker or lighter until each has a contrast of 3 to its background.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape as escape  # exported again
from html import unescape

from pac.evaluation.tables import Grid
from pac.resources import ASSETS

PHONE, SCREEN = 358, 1240  # pixels for a table on a phone of 390 and on a screen of 1,400
LONG = 40  # characters of a cell; longer ones wrap
SERIES = 7  # colours; later series have another dash pattern

_LIGHT = """color-scheme: light; --paper: #fff; --ink: #1d2126; --soft: #5b6570; --line: #d9dee3; --faint: #f3f5f7;
--warn: #fff3d1; --warn-line: #d9a400; --s0: #0072b2; --s1: #c85200; --s2: #00795a; --s3: #a8518a; --s4: #8d6300;
--s5: #3288bd; --s6: #5f6368;"""
_DARK = """color-scheme: dark; --paper: #15181c; --ink: #e4e7ea; --soft: #9ba5af; --line: #343b43; --faint: #1d2227;
--warn: #3a3013; --warn-line: #c79a1c; --s0: #5ab4f0; --s1: #ff9152; --s2: #3ecf9f; --s3: #e59ac8; --s4: #e6b44c;
--s5: #a5d5f5; --s6: #b0b5bb;"""

COLOURS = (
    f":root {{ {_LIGHT} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    f"@media print {{ :root {{ {_LIGHT} }} }}\n"
)
LIST = (ASSETS / "list.css").read_text()  # a table as a list: class `list` on a phone, class `tall` on any screen
STYLE = COLOURS + (ASSETS / "page.css").read_text() + f"@media (max-width: 600px) {{ {LIST} }}\n"
STYLE += LIST.replace(".list", ".tall")


def document(title: str, parts: Iterable[str], *, script: str = "") -> str:
    """Return a whole page. Empty parts are left out."""
    body = "\n".join(part for part in parts if part)
    after = f"\n<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}{after}\n</body>\n</html>\n"
    )


def section(title: str, parts: Iterable[str]) -> str:
    """Return parts under a heading, or nothing if all parts are empty."""
    body = "\n".join(part for part in parts if part)
    return f"<h2>{escape(title)}</h2>\n{body}" if body else ""


def columns(figures: Iterable[str]) -> str:
    """Return figures side by side, as many as the screen has room for."""
    inner = "".join(figures)
    return f'<div class="grid">{inner}</div>' if inner else ""


def folded(summary: str, inner: str) -> str:
    """Return a part that the reader opens with a click. `summary` is text, `inner` HTML."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>" if inner else ""


def warning(text: str) -> str:
    return f'<p class="warning">{escape(text)}</p>'


def soft(text: str) -> str:
    """Return a paragraph of small print."""
    return f'<p class="soft">{escape(text)}</p>'


def bullets(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="soft">{items}</ul>' if items else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", words: int | None = None) -> str:
    """Return a table of texts, which are escaped. Column `words` holds sentences."""
    return _table(header, [[escape(text) for text in row] for row in rows], caption, words=words)


def grid_table(grid: Grid) -> str:
    """Return a table of an evaluation. The best numbers of a row are bold."""
    rows = [[f"<strong>{escape(text)}</strong>" if bold else escape(text) for text, bold in row] for row in grid.rows]
    return _table(grid.header, rows, grid.title, pooled=grid.pooled)


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, pooled: int = 0, words: int | None = None
) -> str:
    """Return a table in a box that scrolls, so that the page never scrolls sideways.

    If it is too wide for a phone, a phone shows each row as a list (class `list`). If it is too wide for a screen too,
    all do (class `tall`).
    """
    texts = [[unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in rows]
    is_wide, is_too_wide = _width(header, texts, first=136) > PHONE, _width(header, texts, first=288) > SCREEN
    shape = ' class="tall"' if is_too_wide else ' class="list"' if is_wide else ""
    longest = [max(map(len, column), default=0) for column in zip(*texts, strict=True)] or [0] * len(header)
    kinds = ["words" if column == words else "long" if longest[column] > LONG else "" for column in range(len(header))]
    kinds = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, header, strict=True))
    lines = []
    for number, row in enumerate(rows):
        names = [f' data-label="{escape(name)}"' for name in header]
        cells = "".join(f"<td{name}{k}>{text}</td>" for name, k, text in zip(names, kinds, row, strict=True))
        first_pooled = ' class="pooled"' if number == len(rows) - pooled else ""
        lines.append(f"<tr{first_pooled}>{cells}</tr>")
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table{shape}>{above}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def _width(header: Sequence[str], rows: Sequence[Sequence[str]], *, first: int) -> int:
    """Return about how many pixels wide a table is. The first column wraps at `first`, headings at their words."""
    columns = zip(header, *rows, strict=True)
    widths = [15 + 7 * max(len(text) for text in [*name.split(), *cells, ""]) for name, *cells in columns]
    return min(widths[0], first) + sum(widths[1:]) if widths else 0
