"""Foreign formats: each module reads one, a module is a row of the table below, and `open_source` is the way in.

Every module has `detect(path) -> bool` and `read(path, options) -> Source`; its docstring states the time alignment and
what the format knows of ends. `lerobot_out` and `minari_out` write.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from pac.config import suggest
from pac.files import problem
from pac.formats import d4rl, lerobot, minari, ogbench, rlds, robomimic, tdmpc2
from pac.formats.common import ForeignDataset, ImportOptions, reading
from pac.types import Episode

FORMATS: dict[str, ModuleType] = {
    "minari": minari,
    "lerobot": lerobot,
    "robomimic": robomimic,
    "d4rl": d4rl,
    "ogbench": ogbench,
    "rlds": rlds,
    "tdmpc2": tdmpc2,
}


def detect_format(path: Path) -> str:
    """The name of the format that `path` holds."""
    with reading(path):
        found = [name for name, module in FORMATS.items() if module.detect(path)]
    if len(found) != 1:
        raise problem(
            path,
            expected=f"data in one of the formats {', '.join(FORMATS)}",
            found=" and ".join(found) or "none of them",
            fix="Check the path, or name the format with --format.",
        )
    return found[0]


def open_source(path: str | Path, format: str = "auto", options: ImportOptions | None = None) -> ForeignDataset:
    """Open a source for reading. Whatever is wrong with it, now or while its episodes are read, is a ValueError."""
    path, options = Path(path), options or ImportOptions()
    if not path.exists():
        raise problem(path, expected="a file or folder", found="nothing there", fix="Check the path.")
    name = detect_format(path) if format == "auto" else format
    if name not in FORMATS:
        raise problem("--format", expected="a known format", found=repr(name), fix=suggest(name, FORMATS).strip())
    if "instruction" in options.keys and name not in ("minari", "rlds"):
        raise problem("--keys instruction", expected="minari or rlds", found=name, fix="Use --instruction instead.")
    with reading(path, name):
        source: ForeignDataset = FORMATS[name].read(path, options)
    return replace(source, episodes=_checked(source))


def _checked(source: ForeignDataset) -> Iterator[Episode]:
    """The source's episodes, each with the features of the first."""
    first: dict[str, tuple[int, ...]] | None = None
    with reading(source.path, source.format):
        for episode in source.episodes:
            shapes = {name: values.shape[1:] for name, values in episode.observation.items()}
            shapes["action"] = episode.action.shape[1:]
            first = first or shapes
            if shapes != first:
                raise problem(
                    f"{source.path}, an episode of {episode.source}",
                    expected=f"the features of the first episode: {first}",
                    found=shapes,
                    fix="Choose what all episodes have with --keys, or import them as two datasets.",
                )
            yield episode
        if first is None:
            raise problem(source.path, expected="at least one episode", found="none", fix="Choose another source.")
