"""The loop. Every phase of a round can be begun again: what is on disk decides what is left to do.

Everything happens in one process: simulators, the model, the captured update and the acting policy are kept from round
to round.
"""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pac.envs import spec as task_spec
from pac.evaluation import experts as expert_table
from pac.evaluation import summarise
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.records import read_evaluation as read
from pac.files import finite
from pac.improve import data, gate
from pac.improve.acting import Acting
from pac.improve.folder import INBOX, START, ImproveFolder
from pac.improve.messages import names, plural, say, say_result
from pac.improve.settings import MOST_ROUNDS, Recipe
from pac.improve.stopping import StoppedError
from pac.model.pretrained import load_config
from pac.policy import PolicyMetadata
from pac.recipe import RunConfig
from pac.rollout import PersistentWorkers
from pac.training.distributed import ProcessGroup
from pac.training.run_dir import CONFIG, RunDirectory
from pac.training.setup import choose_device, collect_data
from pac.training.trainer import Trainer


class Loop:
    """An improvement in its folder."""

    def __init__(self, recipe: Recipe, folder: ImproveFolder, console: Console, crew: PersistentWorkers) -> None:
        self.recipe, self.folder, self.console = recipe, folder, console
        self.improve, self.plain = recipe.improve, recipe.plain()
        self.processes = ProcessGroup(device=choose_device(self.plain.machine.device))
        whole = self.improve.max_steps is None and not self.improve.stop_at_success
        table = expert_table.load() if whole else {}
        self.experts = {task: table[task].mean for task in self.improve.all_tasks if task in table}
        self.run: Trainer | None = None  # of the round before: the next takes over its model and captured update
        self.acting = Acting(recipe, folder, console, crew, self.processes.device)

    def go(self) -> str:
        """Rounds until all is learned, the budget is spent, or there is no data to go on with."""
        if self.plain.collect is not None:
            collect_data(self.plain.collect, self.recipe.collected, self.console)
        self.folder.save("running")
        self._try_start()
        while (status := self._status()) == "running":
            if not self._round(len(self.folder.rounds)):
                status = "waiting"
                break
        self.folder.save(status)
        return status

    def _status(self) -> str:
        best = self._promoted_records()
        if best and gate.mastered(best, self.improve.tasks, self.experts, self.improve.mastery):
            return "mastered"
        return "budget" if len(self.folder.rounds) >= self.improve.rounds else "running"

    def _round(self, number: int) -> bool:
        """One round; False if there is nothing new to train on."""
        plan = self.folder.read_round(number) or self._plan(number)
        if "data" not in plan and not self._gather(plan):
            return False
        if "checkpoint" not in plan:
            self._train(plan)
        records, summary = self._try_round(plan)
        verdict = self._judge(records)
        entry = {
            "round": number,
            "checkpoint": plan["checkpoint"],
            "start": plan["start"] or "nothing",
            "episodes": dict.fromkeys(self.improve.tasks, 0) | _count(plan["data"]),
            "steps": plan["steps"] + sum(r["steps"] for r in self.folder.rounds[-1:]),
            "promoted": verdict.promoted,
            "reason": verdict.reason,
            "evaluation": str(self._evaluation_file(number).relative_to(self.folder.path)),
            "summary": summary,
            "seconds": plan["seconds"],
        }
        self.folder.finish_round(entry)
        say_result(self.console, self.folder.rounds, self.improve.rounds)
        return True

    # ------------------------------------------------------------------------------------------------------ planning

    @property
    def _start(self) -> str | None:
        """What the next round goes on from: a checkpoint of ours, relative to the folder, or the one that was given."""
        promoted = self.folder.promoted
        return self.plain.start if promoted is None else promoted["checkpoint"]

    def _plan(self, number: int) -> dict[str, Any]:
        start = self._start
        collector = None
        if self.improve.collect == "policy":
            knows = start is not None and self._knows(
                PolicyMetadata.from_json(load_config(self.folder.place(start)), start)
            )
            collector = start if knows else self.improve.first
            if collector is None and (start is not None or not self.recipe.has_data):
                raise ValueError(
                    f"{start}: expected a checkpoint that knows the tasks {', '.join(self.improve.tasks)}, found none. "
                    'Set improve.first to a behaviour that collects the first episodes, such as "random".'
                )
        plan: dict[str, Any] = {"round": number, "start": start, "collector": collector, "seconds": {}}
        self.folder.write_round(plan)
        return plan

    def _knows(self, interface: PolicyMetadata) -> bool:
        try:
            self._check_known(interface)
        except ValueError:
            return False
        return True

    def _check_known(self, interface: PolicyMetadata) -> None:
        """Raise unless a policy with this training could act in every task."""
        for task in self.improve.all_tasks:
            interface.robot(task_spec(task, cameras=tuple(interface.cameras), max_steps=self.improve.max_steps))

    # ---------------------------------------------------------------------------------------------------- collecting

    def _gather(self, plan: dict[str, Any]) -> bool:
        """New data: what the policy collects, and what is in the inbox; False if there must be some and is none."""
        number = plan["round"]
        with self._phase(plan, "collect"):
            before = self.folder.entries(number)
            data.check_unchanged(self.folder.path, before)
            handed_in = data.read_inbox(self.folder.path, INBOX, {entry["path"] for entry in before})
            if handed_in:
                names = ", ".join(entry["path"] for entry in handed_in)
                say(
                    self.console,
                    number,
                    f"takes {plural(sum(e['episodes'] for e in handed_in), 'episode')} from {names}",
                )
            if self.improve.collect == "none" and not handed_in and (number > 0 or not self.recipe.has_data):
                say(
                    self.console,
                    number,
                    f"needs data: {self.folder.path / INBOX} holds nothing new. Put datasets there, then go on with "
                    "--resume.",
                )
                return False
            made = self.acting.collect(plan) if plan["collector"] is not None else []
        plan["data"] = made + handed_in
        self.folder.write_round(plan)
        return True

    # ------------------------------------------------------------------------------------------------------ training

    def _train(self, plan: dict[str, Any]) -> None:
        number = plan["round"]
        with self._phase(plan, "train"):
            config = self._config(plan)
            directory = RunDirectory(self.folder.round_path(number) / "train")
            begun = directory.is_run()
            directory.open(resume=begun, overwrite=False)
            self.run = run = Trainer(config, directory, self.processes, reuse=self.run)
            self._check_known(run.interface)
            for note in data.check_values(run) if config.objective.critic != "none" else []:
                self.console.print(f"[bold red]{escape(note)}")
            if self.folder.promoted is not None:
                run.continue_from(self.folder.place(plan["start"]))
            first = run.state.step
            if begun:
                run.resume()
            directory.write_json(CONFIG, run.describe())
            windows = sum(source.num_windows for source in run.sampler.sources)
            start = plan["start"] or "a fresh model"
            say(self.console, number, f"trains {run.steps - first:,} steps on {windows:,} windows, from {start}")
            run.train()
        if run.interrupted is not None:
            raise StoppedError(run.interrupted)
        checkpoint = directory.checkpoints_path / f"{run.steps:06d}"
        plan |= {"checkpoint": str(checkpoint.relative_to(self.folder.path)), "steps": run.steps - first}
        self.folder.write_round(plan)

    def _config(self, plan: dict[str, Any]) -> RunConfig:
        """The ordinary training run of a round. Its rate stays at the peak: nobody knows how many rounds follow."""
        number, start, plain = plan["round"], plan["start"], self.plain
        paths = [entry["path"] for entry in [*self.folder.entries(number), *plan["data"]]]
        place = None if start is None else self.folder.place(start)
        known = []
        if place is not None and self.improve.statistics == "first":
            known = list(PolicyMetadata.from_json(load_config(place), place).robots)
        groups = data.collected_groups(self.recipe, self.folder.path, paths)
        config = self.recipe.config(
            groups,
            seed=plain.seed * MOST_ROUNDS + number,
            start=None if place is None else str(place),
            length=self.improve.steps if number else self.improve.first_steps or self.improve.steps,
            optimiser=dataclasses.replace(plain.optimiser, decay="constant"),
            checkpoint=dataclasses.replace(plain.checkpoint, keep_last=1, keep_every=None),
            evaluation=dataclasses.replace(plain.evaluation, tasks=()),
        )
        mixture = data.share_discounts(data.share_statistics(config.mixture, known))
        config = dataclasses.replace(config, mixture=mixture)
        if "reward_scale" not in plan:
            before = self.folder.read_round(0) if number else None
            model = None if place is None else load_config(place)["model"]
            value_max = model.value_max if model is not None else float(plain.model_fields.get("value_max", 1.0))
            scale = before["reward_scale"] if before else data.choose_reward_scale(config, self.recipe, value_max)
            plan["reward_scale"] = scale
            self.folder.write_round(plan)
        objective = dataclasses.replace(config.objective, reward_scale=plan["reward_scale"])
        return dataclasses.replace(config, objective=objective)

    # ---------------------------------------------------------------------------------------------------- evaluating

    def _try_start(self) -> None:
        """Trials of the checkpoint given with --start, which round 0 is compared with."""
        start = self.plain.start
        if start is None or self.folder.rounds:
            return
        if not self._knows(PolicyMetadata.from_json(load_config(self.folder.place(start)), start)):
            self.console.print(f"{escape(start)} does not know all tasks: round 0 has nothing to be compared with.")
            return
        self.console.print(f"start: tries {escape(start)}.")
        self.acting.play(start, "start", self.folder.path / START / "evaluation.json")

    def _try_round(self, plan: dict[str, Any]) -> tuple[list[EpisodeRecord], dict[str, Any]]:
        number = plan["round"]
        with self._phase(plan, "evaluate"):
            say(
                self.console,
                number,
                f"tries {plural(self.improve.trials, 'trial')} each of {names(self.improve.all_tasks)}",
            )
            records = self.acting.play(plan["checkpoint"], f"round {number}", self._evaluation_file(number))
        self.folder.write_round(plan)
        summary = {}
        for task, row in summarise(records).tasks.items():
            found = row.returns if row.success is None else row.success
            unit = "return" if row.success is None else "success"
            summary[task] = finite({"mean": found.mean, "low": found.low, "high": found.high}) | {"unit": unit}
        return records, summary

    def _evaluation_file(self, number: int) -> Path:
        return self.folder.round_path(number) / "evaluation.json"

    def _promoted_records(self) -> list[EpisodeRecord]:
        """Trials of what the next round must keep up with."""
        promoted = self.folder.promoted
        file = self.folder.path / (f"{START}/evaluation.json" if promoted is None else promoted["evaluation"])
        return read(file)[1] if file.is_file() else []

    def _judge(self, records: list[EpisodeRecord]) -> gate.Verdict:
        best = self._promoted_records()
        if not best:
            return gate.Verdict(promoted=True, reason="the first: nothing to be compared with")
        scopes = {"targets": self.improve.tasks, "others": self.improve.others}
        return gate.judge(records, best, scopes, experts=self.experts, tolerance=self.improve.tolerance)

    # ------------------------------------------------------------------------------------------------------- telling

    @contextmanager
    def _phase(self, plan: dict[str, Any], name: str) -> Iterator[None]:
        """Adds the time to the plan; what a killed process spent is not known."""
        began = time.perf_counter()
        try:
            yield
        finally:
            plan["seconds"][name] = plan["seconds"].get(name, 0.0) + time.perf_counter() - began


def _count(entries: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in entries:
        name = entry.get("task", entry["path"])
        counts[name] = counts.get(name, 0) + entry["episodes"]
    return counts
