"""Several charts as one SVG file, for the pages in results/."""

import html
import re
from collections.abc import Sequence

from pac.report.charts import WIDTH, Drawing
from pac.report.html import COLOURS

COLUMNS, GAP, HEAD = 2, 20, 24


def sheet(title: str, drawings: Sequence[Drawing]) -> str:
    """Return titled drawings side by side, without values for the pointer.

    The file has colours and a background of its own, so that it can be read on a page of either scheme.
    """
    tops, boxes = [GAP] * COLUMNS, list[str]()
    for number, drawing in enumerate(drawings):
        column = number % COLUMNS
        x, y = GAP + column * (WIDTH + GAP), tops[column]
        size = f'<svg x="{x}" y="{y + HEAD}" width="{WIDTH}" height="{drawing.height}" '
        inner = re.sub(r' (data-plot="[^"]*"|class="axis")', "", drawing.svg).replace("<svg ", size, 1)
        boxes.append(f'<text class="title" x="{x + 4}" y="{y + 14}">{html.escape(drawing.title)}</text>{inner}')
        tops[column] += HEAD + drawing.height + GAP
    width, height = GAP + min(COLUMNS, len(drawings)) * (WIDTH + GAP), max(tops)
    style = (
        f"{COLOURS}text {{ font: 11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; fill: var(--soft) }}\n"
        ".name { fill: var(--ink); font-size: 12px } .title { fill: var(--ink); font-size: 13px; font-weight: 600 }"
    )
    ground = f'<rect width="{width}" height="{height}" rx="8" style="fill:var(--paper)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(title)}"><style>{style}</style>{ground}\n' + "\n".join(boxes) + "</svg>\n"
    )
