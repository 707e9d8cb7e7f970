"""Training: from a recipe to a run directory with a policy and a critic.

`Trainer` builds everything from a `RunConfig` and checks it. `Trainer.train` is the loop: sample, update, copy the
target, log, evaluate, save. A batch and its noise follow from (seed, step), so a resume loads the state and continues.
"""

import copy
import dataclasses
import functools
import importlib.util
import json
import shutil
import signal
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pac.config import EvaluationConfig, interpolate, parse_duration
from pac.data import mixture as mixtures
from pac.data.gpu import prefetch
from pac.data.relabel import GoalImages, find_goal_images
from pac.model import PAC
from pac.model.config import ModelConfig
from pac.model.pac import count_parameters
from pac.model.pretrained import TRAIN_CONFIG, load_weights, write_pretrained
from pac.policy import Policy, PolicyMetadata
from pac.recipe import RunConfig
from pac.training import distributed, optim
from pac.training.distributed import ProcessGroup
from pac.training.logging import RunLogger, make_console
from pac.training.nonfinite import NonFiniteError, describe_nonfinite
from pac.training.run_dir import SUMMARY, RunDirectory, keep_rule, read_metrics
from pac.training.setup import choose_device, fit_model, make_sampler, mean_flops, open_data, size_name, versions
from pac.training.step import SCHEDULED, ScheduleValues, TrainState, TrainStep, compute_dtype
from pac.types import Batch, TaskSpec


@runtime_checkable
class Evaluator(Protocol):
    """Evaluation during training. `pac train` passes `pac.evaluation.in_training.TrainingEvaluator`."""

    def specs(self, config: EvaluationConfig, cameras_at: Callable[[TaskSpec], Sequence[str]]) -> Sequence[TaskSpec]:
        """Return the evaluation tasks. Raise if a simulator is missing."""

    def __call__(
        self,
        policy: Policy,
        config: EvaluationConfig,
        *,
        progress: Callable[[int, int], None],
        should_stop: Callable[[], bool],
    ) -> dict[str, float] | None:
        """Return metrics by name, or None if `should_stop` ended it."""


class Trainer:
    """A run that is ready to train: data, model, optimiser, and its directory."""

    def __init__(
        self,
        config: RunConfig,
        out: str | Path | RunDirectory,
        processes: ProcessGroup | None = None,
        *,
        evaluator: Evaluator | None = None,  # needed if the recipe has evaluation tasks
        model: ModelConfig | None = None,  # of the run that is resumed; None: the recipe and the data decide
        reuse: "Trainer | None" = None,  # an ended run, whose model, optimiser and captured update may be reused
    ) -> None:
        self.config, self.evaluator = config, evaluator
        self.processes = processes or ProcessGroup(device=choose_device(config.machine.device))
        self.console = make_console(quiet=not self.processes.is_main)
        self.directory = out if isinstance(out, RunDirectory) else RunDirectory(out)
        self.plan = mixtures.plan(config.mixture)
        opened = open_data(config, self.processes)
        self.model_config = model or fit_model(config, opened)
        self.sampler = make_sampler(config, self.processes, opened, self.model_config)
        self.objective = config.objective
        self.metadata = PolicyMetadata.of(self.sampler)
        self.size = size_name(self.model_config)
        self.update_flops = mean_flops(self.plan, self.model_config, self.objective.num_samples)
        self.steps = self._duration(config.length)
        warmup, keep_every = config.optimiser.warmup, config.checkpoint.keep_every
        self.warmup = optim.warmup_steps(self.steps) if warmup == "auto" else self._duration(warmup)
        self.target_period = optim.target_period(config.optimiser, self.steps)
        self.save_every = self._duration(config.checkpoint.every)
        self.keep_every = None if keep_every is None else self._duration(keep_every)
        self.keep = keep_rule(config.checkpoint.keep_last, self.keep_every)
        self.check()
        if reuse is not None and self._fits(reuse):
            self.state, self.update = self._take_over(reuse)
        else:
            self.state = self._make_state()
            self.update = TrainStep(self.state, config, self.processes)
        self.interrupted: int | None = None
        self.saved, self.evaluated = -1, -1  # steps of the last checkpoint and the last evaluation
        self.seconds_before, self.refused_before = 0.0, 0  # before a resume
        self.logs: RunLogger | None = None
        self._finish: Callable[[], None] = self.directory.wait  # waits for the checkpoint under way
        self._updated = torch.cuda.Event() if self.processes.device.type == "cuda" else None  # end of the last update

    # ------------------------------------------------------------------------------------------------------ building

    def _make_state(self) -> TrainState:
        model = self._make_model()
        target = copy.deepcopy(model).requires_grad_(False)
        dtype = compute_dtype(self.config.machine, self.processes.device)
        model, target = (distributed.shard(x, self.processes, dtype) for x in (model, target))
        return TrainState(model=model, target=target, optimizer=optim.make_optimizer(model, self.config.optimiser))

    def _make_model(self) -> PAC:
        torch.manual_seed(self.config.seed)
        model = PAC(self.model_config).to(self.processes.device)
        start = self.config.start
        if start is not None and (fresh := load_weights(model, start, new_heads=True)):
            self.console.print(f"{start} has no {' or '.join(fresh)} head: it starts afresh.")
        return model

    def _fits(self, other: "Trainer") -> bool:
        """Return whether the update of another run computes the same, apart from data and seed."""

        def settings(run: "Trainer") -> tuple[Any, ...]:
            config, mixture = run.config, run.config.mixture
            sizes = (run.model_config, mixture.batch_size, mixture.window, run.processes)
            return (*sizes, run.objective, config.machine, config.optimiser, config.proprio_noise)

        return self.processes.size == 1 and self.config.start is not None and settings(self) == settings(other)

    def _take_over(self, other: "Trainer") -> tuple[TrainState, TrainStep]:
        """Return the state and update of another run, reset in place. A captured update reads the same memory."""
        state, update = other.state, other.update
        optim.copy_weights(self._make_model(), state.model)
        optim.copy_weights(state.model, state.target)
        for tensor in optim.optimizer_tensors(state.model, state.optimizer).values():
            tensor.zero_()
        state.step = 0
        update.begin(self.config.seed)
        return state, update

    def check(self) -> None:
        """Raise an error that would otherwise come hours later."""
        machine = self.config.machine
        if machine.wandb is not None and importlib.util.find_spec("wandb") is None:
            raise ValueError("machine.wandb: expected the wandb package, found none. pip install wandb, or unset it.")
        if self.keep_every is not None and self.keep_every % self.save_every:
            raise ValueError(
                f"checkpoint.keep_every: expected a multiple of checkpoint.every, {self.save_every:,} steps, found "
                f"{self.keep_every:,}."
            )
        if machine.accumulate > (part := self.config.mixture.batch_size // self.processes.size):
            raise ValueError(
                f"machine.accumulate: expected at most {part}, the part of one process in mixture.batch_size "
                f"{self.config.mixture.batch_size}, found {machine.accumulate}."
            )
        if self.config.evaluation.tasks:
            self._check_evaluation()

    def _check_evaluation(self) -> None:
        """Raise if the policy cannot be evaluated on the recipe's tasks."""
        config, metadata, evaluator = self.config.evaluation, self.metadata, self.evaluator
        assert evaluator is not None, "evaluation.tasks needs an evaluator"
        for spec in self.processes.on_main(lambda: evaluator.specs(config, metadata.cameras_at)):
            embodiment, instruction, _ = metadata.match(spec)
            if embodiment.goal_cameras and instruction not in self.goals:
                raise ValueError(
                    f"evaluation.tasks: expected goal images of {spec.name!r} in the data, since training showed some "
                    f"of {embodiment.name!r}, found neither stored ones nor a success. Leave the task out and evaluate "
                    "the checkpoint with `pac evaluate --goals DATASET`."
                )

    @functools.cached_property
    def goals(self) -> GoalImages:
        """Goal images that the policy sees in evaluation, from its own data. Empty if it saw none in training."""
        found: GoalImages = {}
        for source, embodiment in zip(self.sampler.sources, self.metadata.embodiments, strict=True):
            if embodiment.goal_cameras:
                stored = source.config.goals == "stored"
                found |= find_goal_images(source.dataset, stored=stored, instruction=source.config.instruction)
        return found

    def _duration(self, text: str) -> int:
        return parse_duration(text, epoch_steps=self.plan.epoch_steps, update_flops=self.update_flops)

    def describe(self) -> dict[str, Any]:
        """Return all settings after resolution, for config.json."""
        return {
            "config": self.config.as_json(),
            "model": dataclasses.asdict(self.model_config),
            "objective": dataclasses.asdict(self.objective),
            "value_scales": self.sampler.value_scales,
            "size": self.size,
            "start": self.config.start,
            "parameters": count_parameters(self.state.target),
            "steps": self.steps,
            "warmup": self.warmup,
            "target_period": self.target_period,
            "update_flops": self.update_flops,
            "mixture": self.plan.as_json(),
            "world_size": self.processes.size,
            "versions": versions(),
        }

    def check_disk(self) -> None:
        """Raise if the disk has no room for the kept checkpoints and one more that is being written."""
        size = 16 * count_parameters(self.state.target)  # model, target, two moments, in float32
        saves = range(self.save_every, self.steps + self.save_every, self.save_every)  # the last one is at the end
        newest = saves[-self.config.checkpoint.keep_last :]
        count = len(newest) + ((newest[0] - 1) // self.keep_every if self.keep_every else 0) + 1
        missing = max(1, count - self.directory.num_checkpoints())
        free = shutil.disk_usage(self.directory.path).free + self.directory.bytes_aside()
        if free < missing * size:
            raise ValueError(
                f"{self.directory.path}: expected room for checkpoints of {size / 1e6:,.1f} MB, {missing:,} at a time, "
                f"found {free / 1e6:,.1f} MB free. Free some space or choose another --out."
            )

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Copy the state to memory and write it in the background."""
        step, directory = self.state.step, self.directory
        self._finish()  # at most one checkpoint is under way
        if self.saved == step:
            return
        folder = self.processes.on_main(lambda: directory.prepare(step))
        weights = distributed.snapshot(self.state.tensors()["model"], self.processes)
        finish = distributed.start_saving(self._training_tensors(), folder / "training_state", self.processes)
        progress, resolved = self._progress(), self.describe()

        def write() -> None:
            pretrained = folder / "pretrained_model"
            write_pretrained(weights, pretrained, self.model_config, self.metadata.as_json())
            (pretrained / TRAIN_CONFIG).write_text(json.dumps(resolved, indent=2, default=str) + "\n")
            finish()
            (folder / "training_state" / "training_step.json").write_text(json.dumps(progress) + "\n")

        if self.processes.is_main:
            directory.commit(step, write, keep=self.keep)
            self._finish = directory.wait
        else:
            self._finish = finish
        self.saved = step

    def _training_tensors(self) -> dict[str, Tensor]:
        """Return target network and optimiser state, named as in a checkpoint."""
        parts = {part: group for part, group in self.state.tensors().items() if part != "model"}
        return {f"{part}.{name}": x for part, group in parts.items() for name, x in group.items()}

    def _progress(self) -> dict[str, Any]:
        """Return the small part of the training state: steps, times, and metrics that are not written yet."""
        return {
            "step": self.state.step,
            "evaluated": self.evaluated,
            "seed": self.config.seed,
            "metrics_size": self.directory.metrics_size(),
            "seconds": self.seconds_before + (self.logs.seconds if self.logs else 0.0),
            "update": self.update.counters(),
        }

    def finish(self) -> None:
        """Wait until the checkpoint under way, if any, is on disk under its name. All processes must call this."""
        self._finish()
        self.processes.barrier()

    def resume(self) -> bool:
        """Load the newest undamaged checkpoint. Return False if there is none."""
        folder = self.processes.on_main(
            lambda: self.directory.newest(lambda text: self.console.print(f"[bold red]{text}"))
        )
        if folder is None:
            self.console.print(f"[bold red]No whole checkpoint was found: starting from step {self.state.step:,}.")
            if self.processes.is_main:
                self.directory.cut_metrics(0)
            return False
        progress = json.loads((folder / "training_state" / "training_step.json").read_text())
        if progress["seed"] != self.config.seed:
            raise ValueError(
                f"{folder}: expected a checkpoint of seed {self.config.seed}, found one of seed {progress['seed']}. "
                "Resume with the recipe and overrides that the run began with."
            )
        self._load(folder)
        self.state.step = self.saved = int(progress["step"])
        self.evaluated, self.seconds_before = int(progress["evaluated"]), float(progress["seconds"])
        self.update.restore(progress["update"])
        self.refused_before = int(self.update.refused)
        if self.processes.is_main:
            self.directory.cut_metrics(int(progress["metrics_size"]))
            self.directory.prune(self.keep)
        return True

    def continue_from(self, folder: Path) -> None:
        """Load weights, target, optimiser and step of another run's checkpoint. The length counts from that step."""
        self._load(folder)
        self.state.step = int(json.loads((folder / "training_state" / "training_step.json").read_text())["step"])
        self.steps += self.state.step

    def _load(self, folder: Path) -> None:
        load_weights(self.state.model, folder, copy=distributed.copy_whole)
        distributed.load_state(self._training_tensors(), folder / "training_state", self.processes)

    # ------------------------------------------------------------------------------------------------------- the loop

    def train(self) -> None:
        """Train from the state's step to the end, or to a signal."""
        state, rows = self.state, read_metrics(self.directory.path)
        logs = self.logs = RunLogger(
            self.directory,
            self.console,
            steps=self.steps,
            first_step=state.step,
            main=self.processes.is_main,
            wandb=self.config.machine.wandb,
            last={name: value for row in rows for name, value in row.items() if name != "step"},
        )
        if self.processes.is_main:
            (self.directory.path / SUMMARY).unlink(missing_ok=True)  # of a shorter run that is made longer
        with logs, _SignalHandlers(self):
            going = self._evaluate(logs)  # a signal may have ended the last one
            signals, batches = distributed.Signals(self.processes), self.batches()
            while going and state.step < self.steps and not signals.ask(self.interrupted or 0):
                if state.step % self.target_period == 0:
                    self.update.copy_target()
                with logs.waiting(self._busy):
                    batch = next(batches)
                self.update(batch, self.schedule_values(state.step))
                if self._updated is not None:
                    self._updated.record()
                logs.tick(state.step)
                self._log(logs)
                if state.step % self.save_every == 0 or state.step == self.steps:
                    self.save()  # before the evaluation, which takes long
                going = self._evaluate(logs)
            batches.close()
            self.interrupted = signals.settle(self.interrupted or 0) or None
            self.save()
            self.finish()
        if self.interrupted is None and self.processes.is_main:
            self.directory.write_json(SUMMARY, self.summary(logs))

    @property
    def finished(self) -> bool:
        """Return whether there is nothing left to do."""
        return self.state.step >= self.steps and (self.directory.path / SUMMARY).exists()

    def _busy(self) -> bool:
        """Return whether the device still works on the last update."""
        return self._updated is not None and not self._updated.query()

    def batches(self) -> Generator[Batch]:
        """Yield the batches from the state's step on, on the model's device."""
        workers, device = 0 if self.sampler.device.type != "cpu" else self.config.machine.workers, self.processes.device
        stream = self.sampler.batches(self.state.step, num_workers=workers, threads=True)
        if device.type == "cuda":
            stream = prefetch((batch.to(device, non_blocking=True) for batch in stream), device)
        yield from stream

    def schedule_values(self, step: int) -> ScheduleValues:
        """Return the learning rate of a step, and the values of schedules that the recipe has."""
        schedules = self.config.schedules
        rate = optim.learning_rate(self.config.optimiser, self.size, step=step, steps=self.steps, warmup=self.warmup)
        if schedules.learning_rate is not None:
            rate = interpolate(schedules.learning_rate, step)
        used = {name: points for name in SCHEDULED if (points := getattr(schedules, name)) is not None}
        return ScheduleValues(learning_rate=rate, **{name: interpolate(points, step) for name, points in used.items()})

    def _log(self, logs: RunLogger) -> None:
        """Write metrics at log steps. Stop after a refused update: on a GPU at a log step, on a CPU at once."""
        step, machine = self.state.step, self.config.machine
        due = step % machine.log_every == 0 or step == self.steps
        if not due and self.processes.device.type != "cpu":
            return
        refused = int(self.update.refused)
        stop = refused > self.refused_before and machine.on_nonfinite == "stop"
        if due or stop:
            rates = {"optim/learning_rate": self.schedule_values(step - 1).learning_rate, "optim/refused": refused}
            logs.write(step, self.update.metrics.take_means() | rates)
        if stop:
            self.save()
            self.finish()
            step = int(self.update.first_refused)
            raise NonFiniteError(describe_nonfinite(self.sampler, self.state, self.objective, step, self.processes))

    def _evaluate(self, logs: RunLogger) -> bool:
        """Evaluate if it is due and not done yet. Return False if a signal ended it: a resume does it again."""
        config, step, evaluator = self.config.evaluation, self.state.step, self.evaluator
        every = self._duration(config.every) if config.every else self.steps
        due = step > 0 and (step % every == 0 or step == self.steps) and self.evaluated != step
        if not config.tasks or not due:
            return True
        assert evaluator is not None
        policy, stop = self.policy(), lambda: self.interrupted is not None
        try:
            with logs.paused():
                found = self.processes.on_main(
                    lambda: evaluator(policy, config, progress=logs.show_evaluation, should_stop=stop)
                )
        except Exception:
            self.save()  # an evaluation that fails loses no updates
            self.finish()
            raise
        if found is not None:
            logs.write(step, found)
            self.evaluated, self.saved = step, -1  # a checkpoint of this step, if any, lacks the evaluation
        return found is not None

    def policy(self, **options: Any) -> Policy:
        """Return the policy as it is now. All processes must call this; the main one may use the policy."""
        model = distributed.whole_model(self.state.model, self.processes)
        usual = {"sampling": self.config.evaluation.sampling, "goals": self.goals or None}
        return Policy(model, self.metadata, **(usual | options))

    def summary(self, logs: RunLogger) -> dict[str, Any]:
        return {
            "parameters": count_parameters(self.state.target),
            "size": self.size,
            "method": self.config.method,
            "steps": self.state.step,
            "update_flops": self.update_flops,
            "flops": self.update_flops * self.state.step,
            "seconds": self.seconds_before + logs.seconds,
            "updates_per_second": logs.updates_per_second,
            "data_wait": logs.data_wait,
            "refused": int(self.update.refused),
            "last": {name: value for name, value in logs.last.items() if not name.startswith("time/")},
            "start": self.config.start,
            "versions": versions(),
        }


class _SignalHandlers:
    """Handlers that let SIGTERM and Ctrl-C end the loop after the update under way.

    A Ctrl-C after either ends it at once. A second SIGTERM does not: a scheduler that signals every process, and
    torchrun, which forwards its own, send two.
    """

    def __init__(self, run: Trainer) -> None:
        self.run, self.before = run, dict[int, Any]()

    def __enter__(self) -> None:
        try:
            self.before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # outside the main thread the caller handles signals
            self.before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.run.interrupted is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.run.interrupted = self.run.interrupted or number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
