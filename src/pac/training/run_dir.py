"""The run directory: what a run leaves on disk, written so that a kill at any moment loses nothing that was there.

config.json                      everything resolved, before step 0
metrics.jsonl                    one flat line each log step; after a resume it goes on as if nothing had happened
tensorboard/                     the same numbers
checkpoints/000100/              LeRobot's layout
    pretrained_model/            config.json, model.safetensors: all that PAC.from_pretrained needs
    training_state/              target network and optimiser as safetensors, training_step.json
    checksums.json               written last: a folder without it, or that does not match it, is not a checkpoint
checkpoints/000090.damaged/      one that was found damaged by a resume, and passed over
checkpoints/last                 link to the newest
collected/                       data that the recipe made for itself
summary.json                     at the end
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

CHECKSUMS, CONFIG, SUMMARY, LOCK, COLLECTED = "checksums.json", "config.json", "summary.json", ".lock", "collected"
REPLACED = ".replaced-"  # a checkpoint that a new one of the same step is about to replace
ASIDE = ".overwritten"  # the run that was here, until the one that replaces it begins
WRITTEN = ("checkpoints", "tensorboard", "wandb", COLLECTED, "metrics.jsonl", SUMMARY)  # by a run, after config.json
NEEDED = ("pretrained_model/config.json", "pretrained_model/model.safetensors", "training_state/training_step.json")


class RunDirectory:
    """One run's folder. Only the main process writes; any may read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints_path = self.path / "checkpoints"
        self._writing: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1)

    def open(self, *, resume: bool, overwrite: bool) -> None:
        """Make the folder; refuse one that holds a run unless told what to do with it."""
        if resume and overwrite:
            raise ValueError("Expected --resume or --overwrite, found both.")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path}: expected a folder for the run, found a file. Choose another --out.")
        if (self.path / ASIDE).is_dir():
            lock_folder(self.path, self)
            self._settle_aside()
        used = self.path.is_dir() and any(not self._left_over(path) for path in self.path.iterdir())
        if resume and not self.is_run() and (used or not self.path.is_dir() or not any(self.path.iterdir())):
            raise ValueError(f"{self.path}: expected a run to resume, found none. Leave out --resume to start one.")
        if used and not (resume or overwrite):
            raise ValueError(
                f"{self.path}: expected a new or empty folder, found one that is in use. Continue that run with "
                "--resume, replace it with --overwrite, or choose another --out."
            )
        if used and overwrite and not self.is_run():
            raise ValueError(
                f"{self.path}: expected an earlier run to overwrite, found other files. Choose another --out."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        lock_folder(self.path, self)
        if overwrite:
            self._put_aside()
        self.checkpoints_path.mkdir(exist_ok=True)
        self._tidy()

    def is_run(self) -> bool:
        """Whether there is a run's config.json, not some other program's."""
        try:
            content = json.loads((self.path / CONFIG).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(content, dict) and {"config", "model", "steps"} <= content.keys()

    def _left_over(self, path: Path) -> bool:
        """Of a run that ended before its config.json: to begin there again is safe."""
        nothing = path.name == "checkpoints" and path.is_dir() and not any(self._folders())
        return nothing or path.name in (LOCK, f".{CONFIG}.writing", COLLECTED)

    def abandon(self) -> None:
        """Leave no trace of a run that could not begin, and the one it was to replace where it was; what was collected
        stays for the next try.
        """
        self._settle_aside()
        if not (self.path / CONFIG).exists():
            (self.path / LOCK).unlink(missing_ok=True)
            for folder in (self.checkpoints_path, self.path):
                with contextlib.suppress(OSError):  # not empty
                    folder.rmdir()

    def begin(self, config: Any) -> None:
        """Write config.json. From here on this is the run of the folder, and one that it replaces is gone."""
        self.write_json(CONFIG, config)
        self._settle_aside()

    def bytes_aside(self) -> int:
        """What the run that is to be replaced holds of the disk."""
        return sum(path.lstat().st_size for path in (self.path / ASIDE).rglob("*"))

    def _put_aside(self) -> None:
        """What a run writes and nothing else; config.json first, so that a kill meanwhile leaves no second run."""
        (self.path / ASIDE).mkdir()
        for name in (CONFIG, *WRITTEN):
            if (self.path / name).exists():
                (self.path / name).rename(self.path / ASIDE / name)

    def _settle_aside(self) -> None:
        """Remove what was put aside if its successor has begun; else put it back, config.json last."""
        if not (self.path / CONFIG).exists():
            for name in (*WRITTEN, CONFIG):
                if (old := self.path / ASIDE / name).exists():
                    _remove(self.path / name)
                    old.rename(self.path / name)
        _remove(self.path / ASIDE)

    def _tidy(self) -> None:
        """Finish or remove what a killed writer left."""
        for old in self.checkpoints_path.glob(f"{REPLACED}*"):
            place = self.checkpoints_path / old.name.removeprefix(REPLACED)
            if not place.exists():
                old.rename(place)
        for leftover in self.checkpoints_path.glob(".*"):
            shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()

    def write_json(self, name: str, content: Any) -> None:
        write_atomically(self.path / name, json.dumps(content, indent=2, default=str) + "\n")

    # ------------------------------------------------------------------------------------------------------ metrics

    def append_metrics(self, row: dict[str, Any]) -> None:
        """One line; JSON has no NaN, so what is not finite is null."""
        plain = {k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in row.items()}
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(plain) + "\n")

    def wandb_id(self) -> str:
        """What Weights & Biases calls this run: the same after a resume."""
        file = self.path / "wandb" / "run_id"
        if not file.exists():
            write_atomically(file, uuid.uuid4().hex)
        return file.read_text()

    def metrics_size(self) -> int:
        return self.metrics_path.stat().st_size if self.metrics_path.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Forget lines that were logged after the checkpoint a run resumes from."""
        if self.metrics_size() > size:
            os.truncate(self.metrics_path, size)

    # -------------------------------------------------------------------------------------------------- checkpoints

    def prepare(self, step: int) -> Path:
        """An empty folder for a checkpoint to be written into; waits for the one before it."""
        self.wait()
        folder = self._temporary(step)
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("pretrained_model", "training_state"):
            (folder / name).mkdir(parents=True)
        return folder

    def commit(self, step: int, write: Callable[[], None], *, keep: Callable[[list[int]], set[int]]) -> None:
        """In the background: `write` fills the prepared folder, which is then sealed and takes its name."""
        self._writing = self._pool.submit(self._commit, step, write, keep)

    def wait(self) -> None:
        """Until the checkpoint under way, if any, is on disk; raises what went wrong with it."""
        if self._writing is None:
            return
        future, self._writing = self._writing, None
        try:
            future.result()
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{self.checkpoints_path}: expected to write a checkpoint, found {error}. Free some space or repair "
                "the disk, then continue with --resume; earlier checkpoints are untouched."
            ) from error

    def _commit(self, step: int, write: Callable[[], None], keep: Callable[[list[int]], set[int]]) -> None:
        temporary, final = self._temporary(step), self.checkpoints_path / f"{step:06d}"
        try:
            if self.metrics_path.exists():  # what the checkpoint says of its length must hold after a power cut, too
                sync(self.metrics_path)
            write()
            seal(temporary)
            replaced = self.checkpoints_path / f"{REPLACED}{final.name}"
            if final.exists():  # of before a resume: if we are killed between the two renames, `open` takes it back
                os.replace(final, replaced)
            os.replace(temporary, final)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self.checkpoints_path)
        self._link(final)
        self.prune(keep)

    def prune(self, keep: Callable[[list[int]], set[int]]) -> None:
        """Remove checkpoints that are not kept. One that is killed in the midst of it has the rest to do on resume."""
        steps = sorted(int(path.name) for path in self._folders())
        for old in set(steps) - keep(steps):
            shutil.rmtree(self.checkpoints_path / f"{old:06d}")

    def _link(self, folder: Path) -> None:
        link = self.checkpoints_path / ".last"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        os.replace(link, self.checkpoints_path / "last")

    def _temporary(self, step: int) -> Path:
        return self.checkpoints_path / f".{step:06d}"

    def newest(self, say: Callable[[str], None]) -> Path | None:
        """The newest checkpoint that is whole. Damaged ones are renamed out of the way, and named."""
        for path in sorted(self._folders(), key=lambda path: int(path.name), reverse=True):
            problem = damage(path)
            if problem is None:
                self._link(path)
                return path
            aside = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            say(f"{path} is damaged ({problem}) and now called {aside.name}: going back to the checkpoint before it.")
        with contextlib.suppress(FileNotFoundError):
            (self.checkpoints_path / "last").unlink()
        return None

    def num_checkpoints(self) -> int:
        return sum(1 for _ in self._folders())

    def _folders(self) -> Iterator[Path]:
        return (path for path in self.checkpoints_path.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def lock_folder(path: Path, owner: object) -> None:
    """Two processes in one folder would ruin it. The lock ends with its owner or the process, however that ends."""
    descriptor = os.open(path / LOCK, os.O_WRONLY | os.O_CREAT)
    weakref.finalize(owner, os.close, descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"{path}: expected to be alone here, found another process training into it. Wait for it to end, or choose "
            "another --out."
        ) from error
    except OSError:  # some network file systems have no locks
        pass


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def keep_rule(keep_last: int, keep_every: int | None) -> Callable[[list[int]], set[int]]:
    """Which of the steps with a checkpoint to keep: the newest few, and one each so often for good."""

    def keep(steps: list[int]) -> set[int]:
        return set(steps[-keep_last:]) | {step for step in steps if keep_every and step % keep_every == 0}

    return keep


def seal(folder: Path) -> None:
    """Flush every file to disk and note its size and checksum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "crc32": checksum(path)} for path in files}
    for path in (*files, *{path.parent for path in files}):
        sync(path)
    write_atomically(folder / CHECKSUMS, json.dumps(sums, indent=2) + "\n")
    sync(folder)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is whole."""
    try:
        sums = {str(k): (v["bytes"], v["crc32"]) for k, v in json.loads((folder / CHECKSUMS).read_text()).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"no readable {CHECKSUMS}"
    for name in [name for name in NEEDED if name not in sums]:
        return f"{name} is not in {CHECKSUMS}"
    for name, wanted in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (path.stat().st_size, checksum(path)) != wanted:
            return f"{name} does not match its checksum"
    return None


def checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last line that is still being written is left out."""
    file = Path(path) / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{file}: expected JSON, found {line[:80]!r} in line {number}. Cut it out.") from error
    return rows
