"""Videos of evaluation episodes in a report, and the one that it shows first."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pac.report import html
from pac.report.sources import VALUE, VIDEO_TYPES, LoadedEvaluation

KEY = (
    "Under the frames: the critic's value (orange), the reward (blue) and the first success (green). Each has its own "
    "scale. A good value rises on the way to a success."
)


def choose_video(captions: Mapping[Path, str], megabytes: float) -> Path | None:
    """Return a video of a success, of a policy with a critic if there is one; None if no video fits."""
    fitting = [path for path in captions if _embedded_size(path) <= 1e6 * megabytes]
    return min(fitting, key=lambda path: (", success" not in captions[path], VALUE not in captions[path]), default=None)


def watch_section(evaluations: Sequence[LoadedEvaluation], chosen: Path | None) -> str:
    """Return one video, or the command that makes some."""
    if chosen is not None:
        caption = next(one.videos[chosen] for one in evaluations if chosen in one.videos)
        figure = f'<div class="headline">{_video(chosen, html.escape(caption))}</div>'
        return html.section("An episode to watch", [figure, html.soft(KEY)])
    known = [one for one in evaluations if one.command and one.path is not None and not one.videos]
    if not known:
        return ""
    path = known[0].path
    assert path is not None
    files = shlex.join(["--json", str(path), "--videos", str(path.parent / "videos")])
    text = "There is no video yet. This command makes one per task and actor. Then make the page again."
    return html.section(
        "An episode to watch", [f"<p>{text}</p><pre>{html.escape(f'{known[0].command} {files}')}</pre>"]
    )


def _embedded_size(path: Path) -> float:
    """Return the bytes that a file takes in the page."""
    return path.stat().st_size * 4 / 3  # base64


def videos_section(captions: Mapping[Path, str], chosen: Path | None, megabytes: float) -> str:
    """Return the first videos that fit beside the chosen one, which is higher up. The others are named."""
    room, figures, left_out = megabytes * 1e6 - (_embedded_size(chosen) if chosen else 0), [], []
    for path, caption in captions.items():
        if path == chosen:
            continue
        size = _embedded_size(path)
        if size > room:
            left_out.append(str(path))
        else:
            room -= size
            figures.append(_video(path, html.escape(caption)))
    note = f"Left out, to keep the page's videos under {megabytes:g} MB: {', '.join(left_out)}."
    return html.section("Videos", [html.columns(figures), html.warning(note) if left_out else ""])


def _video(path: Path, caption: str) -> str:
    content = path.read_bytes()
    source = f"data:{VIDEO_TYPES[path.suffix]};base64,{base64.b64encode(content).decode()}"
    if path.suffix == ".mp4":
        player = f'<video controls muted loop playsinline preload="auto" src="{source}"></video>'
        caption += "" if b"avc1" in content else "<br>Not H.264: your browser may not play it."
    else:
        player = f'<img class="film" alt="{caption}" src="{source}">'
    return f"<figure>{player}<figcaption>{caption}</figcaption></figure>"
