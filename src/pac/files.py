"""Files that survive a kill: atomic writes, locks, checksums, and the small things every command needs once.

The four-part error, versions of packages and progress bars are here too, so that each has one form.
"""

import fcntl
import importlib.metadata
import json
import math
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

BLOCK = 1 << 22  # bytes that are read at a time


def problem(where: object, *, expected: str, found: object, fix: str) -> ValueError:
    """Return an error in four parts: where it is, what was expected, what was found, what to do next."""
    return ValueError(f"{where}: expected {expected}, found {found}. {fix}")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file or nothing: a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".writing", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any, *, indent: int = 2) -> None:
    """Write JSON atomically. NaN and infinities become null, since JSON has neither."""
    write_atomically(path, json.dumps(finite(content), indent=indent, default=str) + "\n")


def finite(value: Any) -> Any:
    """Return nested plain values with None in place of NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path, offset: int = 0, size: int | None = None) -> tuple[int, int]:
    """Return the CRC-32 of up to `size` bytes from `offset`, and how many bytes there were."""
    crc = done = 0
    with path.open("rb") as stream:
        stream.seek(offset)
        while block := stream.read(BLOCK if size is None else min(BLOCK, size - done)):
            crc, done = zlib.crc32(block, crc), done + len(block)
    return crc, done


def lock(path: Path, owner: object, *, expected: str, fix: str) -> None:
    """Lock the file at `path` for this process until `owner` is gone. Raise if another process holds it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    weakref.finalize(owner, os.close, descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise problem(path.parent, expected=expected, found="another process that uses it", fix=fix) from error
    except OSError:  # some network file systems have no locks
        pass


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each package; None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def progress_bar(console: "Console | None", *, remaining: bool = True, transient: bool = True) -> "Progress":
    """Return a progress bar that is hidden where the console is no terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    hidden = console is None or not console.is_terminal
    more = [TimeRemainingColumn()] if remaining else []
    return Progress(*columns, *more, console=console, disable=hidden, transient=transient)
