"""How PAC's pages look: one style for all of them, light and dark, on a phone and on paper. A page is one file that
needs no network, no font and no script.

Colours are variables, so that drawings follow the reader's scheme. Those of the series (--s0 to --s6) are Okabe and
Ito's, which colour-blind people can tell apart, made darker or lighter until each has a contrast of 3 to its ground.
"""

import html
from collections.abc import Iterable, Sequence

SERIES = 7  # colours; what comes after them has another dash

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
STYLE = (
    COLOURS
    + """
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 68rem; margin: 0 auto;
  padding: 2.5rem 1.25rem 4rem; color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { font-size: 1.85rem; line-height: 1.2; font-weight: 650; letter-spacing: -.015em; margin: 0 0 .5rem }
h2 { font-size: 1.25rem; line-height: 1.3; font-weight: 650; margin: 3rem 0 .6rem; padding-top: .9rem;
  border-top: 1px solid var(--line) }
h3 { font-size: 1rem; line-height: 1.4; font-weight: 600; margin: 1.6rem 0 .4rem }
p { margin: .5rem 0; max-width: 46rem } a { color: var(--s0) } small, .soft { color: var(--soft); font-size: .84rem }
ul { margin: .4rem 0; padding-left: 1.2rem; max-width: 46rem } li { margin: .15rem 0 }
code, pre { font: .84rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace }
pre { background: var(--faint); border-radius: 6px; padding: .7rem .9rem; margin: .5rem 0; overflow-x: auto;
  overflow-wrap: normal }
.warning { background: var(--warn); border-left: 3px solid var(--warn-line); padding: .45rem .8rem; margin: .4rem 0;
  max-width: none; border-radius: 0 4px 4px 0 }
.scroll { overflow-x: auto; margin: .6rem 0 1.3rem; max-width: 100% }
table { border-collapse: collapse; width: max-content; font-size: .9rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal }
caption { text-align: left; font-weight: 600; padding: 0 0 .35rem; font-size: .95rem }
caption span { font-weight: 400; color: var(--soft); font-size: .84rem }
th, td { padding: .32rem .9rem .32rem 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line);
  white-space: nowrap }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; max-width: 12rem }
th, td:first-child { white-space: normal; overflow-wrap: break-word }
th:last-child, td:last-child { padding-right: .2rem }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; max-width: 18rem;
  background: var(--paper) }
.words { white-space: normal; text-align: left; max-width: 24rem } td small { display: block; line-height: 1.35 }
tr.pooled td { border-top: 2px solid var(--line); font-weight: 500 } td strong { font-weight: 700 }
figure { margin: 0; min-width: 0; display: inline-block }
figcaption { font-size: .8rem; line-height: 1.4; color: var(--soft) } figcaption strong { color: var(--ink) }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 1.4rem 1.5rem;
  margin: .8rem 0 }
.grid figure { display: block } .grid figure > svg { display: block; width: 100%; max-width: 30rem; height: auto }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft) } svg .name { fill: var(--ink); font-size: 12px }
img { image-rendering: pixelated; width: 120px; margin: 2px }
video, .film { width: 100%; height: auto; image-rendering: auto; margin: 0; border-radius: 4px; background: #000 }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .86rem; margin: .5rem 0; padding: 0;
  list-style: none; max-width: none }
.legend svg { width: 26px; height: 10px; vertical-align: middle; margin-right: .35rem }
details { margin: .4rem 0 } summary { cursor: pointer; font-size: .92rem } summary:hover { color: var(--s0) }
@media (max-width: 480px) { body { padding: 1.4rem 1rem 3rem } h1 { font-size: 1.5rem } h2 { margin-top: 2.2rem }
  th, th:first-child, td:first-child { max-width: 8.5rem } }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt } figure, tr, p, .warning { break-inside: avoid }
  h2, h3, caption { break-after: avoid } .scroll { overflow: visible } pre { white-space: pre-wrap }
  th, td { white-space: normal } table { width: auto; font-size: 8.5pt } video { display: none }
  th:first-child, td:first-child { position: static }
  .grid { grid-template-columns: repeat(3, 1fr) } }
"""
)


def document(title: str, body: str, *, script: str = "") -> str:
    """A whole page."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
    )
    after = f"\n<script>{script}</script>" if script else ""
    title = f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
    return f"{head}{title}<body>\n{body}{after}\n</body>\n</html>\n"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    pooled: int = 0,
    words: int | None = None,
) -> str:
    """Cells are HTML; in a box of its own that scrolls, so that the page never does. The last `pooled` rows pool the
    others; column `words` holds sentences.
    """
    rows = list(rows)
    lines = []
    for number, row in enumerate(rows):
        kind = ' class="pooled"' if number == len(rows) - pooled else ""
        cells = (f"<td{_kind(i == words)}>{text}</td>" for i, text in enumerate(row))
        lines.append(f"<tr{kind}>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col"{_kind(i == words)}>{text}</th>' for i, text in enumerate(header))
    above = f"<caption>{caption}</caption>" if caption else ""
    body = "\n".join(lines)
    return f'<div class="scroll"><table>{above}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _kind(words: bool) -> str:
    return ' class="words"' if words else ""


def warning(text: str) -> str:
    return f'<p class="warning">{html.escape(text)}</p>'
