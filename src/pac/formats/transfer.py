"""Import of foreign datasets into the episode store, and export of the store to foreign formats.

An import is all or nothing. A new dataset is written beside its place and moved there when it is whole. Episodes added
to an existing dataset are removed again on any error.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pac.config import suggest
from pac.data.store import Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.files import new_folder, progress_bar
from pac.formats import lerobot_out, minari_out, open_source
from pac.formats.checks import check
from pac.formats.common import ForeignDataset
from pac.formats.options import ImportOptions
from pac.formats.sources import locate
from pac.types import Episode

EXPORTS = ("lerobot", "minari")


@dataclass(kw_only=True)
class SourceSummary:
    """Counts of the episodes that one source gave."""

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
    """Read every source and append its episodes to the dataset `out`. A missing dataset is created.

    A source is a path, a Minari id or a Hugging Face id.
    """
    out = Path(out)
    existing = Dataset(out).spec if (out / "spec.json").is_file() else None
    if existing is None:
        _check_unused(out, "a dataset or a new folder")
    summaries: list[SourceSummary] = []
    with ExitStack() as stack:
        place = out if existing is not None else stack.enter_context(new_folder(out))
        progress = stack.enter_context(progress_bar(console, remaining=False))
        writer: DatasetWriter | None = None
        writing = stack.enter_context(ExitStack())  # closed before the folder is moved
        for path in sources:
            source = open_source(locate(path), format, options)
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
    """Return the spec of a source, completed by that of the dataset it is added to. Raise if the two contradict."""
    known: dict[str, Any] = {
        "action_low": source.action_low,
        "action_high": source.action_high,
        "control_rate": source.fps,
        "state_names": source.state_names,
        "action_names": source.action_names,
    }
    if existing is None:
        return DatasetSpec.of(episode, **known)
    known["robot"] = existing.robot
    if existing.action_low is None and source.action_low is not None:
        known["action_low"] = known["action_high"] = None
        source.notes.append("The dataset measures its action bounds: those of this source are not used.")
    missing = [name for name, value in known.items() if value is None or (isinstance(value, tuple) and not value)]
    known |= {name: getattr(existing, name) for name in missing}
    spec = DatasetSpec.of(episode, **known)
    names = spec.differences(existing)
    expected = "; ".join(f"{name} {getattr(existing, name)!r}" for name in names) + ", as in the dataset so far"
    found = "; ".join(f"{name} {getattr(spec, name)!r}" for name in names)
    fix = "Import it into another folder, and mix the two in a mixture file."
    check(not names, source.path, expected, found, fix)
    return spec


def export_dataset(
    dataset: str | Path, out: str | Path, format: str, *, fps: float | None = None, console: Console | None = None
) -> list[str]:
    """Write a dataset in a foreign format. Return notes on what that format cannot hold."""
    data, out = Dataset(dataset), Path(out)
    fix = suggest(format, EXPORTS).strip()
    check(format in EXPORTS, "--format", "lerobot or minari", repr(format), fix)
    _check_unused(out, "a new folder")
    check(len(data), dataset, "at least one episode", "none", "Choose another dataset.")
    rate = fps or data.spec.control_rate
    with new_folder(out) as place, progress_bar(console, remaining=False) as progress:
        episodes = progress.track(data, total=len(data), description=f"to {format}")
        if format == "minari":
            notes = minari_out.write_dataset(place, data, episodes, rate)
        else:
            notes = lerobot_out.write_dataset(place, data, episodes, rate)
    if goals := int((data.index["goal"] >= 0).sum()):
        notes.append(f"The format has no place for goal images: left out in {goals} episodes.")
    return notes


def _check_unused(out: Path, expected: str) -> None:
    unused = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    check(unused, out, expected, "other files", "Name another --out.")
