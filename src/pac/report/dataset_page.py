"""The page of `pac inspect --html`: one file with tables, histograms and pictures of a sample of episodes. It needs no
network.
"""

import base64
import html
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from pac.data.statistics import normalise_action
from pac.data.store import IMAGES, STATE, Dataset
from pac.report import html as look

SAMPLED_EPISODES = 200  # a tenth of that with pictures


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Some episodes, evenly spaced over the dataset, end to end."""

    state: np.ndarray  # (rows, dims)
    action: np.ndarray  # (steps, dims), normalised
    reward: np.ndarray  # (steps,)
    frames: dict[str, list[np.ndarray]]  # camera -> first and last picture of a few episodes


def draw_sample(dataset: Dataset) -> Sample:
    """The same sample every time."""
    count = min(len(dataset), SAMPLED_EPISODES // (10 if dataset.spec.cameras else 1))
    episodes = [dataset.episode(int(i)) for i in np.linspace(0, len(dataset) - 1, count)]
    action = np.concatenate([e.action for e in episodes] or [np.zeros((0, dataset.spec.action_dim), np.float32)])
    frames = {
        name: [e.observation[IMAGES + name][t] for e in episodes[:: max(1, len(episodes) // 4)][:4] for t in (0, -1)]
        for name in dataset.spec.cameras
    }
    return Sample(
        state=np.concatenate([e.observation[STATE] for e in episodes if STATE in e.observation] or [np.zeros((0, 0))]),
        action=normalise_action(action, dataset.action_low, dataset.action_high) if len(dataset) else action,
        reward=np.concatenate([e.reward for e in episodes] or [np.zeros(0)]),
        frames=frames,
    )


def html_page(report: dict[str, Any], index: np.ndarray, sample: Sample) -> str:
    """`report` as `inspect.describe` gives it."""
    warnings = "".join(map(look.warning, report["warnings"]))
    overall = [histogram(index["return"], "return of an episode"), histogram(index["length"], "steps of an episode")]
    overall.append(histogram(sample.reward, "reward of a step (sample)"))
    sections = [
        f"<h1>{html.escape(report['path'])}</h1>",
        f"<p>{report['episodes']:,} episodes, {report['steps']:,} steps, {report['bytes'] / 1e6:,.1f} MB</p>",
        warnings,
        "".join(overall),
        "<h2>Tasks</h2>" + _table([_task_row(row) for row in report["tasks"]]),
        "<h2>Pictures</h2>" if sample.frames else "",
        *(f"<h3>{html.escape(name)}</h3>" + "".join(map(_image, frames)) for name, frames in sample.frames.items()),
        "<h2>State</h2>" + _table(report["state"]),
        _histograms(sample.state, [row["name"] for row in report["state"]]),
        "<h2>Actions</h2>" + _table(report["action"]),
        _histograms(sample.action, [f"{row['name']}, normalised" for row in report["action"]]),
    ]
    return look.document(report["path"], "\n".join(sections))


def histogram(values: np.ndarray, caption: str, bins: int = 30) -> str:
    """Bars as inline SVG."""
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


def png(picture: np.ndarray) -> bytes:
    """A (height, width, 3) uint8 picture as PNG."""
    height, width, _ = picture.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    data = chunk(b"IDAT", zlib.compress(rows.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def _image(picture: np.ndarray) -> str:
    return f'<img src="data:image/png;base64,{base64.b64encode(png(picture)).decode()}" alt="frame">'


def _histograms(values: np.ndarray, names: list[str]) -> str:
    return "".join(histogram(values[:, i], name) for i, name in enumerate(names[: values.shape[1]]))


def _task_row(row: dict[str, Any]) -> dict[str, Any]:
    spread, success = row["return"] or {}, row["success"] or {}
    shown = {"task": row["instruction"] or "(no instruction)", "episodes": row["episodes"]}

    def interval(table: dict[str, Any], middle: str) -> str | None:
        return f"{table[middle]:.3g} [{table['low']:.3g}, {table['high']:.3g}]" if table else None

    return shown | {"mean return [95%]": interval(spread, "mean"), "success [95%]": interval(success, "rate")}


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    return look.table(list(map(html.escape, rows[0])), [list(map(_cell, row.values())) for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))
