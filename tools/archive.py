"""Result files of this repository: one Parquet file a study, with its episodes as columns and all else as JSON.

    pandas.read_parquet("results/study/vision.parquet")     # one row an episode

Several documents that belong together (the rounds of an improvement, the evaluations of a demo) share a file. The rows
of a study repeat most settings, so all rows but one are kept as their changes to that one.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pac.evaluation import columns

Document = dict[str, Any]
LIKE, CHANGES = "like", "changes"


def read_document(path: Path) -> Document:
    """Return the document of a JSON or Parquet file, with its `episodes`, under present names."""
    try:
        document = columns.read_document(path)
    except FileNotFoundError:
        raise ValueError(f"expected the file {path}, found none. Paths begin at the page's folder.") from None
    except OSError as error:
        raise ValueError(f"{path}: expected a file to read, found {error}.") from error
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON or Parquet, found {error}.") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(document).__name__}.")
    return _unfold(document)


class Folder:
    """Documents by name: those of a folder, or those of a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._documents = columns.read(path) if path.suffix == ".parquet" else None

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
