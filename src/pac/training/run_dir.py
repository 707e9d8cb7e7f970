"""The run directory: the files of one run. A kill at any moment loses nothing that was there.

config.json                      everything resolved, before step 0
metrics.jsonl                    one flat line per log step; a resume continues it without a trace
tensorboard/                     the same numbers
checkpoints/000100/              LeRobot's layout
    pretrained_model/            config.json, model.safetensors: all that PAC.from_pretrained needs
    training_state/              target network and optimiser as safetensors, training_step.json
    checksums.json               written last: a folder without it, or that does not match it, is not a checkpoint
checkpoints/000090.damaged/      a checkpoint that a resume found damaged
checkpoints/last                 link to the newest
collected/                       data that the recipe collected
summary.json                     at the end
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pac.files import UNFINISHED, checksum, finite, lock, problem, sync, write_atomically, write_json

CHECKSUMS, CONFIG, SUMMARY, LOCK, COLLECTED = "checksums.json", "config.json", "summary.json", ".lock", "collected"
REPLACED = ".replaced-"  # begins the name of a checkpoint that a new one of the same step is about to replace
ASIDE = ".overwritten"  # holds the run that --overwrite replaces, until its successor begins
WRITTEN = ("checkpoints", "tensorboard", "wandb", COLLECTED, "metrics.jsonl", SUMMARY)  # by a run, after config.json
NEEDED = ("pretrained_model/config.json", "pretrained_model/model.safetensors", "training_state/training_step.json")

KeepRule = Callable[[list[int]], set[int]]  # steps with a checkpoint -> steps to keep


class RunDirectory:
    """The folder of one run. Only the main process writes; any may read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints_path = self.path / "checkpoints"
        self._writing: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1)

    def open(self, *, resume: bool, overwrite: bool) -> None:
        """Make the folder and lock it. Raise if it holds a run and neither option says what to do with it."""
        if resume and overwrite:
            raise ValueError("Expected --resume or --overwrite, found both.")
        if self.path.exists() and not self.path.is_dir():
            raise problem(self.path, expected="a folder for the run", found="a file", fix="Choose another --out.")
        if (self.path / ASIDE).is_dir():
            lock_folder(self.path, self)
            self._settle_aside()
        used = self.path.is_dir() and any(not self._is_left_over(path) for path in self.path.iterdir())
        if resume and not self.is_run() and (used or not self.path.is_dir() or not any(self.path.iterdir())):
            fix = "Leave out --resume to start one."
            raise problem(self.path, expected="a run to resume", found="none", fix=fix)
        if used and not (resume or overwrite):
            fix = "Continue that run with --resume, replace it with --overwrite, or choose another --out."
            raise problem(self.path, expected="a new or empty folder", found="one that is in use", fix=fix)
        if used and overwrite and not self.is_run():
            fix = "Choose another --out."
            raise problem(self.path, expected="an earlier run to overwrite", found="other files", fix=fix)
        self.path.mkdir(parents=True, exist_ok=True)
        lock_folder(self.path, self)
        if overwrite:
            self._put_aside()
        self.checkpoints_path.mkdir(exist_ok=True)
        self._tidy()

    def is_run(self) -> bool:
        """Return whether the folder has the config.json of a run, not of some other program."""
        try:
            content = json.loads((self.path / CONFIG).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(content, dict) and {"config", "model", "steps"} <= content.keys()

    def _is_left_over(self, path: Path) -> bool:
        """Return whether a run that ended before its config.json left this file. A new run may begin over it."""
        empty = path.name == "checkpoints" and path.is_dir() and not any(self._folders())
        return empty or path.name in (LOCK, COLLECTED) or path.name.endswith(UNFINISHED)

    def abandon(self) -> None:
        """Remove a run that could not begin, and put back the one it was to replace. Collected data stays."""
        self._settle_aside()
        if not (self.path / CONFIG).exists():
            (self.path / LOCK).unlink(missing_ok=True)
            for folder in (self.checkpoints_path, self.path):
                with contextlib.suppress(OSError):  # not empty
                    folder.rmdir()

    def begin(self, config: Any) -> None:
        """Write config.json. From here on this is the run of the folder, and a run that it replaces is gone."""
        self.write_json(CONFIG, config)
        self._settle_aside()

    def bytes_aside(self) -> int:
        """Return the size on disk of the run that is to be replaced."""
        return sum(path.lstat().st_size for path in (self.path / ASIDE).rglob("*"))

    def _put_aside(self) -> None:
        """Move what a run writes, and nothing else. config.json goes first: a kill meanwhile leaves no second run."""
        (self.path / ASIDE).mkdir()
        for name in (CONFIG, *WRITTEN):
            if (self.path / name).exists():
                (self.path / name).rename(self.path / ASIDE / name)

    def _settle_aside(self) -> None:
        """Remove what was put aside if its successor has begun. Otherwise put it back, config.json last."""
        if not (self.path / CONFIG).exists():
            for name in (*WRITTEN, CONFIG):
                if (old := self.path / ASIDE / name).exists():
                    _remove(self.path / name)
                    old.rename(self.path / name)
        _remove(self.path / ASIDE)

    def _tidy(self) -> None:
        """Finish or remove what a killed process left."""
        for old in self.checkpoints_path.glob(f"{REPLACED}*"):
            place = self.checkpoints_path / old.name.removeprefix(REPLACED)
            if not place.exists():
                old.rename(place)
        for leftover in (*self.checkpoints_path.glob(".*"), *self.path.glob(f".*{UNFINISHED}")):
            _remove(leftover)

    def write_json(self, name: str, content: Any) -> None:
        write_json(self.path / name, content)

    # ------------------------------------------------------------------------------------------------------ metrics

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one line. What is not finite becomes null."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(finite(row)) + "\n")

    def wandb_id(self) -> str:
        """Return the id of this run at Weights & Biases. It is the same after a resume."""
        file = self.path / "wandb" / "run_id"
        if not file.exists():
            write_atomically(file, uuid.uuid4().hex)
        return file.read_text()

    def metrics_size(self) -> int:
        return self.metrics_path.stat().st_size if self.metrics_path.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Remove lines that were logged after the checkpoint from which a run resumes."""
        if self.metrics_size() > size:
            os.truncate(self.metrics_path, size)

    # -------------------------------------------------------------------------------------------------- checkpoints

    def prepare(self, step: int) -> Path:
        """Return an empty folder for a checkpoint to be written into. Wait for the checkpoint before it."""
        self.wait()
        folder = self._temporary(step)
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("pretrained_model", "training_state"):
            (folder / name).mkdir(parents=True)
        return folder

    def commit(self, step: int, write: Callable[[], None], *, keep: KeepRule) -> None:
        """In the background, let `write` fill the prepared folder, then add checksums and give it its name."""
        self._writing = self._pool.submit(self._commit, step, write, keep)

    def wait(self) -> None:
        """Wait until the checkpoint under way, if any, is on disk. Raise what went wrong with it."""
        if self._writing is None:
            return
        future, self._writing = self._writing, None
        try:
            future.result()
        except (OSError, SafetensorError) as error:
            fix = "Free some space or repair the disk, then continue with --resume; earlier checkpoints are untouched."
            raise problem(self.checkpoints_path, expected="to write a checkpoint", found=error, fix=fix) from error

    def _commit(self, step: int, write: Callable[[], None], keep: KeepRule) -> None:
        temporary, final = self._temporary(step), self.checkpoints_path / f"{step:06d}"
        try:
            if self.metrics_path.exists():  # the length in the checkpoint must hold after a power cut, too
                sync(self.metrics_path)
            write()
            seal(temporary)
            replaced = self.checkpoints_path / f"{REPLACED}{final.name}"
            if final.exists():  # from before a resume; after a kill between the two renames, `open` takes it back
                os.replace(final, replaced)
            os.replace(temporary, final)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self.checkpoints_path)
        self._link(final)
        self.prune(keep)

    def prune(self, keep: KeepRule) -> None:
        """Remove checkpoints that are not kept. A resume does what a kill left of it."""
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
        """Return the newest undamaged checkpoint. Rename damaged ones, and report each to `say`."""
        for path in sorted(self._folders(), key=lambda path: int(path.name), reverse=True):
            damage = find_damage(path)
            if damage is None:
                self._link(path)
                return path
            aside = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            say(f"{path} is damaged ({damage}). It is called {aside.name} now; an earlier checkpoint takes its place.")
        (self.checkpoints_path / "last").unlink(missing_ok=True)
        return None

    def num_checkpoints(self) -> int:
        return sum(1 for _ in self._folders())

    def _folders(self) -> Iterator[Path]:
        return (path for path in self.checkpoints_path.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def lock_folder(path: Path, owner: object) -> None:
    """Lock a folder until `owner` or the process ends. Two processes in one folder would ruin it."""
    found, fix = "another process training into it", "Wait for it to end, or choose another --out."
    lock(path / LOCK, owner, expected="to be alone here", found=found, fix=fix)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def keep_rule(keep_last: int, keep_every: int | None) -> KeepRule:
    """Return the rule that keeps the newest few checkpoints, and those at multiples of `keep_every` for good."""

    def keep(steps: list[int]) -> set[int]:
        return set(steps[-keep_last:]) | {step for step in steps if keep_every and step % keep_every == 0}

    return keep


def seal(folder: Path) -> None:
    """Flush every file to disk, then write the sizes and checksums of all."""
    files, sums = sorted(path for path in folder.rglob("*") if path.is_file()), {}
    for path in files:
        crc, size = checksum(path)
        sums[str(path.relative_to(folder))] = {"bytes": size, "crc32": crc}
    for path in (*files, *{path.parent for path in files}):
        sync(path)
    write_json(folder / CHECKSUMS, sums)
    sync(folder)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None if it is whole."""
    try:
        sums = {str(k): (v["crc32"], v["bytes"]) for k, v in json.loads((folder / CHECKSUMS).read_text()).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"no readable {CHECKSUMS}"
    for name in [name for name in NEEDED if name not in sums]:
        return f"{name} is not in {CHECKSUMS}"
    for name, expected in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if checksum(path) != expected:
            return f"{name} does not match its checksum"
    return None


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl, except a last line that is still being written."""
    file = Path(path) / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                found = f"{line[:80]!r} in line {number}"
                raise problem(file, expected="JSON", found=found, fix="Remove that line.") from error
    return rows
