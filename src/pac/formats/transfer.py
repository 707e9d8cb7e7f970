"""`pac import` and `pac export`: foreign datasets into the episode store, and the store out again.

An import is all or nothing. A new dataset is written beside its place and moved there when it is whole; what is added
to an existing one is taken back on any error.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from pac.config import suggest
from pac.data.store import Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.files import problem, progress_bar
from pac.formats import lerobot_out, minari_out, open_source
from pac.formats.common import ForeignDataset
from pac.formats.options import ImportOptions
from pac.types import Episode

EXPORTS = ("lerobot", "minari")


@dataclass(kw_only=True)
class SourceSummary:
    """What one source gave."""

    path: str
    format: str
    keys: Mapping[str, tuple[str, ...]]
    notes: list[str]
    episodes: int = 0
    steps: int = 0
    terminated: int = 0
    truncated: int = 0
    successes: int | None = None  # None: the source does not say
    instructions: dict[str, int] = field(default_factory=dict)  # text -> episodes

    def count(self, episode: Episode) -> None:
        self.episodes += 1
        self.steps += len(episode.action)
        self.terminated += episode.terminated
        self.truncated += episode.truncated
        self.instructions[episode.instruction] = self.instructions.get(episode.instruction, 0) + 1
        if episode.success is not None:
            self.successes = (self.successes or 0) + episode.success


def import_dataset(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    format: str = "auto",
    options: ImportOptions | None = None,
    console: Console | None = None,
) -> list[SourceSummary]:
    """Read every source and append its episodes to the dataset `out`, which is made if need be."""
    out = Path(out)
    existing = Dataset(out).spec if (out / "spec.json").is_file() else None
    if existing is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise problem(out, expected="a dataset or a new folder", found="other files", fix="Name another --out.")
    summaries: list[SourceSummary] = []
    with ExitStack() as stack:
        place = out if existing is not None else stack.enter_context(_new_folder(out))
        progress = stack.enter_context(progress_bar(console, remaining=False))
        writer: DatasetWriter | None = None
        writing = stack.enter_context(ExitStack())  # closed before the folder is moved
        for path in sources:
            source = open_source(path, format, options)
            summary = SourceSummary(path=str(path), format=source.format, keys=source.keys, notes=source.notes)
            summaries.append(summary)
            task = progress.add_task(escape(f"{source.format}: {Path(path).name}"), total=source.num_episodes)
            for episode in source.episodes:
                if not summary.episodes:
                    spec = _spec(episode, source, existing)
                    if writer is None:
                        writer, existing = writing.enter_context(DatasetWriter(place, spec, atomic=True)), spec
                assert writer is not None
                writer.append(episode)
                summary.count(episode)
                progress.advance(task)
    return summaries


def _spec(episode: Episode, source: ForeignDataset, existing: DatasetSpec | None) -> DatasetSpec:
    """The spec of a source, completed by that of the dataset it is added to; what contradicts it is an error."""
    known: dict[str, Any] = {
        "action_low": source.action_low,
        "action_high": source.action_high,
        "control_rate": source.fps,
        "state_names": source.state_names,
        "action_names": source.action_names,
    }
    if existing is not None:
        known["robot"] = existing.robot
        if existing.action_low is None and source.action_low is not None:
            known["action_low"] = known["action_high"] = None
            source.notes.append("The dataset measures its action bounds: those of this source are not used.")
        missing = [name for name, value in known.items() if value is None or (isinstance(value, tuple) and not value)]
        known |= {name: getattr(existing, name) for name in missing}
    spec = DatasetSpec.of(episode, **known)
    if existing is not None and spec != existing:
        names = [f.name for f in dataclasses.fields(spec) if getattr(spec, f.name) != getattr(existing, f.name)]
        raise problem(
            source.path,
            expected="; ".join(f"{name} {getattr(existing, name)!r}" for name in names) + ", as in the dataset so far",
            found="; ".join(f"{name} {getattr(spec, name)!r}" for name in names),
            fix="Import it into another folder, and mix the two in a mixture file.",
        )
    return spec


def export_dataset(
    dataset: str | Path, out: str | Path, format: str, *, fps: float | None = None, console: Console | None = None
) -> list[str]:
    """Write a dataset in a foreign format; returns notes on what that format cannot hold."""
    data, out = Dataset(dataset), Path(out)
    if format not in EXPORTS:
        raise problem(
            "--format", expected="lerobot or minari", found=repr(format), fix=suggest(format, EXPORTS).strip()
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise problem(out, expected="a new folder", found="one with files", fix="Name another --out.")
    rate = fps or data.spec.control_rate
    with _new_folder(out) as place, progress_bar(console, remaining=False) as progress:
        episodes = progress.track(data, total=len(data), description=f"to {format}")
        bounds = {"action_low": data.action_low, "action_high": data.action_high}
        if format == "minari":
            return minari_out.write(place, episodes, name=out.name, fps=rate, **bounds)
        return lerobot_out.write(
            place,
            episodes,
            fps=rate,
            state_names=data.spec.state_names,
            action_names=data.spec.action_names,
            robot=data.spec.robot,
            success_known=bool(np.all(data.index["success"] >= 0)),
            **bounds,
        )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when all went well, and is gone otherwise."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise problem(out, expected="a folder to write to", found=error, fix="Name another --out.") from error
    try:
        place.chmod(0o755)
        yield place
        os.rename(place, out)
    except OSError as error:
        raise problem(out, expected="to write there", found=error, fix="Free some space, or try --out.") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
