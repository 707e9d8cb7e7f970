"""Videos of trials: the world above; below it the critic's value, the reward and the moment of success, over time.

A rollout keeps no large frames. The trial's actions are played again from its seed with rendering on; that this gives
the same return is checked, so what is seen is what was counted.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pac import envs
from pac.types import Episode

if TYPE_CHECKING:
    from pac.rollout import EpisodeResult

MAX_RATE = 30.0  # frames a second; faster worlds skip some
PANEL, HEAD, FOOT, MARGIN = 92, 18, 16, 6  # height of the panel, of its title and legend, space beside; pixels
INK = {"value": (255, 176, 0), "reward": (100, 160, 255), "success": (80, 220, 100), "text": (230, 230, 230)}
EXTRA = "pip install 'perceiver-actor-critic[video]'"


@dataclass(frozen=True, kw_only=True)
class Curves:
    """What is drawn under the frames, one number a step."""

    title: str
    reward: np.ndarray
    value: np.ndarray | None = None
    success: int | None = None  # the first step that succeeded

    @classmethod
    def of(cls, trial: "EpisodeResult", actor: str) -> "Curves":
        first = np.flatnonzero(trial.episode.extra_rewards.get("success", np.zeros(0)))
        return cls(
            title=f"{trial.task}  trial {trial.index}  {actor}",
            reward=trial.episode.reward,
            value=trial.values,
            success=int(first[0]) if len(first) else None,
        )


def film(trial: "EpisodeResult", path: Path, *, actor: str, max_steps: int | None = None) -> str | None:
    """Write an mp4 of a trial; returns a complaint if playing it again gave another return."""
    rate = trial.spec.control_rate or MAX_RATE
    stride = max(1, math.ceil(rate / MAX_RATE))
    total = [0.0]
    frames = replay(trial.task, trial.episode, stride=stride, max_steps=max_steps, total=total)
    encode(draw(frames, Curves.of(trial, actor), stride), path, rate / stride)
    wanted = float(trial.episode.reward.sum(dtype=np.float64))
    if abs(total[0] - wanted) <= 1e-6 * max(1.0, abs(wanted)):
        return None
    return (
        f"{path}: the actions of {trial.task}, trial {trial.index}, played again give a return of {total[0]:.6g} and "
        f"not {wanted:.6g}: the video does not show what was counted."
    )


def replay(
    task: str, episode: Episode, *, stride: int, max_steps: int | None = None, total: list[float]
) -> Iterator[np.ndarray]:
    """Frames before step 0, `stride`, 2 `stride`, ... and after the last; `total[0]` adds up the rewards."""
    env = envs.make(task, max_steps=max_steps, render_mode="rgb_array")
    try:
        env.reset(seed=episode.seed)
        for step, action in enumerate(episode.action):
            if step % stride == 0:
                yield np.asarray(env.render())
            _, reward, terminated, truncated, _ = env.step(action)
            total[0] += float(np.float32(reward))
            if (terminated or truncated) and step + 1 < len(episode.action):
                break
        yield np.asarray(env.render())
    finally:
        env.close()


def draw(frames: Iterator[np.ndarray], curves: Curves, stride: int) -> Iterator[np.ndarray]:
    """Each frame with the panel under it: bright up to its moment, dim after."""
    panel, dark = None, None
    for number, frame in enumerate(frames):
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # h264 wants even sides
        if panel is None or dark is None:
            panel = draw_panel(curves, width)
            dark = (panel // 3).astype(np.uint8)
            dark[:HEAD], dark[-FOOT:] = panel[:HEAD], panel[-FOOT:]
        step = min(number * stride, len(curves.reward))
        now = int(_columns(len(curves.reward), width)[step])
        below = np.concatenate([panel[:, : now + 1], dark[:, now + 1 :]], 1)
        below[HEAD:-FOOT, now] = INK["text"]
        yield np.concatenate([frame[:height, :width], below])


def draw_panel(curves: Curves, width: int) -> np.ndarray:
    """All of the curves, bright: (PANEL, width, 3) uint8. Each has its own scale, written beside it."""
    image_module, draw_module = _pillow()
    image = image_module.new("RGB", (width, PANEL), (20, 20, 24))
    pen = draw_module.Draw(image)
    columns = _columns(len(curves.reward), width)
    if curves.success is not None:
        x = int(columns[curves.success + 1])
        pen.line([(x, HEAD), (x, PANEL - FOOT)], fill=INK["success"])
        pen.text((min(x + 3, width - 50), PANEL - FOOT - 14), "success", fill=INK["success"])
    legend = [(curves.title, INK["text"])]
    for name, values in (("reward", curves.reward), ("value", curves.value)):
        if values is not None and len(values):
            pen.line(_polyline(values, columns), fill=INK[name])
            legend.append((f"{name} {np.nanmin(values):.3g} to {np.nanmax(values):.3g}", INK[name]))
    pen.text((MARGIN, 2), legend[0][0], fill=legend[0][1])
    for i, (text, ink) in enumerate(legend[1:]):
        pen.text((MARGIN + i * width // 2, PANEL - FOOT + 1), text, fill=ink)
    return np.array(image)


def _columns(steps: int, width: int) -> np.ndarray:
    """Where each moment lies, from before the first step to after the last."""
    return np.linspace(MARGIN, width - 1 - MARGIN, steps + 1)


def _polyline(values: np.ndarray, columns: np.ndarray) -> list[tuple[float, float]]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    top, bottom = HEAD + 2, PANEL - FOOT - 2
    heights = bottom - (np.nan_to_num(values, nan=low) - low) / (high - low or 1.0) * (bottom - top)
    return [(float(x), float(y)) for x, y in zip(columns[:-1], heights, strict=True)]


def check() -> None:
    """Raise now if what videos need is missing, and not after hours of trials."""
    _pillow(), _av()


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ValueError(f"Videos need Pillow, which is not installed. Do: {EXTRA}") from error
    return Image, ImageDraw


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ValueError(f"Videos need PyAV, which is not installed. Do: {EXTRA}") from error
    return av


def encode(frames: Iterator[np.ndarray], path: Path, rate: float) -> None:
    """To an mp4, h264 if this build of PyAV has it, else mpeg4; the file appears when it is whole."""
    av = _av()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.mp4")
    codec = next((name for name in ("libx264", "libopenh264", "mpeg4") if name in av.codecs_available), "mpeg4")
    try:
        with av.open(str(temporary), "w") as container:
            stream: Any = None
            for frame in frames:
                if stream is None:
                    stream = container.add_stream(codec, rate=Fraction(rate).limit_denominator(1000))
                    stream.height, stream.width, stream.pix_fmt = *frame.shape[:2], "yuv420p"
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
            if stream is not None:
                container.mux(stream.encode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_name(actor: str, task: str, index: int, taken: Sequence[str] = ()) -> str:
    """A name any file system takes: `drawer-open.trial3.my_policy.mp4`."""
    clean = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in actor)[:60]
    name = f"{task.replace('/', '.')}.trial{index}.{clean}"
    return f"{name}.{len(taken)}.mp4" if f"{name}.mp4" in taken else f"{name}.mp4"
