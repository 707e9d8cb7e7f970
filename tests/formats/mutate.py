"""Read damaged copies of datasets: one file has a few bytes changed, removed, doubled or lost."""

import io
import resource
import shutil
import signal
import sys
import tempfile
import zipfile
from pathlib import Path

import foreign
import numpy as np

from pac.formats import detect_format, open_source


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Return `content` with one to three mutations."""
    for _ in range(rng.integers(1, 4)):
        if not content:
            break
        data = bytearray(content)
        # headers and footers, where the structure is, are hit as often as all the rest
        near = int(rng.integers(0, min(len(data), 512)))
        at = int(rng.choice([near, len(data) - 1 - near, int(rng.integers(0, len(data)))]))
        size = int(rng.choice([1, 1, 2, 4, 8, 64]))
        kind = rng.integers(0, 6)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            data[at : at + size] = rng.bytes(len(data[at : at + size]))
        elif kind == 2:
            data[at : at + size] = bytes([rng.choice([0, 255, 127, 128])]) * len(data[at : at + size])
        elif kind == 3:
            del data[at : at + size]
        elif kind == 4:
            data[at:at] = data[at : at + size]
        else:
            del data[at:]
        content = bytes(data)
    return content


def damage_inside(content: bytes, rng: np.random.Generator) -> bytes:
    """Damage a member of a zip archive or the payload of a TFRecord, and compute its checksum anew."""
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {entry: archive.read(entry) for entry in archive.infolist()}
        chosen = list(members)[int(rng.integers(0, len(members)))]
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for entry, member in members.items():
                archive.writestr(entry.filename, damage(member, rng) if entry is chosen else member)
        return buffer.getvalue()
    length = int.from_bytes(content[:8], "little")
    return foreign.record(damage(content[12 : 12 + length], rng)) + content[16 + length :]


def damaged_copy(source: Path, place: Path, rng: np.random.Generator) -> Path:
    """Copy a file or folder to `place` and damage one of its files."""
    copy = place / source.name
    if source.is_file():
        shutil.copy(source, copy)
    else:
        shutil.copytree(source, copy)
    files = [copy] if copy.is_file() else sorted(path for path in copy.rglob("*") if path.is_file())
    chosen = files[int(rng.integers(0, len(files)))]
    content = chosen.read_bytes()
    checked = content[:2] == b"PK" or ".tfrecord" in chosen.name
    chosen.write_bytes((damage_inside if checked and rng.random() < 0.7 else damage)(content, rng))
    return copy


def main(folder: Path, count: int) -> None:
    """Read `count` damaged copies of every source in `folder`. Any error but a ValueError ends this process.

    It is a process of its own, so that a test also sees a crash of a library and a hang.
    """
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # a wild allocation fails instead of hurting others
    for number, place in enumerate(sorted(folder.iterdir())):
        (source,) = place.iterdir()
        read = 0
        for seed in range(count):
            signal.alarm(20)  # not caught: a hang ends the process
            with tempfile.TemporaryDirectory() as name:
                copy = damaged_copy(source, Path(name), np.random.default_rng([number, seed]))
                try:
                    for _ in open_source(copy, place.name.split("-")[0]).episodes:
                        pass
                    detect_format(copy)
                    read += 1
                except ValueError as error:
                    if name not in str(error):
                        raise RuntimeError(f"{place.name}, seed {seed}: the error names no file") from error
                except Exception as error:
                    raise RuntimeError(f"{place.name}, seed {seed}") from error
        print(f"{place.name}: {read} of {count} still readable", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
