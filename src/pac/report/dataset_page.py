"""The page of `pac inspect --html`: a sentence, warnings, an episode, and histograms of a sample of episodes."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac.data.relabel import label_episode
from pac.data.store import IMAGES, Dataset
from pac.report import charts, html
from pac.report.dataset_summary import draw_sample, format_results, index_under

NUM_FRAMES = 6  # of the episode that is shown
MOST_PIXELS = 240  # of a side of an image
MOST_CHARTS = 12  # of dimensions; more are folded


def html_page(report: Mapping[str, Any]) -> str:
    """Return the page for a report of `describe_dataset`."""
    dataset = Dataset(report["path"])
    reward = report["reward"]
    index, sample = index_under(dataset, reward), draw_sample(dataset, reward)
    returns = charts.histogram("Returns", index["return"], x_name="return of an episode", y_name="episodes")
    others = [
        charts.histogram("Lengths", index["length"], x_name="steps of an episode", y_name="episodes"),
        charts.histogram("Rewards, a sample", sample.reward, x_name="reward of a step", y_name="steps"),
    ]
    lengths = report["length"] or {"min": 0, "max": 0}
    equal = [html.soft(f"Every episode has {lengths['min']:,.0f} steps.")] * (lengths["min"] == lengths["max"])
    images = [f"<h3>{html.escape(name)}</h3>{''.join(map(_image, frames))}" for name, frames in sample.frames.items()]
    tasks = [
        [row["instruction"] or "(no instruction)", f"{row['episodes']:,}", *format_results(row)]
        for row in report["tasks"]
    ]
    parts = [
        f"<h1>{html.escape(report['path'])}</h1>",
        f'<p class="lead">{html.escape(headline(report))}</p>',
        f'<div class="headline">{returns.figure()}</div>' if returns.svg else "",
        *map(html.warning, report["warnings"]),
        html.section("An episode", [_episode(dataset, index, reward)] if len(dataset) else []),
        html.section("Tasks", [_table(["task", "episodes", "mean return [95%]", "success [95%]"], tasks)]),
        html.section("Lengths and rewards", [*equal, html.columns(drawing.figure() for drawing in others)]),
        html.section("Images: first and last of some episodes", images),
        html.section("State", _dimensions(report["state"], sample.state, "state", "value, in units of the data")),
        html.section("Actions", _dimensions(report["action"], sample.action, "action", "action, of its range -1 to 1")),
    ]
    return html.document(report["path"], parts)


def headline(report: Mapping[str, Any]) -> str:
    """Return the size and the results of the dataset in words."""
    episodes, tasks, warnings = report["episodes"], len(report["tasks"]), len(report["warnings"])
    text = (
        f"{episodes:,} episode{'s' * (episodes != 1)} of {tasks:,} task{'s' * (tasks != 1)}, {report['steps']:,} steps"
    )
    text += f", {report['bytes'] / 1e6:,.1f} MB."
    if report["return"]:
        text += f" The mean return is {report['return']['mean']:.4g}."
    if report["success"]:
        text += f" {report['success']['rate']:.0%} of the episodes succeed."
    return f"{text} {warnings} warning{'s' * (warnings != 1)}." if warnings else f"{text} No warnings."


def _episode(dataset: Dataset, index: np.ndarray, reward: str | None) -> str:
    """Return the frames and rewards of a successful episode, or else of the one with the highest return."""
    number = int(np.lexsort((index["return"], index["success"]))[-1])
    episode, row = dataset.episode(number), index[number]
    episode = episode if reward is None else label_episode(episode, reward)
    camera = next(iter(dataset.spec.cameras), None)
    strip = ""
    if camera is not None:
        frames = episode.observation[IMAGES + camera]
        chosen = np.linspace(0, len(frames) - 1, min(NUM_FRAMES, len(frames))).astype(int)
        strip = f'<div class="strip">{"".join(_image(frames[t]) for t in chosen)}</div>'
    outcome = {1: ", a success", 0: ", no success"}.get(int(row["success"]), "")
    rewards = charts.Series(
        name="reward",
        index=0,
        x=np.arange(len(episode.reward), dtype=np.float64),
        y=np.asarray(episode.reward, np.float64),
    )
    title = f"Episode {number}: return {row['return']:.4g}{outcome}"
    drawing = charts.lines(title, [rewards], x_name="step", y_name="reward")
    caption = f"<figcaption><strong>{html.escape(title)}</strong></figcaption>"
    return f'<div class="headline"><figure>{caption}{strip}{drawing.svg}</figure></div>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return html.table(header, rows) if rows else "<p>none</p>"


def _dimensions(rows: Sequence[Mapping[str, Any]], values: np.ndarray, kind: str, unit: str) -> list[str]:
    """Return a histogram of each dimension that varies, and the statistics of all as a table."""
    header = ("name", "min", "max", "mean", "std")
    cells = [[row["name"], *(f"{row[column]:.4g}" for column in header[1:])] for row in rows]
    varying = zip(rows, values.T, strict=False)  # the sample of an empty dataset has no columns
    figures = [
        charts.histogram(_title(row["name"], kind), column, x_name=unit, y_name="steps").figure()
        for row, column in varying
        if row["min"] < row["max"]
    ]
    figures = [figure for figure in figures if figure]
    constant = sum(row["min"] == row["max"] for row in rows)
    note = f"{constant} of {len(rows)} dimensions never change. They have no chart." if constant else ""
    more = f"{len(figures) - MOST_CHARTS} more dimensions"
    return [
        html.columns(figures[:MOST_CHARTS]),
        html.folded(more, html.columns(figures[MOST_CHARTS:])),
        html.soft(note) if note else "",
        html.folded(f"Statistics of all {len(rows)} dimensions", _table(header, cells)),
    ]


def _title(name: str, kind: str) -> str:
    """Return the name of a dimension. One that is only a number gets its kind."""
    return f"{kind} {name}" if name.isdigit() else name


def _image(image: np.ndarray) -> str:
    """Return an image as HTML. Of a large one only every second, third, ... row and column is kept."""
    stride = -(-max(image.shape) // MOST_PIXELS)
    image = np.ascontiguousarray(image[::stride, ::stride])
    return f'<img src="data:image/png;base64,{base64.b64encode(png(image)).decode()}" alt="frame">'


def png(image: np.ndarray) -> bytes:
    """Return a (height, width, 3) uint8 image as PNG."""
    height, width, _ = image.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    data = chunk(b"IDAT", zlib.compress(rows.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")
