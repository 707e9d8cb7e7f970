"""Checks and errors that all formats share. Every error has four parts and names the file and the key."""

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pac.config import suggest
from pac.files import ProblemError, problem

DAMAGED = "The file is damaged: restore or repair it."
CHOOSE_KEYS = "Map another key with --keys, or leave this one out."
CHECK_PATH = "Check the path."


def check(good: object, where: object, expected: str, found: object, fix: str = DAMAGED) -> None:
    """Raise an error in four parts unless `good`."""
    if not good:
        raise problem(where, expected=expected, found=found, fix=fix)


def check_length(found: int, allowed: tuple[int, ...], where: object) -> None:
    """Raise unless an array has as many rows as the other arrays of its episode."""
    expected = f"{' or '.join(map(str, allowed))} rows, as many as the other keys of this episode"
    fix = "Remove or repair the episode in the source, or leave the key out with --keys."
    check(found in allowed, where, expected, found, fix)


def require(container: Mapping[str, Any], key: str, where: object) -> Any:
    """Return `container[key]`. If it is missing, raise an error that names the nearest key."""
    if key not in container:
        names = [str(name) for name in container]
        raise problem(
            where,
            expected=f"key {key!r}",
            found=f"keys {', '.join(sorted(names)[:20]) or 'none'}",
            fix=f"Map another key with --keys, or restore the file.{suggest(key, names) if names else ''}",
        )
    return container[key]


@contextmanager
def reading(where: object, format: str = "") -> Iterator[None]:
    """Turn any error of a library about damaged bytes into one kind of error that names the file."""
    try:
        yield
    except ProblemError:
        raise
    except Exception as error:
        raise problem(
            where,
            expected=f"readable {format} data".replace("  ", " "),
            found=f"{type(error).__name__}: {str(error).strip().rstrip('.')}",
            fix="The file is damaged or of another format: restore it, or name its format with --format.",
        ) from error


def need(module: str, extra: str) -> Any:
    """Import an optional dependency. If it is missing, raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise problem(
            f"Python package {module!r}",
            expected="it to be installed",
            found="no such package",
            fix=f"Run: pip install 'perceiver-actor-critic[{extra}]'",
        ) from error


def load_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    with reading(path, "JSON"):
        content = json.loads(path.read_text(encoding="utf-8"))
    check(isinstance(content, dict), path, "a JSON object", f"a {type(content).__name__}")
    return content


def read_parquet(path: Path) -> Any:
    """Read a whole Parquet file as a pyarrow table."""
    with reading(path, "parquet"):
        return need("pyarrow.parquet", "formats").read_table(path, partitioning=None)
