"""Processes that still run."""

import contextlib
import os
from pathlib import Path


def session(leader: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
