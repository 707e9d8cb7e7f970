"""Result files of this repository: one Parquet file per study, with its episodes as columns and all else as JSON.

    pandas.read_parquet("results/study/vision.parquet")                        # one row per episode
    python -m tools.archive runs/vision/results.json results/study/vision.parquet
    python -m tools.archive results/study/vision.parquet runs/vision/results.json   # back: `pac study` goes on from it

Documents that belong together share a file: the rounds of an improvement, or the evaluations of a demo. Their episodes
have a column `file`. The rows of a study repeat most settings, so each row but one is kept as its changes to that one.
Summaries are left out, because they follow from the episodes.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from pac.files import write_atomically, write_json
from pac.old_names import EVALUATION_KEYS, rename_keys

Document = dict[str, Any]
LIKE, CHANGES = "like", "changes"
DERIVED = ("summary", "differences")
FILE = "file"  # column of the document that an episode belongs to


def read_document(path: Path) -> Document:
    """Return the document of a JSON or Parquet file, with its `episodes`, under present names."""
    if path.suffix == ".parquet":
        documents = read_columns(path)
        if list(documents) != [""]:
            raise ValueError(f"{path}: expected one document, found {', '.join(documents)}.")
        return _unfold(documents[""])
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"expected the file {path}, found none. Paths begin at the page's folder.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected JSON, found {error}.") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(document).__name__}.")
    return _unfold(rename_keys(document, EVALUATION_KEYS))


class Folder:
    """Documents by name: those of a folder, or those of a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._documents = read_columns(path) if path.suffix == ".parquet" else None

    @property
    def name(self) -> str:
        return self.path.stem if self._documents is not None else self.path.name

    def has(self, name: str) -> bool:
        return (self.path / name).exists() if self._documents is None else name in self._documents

    def read(self, name: str) -> Document:
        if self._documents is None:
            return read_document(self.path / name)
        if name not in self._documents:
            raise ValueError(f"{self.path}: expected {name} in it, found {', '.join(self._documents)}.")
        return _unfold(self._documents[name])


# ------------------------------------------------------------------------------------------------------------ columns


def read_columns(path: Path, key: str = "episodes") -> dict[str, Document]:
    """Return the documents of a Parquet file by name. A single document has an empty name."""
    try:
        table = parquet.read_table(path)
        documents = json.loads(table.schema.metadata[b"documents"])
        optional = json.loads(table.schema.metadata[b"optional"])
    except FileNotFoundError:
        raise ValueError(f"expected the file {path}, found none. Paths begin at the page's folder.") from None
    except (OSError, pyarrow.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a Parquet file of tools.archive, found {error!r}.") from error
    for row in table.to_pylist():
        document = documents[row.pop(FILE) if FILE in table.column_names else ""]
        document[key].append({k: value for k, value in row.items() if value is not None or k not in optional})
    return {name: rename_keys(document, EVALUATION_KEYS) for name, document in documents.items()}


def write_columns(path: Path, documents: Mapping[str, Document], key: str = "episodes") -> None:
    """Write documents to one Parquet file: the rows of their lists `key` as columns, and all else as metadata."""
    several = list(documents) != [""]
    rows = [
        ({FILE: name} if several else {}) | row for name, document in documents.items() for row in document.get(key, [])
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    optional = [name for name in names if not all(name in row for row in rows)]
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    others = {name: {**document, **({key: []} if key in document else {})} for name, document in documents.items()}
    table = table.replace_schema_metadata({"optional": json.dumps(optional), "documents": json.dumps(others)})
    stream = pyarrow.BufferOutputStream()
    numbers = [name for name in names if pyarrow.types.is_floating(table.schema.field(name).type)]
    parquet.write_table(
        table,
        stream,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in names if name not in numbers],
        use_byte_stream_split=numbers,  # a third smaller than dictionaries of floats
    )
    write_atomically(path, stream.getvalue().to_pybytes())


def archive(source: Path, path: Path) -> int:
    """Write a JSON file, or all JSON files of a folder, to one Parquet file. Return the number of episodes."""
    files = {str(file.relative_to(source)): file for file in sorted(source.rglob("*.json"))}
    documents = {name: read_document(file) for name, file in (files if source.is_dir() else {"": source}).items()}
    kept = {name: {k: v for k, v in doc.items() if k not in DERIVED} for name, doc in documents.items()}
    write_columns(path, {name: fold(document) for name, document in kept.items()})
    back = {name: _unfold(document) for name, document in read_columns(path).items()}
    if back != kept:
        raise ValueError(f"{path}: expected the documents of {source}, found others when they were read back.")
    return sum(len(document.get("episodes", [])) for document in kept.values())


# --------------------------------------------------------------------------------------------------- rows of a study


def fold(document: Mapping[str, Any]) -> Document:
    """Return a document whose `rows` but one are changes to that one: the one that makes it shortest."""
    rows = document.get("rows", {})
    ways = []
    for base, settings in rows.items():
        others = {name: {LIKE: base, CHANGES: dict(_changes(settings, row))} for name, row in rows.items()}
        ways.append(others | {base: settings})
    return {**document, "rows": min(ways, key=lambda way: len(json.dumps(way)))} if ways else dict(document)


def _unfold(document: Document) -> Document:
    if "rows" not in document:
        return document
    rows: dict[str, Any] = {}
    for name, row in document["rows"].items():
        rows[name] = document["rows"][row[LIKE]] if row.keys() == {LIKE, CHANGES} else row
        for place, value in row[CHANGES].items() if rows[name] is not row else ():
            rows[name] = _changed(rows[name], place.split("/"), value)
    return {**document, "rows": rows}


def _changes(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the places that differ, such as `mixture/groups/0/weight`, and their new values."""
    if (
        isinstance(old, dict)
        and isinstance(new, dict)
        and list(old) == list(new)
        and not any("/" in key for key in old)
    ):
        pairs = [(key, old[key], new[key]) for key in old]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        if old != new or type(old) is not type(new):
            yield place, new
        return
    for key, a, b in pairs:
        yield from _changes(a, b, f"{place}/{key}".lstrip("/"))


def _changed(value: Any, place: list[str], new: Any) -> Any:
    """Return a copy of nested dictionaries and lists with another value at one place."""
    if place == [""]:
        return new
    key, *more = place
    inner = value[int(key)] if isinstance(value, list) else value[key]
    found = _changed(inner, more, new) if more else new
    if isinstance(value, list):
        return [found if i == int(key) else item for i, item in enumerate(value)]
    return {**value, key: found}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.archive", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="JSON of an evaluation or a study, folder of JSON, or Parquet")
    parser.add_argument("out", type=Path, help="Parquet file to write; JSON file if the source is Parquet")
    args = parser.parse_args(arguments)
    if args.source.suffix == ".parquet":
        write_json(args.out, read_document(args.source), indent=1)
        return
    print(f"{args.out}: {archive(args.source, args.out):,} episodes of {args.source}.")


if __name__ == "__main__":
    main()
