"""Where a policy acts: episodes for a round to learn from, and trials of what it has learned.

Simulators and the memory of the acting policy are kept from round to round.
"""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pac import policy
from pac.collection import CollectionFolder, CollectionSettings, collect, folder_name
from pac.evaluation.plan import Actor
from pac.evaluation.records import EpisodeRecord, Journal, record
from pac.evaluation.report import EvaluationReport, EvaluationRequest
from pac.evaluation.runner import episode_key as key
from pac.improve import data
from pac.improve.folder import ImproveFolder
from pac.improve.messages import names, plural, say
from pac.improve.settings import SEEDS, Recipe
from pac.policy import Policy
from pac.rollout import PersistentWorkers, make_jobs, rollout


class Acting:
    """Acts in all rounds, with weights loaded into the same memory."""

    def __init__(
        self, recipe: Recipe, folder: ImproveFolder, console: Console, crew: PersistentWorkers, device: torch.device
    ) -> None:
        self.recipe, self.folder, self.console, self.device = recipe, folder, console, device
        self.improve, self.evaluation = recipe.improve, recipe.plain().evaluation
        self.policy: Policy | None = None
        self.episode: dict[str, Any] = {
            "max_steps": self.improve.max_steps,
            "stop_at_success": self.improve.stop_at_success,
        }
        self.workers: dict[str, Any] = {name: getattr(self.improve, name) for name in ("workers", "envs_per_worker")}
        self.workers |= {"ray": self.improve.ray, "crew": crew}

    def collect(self, plan: dict[str, Any]) -> list[dict[str, Any]]:
        """The episodes of a round by its collector, the promoted checkpoint or a behaviour, as entries of its data."""
        number, collector, settings = plan["round"], plan["collector"], self.improve
        episodes, actor = settings.episodes, collector
        cameras = tuple(self.recipe.table["mixture"].get("defaults", {}).get("cameras") or ())
        if collector == plan["start"]:
            actor = self._load(collector, settings.sampling)
            cameras = actor.cameras
        else:
            episodes = settings.first_episodes or episodes
        text = f"collects {plural(episodes, 'episode')} each of {names(settings.tasks)} with {collector}"
        say(self.console, number, text)
        same: dict[str, Any] = {"behaviours": (collector,), "weights": (1.0,), "cameras": cameras, **self.episode}
        same["seed"] = (1 + settings.seed) * SEEDS + number
        place = self.folder.round_path(number) / "data"
        folders = [
            CollectionFolder(place / folder_name(task), CollectionSettings(task=task, **same))
            for task in settings.tasks
        ]
        collect(folders, actor, episodes, console=self.console, **self.workers)
        made = []
        for folder in folders:
            entry = {"path": str(folder.path.relative_to(self.folder.path)), "task": folder.settings.task}
            made.append(entry | {"made_by": collector} | data.stamp(folder.path))
        return made

    def play(self, checkpoint: str, label: str, file: Path) -> list[EpisodeRecord]:
        """Trials of a checkpoint, as `pac evaluate --json` keeps them; those in the file are not made again."""
        tasks, sampling = self.improve.all_tasks, self.evaluation.sampling
        text = str(self.folder.place(checkpoint))
        actor = Actor(label=label, checkpoint=text, sampling=sampling, best_of=1)
        request = EvaluationRequest(
            actor=(f"{label}={checkpoint}",),
            tasks=tasks,
            trials=self.improve.trials,
            seed=self.evaluation.seed,
            sampling=(sampling,),
            max_steps=self.improve.max_steps,
            stop_at_success=self.improve.stop_at_success,
        )
        report = EvaluationReport(request, [actor], tasks)
        report.settings["actors"][label]["checkpoint"] = checkpoint  # folders may move
        jobs = make_jobs(tasks, request.trials, seed=request.seed)
        with Journal(file, report.settings) as journal:
            todo = [job for job in jobs if key(label, job) not in journal.records]
            if todo:
                acting = self._load(checkpoint, sampling)
                for trial in rollout(acting, todo, cameras=acting.cameras, **self.episode, **self.workers):
                    journal.append(record(trial, label))
            records = [journal.records[key(label, job)] for job in jobs]
            journal.finish(report.build(records).document)
        return records

    def _load(self, checkpoint: str, sampling: str) -> Policy:
        """A checkpoint's policy, in the memory of the one before it if it is of the same shape."""
        place = self.folder.place(checkpoint)
        if self.policy is None or not self.policy.reload_weights(place, checkpoint):
            self.policy = policy.load(place, device=str(self.device), name=checkpoint)
        self.policy.sampling = sampling  # type: ignore[assignment]
        return self.policy
