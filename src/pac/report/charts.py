"""Drawings as inline SVG. They are 360 units wide, about a phone's width, so that text keeps its size on any screen;
what needs more room becomes several drawings. Colours are the page's variables; dashes and marks tell series apart too.
"""

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pac.report.html import COLOURS, SERIES

WIDTH, HEIGHT = 360, 216
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 8, 32  # margins
MOST_POINTS = 300  # drawn of a curve
DASHES = ("", "6 3", "2 3", "8 3 2 3")

SCRIPT = """
const tip = document.createElement("div");
tip.style.cssText = "position:fixed;pointer-events:none;background:var(--ink);color:var(--paper);" +
  "padding:.25rem .5rem;border-radius:4px;font-size:.78rem;line-height:1.4;white-space:pre;" +
  "display:none;z-index:9;max-width:90vw";
document.body.append(tip);
for (const svg of document.querySelectorAll("svg[data-plot]")) {
  const plot = JSON.parse(svg.dataset.plot);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = plot.low + ((event.clientX - box.left) * WIDTH / box.width - LEFT) / SPAN * (plot.high - plot.low);
    let best = null;
    for (const s of plot.series) for (const x of s.x)
      if (best === null || Math.abs(x - at) < Math.abs(best - at)) best = x;
    const lines = plot.series.filter(s => s.x.includes(best)).map(s => {
      const i = s.x.indexOf(best), ends = s.low && s.low[i] !== null ? ` [${s.low[i]}, ${s.high[i]}]` : "";
      return s.y[i] === null ? "" : `${s.name}  ${s.y[i]}${ends}`;
    }).filter(text => text);
    tip.textContent = [`${plot.x} ${best.toLocaleString("en")}`, ...lines].join("\\n");
    tip.style.display = "block";
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 12) + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.style.display = "none"; });
}
"""
SCRIPT = SCRIPT.replace("SPAN", str(WIDTH - LEFT - RIGHT)).replace("WIDTH", str(WIDTH)).replace("LEFT", str(LEFT))


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One method's line, or its points."""

    name: str
    index: int  # which colour
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None  # of the interval, or of the band
    high: np.ndarray | None = None
    raw: Sequence[tuple[np.ndarray, np.ndarray]] = ()  # what lies under it, faint
    marks: bool = False  # points with whiskers in place of a bare line with a band
    hollow: np.ndarray | None = None  # which marks are, and off the line


@dataclass(frozen=True, kw_only=True)
class Bar:
    name: str
    index: int
    value: float
    low: float
    high: float
    text: str  # the same in words
    parts: tuple[float, ...] = ()  # of each seed


@dataclass(frozen=True, kw_only=True, eq=False)
class Cloud:
    """Points, and their mean with an interval on y."""

    name: str
    index: int
    x: np.ndarray
    y: np.ndarray
    mean: tuple[float, float]
    low: float = field(default=-math.inf)
    high: float = field(default=math.inf)


def colour(index: int) -> str:
    return f"var(--s{index % SERIES})"


def dash(index: int) -> str:
    pattern = DASHES[index // SERIES % len(DASHES)] if index >= SERIES else DASHES[index % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def legend(names: Sequence[tuple[str, int]]) -> str:
    items = (
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5" stroke-width="2.5" '
        f'style="stroke:{colour(index)}"{dash(index)}/></svg>{html.escape(name)}</li>'
        for name, index in names
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def figure(title: str, drawing: str, note: str = "") -> str:
    below = f"<br>{html.escape(note)}" if note else ""
    return f"<figure><figcaption><strong>{html.escape(title)}</strong>{below}</figcaption>{drawing}</figure>"


# ------------------------------------------------------------------------------------------------------------ numbers


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving mean over what is there; narrower towards the ends. NaN stays where it was."""
    known = np.isfinite(values)
    kernel = np.ones(width)
    sums = np.convolve(np.where(known, values, 0.0), kernel, "same") if len(values) >= width else None
    if sums is None:
        return values
    counts = np.convolve(known.astype(float), kernel, "same")
    return np.where(known, sums / np.maximum(counts, 1.0), np.nan)


def smoothing_width(points: int) -> int:
    """Odd: a fifteenth of the curve, from 12 points on."""
    return max(3, points // 15 | 1) if points >= 12 else 1


def thin(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most so many points, each the mean of its neighbours."""
    if len(x) <= most:
        return x, y
    parts = [(a, b[np.isfinite(b)]) for a, b in zip(np.array_split(x, most), np.array_split(y, most), strict=True)]
    return np.array([a.mean() for a, _ in parts]), np.array([b.mean() if len(b) else np.nan for _, b in parts])


def short(value: float) -> str:
    """`0.0123`, `12.3`, `45k`: for axes."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}" if size >= 1e-12 else "0"


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers within the range."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= count + 0.5)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def span(values: np.ndarray, *, zero: bool = False) -> tuple[float, float]:
    """A range that holds what is finite, with a little room; never empty."""
    values = values[np.isfinite(values)]
    if zero:
        values = np.append(values, 0.0)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if low == high == 0:
        return 0.0, 1.0
    room = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
    return (low if zero and low == 0 else low - room), (high if zero and high == 0 else high + room)


@dataclass(frozen=True)
class Frame:
    """Where a number lies on the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    height: int = HEIGHT

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        inner = self.height - TOP - BOTTOM
        return TOP + inner - (value - self.y_low) / (self.y_high - self.y_low) * inner

    def axes(self, x_name: str, y_name: str = "", *, whole: bool = False) -> str:
        """With `whole`, only whole numbers are marked on x: there is no half update."""
        bottom = self.height - BOTTOM
        parts = [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}" style="stroke:var(--soft)"/>']
        if y_name:
            at = f"11 {(TOP + bottom) / 2}"
            name = html.escape(y_name)
            parts.append(f'<text transform="translate({at}) rotate(-90)" text-anchor="middle">{name}</text>')
        for value in ticks(self.y_low, self.y_high):
            y = self.y(value)
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" style="stroke:var(--line)"/>'
            )
            parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{short(value)}</text>')
        for value in ticks(self.x_low, self.x_high):
            if whole and abs(value - round(value)) > 1e-6:
                continue
            x = self.x(value)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 3}" style="stroke:var(--soft)"/>'
            )
            edge = ' text-anchor="end"' if x > WIDTH - RIGHT - 8 else ' text-anchor="middle"'
            parts.append(f'<text x="{x:.1f}" y="{bottom + 14}"{edge}>{short(value)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{self.height - 4}" text-anchor="middle">{html.escape(x_name)}</text>')
        return "".join(parts)

    def clipped(self, content: str) -> str:
        """What lies outside of the axes is not seen."""
        inner = f'x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{self.height - BOTTOM + 1}"'
        box = f'viewBox="{LEFT} 0 {WIDTH - LEFT} {self.height - BOTTOM + 1}"'
        return f'<svg {inner} {box} overflow="hidden">{content}</svg>'


def _path(frame: Frame, x: np.ndarray, y: np.ndarray) -> str:
    """With gaps where there is no number; a lone point is a dot."""
    parts: list[str] = []
    known = np.isfinite(y)
    for i in np.flatnonzero(known):
        begins = i == 0 or not known[i - 1]
        place = f"{frame.x(float(x[i])):.1f} {frame.y(float(y[i])):.1f}"
        parts.append(f"{'M' if begins else 'L'}{place}")
        if begins and (i + 1 == len(y) or not known[i + 1]):
            parts.append("h0.01")
    return "".join(parts)


def _svg(content: str, height: int, label: str, plot: dict[str, Any] | None = None) -> str:
    data = f' data-plot="{html.escape(json.dumps(plot), quote=True)}"' if plot else ""
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}"{data}>{content}</svg>'


# ------------------------------------------------------------------------------------------------------------- charts


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y_range: tuple[float, float] | None = None,
    line: tuple[str, float] | None = None,
    note: str = "",
) -> str:
    """Lines over steps or rounds; `line` is a level to compare with, and its name. Nothing where there is no number."""
    series = [entry for entry in series if np.isfinite(entry.y).any()]
    if not series:
        return ""
    frame = _line_frame(series, y_range, line)
    plot = {"x": x_name, "low": frame.x_low, "high": frame.x_high, "series": [_data(entry) for entry in series]}
    return figure(title, _svg(_lines(frame, series, x_name, line), HEIGHT, title, plot), note)


def draw_lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y_range: tuple[float, float] | None = None,
    line: tuple[str, float] | None = None,
) -> tuple[str, int]:
    """The drawing alone, without numbers for a pointer, and its height."""
    frame = _line_frame(series, y_range, line)
    return _svg(_lines(frame, series, x_name, line), HEIGHT, title), HEIGHT


def _lines(frame: Frame, series: Sequence[Series], x_name: str, line: tuple[str, float] | None) -> str:
    faint, bands, bright = [], [], []
    for number, entry in enumerate(series):
        aside = 5 * (number - (len(series) - 1) / 2)  # so that whiskers do not hide each other
        ink = f"fill:none;stroke:{colour(entry.index)}"
        for x, y in entry.raw:
            faint.append(f'<path d="{_path(frame, *thin(x, y))}" stroke-width="1" style="{ink};opacity:.3"/>')
        if not entry.marks:
            bands.append(_band(frame, entry))
        kept = slice(None) if entry.hollow is None else ~entry.hollow
        shift = f' transform="translate({aside})"' if entry.marks and aside else ""
        d = _path(frame, *thin(entry.x[kept], entry.y[kept]))
        caps = 'stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
        bright.append(f'<path d="{d}" {caps} style="{ink}"{dash(entry.index)}{shift}/>')
        if entry.marks:
            bright.append(_marks(frame, entry, aside))
    level = _level(frame, *line) if line else ""
    return frame.axes(x_name, whole=True) + frame.clipped("".join([*faint, *bands, level, *bright]))


def _line_frame(series: Sequence[Series], y_range: tuple[float, float] | None, line: tuple[str, float] | None) -> Frame:
    """All that is bright, and the raw values as far as they leave it half of the room: a spike is cut off."""
    bright = [end for entry in series for end in (entry.y, entry.low, entry.high) if end is not None]
    low, high = span(np.concatenate([*bright, *([np.array([line[1]])] if line else [])]))
    raw = [y[np.isfinite(y)] for entry in series for _, y in entry.raw]
    if raw and len(together := np.concatenate(raw)):
        wide, room = span(together), (high - low) / 2
        low, high = min(low, max(wide[0], low - room)), max(high, min(wide[1], high + room))
    low, high = y_range or (low, high)
    x = np.concatenate([entry.x for entry in series]).astype(float)
    first, last = float(x.min()), float(x.max())
    if first == last:
        first, last = first - 0.5, last + 0.5
    room = 0.05 * (last - first) if any(entry.marks for entry in series) else 0.0
    return Frame(first - room, last + room, low, high)


def _data(entry: Series) -> dict[str, Any]:
    """What the reader's pointer asks for."""

    def plain(values: np.ndarray) -> list[float | None]:
        return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]

    x, y = thin(entry.x, entry.y)
    data: dict[str, Any] = {"name": entry.name, "x": [round(float(value), 1) for value in x], "y": plain(y)}
    if entry.low is not None and entry.high is not None and len(x) == len(entry.x):
        data |= {"low": plain(entry.low), "high": plain(entry.high)}
    return data


def _band(frame: Frame, entry: Series) -> str:
    if entry.low is None or entry.high is None:
        return ""
    x, low = thin(entry.x, entry.low)
    _, high = thin(entry.x, entry.high)
    known = np.isfinite(low) & np.isfinite(high)
    upper = [f"{frame.x(float(a)):.1f},{frame.y(float(b)):.1f}" for a, b in zip(x[known], high[known], strict=True)]
    lower = [f"{frame.x(float(a)):.1f},{frame.y(float(b)):.1f}" for a, b in zip(x[known], low[known], strict=True)]
    return f'<polygon points="{" ".join(upper + lower[::-1])}" style="fill:{colour(entry.index)};opacity:.16"/>'


def _marks(frame: Frame, entry: Series, aside: float) -> str:
    parts = []
    for i, (x, y) in enumerate(zip(entry.x, entry.y, strict=True)):
        if not math.isfinite(y):
            continue
        if entry.low is not None and entry.high is not None:
            parts.append(_whisker(frame, float(x), float(entry.low[i]), float(entry.high[i]), entry.index, aside))
        hollow = entry.hollow is not None and bool(entry.hollow[i])
        fill = "var(--paper)" if hollow else colour(entry.index)
        style = f"fill:{fill};stroke:{colour(entry.index)};stroke-width:1.6"
        parts.append(
            f'<circle cx="{frame.x(float(x)) + aside:.1f}" cy="{frame.y(float(y)):.1f}" r="3.4" style="{style}"/>'
        )
    return "".join(parts)


def _whisker(frame: Frame, x: float, low: float, high: float, index: int, aside: float = 0.0) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    at, top, bottom = frame.x(x) + aside, frame.y(high), frame.y(low)
    ends = "".join(f"M{at - 3:.1f} {y:.1f}h6" for y in (top, bottom))
    return f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}{ends}" style="fill:none;stroke:{colour(index)};opacity:.75"/>'


def _level(frame: Frame, name: str, value: float) -> str:
    y = frame.y(value)
    rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke-dasharray="4 3" '
    return f'{rule}style="stroke:var(--soft)"/><text x="{LEFT + 4}" y="{y - 4:.1f}">{html.escape(name)}</text>'


def bars(title: str, rows: Sequence[Bar], *, unit: str, y_range: tuple[float, float] | None = None) -> str:
    """Horizontal, each under its name and number; dots are the seeds."""
    return figure(title, draw_bars(title, rows, y_range)[0], unit)


def draw_bars(title: str, rows: Sequence[Bar], y_range: tuple[float, float] | None = None) -> tuple[str, int]:
    """The drawing alone, and its height."""
    step, head = 36, 4
    height = head + step * len(rows) + 18
    seen = [value for row in rows for value in (row.value, row.low, row.high, *row.parts)]
    low, high = y_range or span(np.array(seen, dtype=float), zero=True)
    left, inner = 4, WIDTH - 4 - RIGHT - 4

    def place(value: float) -> float:
        return left + (min(max(value, low), high) - low) / (high - low) * inner

    parts = []
    for value in ticks(low, high):
        x, end = place(value), head + step * len(rows)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{head}" y2="{end}" style="stroke:var(--line)"/>')
        anchor = "start" if x < 12 else "end" if x > WIDTH - 24 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{end + 13}" text-anchor="{anchor}">{short(value)}</text>')
    for i, row in enumerate(rows):
        parts.append(_bar(row, head + step * i, place, left + inner))
    return _svg("".join(parts), height, title), height


def _bar(row: Bar, top: int, place: Callable[[float], float], right: int) -> str:
    start, end, middle = place(0.0), place(row.value), top + 24
    name = row.name if len(row.name) <= 34 else f"{row.name[:33]}…"
    style = f"fill:{colour(row.index)};opacity:.8"
    box = f'x="{min(start, end):.1f}" y="{middle - 5}" width="{abs(end - start):.1f}" height="10"'
    parts = [
        f"<g><title>{html.escape(f'{row.name}: {row.text}')}</title>",
        f'<text class="name" x="4" y="{top + 14}">{html.escape(name)}</text>',
        f'<text x="{right}" y="{top + 14}" text-anchor="end">{html.escape(row.text)}</text>',
        f'<rect {box} style="{style}"/>',
    ]
    if math.isfinite(row.low) and math.isfinite(row.high):
        a, b = place(row.low), place(row.high)
        d = f"M{a:.1f} {middle}H{b:.1f}M{a:.1f} {middle - 4}v8M{b:.1f} {middle - 4}v8"
        parts.append(f'<path d="{d}" style="fill:none;stroke:var(--ink);stroke-width:1.2"/>')
    ink = "fill:var(--paper);stroke:var(--ink)"
    parts += [f'<circle cx="{place(x):.1f}" cy="{middle}" r="2.6" style="{ink}"/>' for x in row.parts]
    return "".join([*parts, "</g>"])


def sheet(title: str, drawings: Sequence[tuple[str, tuple[str, int]]], *, columns: int = 2) -> str:
    """Titled drawings as one SVG file. It brings its colours and its ground along: where a site's scheme is not the
    reader's, it is a light card on a dark page, or the other way round, and can be read.
    """
    gap, head = 20, 24
    tops, boxes = [gap] * columns, list[str]()
    for number, (name, (drawing, height)) in enumerate(drawings):
        column = number % columns
        x, y = gap + column * (WIDTH + gap), tops[column]
        inner = drawing.replace("<svg ", f'<svg x="{x}" y="{y + head}" width="{WIDTH}" height="{height}" ', 1)
        boxes.append(f'<text class="title" x="{x + 4}" y="{y + 14}">{html.escape(name)}</text>{inner}')
        tops[column] += head + height + gap
    width, height = gap + min(columns, len(drawings)) * (WIDTH + gap), max(tops)
    style = (
        f"{COLOURS}text {{ font: 11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; fill: var(--soft) }}\n"
        ".name { fill: var(--ink); font-size: 12px } .title { fill: var(--ink); font-size: 13px; font-weight: 600 }"
    )
    ground = f'<rect width="{width}" height="{height}" rx="8" style="fill:var(--paper)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(title)}"><style>{style}</style>{ground}\n' + "\n".join(boxes) + "</svg>\n"
    )


def scatter(title: str, clouds: Sequence[Cloud], *, x_name: str, y_name: str) -> str:
    """Both axes alike, with the diagonal; crosses are the means."""
    low, high = span(np.concatenate([np.concatenate([cloud.x, cloud.y]) for cloud in clouds]))
    frame = Frame(low, high, low, high, height=HEIGHT + 70)
    diagonal = (
        f'<line x1="{frame.x(low):.1f}" y1="{frame.y(low):.1f}" x2="{frame.x(high):.1f}" y2="{frame.y(high):.1f}" '
        'stroke-dasharray="4 3" style="stroke:var(--soft)"/>'
    )
    parts = []
    for cloud in clouds:
        every = max(1, math.ceil(len(cloud.x) / MOST_POINTS))
        for x, y in zip(cloud.x[::every], cloud.y[::every], strict=True):
            place = f'cx="{frame.x(float(x)):.1f}" cy="{frame.y(float(y)):.1f}"'
            parts.append(f'<circle {place} r="2.5" style="fill:{colour(cloud.index)};opacity:.45"/>')
    for cloud in clouds:
        parts.append(_whisker(frame, cloud.mean[0], cloud.low, cloud.high, cloud.index))
        x, y = frame.x(cloud.mean[0]), frame.y(cloud.mean[1])
        d = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
        parts.append(f"<g><title>{html.escape(cloud.name)}</title>")
        parts.append(f'<path d="{d}" style="fill:none;stroke:var(--paper);stroke-width:5"/>')
        parts.append(f'<path d="{d}" style="fill:none;stroke:{colour(cloud.index)};stroke-width:2.4"/></g>')
    content = frame.axes(x_name, y_name) + frame.clipped(diagonal + "".join(parts))
    return figure(title, _svg(content, frame.height, title))
