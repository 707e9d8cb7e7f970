"""Files that survive a kill: atomic writes, locks and checksums.

The four-part error, package versions and progress bars are here too, so that each has one form.
"""

import fcntl
import importlib.metadata
import json
import math
import os
import tempfile
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

BLOCK = 1 << 22  # bytes that are read at a time
UNFINISHED = ".writing"  # ends the name of a file that a killed `write_atomically` leaves behind


class ProblemError(ValueError):
    """Error that `problem` made. Its type tells it apart from a library's ValueError."""


class PlainWarning(UserWarning):
    """Warning for users. `pac` prints it as one plain line."""


def problem(where: object, *, expected: str, found: object, fix: str) -> ProblemError:
    """Return an error in four parts: the place, what was expected, what was found, what to do next."""
    return ProblemError(f"{where}: expected {expected}, found {found}. {fix}")


def write_atomically(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Write a whole file or nothing: a kill leaves the old file or the new one.

    A durable write survives a power cut too. It waits for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any, *, indent: int = 2) -> None:
    """Write JSON atomically. NaN and infinities become null, because JSON has neither."""
    write_atomically(path, json.dumps(finite(content), indent=indent, default=str) + "\n")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out`. It becomes `out` on success and is removed on an error. Errors name `out`."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as parent:
            place = Path(parent, out.name)
            place.mkdir()
            try:
                yield place
            except ProblemError as error:
                raise ProblemError(str(error).replace(str(place), str(out))) from error
            os.rename(place, out)
    except OSError as error:
        raise problem(out, expected="to write there", found=error, fix="Free some space, or try --out.") from error


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
    """Return the CRC-32 of up to `size` bytes from `offset`, and the number of bytes read."""
    crc = done = 0
    with path.open("rb") as stream:
        stream.seek(offset)
        while block := stream.read(BLOCK if size is None else min(BLOCK, size - done)):
            crc, done = zlib.crc32(block, crc), done + len(block)
    return crc, done


def lock(
    path: Path,
    owner: object,
    *,
    expected: str,
    fix: str,
    found: str = "another process that uses it",
    within_process: bool = False,
) -> Callable[[], object]:
    """Lock the file at `path` and return the function that releases it. Raise if the file is locked already.

    The lock also ends with `owner` and with the process. By default the process itself may lock the file again, and
    closing the file anywhere in the process releases it (`lockf`). With `within_process` neither holds (`flock`).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    release = weakref.finalize(owner, os.close, descriptor)
    try:
        (fcntl.flock if within_process else fcntl.lockf)(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        release()
        raise problem(path.parent, expected=expected, found=found, fix=fix) from error
    except OSError:  # some network file systems have no locks
        pass
    return release


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each package, or None."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def progress_bar(console: "Console | None", *, remaining: bool = True) -> "Progress":
    """Return a progress bar, hidden if the console is not a terminal."""
    from rich import progress

    columns = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    columns += [progress.MofNCompleteColumn(), progress.TimeElapsedColumn()]
    columns += [progress.TimeRemainingColumn()] if remaining else []
    hidden = console is None or not console.is_terminal
    return progress.Progress(*columns, console=console, disable=hidden, transient=True)
