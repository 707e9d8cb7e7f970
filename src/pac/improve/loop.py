"""The rounds: collect, train, evaluate, promote. Each phase can be repeated: the folder says what is left to do.

Everything runs in one process. Simulators, the model, its captured update and the acting policy are kept from round to
round.
"""

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape

from pac import policy
from pac.collection import CollectionFolder, CollectionSettings, collect, collect_data, folder_name
from pac.envs import spec as task_spec
from pac.evaluation import Actor, EpisodeRecord, evaluate, read_evaluation, summarise
from pac.evaluation import experts as expert_table
from pac.files import finite
from pac.improve import data, gate
from pac.improve.folder import START, CollectedData, FinishedRound, ImproveFolder, Round, TaskResult
from pac.improve.settings import SEEDS, Recipe
from pac.model.pretrained import load_config
from pac.policy import Policy, PolicyMetadata
from pac.rollout import PersistentWorkers
from pac.training.distributed import ProcessGroup
from pac.training.run_dir import CONFIG, RunDirectory
from pac.training.setup import choose_device
from pac.training.trainer import Trainer
from pac.types import TaskSpec


class StoppedError(Exception):
    """A received signal. Everything that is finished is on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise `StoppedError` at any place. Training handles them itself, after its update."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    with suppress(ValueError):  # outside the main thread the caller handles signals
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Loop:
    """An improvement in its folder."""

    def __init__(self, recipe: Recipe, folder: ImproveFolder, console: Console, workers: PersistentWorkers) -> None:
        self.recipe, self.folder, self.console = recipe, folder, console
        self.improve, self.plain = recipe.improve, recipe.plain()
        self.processes = ProcessGroup(device=choose_device(self.plain.machine.device))
        whole = self.improve.max_steps is None and not self.improve.stop_at_success
        experts = expert_table.load() if whole else {}
        self.experts = {task: experts[task].mean for task in self.improve.all_tasks if task in experts}
        self.trainer: Trainer | None = None  # of the last round: the next takes over its model and captured update
        self.policy: Policy | None = None  # the next checkpoint is loaded into its memory
        self.limits: dict[str, Any] = {
            "max_steps": self.improve.max_steps,
            "stop_at_success": self.improve.stop_at_success,
        }
        self.machine: dict[str, Any] = {
            name: getattr(self.improve, name) for name in ("workers", "envs_per_worker", "ray")
        }
        self.workers = workers

    def run(self) -> str:
        """Run rounds until all targets are mastered, all rounds are done, or new data is missing. Return which."""
        if self.plain.collect is not None:
            collect_data(self.plain.collect, self.recipe.collected, self.console)
        self.folder.save("running")
        self._evaluate_start()
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
        """Run one round, or what is left of it. Return False if there is no new data to train on."""
        entry = self.folder.read_round(number) or self._plan(number)
        if entry.data is None:
            found = self._gather(entry)
            if found is None:
                return False
            entry = found
        if entry.checkpoint is None:
            entry = self._train(entry)
        entry, records = self._evaluate(entry)
        self.folder.rounds.append(self._finished(entry, records))
        self.folder.save("running")
        self._say_result()
        return True

    def _finished(self, entry: Round, records: Sequence[EpisodeRecord]) -> FinishedRound:
        verdict = self._judge(records)
        episodes = dict.fromkeys(self.improve.tasks, 0)
        for part in entry.data or ():
            episodes[part.name] = episodes.get(part.name, 0) + part.episodes
        return FinishedRound(
            round=entry.round,
            checkpoint=str(entry.checkpoint),
            start=entry.start or "nothing",
            episodes=episodes,
            steps=(entry.steps or 0) + (self.folder.rounds[-1].steps if self.folder.rounds else 0),
            promoted=verdict.promoted,
            reason=verdict.reason,
            evaluation=self.folder.relative(self._evaluation_file(entry.round)),
            summary=task_results(records),
            seconds=entry.seconds,
        )

    # ------------------------------------------------------------------------------------------------------ planning

    def _plan(self, number: int) -> Round:
        """Choose the checkpoint that the round starts from, and the actor that collects for it."""
        promoted = self.folder.promoted
        start = self.plain.start if promoted is None else promoted.checkpoint
        collector = None
        if self.improve.collect == "policy":
            collector = start if start is not None and self._knows_tasks(start) else self.improve.first
            if collector is None and (start is not None or not self.recipe.has_data):
                raise ValueError(
                    f"{start}: expected a checkpoint that knows the tasks {', '.join(self.improve.tasks)}, found none. "
                    'Set improve.first to a behaviour that collects the first episodes, such as "random".'
                )
        entry = Round(round=number, start=start, collector=collector)
        self.folder.write_round(entry)
        return entry

    def _knows_tasks(self, checkpoint: str) -> bool:
        try:
            self._check_tasks(PolicyMetadata.from_json(load_config(self.folder.place(checkpoint)), checkpoint))
        except ValueError:
            return False
        return True

    def _check_tasks(self, metadata: PolicyMetadata) -> None:
        """Raise unless a policy with this training can act in every task, and every task has its cameras."""
        for task in self.improve.all_tasks:
            task_spec(task, cameras=metadata.cameras_at(self._spec(task)), max_steps=self.improve.max_steps)

    def _spec(self, task: str) -> TaskSpec:
        return task_spec(task, max_steps=self.improve.max_steps)

    # ---------------------------------------------------------------------------------------------------- collecting

    def _gather(self, entry: Round) -> Round | None:
        """Take the inbox's new datasets and collect episodes. Return None if new data is needed and there is none."""
        number, start_time = entry.round, time.perf_counter()
        earlier = self.folder.earlier_data(number)
        self.folder.check_unchanged(earlier)
        handed_in = self.folder.read_inbox({part.path for part in earlier})
        if handed_in:
            count = sum(part.episodes for part in handed_in)
            self._say(number, f"takes {count:,} episodes from {', '.join(part.path for part in handed_in)}")
        elif self.improve.collect == "none" and (number > 0 or not self.recipe.has_data):
            inbox = self.folder.inbox
            self._say(number, f"needs data: {inbox} holds nothing new. Put datasets there, then use --resume.")
            return None
        collected = self._collect(entry) if entry.collector is not None else []
        entry = dataclasses.replace(entry, data=(*collected, *handed_in))
        return self._keep(entry, "collect", start_time)

    def _collect(self, entry: Round) -> list[CollectedData]:
        """Collect episodes of the targets with the promoted policy, or with the first behaviour."""
        collector, improve = str(entry.collector), self.improve
        actor: str | Policy = collector
        episodes = improve.first_episodes or improve.episodes
        cameras = dict.fromkeys(improve.tasks, self.recipe.cameras)
        if collector == entry.start:
            actor = self._load(collector, improve.sampling)
            episodes = improve.episodes
            cameras = {task: actor.metadata.cameras_at(self._spec(task)) for task in improve.tasks}
        self._say(entry.round, f"collects {episodes:,} episodes each of {', '.join(improve.tasks)} with {collector}")
        same: dict[str, Any] = {"behaviours": (collector,), "weights": (1.0,), **self.limits}
        same["seed"] = (1 + improve.seed) * SEEDS + entry.round
        place = self.folder.round_path(entry.round) / "data"
        folders = [
            CollectionFolder(place / folder_name(task), CollectionSettings(task=task, cameras=cameras[task], **same))
            for task in improve.tasks
        ]
        collect(folders, actor, episodes, console=self.console, persistent_workers=self.workers, **self.machine)
        return [self.folder.describe_data(x.path, made_by=collector, task=x.settings.task) for x in folders]

    def _load(self, checkpoint: str, sampling: str) -> Policy:
        """Return a checkpoint's policy. It reuses the memory of the policy before if both have the same shape."""
        place = self.folder.place(checkpoint)
        if self.policy is None or not self.policy.reload_weights(place, checkpoint):
            self.policy = policy.load(place, device=str(self.processes.device), name=checkpoint)
        self.policy.sampling = sampling  # type: ignore[assignment]
        return self.policy

    # ------------------------------------------------------------------------------------------------------ training

    def _train(self, entry: Round) -> Round:
        number, start_time = entry.round, time.perf_counter()
        config = data.round_config(self.recipe, self.folder, entry)
        entry = dataclasses.replace(entry, reward_scale=config.objective.reward_scale)
        self.folder.write_round(entry)
        directory = RunDirectory(self.folder.round_path(number) / "train")
        resume = directory.is_run()
        directory.open(resume=resume, overwrite=False)
        self.trainer = trainer = Trainer(config, directory, self.processes, reuse=self.trainer)
        self._check_tasks(trainer.metadata)
        for note in data.check_values(trainer) if config.objective.critic != "none" else []:
            self.console.print(f"[bold red]{escape(note)}")
        if entry.start is not None and self.folder.promoted is not None:
            trainer.continue_from(self.folder.place(entry.start))
        first = trainer.state.step
        if resume:
            trainer.resume()
        directory.write_json(CONFIG, trainer.describe())
        windows = sum(source.num_windows for source in trainer.sampler.sources)
        start = entry.start or "a fresh model"
        self._say(number, f"trains {trainer.steps - first:,} steps on {windows:,} windows, from {start}")
        trainer.train()
        if trainer.interrupted is not None:
            self._keep(entry, "train", start_time)
            raise StoppedError(trainer.interrupted)
        checkpoint = directory.checkpoints_path / f"{trainer.steps:06d}"
        entry = dataclasses.replace(entry, checkpoint=self.folder.relative(checkpoint), steps=trainer.steps - first)
        return self._keep(entry, "train", start_time)

    # ---------------------------------------------------------------------------------------------------- evaluating

    def _evaluate_start(self) -> None:
        """Evaluate the checkpoint given with --start, which round 0 is compared with."""
        start = self.plain.start
        if start is None or self.folder.rounds:
            return
        if not self._knows_tasks(start):
            self.console.print(f"{escape(start)} does not know all tasks: round 0 is compared with nothing.")
            return
        self.console.print(f"start: evaluates {escape(start)}.")
        self._evaluate_checkpoint(start, "start", self.folder.path / START / "evaluation.json")

    def _evaluate(self, entry: Round) -> tuple[Round, list[EpisodeRecord]]:
        number, start_time, checkpoint = entry.round, time.perf_counter(), str(entry.checkpoint)
        count = self.improve.evaluation_episodes
        self._say(number, f"evaluates {count:,} episodes each of {', '.join(self.improve.all_tasks)}")
        records = self._evaluate_checkpoint(checkpoint, f"round {number}", self._evaluation_file(number))
        return self._keep(entry, "evaluate", start_time), records

    def _evaluate_checkpoint(self, checkpoint: str, label: str, file: Path) -> list[EpisodeRecord]:
        """Return the evaluation episodes of a checkpoint. Those in `file` are not played again."""
        sampling, seed, improve = self.plain.evaluation.sampling, self.plain.evaluation.seed, self.improve
        actor = Actor(
            label=label,
            checkpoint=str(self.folder.place(checkpoint)),
            sampling=sampling,
            policy=lambda: self._load(checkpoint, sampling),
            about={"checkpoint": checkpoint},  # the folder may move
        )
        return evaluate(
            [actor],
            improve.all_tasks,
            improve.evaluation_episodes,
            seed=seed,
            persistent_workers=self.workers,
            journal=file,
            **self.limits,
            **self.machine,
        ).records

    def _evaluation_file(self, number: int) -> Path:
        return self.folder.round_path(number) / "evaluation.json"

    def _promoted_records(self) -> list[EpisodeRecord]:
        """Return the evaluation episodes that the next round is compared with."""
        promoted = self.folder.promoted
        file = self.folder.path / (f"{START}/evaluation.json" if promoted is None else promoted.evaluation)
        return read_evaluation(file)[1] if file.is_file() else []

    def _judge(self, records: Sequence[EpisodeRecord]) -> gate.Verdict:
        best = self._promoted_records()
        if not best:
            return gate.Verdict(promoted=True, reason="the first round: compared with nothing")
        groups = {"targets": self.improve.tasks, "others": self.improve.others}
        return gate.judge(records, best, groups, experts=self.experts, tolerance=self.improve.tolerance)

    # ----------------------------------------------------------------------------------------------------- reporting

    def _keep(self, entry: Round, phase: str, start_time: float) -> Round:
        """Write the round with the time that a phase took."""
        entry = entry.with_seconds(phase, time.perf_counter() - start_time)
        self.folder.write_round(entry)
        return entry

    def _say(self, number: int, text: str) -> None:
        self.console.print(f"round {number}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _say_result(self) -> None:
        """Print the last round's means, verdict and time, and how long the other rounds may take."""
        rounds = self.folder.rounds
        entry, mean = rounds[-1], sum(sum(one.seconds.values()) for one in rounds) / len(rounds)
        means = ", ".join(f"{task} {result}" for task, result in entry.summary.items())
        times = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in entry.seconds.items())
        verdict = "promoted" if entry.promoted else "REFUSED, back to the promoted checkpoint"
        left = (self.improve.rounds - len(rounds)) * mean
        left_text = f"{left:.0f} s" if left < 120 else f"{-(-left // 60):.0f} min"
        self._say(entry.round, f"{means}. {verdict} ({entry.reason}). {times}; at most {left_text} left")


def task_results(records: Sequence[EpisodeRecord]) -> dict[str, TaskResult]:
    """Return each task's success, or its return where the environment does not define success."""
    found = {}
    for task, row in summarise(records).tasks.items():
        estimate, unit = (row.returns, "return") if row.success is None else (row.success, "success")
        found[task] = TaskResult(mean=estimate.mean, low=finite(estimate.low), high=finite(estimate.high), unit=unit)
    return found
