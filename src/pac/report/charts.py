"""Charts as inline SVG. They are 360 units wide, about the width of a phone, so that text keeps its size on any screen.

Colours are the page's variables. Dashes and marks also tell series apart.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from pac.report.html import SERIES
from pac.resources import ASSETS

WIDTH, HEIGHT = 360, 216
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 8, 32  # margins
MAX_POINTS = 300  # drawn of a curve
DASHES = ("", "6 3", "2 3", "8 3 2 3")
Number = int | float

SCRIPT = f"const WIDTH = {WIDTH}, LEFT = {LEFT}, SPAN = {WIDTH - LEFT - RIGHT};\n" + (ASSETS / "page.js").read_text()


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart without its title. `svg` is empty if there is nothing to draw."""

    title: str
    svg: str
    height: int

    def figure(self, note: str = "") -> str:
        """Return HTML with the title and a note above the chart."""
        below = f"<br>{escape(note)}" if note else ""
        caption = f"<figcaption><strong>{escape(self.title)}</strong>{below}</figcaption>"
        return f"<figure>{caption}{self.svg}</figure>" if self.svg else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """The line or the points of one row."""

    name: str
    index: int  # number of the colour
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None  # ends of an interval or a band
    high: np.ndarray | None = None
    raw: Sequence[tuple[np.ndarray, np.ndarray]] = ()  # faint lines below it
    marks: bool = False  # points with whiskers; else a line with a band
    hollow: np.ndarray | None = None  # marks that are not filled; the line leaves them out


@dataclass(frozen=True, kw_only=True)
class Bar:
    name: str
    index: int
    value: float
    low: float
    high: float
    text: str  # the value as it is printed
    parts: tuple[float, ...] = ()  # dots, one per seed


@dataclass(frozen=True, kw_only=True, eq=False)
class Cloud:
    """Points, and their mean with an interval on y."""

    name: str
    index: int
    x: np.ndarray
    y: np.ndarray
    mean: tuple[float, float]
    low: float
    high: float


def colour(index: int) -> str:
    return f"var(--s{index % SERIES})"


def dash(index: int) -> str:
    pattern = DASHES[index // SERIES % len(DASHES)] if index >= SERIES else DASHES[index % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def legend(names: Sequence[tuple[str, int]]) -> str:
    items = (
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5" stroke-width="2.5" '
        f'style="stroke:{colour(index)}"{dash(index)}/></svg>{escape(name)}</li>'
        for name, index in names
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Return the centred moving mean over the finite values. It is narrower at the ends. NaN stays NaN."""
    if len(values) < width:
        return values
    known = np.isfinite(values)
    sums = np.convolve(np.where(known, values, 0.0), np.ones(width), "same")
    counts = np.convolve(known.astype(float), np.ones(width), "same")
    return np.where(known, sums / np.maximum(counts, 1.0), np.nan)


def smoothing_width(points: int) -> int:
    """Return an odd width, a fifteenth of the curve; 1 for fewer than 12 points."""
    return max(3, points // 15 | 1) if points >= 12 else 1


def thin(x: np.ndarray, y: np.ndarray, most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` points. Each is the mean of its neighbours."""
    if len(x) <= most:
        return x, y
    parts = [(a, b[np.isfinite(b)]) for a, b in zip(np.array_split(x, most), np.array_split(y, most), strict=True)]
    return np.array([a.mean() for a, _ in parts]), np.array([b.mean() if len(b) else np.nan for _, b in parts])


def short(value: float) -> str:
    """Return a number for an axis, such as `0.0123` or `45k`."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}" if size >= 1e-12 else "0"


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers within the range."""
    size = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(size / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if size / (power * factor) <= count + 0.5)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def span(values: np.ndarray, *, zero: bool = False) -> tuple[float, float]:
    """Return a range that holds the finite values (and zero), with some room. It is never empty."""
    values = values[np.isfinite(values)]
    if zero:
        values = np.append(values, 0.0)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if low == high == 0:
        return 0.0, 1.0
    room = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
    return (low if zero and low == 0 else low - room), (high if zero and high == 0 else high + room)


@dataclass(frozen=True)
class Axes:
    """Maps numbers to places on the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    height: int = HEIGHT

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        inner = self.height - TOP - BOTTOM
        return TOP + inner - (value - self.y_low) / (self.y_high - self.y_low) * inner

    def draw(self, x_name: str, y_name: str = "", *, integers: bool = False, counts: bool = False) -> str:
        """Return the axes with ticks and names. `integers` marks only whole numbers on x, `counts` only those on y."""
        parts = [_rule((LEFT, self.bottom), (WIDTH - RIGHT, self.bottom), "soft")]
        if y_name:
            at = f"9 {(TOP + self.bottom) / 2}"
            place = f'class="axis" transform="translate({at}) rotate(-90)" text-anchor="middle"'
            parts.append(f"<text {place}>{escape(y_name)}</text>")
        for value in ticks(self.y_low, self.y_high):
            if counts and abs(value - round(value)) > 1e-6:
                continue
            y = self.y(value)
            parts.append(_rule((LEFT, y), (WIDTH - RIGHT, y), "line"))
            parts.append(_text(LEFT - 6, y + 3.5, short(value), "end"))
        for value in ticks(self.x_low, self.x_high):
            if integers and abs(value - round(value)) > 1e-6:
                continue
            x = self.x(value)
            parts.append(_rule((x, self.bottom), (x, self.bottom + 3), "soft"))
            parts.append(_text(x, self.bottom + 14, short(value), "end" if x > WIDTH - RIGHT - 8 else "middle"))
        parts.append(_axis_name((LEFT + WIDTH - RIGHT) / 2, self.height - 4, x_name))
        return "".join(parts)

    def clip(self, content: str) -> str:
        """Hide what lies outside of the axes."""
        width, height = WIDTH - LEFT, self.bottom + 1
        place = f'x="{LEFT}" y="0" width="{width}" height="{height}"'
        return f'<svg {place} viewBox="{LEFT} 0 {width} {height}" overflow="hidden">{content}</svg>'


def _number(value: Number) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _rule(start: tuple[Number, Number], end: tuple[Number, Number], ink: str, dashes: str = "") -> str:
    ends = " ".join(f'{name}{i}="{_number(at[j])}"' for j, name in enumerate("xy") for i, at in ((1, start), (2, end)))
    return f'<line {ends}{dashes} style="stroke:var(--{ink})"/>'


def _text(x: Number, y: Number, text: str, anchor: str) -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis_name(x: Number, y: Number, text: str) -> str:
    return _text(x, y, text, "middle").replace("<text", '<text class="axis"', 1)


def _path(axes: Axes, x: np.ndarray, y: np.ndarray) -> str:
    """Return a path with gaps at NaN. A point between two gaps is a dot."""
    parts: list[str] = []
    known = np.isfinite(y)
    for i in np.flatnonzero(known):
        begins = i == 0 or not known[i - 1]
        parts.append(f"{'M' if begins else 'L'}{axes.x(float(x[i])):.1f} {axes.y(float(y[i])):.1f}")
        if begins and (i + 1 == len(y) or not known[i + 1]):
            parts.append("h0.01")
    return "".join(parts)


def make_drawing(content: str, height: int, title: str, plot: dict[str, Any] | None = None) -> Drawing:
    data = f' data-plot="{escape(json.dumps(plot))}"' if plot else ""
    label = escape(title)
    svg = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}"{data}>{content}</svg>'
    return Drawing(title=title, svg=svg, height=height)


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y_name: str = "",
    y_range: tuple[float, float] | None = None,
    line: tuple[str, float] | None = None,
) -> Drawing:
    """Return lines over steps or rounds; nothing if all values are NaN. `line` is a named level to compare with."""
    series = [entry for entry in series if np.isfinite(entry.y).any()]
    if not series:
        return Drawing(title=title, svg="", height=0)
    axes = _line_axes(series, y_range, line)
    plot = {"x": x_name, "low": axes.x_low, "high": axes.x_high, "series": [_plot_data(entry) for entry in series]}
    return make_drawing(_draw_lines(axes, series, (x_name, y_name), line), HEIGHT, title, plot)


def _line_axes(series: Sequence[Series], y_range: tuple[float, float] | None, line: tuple[str, float] | None) -> Axes:
    """Return axes that hold all lines. Raw values may take half as much room again: a spike is cut off."""
    drawn = [end for entry in series for end in (entry.y, entry.low, entry.high) if end is not None]
    low, high = span(np.concatenate([*drawn, *([np.array([line[1]])] if line else [])]))
    raw = [y[np.isfinite(y)] for entry in series for _, y in entry.raw]
    if raw and len(pooled := np.concatenate(raw)):
        (raw_low, raw_high), room = span(pooled), (high - low) / 2
        low, high = min(low, max(raw_low, low - room)), max(high, min(raw_high, high + room))
    low, high = y_range or (low, high)
    x = np.concatenate([entry.x for entry in series]).astype(float)
    first, last = float(x.min()), float(x.max())
    if first == last:
        first, last = first - 0.5, last + 0.5
    room = 0.05 * (last - first) if any(entry.marks for entry in series) else 0.0
    return Axes(first - room, last + room, low, high)


def _draw_lines(axes: Axes, series: Sequence[Series], names: tuple[str, str], line: tuple[str, float] | None) -> str:
    faint, bands, bright = [], [], []
    for number, entry in enumerate(series):
        aside = 5 * (number - (len(series) - 1) / 2)  # so that whiskers do not hide each other
        ink = f"fill:none;stroke:{colour(entry.index)}"
        for x, y in entry.raw:
            faint.append(f'<path d="{_path(axes, *thin(x, y))}" stroke-width="1" style="{ink};opacity:.3"/>')
        if not entry.marks:
            bands.append(_band(axes, entry))
        kept = slice(None) if entry.hollow is None else ~entry.hollow
        shift = f' transform="translate({aside})"' if entry.marks and aside else ""
        d = _path(axes, *thin(entry.x[kept], entry.y[kept]))
        caps = 'stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
        bright.append(f'<path d="{d}" {caps} style="{ink}"{dash(entry.index)}{shift}/>')
        if entry.marks:
            bright.append(_marks(axes, entry, aside))
    level = ""
    if line is not None:
        at = axes.y(line[1])
        level = _rule((LEFT, at), (WIDTH - RIGHT, at), "soft", ' stroke-dasharray="4 3"')
        level += f'<text x="{LEFT + 4}" y="{at - 4:.1f}">{escape(line[0])}</text>'
    return axes.draw(*names, integers=True) + axes.clip("".join([*faint, *bands, level, *bright]))


def _plot_data(entry: Series) -> dict[str, Any]:
    """Return the values that the pointer shows."""

    def rounded(values: np.ndarray) -> list[float | None]:
        return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]

    x, y = thin(entry.x, entry.y)
    data: dict[str, Any] = {"name": entry.name, "x": [round(float(value), 1) for value in x], "y": rounded(y)}
    if entry.low is not None and entry.high is not None and len(x) == len(entry.x):
        data |= {"low": rounded(entry.low), "high": rounded(entry.high)}
    return data


def _band(axes: Axes, entry: Series) -> str:
    if entry.low is None or entry.high is None:
        return ""
    x, low = thin(entry.x, entry.low)
    _, high = thin(entry.x, entry.high)
    known = np.isfinite(low) & np.isfinite(high)
    upper, lower = (
        [f"{axes.x(float(a)):.1f},{axes.y(float(b)):.1f}" for a, b in zip(x[known], ends[known], strict=True)]
        for ends in (high, low)
    )
    return f'<polygon points="{" ".join(upper + lower[::-1])}" style="fill:{colour(entry.index)};opacity:.16"/>'


def _marks(axes: Axes, entry: Series, aside: float) -> str:
    parts = []
    for i in np.flatnonzero(np.isfinite(entry.y)):
        x, y = float(entry.x[i]), float(entry.y[i])
        if entry.low is not None and entry.high is not None:
            parts.append(_whisker(axes, x, float(entry.low[i]), float(entry.high[i]), entry.index, aside))
        hollow = entry.hollow is not None and bool(entry.hollow[i])
        fill = "var(--paper)" if hollow else colour(entry.index)
        style = f"fill:{fill};stroke:{colour(entry.index)};stroke-width:1.6"
        parts.append(f'<circle cx="{axes.x(x) + aside:.1f}" cy="{axes.y(y):.1f}" r="3.4" style="{style}"/>')
    return "".join(parts)


def _whisker(axes: Axes, x: float, low: float, high: float, index: int, aside: float = 0.0) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    at, top, bottom = axes.x(x) + aside, axes.y(high), axes.y(low)
    ends = "".join(f"M{at - 3:.1f} {y:.1f}h6" for y in (top, bottom))
    return f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}{ends}" style="fill:none;stroke:{colour(index)};opacity:.75"/>'


def bars(title: str, rows: Sequence[Bar], x_range: tuple[float, float] | None = None, *, x_name: str = "") -> Drawing:
    """Return horizontal bars, each below its name and number. Dots are the seeds."""
    step, head, left, inner = 36, 4, 4, WIDTH - 8 - RIGHT
    end = head + step * len(rows)
    seen = [value for row in rows for value in (row.value, row.low, row.high, *row.parts)]
    low, high = x_range or span(np.array(seen, dtype=float), zero=True)

    def place(value: float) -> float:
        return left + (min(max(value, low), high) - low) / (high - low) * inner

    parts = []
    for value in ticks(low, high):
        x = place(value)
        parts.append(_rule((x, head), (x, end), "line"))
        parts.append(_text(x, end + 13, short(value), "start" if x < 12 else "end" if x > WIDTH - 24 else "middle"))
    parts += [_bar(row, head + step * i, place, left + inner) for i, row in enumerate(rows)]
    if x_name:
        parts.append(_axis_name(WIDTH / 2, end + 28, x_name))
    return make_drawing("".join(parts), end + (33 if x_name else 18), title)


def _bar(row: Bar, top: int, place: Callable[[float], float], right: int) -> str:
    start, end, middle = place(0.0), place(row.value), top + 24
    name = row.name if len(row.name) <= 34 else f"{row.name[:33]}…"
    box = f'x="{min(start, end):.1f}" y="{middle - 5}" width="{abs(end - start):.1f}" height="10"'
    parts = [
        f"<g><title>{escape(f'{row.name}: {row.text}')}</title>",
        f'<text class="name" x="4" y="{top + 14}">{escape(name)}</text>',
        _text(right, top + 14, row.text, "end"),
        f'<rect {box} style="fill:{colour(row.index)};opacity:.8"/>',
    ]
    if math.isfinite(row.low) and math.isfinite(row.high):
        a, b = place(row.low), place(row.high)
        d = f"M{a:.1f} {middle}H{b:.1f}M{a:.1f} {middle - 4}v8M{b:.1f} {middle - 4}v8"
        parts.append(f'<path d="{d}" style="fill:none;stroke:var(--ink);stroke-width:1.2"/>')
    ink = "fill:var(--paper);stroke:var(--ink)"
    parts += [f'<circle cx="{place(x):.1f}" cy="{middle}" r="2.6" style="{ink}"/>' for x in row.parts]
    return "".join([*parts, "</g>"])


def scatter(title: str, clouds: Sequence[Cloud], *, x_name: str, y_name: str) -> Drawing:
    """Return points with the diagonal. Both axes have the same range. Crosses are the means."""
    low, high = span(np.concatenate([np.concatenate([cloud.x, cloud.y]) for cloud in clouds]))
    axes = Axes(low, high, low, high, height=HEIGHT + 70)
    corners = (axes.x(low), axes.y(low)), (axes.x(high), axes.y(high))
    points, means = [_rule(*corners, "soft", ' stroke-dasharray="4 3"')], []
    for cloud in clouds:
        every = max(1, math.ceil(len(cloud.x) / MAX_POINTS))
        for x, y in zip(cloud.x[::every], cloud.y[::every], strict=True):
            place = f'cx="{axes.x(float(x)):.1f}" cy="{axes.y(float(y)):.1f}"'
            points.append(f'<circle {place} r="2.5" style="fill:{colour(cloud.index)};opacity:.45"/>')
        means.append(_whisker(axes, cloud.mean[0], cloud.low, cloud.high, cloud.index))
        d = f"M{axes.x(cloud.mean[0]) - 5:.1f} {axes.y(cloud.mean[1]) - 5:.1f}l10 10m0 -10l-10 10"
        means.append(f"<g><title>{escape(cloud.name)}</title>")
        means.append(f'<path d="{d}" style="fill:none;stroke:var(--paper);stroke-width:5"/>')
        means.append(f'<path d="{d}" style="fill:none;stroke:{colour(cloud.index)};stroke-width:2.4"/></g>')
    content = axes.draw(x_name, y_name) + axes.clip("".join(points + means))
    return make_drawing(content, axes.height, title)


def histogram(title: str, values: np.ndarray, *, x_name: str, y_name: str, bins: int = 30) -> Drawing:
    """Return how often values occur; nothing if all finite values are equal."""
    values = values[np.isfinite(values)]
    if not len(values) or values.min() == values.max():
        return Drawing(title=title, svg="", height=0)
    counts, edges = np.histogram(values, bins)
    axes = Axes(float(edges[0]), float(edges[-1]), 0.0, 1.05 * float(counts.max()), height=HEIGHT - 60)
    width = (WIDTH - LEFT - RIGHT) / bins
    boxes = (
        f'<rect x="{axes.x(float(edge)):.1f}" y="{axes.y(float(count)):.1f}" width="{width - 1:.1f}" '
        f'height="{axes.bottom - axes.y(float(count)):.1f}" style="fill:{colour(0)}"/>'
        for edge, count in zip(edges, counts, strict=False)
        if count
    )
    return make_drawing(axes.draw(x_name, y_name, counts=True) + "".join(boxes), axes.height, title)
