"""Page of `pac inspect --html`: one file with tables, histograms and images of a sample of episodes."""

import base64
import html
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pac.data.store import Dataset
from pac.report.dataset_summary import draw_sample, format_results
from pac.report.html import document, table, warning


def html_page(report: dict[str, Any]) -> str:
    """Return the page for a report of `describe_dataset`."""
    dataset = Dataset(report["path"])
    sample, index = draw_sample(dataset), dataset.index
    overall = [histogram(index["return"], "return per episode"), histogram(index["length"], "steps per episode")]
    overall.append(histogram(sample.reward, "reward per step (sample)"))
    tasks = [
        [row["instruction"] or "(no instruction)", row["episodes"], *format_results(row)] for row in report["tasks"]
    ]
    parts = [
        f"<h1>{html.escape(report['path'])}</h1>",
        f"<p>{report['episodes']:,} episodes, {report['steps']:,} steps, {report['bytes'] / 1e6:,.1f} MB</p>",
        "".join(map(warning, report["warnings"])),
        "".join(overall),
        "<h2>Tasks</h2>" + _table(["task", "episodes", "mean return [95%]", "success [95%]"], tasks),
        "<h2>Images</h2>" if sample.frames else "",
        *(f"<h3>{html.escape(name)}</h3>" + "".join(map(_image, frames)) for name, frames in sample.frames.items()),
        "<h2>State</h2>" + _dimensions(report["state"]),
        _histograms(sample.state, [row["name"] for row in report["state"]]),
        "<h2>Actions</h2>" + _dimensions(report["action"]),
        _histograms(sample.action, [f"{row['name']}, normalised" for row in report["action"]]),
    ]
    return document(report["path"], "\n".join(parts))


def histogram(values: np.ndarray, caption: str, bins: int = 30) -> str:
    """Return a histogram as inline SVG."""
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    counts, edges = np.histogram(values, bins)
    tops = 60 * counts / counts.max()
    bars = "".join(f'<rect x="{6 * i}" y="{60 - top:.1f}" width="5" height="{top:.1f}"/>' for i, top in enumerate(tops))
    scale = f"{edges[0]:.4g} to {edges[-1]:.4g}"
    return (
        f'<figure><svg width="{6 * bins}" height="60" fill="var(--s0)">{bars}</svg>'
        f"<figcaption>{html.escape(caption)}<br>{scale}</figcaption></figure>"
    )


def png(image: np.ndarray) -> bytes:
    """Encode a (height, width, 3) uint8 image as PNG."""
    height, width, _ = image.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    data = chunk(b"IDAT", zlib.compress(rows.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def _image(image: np.ndarray) -> str:
    return f'<img src="data:image/png;base64,{base64.b64encode(png(image)).decode()}" alt="frame">'


def _histograms(values: np.ndarray, names: list[str]) -> str:
    return "".join(histogram(values[:, i], name) for i, name in enumerate(names[: values.shape[1]]))


def _dimensions(rows: list[dict[str, Any]]) -> str:
    columns = ("name", "min", "max", "mean", "std")
    return _table(columns, [[row["name"], *(f"{row[key]:.4g}" for key in columns[1:])] for row in rows])


def _table(header: Sequence[str], rows: list[list[Any]]) -> str:
    return table(header, [[html.escape(str(cell)) for cell in row] for row in rows]) if rows else "<p>none</p>"
