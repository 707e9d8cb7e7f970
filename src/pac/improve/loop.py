"""The loop. Every phase of a round can be begun again: what is on disk decides what is left to do.

Everything happens in one process: simulators, the model, the captured update and the acting policy are kept from round
to round.
"""

import argparse
import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac import policy
from pac.collect import Folder, Settings, collect, folder_name
from pac.distributed import World
from pac.envs import spec as task_spec
from pac.evaluate import experts as expert_table
from pac.evaluate import summarise
from pac.evaluate.plan import Contestant
from pac.evaluate.play import key
from pac.evaluate.records import Journal, Record, finite, read, record
from pac.evaluate.report import Report
from pac.improve import data, gate
from pac.improve.record import INBOX, START, ImproveFolder
from pac.improve.settings import MOST_ROUNDS, SEEDS, Recipe
from pac.ingredients import choose_device, collect_data
from pac.model.pretrained import load_config
from pac.policy import Interface, Policy
from pac.recipe import RunConfig
from pac.rollout import Crew, jobs_of, rollout
from pac.run import CONFIG, RunDirectory
from pac.train import Run


class StoppedError(Exception):
    """A signal came; what is done so far is on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Loop:
    """An improvement in its folder."""

    def __init__(self, recipe: Recipe, folder: ImproveFolder, console: Console, crew: Crew) -> None:
        self.recipe, self.folder, self.console, self.crew = recipe, folder, console, crew
        self.improve, self.plain = recipe.improve, recipe.plain()
        self.world = World(device=choose_device(self.plain.machine.device))
        whole = self.improve.max_steps is None and not self.improve.stop_at_success
        table = expert_table.load() if whole else {}
        self.experts = {task: table[task].mean for task in self.improve.all_tasks if task in table}
        self.run: Run | None = None  # of the round before: the next takes over its model and captured update
        self.actor: Policy | None = None  # acts in all rounds, with weights loaded into the same memory

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
        self._say_round(entry)
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
            knows = start is not None and self._knows(Interface.from_json(load_config(self._place(start)), start))
            collector = start if knows else self.improve.first
            if collector is None and (start is not None or not self.recipe.has_data):
                raise ValueError(
                    f"{start}: expected a checkpoint that knows the tasks {', '.join(self.improve.tasks)}, found none. "
                    'Set improve.first to a behaviour that collects the first episodes, such as "random".'
                )
        plan: dict[str, Any] = {"round": number, "start": start, "collector": collector, "seconds": {}}
        self.folder.write_round(plan)
        return plan

    def _place(self, checkpoint: str) -> Path:
        """Of a checkpoint: ours are named relative to the folder, the one that was given from the root."""
        return self.folder.path / checkpoint

    def _knows(self, interface: Interface) -> bool:
        try:
            self._check_known(interface)
        except ValueError:
            return False
        return True

    def _check_known(self, interface: Interface) -> None:
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
                self._say(number, f"takes {_plural(sum(e['episodes'] for e in handed_in), 'episode')} from {names}")
            if self.improve.collect == "none" and not handed_in and (number > 0 or not self.recipe.has_data):
                self._say(
                    number,
                    f"needs data: {self.folder.path / INBOX} holds nothing new. Put datasets there, then go on with "
                    "--resume.",
                )
                return False
            made = self._collect(plan) if plan["collector"] is not None else []
        plan["data"] = made + handed_in
        self.folder.write_round(plan)
        return True

    def _collect(self, plan: dict[str, Any]) -> list[dict[str, Any]]:
        number, collector, settings = plan["round"], plan["collector"], self.improve
        episodes, actor = settings.episodes, collector
        cameras = tuple(self.recipe.table["mixture"].get("defaults", {}).get("cameras") or ())
        if collector == plan["start"]:
            actor = self._policy(collector, settings.sampling)
            cameras = actor.cameras
        else:
            episodes = settings.first_episodes or episodes
        self._say(number, f"collects {_plural(episodes, 'episode')} each of {_names(settings.tasks)} with {collector}")
        place = self.folder.round_path(number) / "data"
        folders = [
            Folder(
                place / folder_name(task),
                Settings(
                    task=task,
                    behaviours=(collector,),
                    weights=(1.0,),
                    seed=(1 + settings.seed) * SEEDS + number,
                    cameras=cameras,
                    max_steps=settings.max_steps,
                    stop_at_success=settings.stop_at_success,
                ),
            )
            for task in settings.tasks
        ]
        collect(folders, actor, episodes, console=self.console, **self._workers())
        made = []
        for folder in folders:
            entry = {"path": str(folder.path.relative_to(self.folder.path)), "task": folder.settings.task}
            made.append(entry | {"made_by": collector} | data.stamp(folder.path))
        return made

    def _workers(self) -> dict[str, Any]:
        settings = self.improve
        choices = {"workers": settings.workers, "envs_per_worker": settings.envs_per_worker, "ray": settings.ray}
        return choices | {"crew": self.crew}

    def _policy(self, checkpoint: str, sampling: str) -> Policy:
        """A checkpoint's policy, in the memory of the one before it if it is of the same shape."""
        place = self._place(checkpoint)
        if self.actor is None or not self.actor.become(place, checkpoint):
            self.actor = policy.load(place, device=str(self.world.device), name=checkpoint)
        self.actor.sampling = sampling  # type: ignore[assignment]
        return self.actor

    # ------------------------------------------------------------------------------------------------------ training

    def _train(self, plan: dict[str, Any]) -> None:
        number = plan["round"]
        with self._phase(plan, "train"):
            config = self._config(plan)
            directory = RunDirectory(self.folder.round_path(number) / "train")
            begun = directory.is_run()
            directory.open(resume=begun, overwrite=False)
            self.run = run = Run(config, directory, self.world, reuse=self.run)
            self._check_known(run.interface)
            for note in data.check_values(run) if config.objective.critic != "none" else []:
                self.console.print(f"[bold red]{escape(note)}")
            if self.folder.promoted is not None:
                run.continue_from(self._place(plan["start"]))
            first = run.state.step
            if begun:
                run.resume()
            directory.write_json(CONFIG, run.describe())
            windows = sum(source.num_windows for source in run.sampler.sources)
            self._say(number, f"trains {run.steps - first:,} steps on {windows:,} windows, from {plan['start']}")
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
        place = None if start is None else self._place(start)
        known = []
        if place is not None and self.improve.statistics == "first":
            known = list(Interface.from_json(load_config(place), place).robots)
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
        config = dataclasses.replace(config, mixture=data.share_statistics(config.mixture, known))
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
        if not self._knows(Interface.from_json(load_config(self._place(start)), start)):
            self.console.print(f"{escape(start)} does not know all tasks: round 0 has nothing to be compared with.")
            return
        self.console.print(f"start: tries {escape(start)}.")
        self._try(start, "start", self.folder.path / START / "evaluation.json")

    def _try_round(self, plan: dict[str, Any]) -> tuple[list[Record], dict[str, Any]]:
        number = plan["round"]
        with self._phase(plan, "evaluate"):
            self._say(number, f"tries {_plural(self.improve.trials, 'trial')} each of {_names(self.improve.all_tasks)}")
            records = self._try(plan["checkpoint"], f"round {number}", self._evaluation_file(number))
        self.folder.write_round(plan)
        summary = {}
        for task, row in summarise(records).tasks.items():
            found = row.returns if row.success is None else row.success
            unit = "return" if row.success is None else "success"
            summary[task] = finite({"mean": found.mean, "low": found.low, "high": found.high}) | {"unit": unit}
        return records, summary

    def _evaluation_file(self, number: int) -> Path:
        return self.folder.round_path(number) / "evaluation.json"

    def _try(self, checkpoint: str, label: str, file: Path) -> list[Record]:
        """Trials of a checkpoint, as `pac evaluate --json` keeps them; those in the file are not made again."""
        settings, choices = self.improve, self.plain.evaluation
        place = str(self._place(checkpoint))
        actor = Contestant(label=label, text=place, is_checkpoint=True, sampling=choices.sampling, best_of=1)
        args = argparse.Namespace(
            actor=[f"{label}={checkpoint}"],
            tasks=list(settings.all_tasks),
            trials=settings.trials,
            seed=choices.seed,
            sampling=[choices.sampling],
            best_of=[1],
            cameras=[],
            max_steps=settings.max_steps,
            stop_at_success=settings.stop_at_success,
            bootstrap=False,
            experts=expert_table.TABLE,
        )
        report = Report(args, [actor], args.tasks)
        report.settings["actors"][label]["checkpoint"] = checkpoint  # folders may move
        jobs = jobs_of(args.tasks, args.trials, seed=args.seed)
        with Journal(file, report.settings) as journal:
            todo = [job for job in jobs if key(label, job) not in journal.records]
            if todo:
                acting = self._policy(checkpoint, choices.sampling)
                for trial in rollout(
                    acting,
                    todo,
                    cameras=acting.cameras,
                    max_steps=settings.max_steps,
                    stop_at_success=settings.stop_at_success,
                    **self._workers(),
                ):
                    journal.append(record(trial, label))
            records = [journal.records[key(label, job)] for job in jobs]
            journal.finish(report.build(records).document)
        return records

    def _promoted_records(self) -> list[Record]:
        """Trials of what the next round must keep up with."""
        promoted = self.folder.promoted
        file = self.folder.path / (f"{START}/evaluation.json" if promoted is None else promoted["evaluation"])
        return read(file)[1] if file.is_file() else []

    def _judge(self, records: list[Record]) -> gate.Verdict:
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

    def _say(self, number: int, text: str) -> None:
        self.console.print(f"round {number}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _say_round(self, entry: dict[str, Any]) -> None:
        rounds, spent = self.folder.rounds, entry["seconds"]
        each = sum(sum(r["seconds"].values()) for r in rounds) / len(rounds)
        left = (self.improve.rounds - len(rounds)) * each
        means = ", ".join(f"{task} {_shown(row)}" for task, row in entry["summary"].items())
        times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())
        verdict = "promoted" if entry["promoted"] else "REFUSED, back to the promoted checkpoint"
        self._say(entry["round"], f"{means}. {verdict} ({entry['reason']}). {times}; at most {data.minutes(left)} left")

    def table(self) -> Table:
        """One row a round."""
        table = Table(box=SIMPLE, pad_edge=False)
        for name in ("round", "from", "new episodes", "updates", *self.improve.all_tasks, "promoted", "seconds"):
            table.add_column(escape(name), justify="left" if name in ("from", "promoted") else "right")
        for entry in self.folder.rounds:
            table.add_row(
                str(entry["round"]),
                escape(str(entry["start"]).removesuffix("/").replace("/train/checkpoints/", ":")),
                str(sum(entry["episodes"].values())),
                f"{entry['steps']:,}",
                *(_shown(entry["summary"][task]) for task in self.improve.all_tasks),
                "yes" if entry["promoted"] else "no",
                f"{sum(entry['seconds'].values()):.0f}",
            )
        return table


@contextmanager
def signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise `StoppedError` wherever we are, but for training, which ends its update first."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    with suppress(ValueError):  # not the main thread: whoever started us decides
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(recipe: Recipe) -> dict[str, Any]:
    """What config.json holds: enough to tell one improvement from another."""
    table = {"improve": dataclasses.asdict(recipe.improve), "recipe": recipe.plain().as_json()}
    found: dict[str, Any] = json.loads(json.dumps(table, default=str))
    return found


def _count(entries: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in entries:
        name = entry.get("task", entry["path"])
        counts[name] = counts.get(name, 0) + entry["episodes"]
    return counts


def _shown(row: dict[str, Any]) -> str:
    scale, digits = (100, 1) if row["unit"] == "success" else (1, 0)
    ends = ["?" if row[end] is None else f"{scale * row[end]:.{digits}f}" for end in ("low", "high")]
    return f"{scale * row['mean']:.{digits}f}{'%' if scale == 100 else ''} [{ends[0]}, {ends[1]}]"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _names(tasks: tuple[str, ...]) -> str:
    return ", ".join(tasks)
