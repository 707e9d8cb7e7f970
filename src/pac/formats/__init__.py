"""Foreign formats. Each module of the table reads one, and `open_source` opens any of them.

A module has `detect(path) -> bool` and `read_dataset(path, options) -> ForeignDataset`. Its docstring states the time
alignment, and which ends of episodes the format tells apart. `lerobot_out` and `minari_out` write.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from pac.config import suggest
from pac.data.relabel import RULES, label_episode
from pac.files import ProblemError
from pac.formats import arrays, d4rl, lerobot, minari, ogbench, rlds, robomimic, tdmpc2
from pac.formats.checks import CHECK_PATH, check, reading
from pac.formats.common import NO_REWARDS, ForeignDataset
from pac.formats.options import ImportOptions
from pac.types import Episode

FORMATS: dict[str, ModuleType] = {
    "minari": minari,
    "lerobot": lerobot,
    "robomimic": robomimic,
    "d4rl": d4rl,
    "ogbench": ogbench,
    "arrays": arrays,
    "rlds": rlds,
    "tdmpc2": tdmpc2,
}


def fitting_formats(path: Path) -> list[str]:
    """Return the names of all formats that `path` may hold."""
    with reading(path):
        return [name for name, module in FORMATS.items() if module.detect(path)]


def detect_format(path: Path) -> str:
    """Return the name of the format that `path` holds."""
    found = fitting_formats(path)
    if not found:
        arrays.check_keys_of(path)
    expected, fix = f"data in one of the formats {', '.join(FORMATS)}", "Or name the format with --format."
    check(found, path, expected, "none of them", f"{CHECK_PATH} {fix}")
    if len(found) > 1:
        fix = f"Choose {' or '.join(f'--format {name}' for name in found)}. `pac import --formats` describes them."
        fix += " A key 'timeouts' in the file would decide for arrays." if "arrays" in found else ""
        expected, readings = "one format", "; ".join(_reading(path, name) for name in found)
        check(False, path, expected, f"a file that fits {len(found)}: {readings}", fix)
    return found[0]


def _reading(path: Path, name: str) -> str:
    """Return what a format makes of a source, in one line."""
    try:
        with reading(path, name):
            source: ForeignDataset = FORMATS[name].read_dataset(path, ImportOptions())
    except ProblemError as error:
        return f"{name} would refuse it ({str(error).removeprefix(str(path)).lstrip(':, ').rstrip('.')})"
    counts = {"episodes": source.num_episodes, "steps": source.num_steps}
    return f"{name} would read " + " with ".join(f"{n:,} {what}" for what, n in counts.items() if n is not None)


def open_source(path: str | Path, format: str = "auto", options: ImportOptions | None = None) -> ForeignDataset:
    """Open a source for reading. Any error in it, now or while its episodes are read, is a ValueError."""
    path, options = Path(path), options or ImportOptions()
    check(path.exists(), path, "a file or folder", "nothing there", CHECK_PATH)
    name = detect_format(path) if format == "auto" else format
    check(name in FORMATS, "--format", "a known format", repr(name), suggest(name, FORMATS).strip())
    has_text = "instruction" not in options.keys or name in ("minari", "rlds")
    check(has_text, "--keys instruction", "minari or rlds", name, "Use --instruction instead.")
    splits = ("lerobot", "rlds", "robomimic")
    check(options.split is None or name in splits, "--split", " or ".join(splits), name, "Choose --episodes instead.")
    with reading(path, name):
        source: ForeignDataset = FORMATS[name].read_dataset(path, options)
    source = replace(source, format=name, path=path, fps=options.fps or source.fps)
    source = replace(source, episodes=_checked_episodes(source, options.instruction))
    return source if options.reward is None else replace(source, episodes=_relabelled(source, options.reward))


def _relabelled(source: ForeignDataset, reward: str) -> Iterator[Episode]:
    """Yield episodes with other rewards, and the ends that go with them. Note at the end what has changed."""
    if NO_REWARDS in source.notes:
        source.notes.remove(NO_REWARDS)
    made = kept = 0
    for episode in source.episodes:
        labelled = label_episode(episode, reward)
        made += labelled.terminated and not episode.terminated
        kept += reward in RULES and episode.success is False
        yield labelled
    failures = f" {kept:,} failures keep their end." if kept else ""
    source.notes.append(f"Rewards are {reward!r}: {made:,} ends became terminal.{failures}")


def _checked_episodes(source: ForeignDataset, instruction: str | None) -> Iterator[Episode]:
    """Yield the episodes of a source. Raise at one whose features differ from those of the first."""
    first: dict[str, tuple[int, ...]] | None = None
    with reading(source.path, source.format):
        for episode in source.episodes:
            shapes = {name: values.shape[1:] for name, values in episode.observation.items()}
            shapes["action"] = episode.action.shape[1:]
            first = first or shapes
            text = episode.instruction if instruction is None else instruction
            episode = replace(episode, source=episode.source or str(source.path), instruction=text)
            where, expected = f"{episode.source}, an episode", f"the features of the first episode: {first}"
            fix = "Choose features that all episodes have with --keys, or import them as two datasets."
            check(shapes == first, where, expected, shapes, fix)
            yield episode
        check(first, source.path, "at least one episode", "none", "Choose another source.")
