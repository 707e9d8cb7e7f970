"""Videos of evaluation episodes. Below the frames: the critic's value, the reward and the moment of success.

A rollout keeps no large frames. The actions of an episode are played again from its seed, with rendering. The return
must then be the same, so that the video shows the episode that was counted.
"""

import io
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from pac import envs
from pac.evaluation.plan import Actor
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.runner import play_episodes
from pac.files import write_atomically
from pac.rollout import EpisodeResult, Job
from pac.types import Episode

MAX_RATE = 30.0  # frames per second; faster environments skip some
PANEL, HEAD, FOOT, MARGIN = 92, 18, 16, 6  # height of the panel, of its title and legend, space beside; pixels
INK = {"value": (255, 176, 0), "reward": (100, 160, 255), "success": (80, 220, 100), "text": (230, 230, 230)}


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves drawn under the frames, one number per step."""

    title: str
    reward: np.ndarray
    value: np.ndarray | None = None
    success: int | None = None  # the first step that succeeded


def film(
    actors: Sequence[Actor],
    records: Sequence[EpisodeRecord],
    indices: Collection[int],
    folder: Path,
    *,
    max_steps: int | None = None,
    **options: Any,
) -> list[str]:
    """Play the recorded episodes with these indices again and write their videos. Return a note on each that differs.

    `options` are those of `evaluate` that the episodes were played with.
    """
    notes, names = list[str](), list[str]()
    for actor in actors:
        chosen = [entry for entry in records if entry.actor == actor.label and entry.index in indices]
        jobs = [Job(entry.task, entry.seed, entry.index) for entry in chosen]
        with closing(play_episodes(actor, jobs, max_steps=max_steps, **options)) as results:
            for entry, (played, _) in zip(chosen, results, strict=True):
                names.append(file_name(actor.label, played.task, played.index, names))
                notes += write_video(played, folder / names[-1], entry, max_steps=max_steps)
    return notes


def write_video(played: EpisodeResult, path: Path, entry: EpisodeRecord, *, max_steps: int | None = None) -> list[str]:
    """Write an mp4 of an episode. Return a note if its actions, played again, do not give the recorded return."""
    rate = played.spec.control_rate or MAX_RATE
    stride = max(1, math.ceil(rate / MAX_RATE))
    succeeded = np.flatnonzero(played.episode.extra_rewards.get("success", np.zeros(0)))
    curves = Curves(
        title=f"{played.task}  episode {played.index}  {entry.actor}",
        reward=played.episode.reward,
        value=played.values,
        success=int(succeeded[0]) if len(succeeded) else None,
    )
    rewards = list[float]()
    frames = replay(played.task, played.episode, rewards, stride=stride, max_steps=max_steps)
    encode(draw(frames, curves, stride), path, rate / stride)
    found, expected = sum(rewards), entry.total
    if abs(found - expected) <= 1e-6 * max(1.0, abs(expected)):
        return []
    return [
        f"{path}: the actions of {played.job}, played again, give a return of {found:.6g} and not {expected:.6g}. "
        "The video does not show the episode that was counted."
    ]


def replay(
    task: str, episode: Episode, rewards: list[float], *, stride: int, max_steps: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the frames before steps 0, `stride`, 2 `stride`, ... and after the last. Append to `rewards`."""
    env = envs.make(task, max_steps=max_steps, render_mode="rgb_array")
    try:
        env.reset(seed=episode.seed)
        for step, action in enumerate(episode.action):
            if step % stride == 0:
                yield np.asarray(env.render())
            _, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(np.float32(reward)))
            if (terminated or truncated) and step + 1 < len(episode.action):
                break
        yield np.asarray(env.render())
    finally:
        env.close()


def draw(frames: Iterator[np.ndarray], curves: Curves, stride: int) -> Iterator[np.ndarray]:
    """Yield each frame with the panel under it, and a line at the frame's moment."""
    panel = None
    for number, frame in enumerate(frames):
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # h264 wants even sides
        panel = draw_panel(curves, width) if panel is None else panel
        step = min(number * stride, len(curves.reward))
        below = panel.copy()
        below[HEAD:-FOOT, int(_columns(len(curves.reward), width)[step])] = INK["text"]
        yield np.concatenate([frame[:height, :width], below])


def draw_panel(curves: Curves, width: int) -> np.ndarray:
    """Return the panel with all curves, (PANEL, width, 3) uint8. Each curve has its own scale, given in the legend."""
    _, image_module, draw_module = packages()
    image = image_module.new("RGB", (width, PANEL), (20, 20, 24))
    pen = draw_module.Draw(image)
    columns = _columns(len(curves.reward), width)
    if curves.success is not None:
        x = int(columns[curves.success + 1])
        pen.line([(x, HEAD), (x, PANEL - FOOT)], fill=INK["success"])
        pen.text((min(x + 3, width - 50), PANEL - FOOT - 14), "success", fill=INK["success"])
    pen.text((MARGIN, 2), curves.title, fill=INK["text"])
    for i, (name, values) in enumerate((("reward", curves.reward), ("value", curves.value))):
        if values is not None and len(values):
            pen.line(_polyline(values, columns), fill=INK[name])
            text = f"{name} {np.nanmin(values):.3g} to {np.nanmax(values):.3g}"
            pen.text((MARGIN + i * width // 2, PANEL - FOOT + 1), text, fill=INK[name])
    return np.array(image)


def _columns(steps: int, width: int) -> np.ndarray:
    """Return the horizontal position of each moment, from before the first step to after the last."""
    return np.linspace(MARGIN, width - 1 - MARGIN, steps + 1)


def _polyline(values: np.ndarray, columns: np.ndarray) -> list[tuple[float, float]]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    top, bottom = HEAD + 2, PANEL - FOOT - 2
    heights = bottom - (np.nan_to_num(values, nan=low) - low) / (high - low or 1.0) * (bottom - top)
    return [(float(x), float(y)) for x, y in zip(columns[:-1], heights, strict=True)]


def packages() -> tuple[Any, Any, Any]:
    """Return PyAV and Pillow's `Image` and `ImageDraw`. Raise if one is not installed."""
    try:
        import av
        from PIL import Image, ImageDraw
    except ImportError as error:
        fix = "pip install 'perceiver-actor-critic[video]'"
        raise ValueError(f"Expected PyAV and Pillow, which videos need, found {error}. Do: {fix}") from error
    return av, Image, ImageDraw


def encode(frames: Iterator[np.ndarray], path: Path, rate: float) -> None:
    """Write an mp4, h264 if this build of PyAV has it, else mpeg4."""
    av, buffer = packages()[0], io.BytesIO()
    codec = next((name for name in ("libx264", "libopenh264", "mpeg4") if name in av.codecs_available), "mpeg4")
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = None
        for frame in frames:
            if stream is None:
                stream = container.add_stream(codec, rate=Fraction(rate).limit_denominator(1000))
                stream.height, stream.width, stream.pix_fmt = *frame.shape[:2], "yuv420p"
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
    write_atomically(path, buffer.getvalue())


def file_name(actor: str, task: str, index: int, taken: Sequence[str] = ()) -> str:
    """Return a name for any file system, such as `metaworld.push.episode3.my_policy.mp4`, that is not in `taken`."""
    clean = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in actor)[:60]
    name = f"{task.replace('/', '.')}.episode{index}.{clean}"
    return f"{name}.{len(taken)}.mp4" if f"{name}.mp4" in taken else f"{name}.mp4"
