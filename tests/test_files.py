"""Files survive a kill, and locks hold as long as they must."""

import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from pac.files import checksum, lock, problem, versions, write_atomically, write_json


class Owner:
    pass


def locked_elsewhere(path: Path, call: str) -> bool:
    """Whether another process fails to lock the file."""
    code = f"import fcntl, sys; fcntl.{call}(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True).returncode != 0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "file"
    write_atomically(path, "old")

    def full(*arguments: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


def test_json_has_null_for_what_is_not_finite(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [math.nan, 1.5], "y": (math.inf,), "path": Path("a")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [None, 1.5], "y": [None], "path": "a"}


def test_checksum_of_a_part(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    assert checksum(tmp_path / "a") == (zlib.crc32(b"0123456789"), 10)
    assert checksum(tmp_path / "a", 2, 3) == (zlib.crc32(b"234"), 3)
    assert checksum(tmp_path / "a", 8, 5) == (zlib.crc32(b"89"), 2)


@pytest.mark.parametrize("within_process", [False, True])
def test_a_lock_ends_when_released_or_with_its_owner(tmp_path: Path, within_process: bool) -> None:
    path, call = tmp_path / "a", "flock" if within_process else "lockf"
    owner = Owner()
    release = lock(path, owner, expected="one", fix="Wait.", within_process=within_process)
    assert locked_elsewhere(path, call)
    release()
    assert not locked_elsewhere(path, call)
    lock(path, owner, expected="one", fix="Wait.", within_process=within_process)
    assert locked_elsewhere(path, call)
    del owner
    assert not locked_elsewhere(path, call)


def test_a_lock_within_the_process(tmp_path: Path) -> None:
    owner, path = Owner(), tmp_path / "a"
    lock(path, owner, expected="one writer", fix="Wait.", found="two", within_process=True)
    path.read_text()  # closing the file would release a lock of the process
    with pytest.raises(ValueError, match=r"expected one writer, found two\. Wait\."):
        lock(path, owner, expected="one writer", fix="Wait.", found="two", within_process=True)
    assert locked_elsewhere(path, "flock")


def test_problems_have_four_parts() -> None:
    error = problem("a.toml", expected="a number", found="'x'", fix="Correct it.")
    assert str(error) == "a.toml: expected a number, found 'x'. Correct it."
    assert isinstance(error, ValueError)


def test_versions_of_missing_packages_are_none() -> None:
    found = versions(["numpy", "a-package-that-is-not-there"])
    assert found["numpy"] is not None
    assert found["a-package-that-is-not-there"] is None
