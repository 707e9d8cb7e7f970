"""The page of `pac inspect --html`: tables, histograms and images of a sample of episodes."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac.data.store import Dataset
from pac.report import html
from pac.report.dataset_summary import draw_sample, format_results

BINS = 30


def html_page(report: Mapping[str, Any]) -> str:
    """Return the page for a report of `describe_dataset`."""
    dataset = Dataset(report["path"])
    index, sample = dataset.index, draw_sample(dataset)
    images = [f"<h3>{html.escape(name)}</h3>{''.join(map(_image, frames))}" for name, frames in sample.frames.items()]
    tasks = [
        [row["instruction"] or "(no instruction)", f"{row['episodes']:,}", *format_results(row)]
        for row in report["tasks"]
    ]
    parts = [
        f"<h1>{html.escape(report['path'])}</h1>",
        f"<p>{report['episodes']:,} episodes, {report['steps']:,} steps, {report['bytes'] / 1e6:,.1f} MB</p>",
        *map(html.warning, report["warnings"]),
        _histogram(index["return"], "return per episode"),
        _histogram(index["length"], "steps per episode"),
        _histogram(sample.reward, "reward per step (sample)"),
        html.section("Tasks", [_table(["task", "episodes", "mean return [95%]", "success [95%]"], tasks)]),
        html.section("Images", images),
        html.section("State", _dimensions(report["state"], sample.state, "")),
        html.section("Actions", _dimensions(report["action"], sample.action, ", normalised")),
    ]
    return html.document(report["path"], parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return html.table(header, rows) if rows else "<p>none</p>"


def _dimensions(rows: Sequence[Mapping[str, Any]], values: np.ndarray, suffix: str) -> list[str]:
    """Return the statistics of all dimensions as a table, and a histogram of each."""
    names = [f"{row['name']}{suffix}" for row in rows]
    header = ("name", "min", "max", "mean", "std")
    cells = [[row["name"], *(f"{row[column]:.4g}" for column in header[1:])] for row in rows]
    histograms = zip(values.T, names, strict=False)  # the sample of an empty dataset has no columns
    return [_table(header, cells), *(_histogram(column, name) for column, name in histograms)]


def _histogram(values: np.ndarray, caption: str) -> str:
    """Return bars as inline SVG, or nothing without a finite value."""
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    counts, edges = np.histogram(values, BINS)
    tops = 60 * counts / counts.max()
    bars = "".join(f'<rect x="{6 * i}" y="{60 - top:.1f}" width="5" height="{top:.1f}"/>' for i, top in enumerate(tops))
    return (
        f'<figure><svg width="{6 * BINS}" height="60" fill="var(--s0)">{bars}</svg>'
        f"<figcaption>{html.escape(caption)}<br>{edges[0]:.4g} to {edges[-1]:.4g}</figcaption></figure>"
    )


def _image(image: np.ndarray) -> str:
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
