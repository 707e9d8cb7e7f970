"""Replace the JSON of evaluations, studies, improvements and demos by Parquet files, and check that nothing is lost.

    python -m tools.compress_results results

Each file is written, read back and compared with its source: every episode with all its fields, and all else but what
follows from the episodes (summaries, differences, notes). Those are computed again, compared and left out. Only then
is the source deleted. A second call finds nothing to do.
"""

import argparse
import dataclasses
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pac.evaluation import columns, compare, summarise, warnings
from pac.evaluation.records import EpisodeRecord, by_actor
from tools.archive import Document, Folder, fold, read_document
from tools.renamed import STUDIES, rename

DERIVED = ("summary", "differences")


def compress(root: Path) -> tuple[int, int]:
    """Compress all results below a folder. Return how many documents and how many episodes were compared."""
    documents = episodes = 0
    for path, sources in list(_find(root)):
        found = {name: rename(_load(source)) for name, source in sources.items()}
        columns.write(path, {name: fold(without_derived(document)) for name, document in found.items()})
        for name, document in found.items():
            back = read_document(path) if name == "" else Folder(path).read(name)
            check(without_derived(document), back, f"{path} {name}".strip())
            documents, episodes = documents + 1, episodes + len(document.get("episodes", []))
        for source in sources.values():
            source.unlink()
    for folder in sorted({path.parent for path in root.rglob("*.jsonl")}):
        documents, episodes = documents + 1, episodes + compress_runs(folder)
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            shutil.rmtree(folder)
    return documents, episodes


def compress_runs(folder: Path) -> int:
    """Compress the runs of a folder, one a line of its .jsonl files. Return how many episodes were compared.

    `episodes.parquet` has the episodes of all runs, and their settings. `curves.parquet` has what they logged.
    """
    sources = sorted(folder.glob("*.jsonl"))
    runs = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in sources}
    found: dict[str, Document] = {}
    for name, lines in runs.items():
        curves = [{"run": i, **point} for i, run in enumerate(lines) for point in run["curve"]]
        episodes = [
            {"run": i, "task": task, **episode}
            for i, run in enumerate(lines)
            for task, group in run.get("trials", {}).items()
            for episode in group
        ]
        about = [{k: v for k, v in run.items() if k not in ("curve", "trials")} for run in lines]
        found[name] = {"runs": about, "episodes": episodes, "curves": curves}
    for key in ("episodes", "curves"):
        path = folder / f"{key}.parquet"
        kept = ("runs", key) if key == "episodes" else (key,)
        part = {name: {k: document[k] for k in kept} for name, document in found.items()}
        columns.write(path, part, key=key)
        back = columns.read(path, key=key)
        for name, document in part.items():
            check(document, back[name], f"{path} {name}", key)
    for source in sources:
        source.unlink()
    return sum(len(document["episodes"]) for document in found.values())


def _find(root: Path) -> Iterator[tuple[Path, dict[str, Path]]]:
    """Yield each file to write, with the files that go into it by their names in it."""
    taken = set[Path]()
    for mark in ("improve.json", "demo.json"):
        for path in sorted(root.rglob(mark)):
            inside = {str(p.relative_to(path.parent)): p for p in sorted(path.parent.rglob("*.json"))}
            taken |= set(inside.values())
            yield _renamed(root, path.parent).with_name(f"{path.parent.name}.parquet"), inside
    for path in sorted(root.rglob("*.json")):
        if path not in taken and isinstance(_load(path).get("trials", _load(path).get("episodes")), list):
            yield _renamed(root, path).with_suffix(".parquet"), {"": path}


def _renamed(root: Path, path: Path) -> Path:
    parts = path.relative_to(root).parts
    if parts[0] == "lifetimes":
        parts = ("improve_replay", *parts[1:])
    return root.joinpath(*parts).with_name(STUDIES.get(path.stem, path.stem) + path.suffix)


def _load(path: Path) -> Document:
    document = json.loads(path.read_text())
    return document if isinstance(document, dict) else {}


# ------------------------------------------------------------------------------------------------------- what is kept


def without_derived(document: Mapping[str, Any]) -> Document:
    """Return a document without what its episodes give again. Raise if they give something else."""
    kept = dict(document)
    if not kept.get("episodes") or "summary" not in kept:
        return kept
    again = derive(kept)
    for name in DERIVED:
        if name in kept:
            _same(kept.pop(name), again[name], name)
    kept["notes"] = [note for note in kept.get("notes", []) if note not in again["notes"]]
    return kept


def derive(document: Mapping[str, Any]) -> Document:
    """Return summaries, differences and notes, as `pac evaluate` and `pac study` compute them."""
    records = [EpisodeRecord.from_json(episode) for episode in document["episodes"]]
    experts = {task: about["mean"] for task, about in document.get("experts", {}).items()}
    bootstrap = bool(document.get("bootstrap"))
    if set(document["summary"]) != set(by_actor(records)):  # the seeds of a row are pooled
        records = [dataclasses.replace(entry, actor=entry.actor.rpartition(", seed ")[0]) for entry in records]
    groups = by_actor(records)
    summaries = {name: summarise(groups[name], experts=experts, bootstrap=bootstrap) for name in document["summary"]}
    differences = compare(records, experts=experts, bootstrap=bootstrap) if "differences" in document else []
    return {
        "summary": {name: dataclasses.asdict(summary) for name, summary in summaries.items()},
        "differences": [dataclasses.asdict(difference) for difference in differences],
        "notes": warnings(summaries, differences),
    }


def _same(old: Any, new: Any, where: str) -> None:
    """Compare numbers. Names of methods are words, and may have changed since."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old:
            if key != "method":
                _same(old[key], new[{"trials": "episodes"}.get(key, key) if key not in new else key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            _same(a, b, f"{where}.{i}")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-9):
            raise ValueError(f"{where}: expected {old} from the episodes, found {new}.")
    elif old is None and isinstance(new, float):  # an interval without ends, in JSON
        if math.isfinite(new):
            raise ValueError(f"{where}: expected no number, found {new}.")
    elif old != new:
        raise ValueError(f"{where}: expected {old!r} from the episodes, found {new!r}.")


def check(source: Mapping[str, Any], back: Mapping[str, Any], where: str, rows: str = "episodes") -> None:
    """Raise unless a document came back equal, each episode with all its fields."""
    old, new = source.get(rows, []), back.get(rows, [])
    if len(old) != len(new):
        raise ValueError(f"{where}: expected {len(old)} {rows}, found {len(new)}.")
    for number, (a, b) in enumerate(zip(old, new, strict=True)):
        if a != b:
            raise ValueError(f"{where}: expected {rows}[{number}] to be {a}, found {b}.")
    for key in source.keys() | back.keys():
        if source.get(key) != back.get(key):
            raise ValueError(f"{where}: expected the same {key!r}, found another.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compress_results", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of results, such as results")
    args = parser.parse_args(arguments)
    try:
        documents, episodes = compress(args.folder)
    except ValueError as error:
        print(f"tools.compress_results: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    print(f"{documents} documents, {episodes:,} episodes compared. {args.folder} has {size / 1e6:.1f} MB now.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
