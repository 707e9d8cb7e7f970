"""The folder of an improvement, written so that a kill at any moment loses nothing and counts nothing twice.

config.json                 the recipe, resolved, before anything else
improve.json                rounds that are finished, after each of them
collected/                  data that the recipe's [collect] made
inbox/                      datasets that people put there; never changed
start/evaluation.json       trials of the checkpoint given with --start
rounds/000/round.json       what the round begins from and trains on, written before it does
rounds/000/data/TASK/       episodes it collected, a dataset of its own; collect.json and round.json say who made them
rounds/000/train/           an ordinary run directory
rounds/000/evaluation.json  as `pac evaluate --json` writes it
promoted                    link to the checkpoint of the last promoted round: the folder can be loaded like a run
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pac.files import write_json
from pac.training.run import differences
from pac.training.run_dir import COLLECTED, CONFIG, LOCK, lock_folder

IMPROVE, INBOX, ROUNDS, START, PROMOTED = "improve.json", "inbox", "rounds", "start", "promoted"
# What may differ when an improvement is resumed; all else would make rounds that do not compare.
CHANGEABLE = ("improve.rounds", "improve.mastery", "improve.workers", "improve.envs_per_worker", "improve.ray")
CHANGEABLE_SECTIONS = ("machine", "checkpoint")


class ImproveFolder:
    """One improvement's folder. One process at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.document: dict[str, Any] = {}

    def open(self, description: dict[str, Any], *, resume: bool, overwrite: bool) -> list[str]:
        """Make the folder, or go on in it; returns what is to be said about changed settings."""
        if resume and overwrite:
            raise ValueError("Expected --resume or --overwrite, found both.")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path}: expected a folder, found a file. Choose another --out.")
        harmless = (LOCK, COLLECTED, INBOX, f".{CONFIG}.writing")
        used = self.path.is_dir() and any(p.name not in harmless for p in self.path.iterdir())
        before = self._read(CONFIG)
        ours = before is not None and {"improve", "recipe"} <= before.keys()
        if used and not ours:
            raise ValueError(f"{self.path}: expected an improvement or an empty folder, found other files.")
        if used and not (resume or overwrite):
            raise ValueError(
                f"{self.path}: expected a new or empty folder, found one that is in use. Continue with --resume, begin "
                "again with --overwrite, or choose another --out."
            )
        if resume and not self.path.is_dir():
            raise ValueError(f"{self.path}: expected an improvement to resume, found none. Leave out --resume.")
        self.path.mkdir(parents=True, exist_ok=True)
        lock_folder(self.path, self)
        if overwrite:
            self._clear()
            before = None
        (self.path / INBOX).mkdir(exist_ok=True)
        notes = [] if before is None else list(self._compare(before, description))
        write_json(self.path / CONFIG, description)
        found = self._read(IMPROVE) or {"rounds": []}
        improve = description["improve"]
        self.document = {
            "tasks": improve["tasks"],
            "others": improve["others"],
            "config": description,
            "rounds": found["rounds"],
            "status": "running",
        }
        return notes

    def _clear(self) -> None:
        """Remove what an improvement writes and nothing else; the inbox is not ours."""
        for name in (ROUNDS, START, COLLECTED):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (IMPROVE, PROMOTED, CONFIG):
            (self.path / name).unlink(missing_ok=True)

    def _compare(self, before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
        plain = json.loads(json.dumps(now, default=str))
        for name, old, new in differences(before, plain):
            text = f"{name}: {json.dumps(old)} before, {json.dumps(new)} now"
            section = name.removeprefix("recipe.").split(".")[0]
            if not name.startswith(CHANGEABLE) and section not in CHANGEABLE_SECTIONS:
                raise ValueError(
                    f"{self.path}: expected the settings it was begun with, found {text}. Resume with the same recipe "
                    "and overrides, or begin another from this one's policy: --start."
                )
            yield f"Going on with another {text}."

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path / name}: expected JSON, found {error}. Restore it from a copy.") from error
        return content

    # -------------------------------------------------------------------------------------------------------- rounds

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Those that are finished."""
        found: list[dict[str, Any]] = self.document["rounds"]
        return found

    @property
    def promoted(self) -> dict[str, Any] | None:
        return next((entry for entry in reversed(self.rounds) if entry["promoted"]), None)

    def place(self, checkpoint: str) -> Path:
        """Of a checkpoint: ours are named relative to the folder, one that was given from the root."""
        return self.path / checkpoint

    def round_path(self, number: int) -> Path:
        return self.path / ROUNDS / f"{number:03d}"

    def read_round(self, number: int) -> dict[str, Any] | None:
        return self._read(f"{ROUNDS}/{number:03d}/round.json")

    def write_round(self, content: dict[str, Any]) -> None:
        write_json(self.round_path(content["round"]) / "round.json", content)

    def entries(self, upto: int) -> list[dict[str, Any]]:
        """All data of the rounds before `upto`."""
        plans = [self.read_round(number) or {} for number in range(upto)]
        return [entry for plan in plans for entry in plan.get("data", [])]

    def finish_round(self, entry: dict[str, Any]) -> None:
        self.rounds.append(entry)
        self.save("running")

    def save(self, status: str) -> None:
        self.document["status"] = status
        write_json(self.path / IMPROVE, self.document)
        self._link()

    def _link(self) -> None:
        if self.promoted is None:
            return
        link = self.path / f".{PROMOTED}"
        link.unlink(missing_ok=True)
        link.symlink_to(self.promoted["checkpoint"])
        os.replace(link, self.path / PROMOTED)
