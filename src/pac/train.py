"""Training: a recipe -> a run directory with a policy and a critic in it.

`Run` builds everything from a `RunConfig` and checks what can be checked; `Run.train` is the loop: sample, update,
copy the target, log, evaluate, save. A batch and its noise follow from (seed, step), so resuming is loading weights
and optimiser and going on.
"""

import argparse
import copy
import dataclasses
import json
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor

import pac
from pac import distributed, optim
from pac.config import ModelConfig, model_config
from pac.data import mixture as mixtures
from pac.data.sampling import Sampler, as_batch
from pac.distributed import World
from pac.evaluate import summarise
from pac.logs import Logs
from pac.model import PAC
from pac.model.pac import count_parameters
from pac.model.pretrained import CONFIG, WEIGHTS, load_config, load_weights
from pac.objectives import loss
from pac.policy import Interface, Policy
from pac.recipe import RunConfig, interpolate, load_recipe, parse_duration
from pac.rollout import jobs_of, rollout
from pac.run import RunDirectory, keep_rule
from pac.scaling.flops import Load, update_flops
from pac.update import Controls, TrainState, Update, compute_dtype

RESIDENT_SHARE = 1 / 3  # of the GPU's memory that data may take without being asked


class NonFiniteError(ValueError):
    """The loss or the gradient of an update was not finite."""


class Run:
    """A run, ready to train: data, model, optimiser, and the directory it lives in."""

    def __init__(self, config: RunConfig, out: str | Path, world: World | None = None) -> None:
        self.config, self.world = config, world or World(device=choose_device(config.machine.device))
        self.console = Console(stderr=True, quiet=not self.world.is_main)
        self.plan = mixtures.plan(config.mixture)
        self.sampler = make_sampler(config, self.world)
        self.directory = RunDirectory(out)
        self.model_config = fit_model(config, self.sampler)
        self.objective, self.value_scales = scale_rewards(config, self.sampler, self.model_config)
        self.interface = Interface.of(self.sampler, self.value_scales, config.objective.discount)
        self.update_flops = self._count_flops()
        self.steps = self._duration(config.length)
        self.warmup = (
            optim.warmup_steps(self.steps)
            if config.optimiser.warmup == "auto"
            else self._duration(config.optimiser.warmup)
        )
        self.target_period = optim.target_period(config.optimiser, self.steps)
        self.state = self._make_state()
        self.update = Update(
            self.state,
            self.objective,
            config.machine,
            self.world,
            window=config.mixture.window,
            batch_size=config.mixture.batch_size,
            clip_norm=config.optimiser.clip_norm,
            seed=config.seed,
            proprio_noise=config.proprio_noise,
        )
        self.interrupted: int | None = None
        self._finish: Callable[[], None] = self.directory.wait  # waits for the checkpoint under way

    # ------------------------------------------------------------------------------------------------------ building

    def _make_state(self) -> TrainState:
        torch.manual_seed(self.config.seed)
        model = PAC(self.model_config).to(self.world.device)
        if self.config.start is not None:
            load_weights(model, self.config.start)
        target = copy.deepcopy(model).requires_grad_(False)
        dtype = compute_dtype(self.config.machine, self.world.device)
        model, target = (distributed.shard(x, self.world, dtype) for x in (model, target))
        return TrainState(model=model, target=target, optimizer=optim.make_optimizer(model, self.config.optimiser))

    def _count_flops(self) -> float:
        """FLOPs of one update, by the mixture's mean load."""
        window, size = self.config.mixture.window, self.config.mixture.batch_size
        total, samples = 0.0, self.objective.num_samples
        for row in self.plan.datasets:
            load = Load(
                num_proprio=row.counts.proprio,
                num_images=row.counts.images,
                num_text_tokens=self.model_config.num_text_tokens,
                num_actions=row.counts.actions,
            )
            total += float(row.p_eff) * update_flops(self.model_config, load, size, window, samples)
        return total

    def _duration(self, text: str) -> int:
        return parse_duration(text, epoch_steps=self.plan.epoch_steps, update_flops=self.update_flops)

    def describe(self) -> dict[str, Any]:
        """Everything resolved: what config.json holds."""
        return {
            "config": self.config.as_json(),
            "model": dataclasses.asdict(self.model_config),
            "objective": dataclasses.asdict(self.objective),
            "value_scales": self.value_scales,
            "parameters": count_parameters(self.state.target),
            "steps": self.steps,
            "warmup": self.warmup,
            "target_period": self.target_period,
            "update_flops": self.update_flops,
            "mixture": self.plan.as_json(),
            "world_size": self.world.size,
            "versions": versions(),
        }

    def check_disk(self) -> None:
        """Raise if not even one checkpoint fits."""
        needed = 16 * count_parameters(self.state.target)  # model, target, two moments, in float32
        free = shutil.disk_usage(self.directory.path).free
        if free < needed:
            raise ValueError(
                f"{self.directory.path}: expected room for a checkpoint of {needed / 1e9:.2f} GB, found "
                f"{free / 1e9:.2f} GB free. Free some space or choose another --out."
            )

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Copy the state to memory and write it in the background."""
        config, step, directory = self.config.checkpoint, self.state.step, self.directory
        self._finish()  # at most one is under way
        folder = self.world.on_main(lambda: directory.prepare(step))
        tensors = self.state.tensors()
        weights = distributed.snapshot(tensors.pop("model"), self.world)
        training = {f"{part}.{name}": x for part, group in tensors.items() for name, x in group.items()}
        finish = distributed.start_saving(training, folder / "training_state", self.world)
        progress = {"step": step, "metrics_size": directory.metrics_size(), "seed": self.config.seed}
        resolved = self.describe()

        def write() -> None:
            pretrained = folder / "pretrained_model"
            save_file(weights, pretrained / WEIGHTS, metadata={"format": "pt"})
            content = {"type": "pac", "model": dataclasses.asdict(self.model_config)} | self.interface.as_json()
            (pretrained / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
            (pretrained / "train_config.json").write_text(json.dumps(resolved, indent=2, default=str) + "\n")
            finish()
            (folder / "training_state" / "training_step.json").write_text(json.dumps(progress) + "\n")

        every = None if config.keep_every is None else self._duration(config.keep_every)
        if self.world.is_main:
            directory.commit(step, write, keep=keep_rule(config.keep_last, every))
            self._finish = directory.wait
        else:
            self._finish = finish

    def finish(self) -> None:
        """Wait until the checkpoint under way, if any, is on disk under its name; all processes do."""
        self._finish()
        self.world.barrier()

    def resume(self) -> bool:
        """Load the newest whole checkpoint; False if there is none yet."""
        folder = self.world.on_main(lambda: self.directory.newest(lambda text: self.console.print(f"[bold red]{text}")))
        if folder is None:
            if self.world.is_main:
                self.directory.cut_metrics(0)
            return False
        progress = json.loads((folder / "training_state" / "training_step.json").read_text())
        if progress["seed"] != self.config.seed:
            raise ValueError(
                f"{folder}: expected a checkpoint of seed {self.config.seed}, found one of seed {progress['seed']}. "
                "Resume with the recipe and overrides the run was started with."
            )
        tensors = self.state.tensors()
        tensors.pop("model")
        distributed.load_weights(self.state.model, folder / "pretrained_model" / WEIGHTS, self.world)
        training = {f"{part}.{name}": x for part, group in tensors.items() for name, x in group.items()}
        distributed.load_state(training, folder / "training_state", self.world)
        self.state.step = int(progress["step"])
        if self.world.is_main:
            self.directory.cut_metrics(int(progress["metrics_size"]))
        return True

    # ------------------------------------------------------------------------------------------------------- the loop

    def train(self) -> None:
        """From the state's step to the end, or to a signal."""
        machine, state = self.config.machine, self.state
        save_every = self._duration(self.config.checkpoint.every)
        evaluate_every = self._duration(self.config.evaluation.every) if self.config.evaluation.every else None
        logs = Logs(self.directory, self.console, steps=self.steps, first_step=state.step, main=self.world.is_main)
        with logs, self._signals():
            signals, batches = distributed.Signals(self.world), self.batches()
            while state.step < self.steps and not signals.ask(self.interrupted or 0):
                if state.step % self.target_period == 0:
                    self.update.copy_target()
                with logs.waiting():
                    tensors = next(batches)
                self.update(tensors, self.controls(state.step))
                logs.tick(state.step)
                if state.step % machine.log_every == 0 or state.step == self.steps:
                    self._log(logs)
                if evaluate_every and state.step % evaluate_every == 0 and state.step < self.steps:
                    self._evaluate(logs)
                if state.step % save_every == 0 and state.step < self.steps:
                    self.save()
            self.interrupted = signals.settle(self.interrupted or 0) or None
            if self.interrupted is None:
                self._evaluate(logs)
            self.save()
            self.finish()
        if self.interrupted is None and self.world.is_main:
            self.directory.write_json("summary.json", self.summary(logs))

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """The tensors of the batches from the state's step on, where the model is."""
        workers = 0 if self.sampler.device.type != "cpu" else self.config.machine.workers
        stream = self.sampler.stream(self.state.step, num_workers=workers, threads=True)
        for tensors in stream:
            yield {name: x.to(self.world.device, non_blocking=True) for name, x in tensors.items()}

    def controls(self, step: int) -> Controls:
        schedules = self.config.schedules
        rate = optim.learning_rate(
            self.config.optimiser, self.config.size, step=step, steps=self.steps, warmup=self.warmup
        )
        if schedules.learning_rate is not None:
            rate = interpolate(schedules.learning_rate, step)
        names = ("imitation_weight", "critic_weight", "temperature")
        points = {name: getattr(schedules, name) for name in names}
        return Controls(
            learning_rate=rate, **{k: None if p is None else interpolate(p, step) for k, p in points.items()}
        )

    def _log(self, logs: Logs) -> None:
        rates = {"optim/learning_rate": self.controls(self.state.step - 1).learning_rate}
        refused = int(self.update.refused)
        logs.write(self.state.step, self.update.tally.read() | rates | {"optim/refused": refused})
        if refused and self.config.machine.on_nonfinite == "stop":
            step = int(self.update.first_refused)
            self.save()
            self.finish()
            raise NonFiniteError(self.blame(step))

    def blame(self, step: int) -> str:
        """Which samples of a step's batch make the loss non-finite."""
        draws = self.sampler.draw(step)
        batch = as_batch(
            {k: x.to(self.world.device) for k, x in self.sampler.gather(step).items()}, self.config.mixture.window
        )
        with torch.no_grad():
            values = loss(self.state.model, self.state.target, batch, self.objective)[0]
        wrong = (~torch.isfinite(values.view(len(draws.row), -1))).any(1).cpu().numpy()
        lines = []
        for i in wrong.nonzero()[0][:5]:
            source = self.sampler.sources[draws.dataset[i]]
            episode = source.locate(draws.window[i : i + 1]).episode[0]
            lines.append(f"{source.config.name}: episode {episode}, window {draws.window[i]}")
        found = self.world.collect((int(wrong.sum()), len(wrong), lines))
        num_wrong, num_windows = (sum(numbers) for numbers in zip(*((a, b) for a, b, _ in found), strict=True))
        lines = [line for _, _, some in found for line in some][:5]
        where = "; ".join(lines) if lines else "no single sample: the sum or the gradient overflowed"
        return (
            f"Step {step}: expected a finite loss and gradient, found otherwise ({num_wrong} of {num_windows} "
            f"windows): {where}. The update was refused and the state saved. Repair or drop these episodes, lower the "
            "learning rate, or continue with machine.on_nonfinite=skip."
        )

    def _evaluate(self, logs: Logs) -> None:
        if not self.config.evaluation.tasks:
            return
        policy = self.policy()
        logs.write(self.state.step, self.world.on_main(lambda: self.try_policy(policy)))

    def try_policy(self, policy: Policy) -> dict[str, float]:
        """Trials on the recipe's tasks: mean return and success, by task and over all."""
        config = self.config.evaluation
        jobs = jobs_of(config.tasks, config.trials, seed=config.seed)
        trials = rollout(
            policy,
            jobs,
            workers=config.workers,
            cameras=policy.cameras,
            max_steps=config.max_steps,
            stop_at_success=config.stop_at_success,
        )
        rows = summarise(list(trials)).rows
        found = {}
        for name, row in rows.items():
            found[f"evaluation/{name}/return"] = row.returns.mean
            if row.success is not None:
                found[f"evaluation/{name}/success"] = row.success.mean
        return found

    def policy(self, **options: Any) -> Policy:
        """The policy as it is now; of several processes all must ask, and the main one may use it."""
        model = distributed.whole_model(self.state.model, self.world)
        return Policy(model, self.interface, **({"sampling": self.config.evaluation.sampling} | options))

    def summary(self, logs: Logs) -> dict[str, Any]:
        return {
            "parameters": count_parameters(self.state.target),
            "size": self.config.size,
            "method": self.config.method,
            "steps": self.state.step,
            "update_flops": self.update_flops,
            "flops": self.update_flops * self.state.step,
            "seconds": logs.seconds,
            "updates_per_second": logs.updates_per_second,
            "data_wait": logs.data_wait,
            "refused": int(self.update.refused),
            "last": logs.last,
            "start": self.config.start,
            "versions": versions(),
        }

    def _signals(self) -> "_Signals":
        return _Signals(self)


class _Signals:
    """SIGTERM and Ctrl-C end the loop after the update under way; a second one ends it at once."""

    def __init__(self, run: Run) -> None:
        self.run, self.before = run, dict[int, Any]()

    def __enter__(self) -> None:
        try:
            self.before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: whoever started us decides
            self.before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.run.interrupted is not None:
            raise KeyboardInterrupt
        self.run.interrupted = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


# --------------------------------------------------------------------------------------------------------- ingredients


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "machine.device: expected a CUDA GPU, found none. Set machine.device=cpu, or install a CUDA build."
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def make_sampler(config: RunConfig, world: World) -> Sampler:
    """On the GPU if the data fits there well, else in memory maps."""
    sampler = Sampler(config.mixture, seed=config.seed, rank=world.rank, world_size=world.size)
    wanted = config.machine.data
    if world.device.type == "cpu":
        if wanted == "resident":
            raise ValueError("machine.data: expected a GPU for resident data, found none. Leave it at auto.")
        return sampler
    size = sum(source.num_bytes for source in sampler.sources)
    total = torch.cuda.get_device_properties(world.device).total_memory
    if wanted == "stream" or (wanted == "auto" and size > RESIDENT_SHARE * total):
        return sampler
    return Sampler(config.mixture, seed=config.seed, rank=world.rank, world_size=world.size, device=world.device)


def fit_model(config: RunConfig, sampler: Sampler) -> ModelConfig:
    """The model's configuration: that of the checkpoint it starts from, or the recipe's, with facts from the data."""
    specs = [source.dataset.spec for source in sampler.sources]
    facts = {
        "num_proprio": max(1, *(spec.state_dim for spec in specs)),
        "num_actions": max(spec.action_dim for spec in specs),
        "num_cameras": len(sampler.camera_slots),
        "num_goal_images": len(sampler.goal_slots),
    }
    if config.start is not None:
        return _fit_checkpoint(config, sampler, facts)
    if sampler.camera_slots or sampler.goal_slots:
        facts |= {"image_height": sampler.image_size[0], "image_width": sampler.image_size[1]}
    given = {name: value for name, value in config.model.items() if name != "size"}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    vocabulary = max(sampler.tokenizer.vocabulary_size, model_config(config.size).vocabulary_size)
    objective = config.objective
    heads = {
        "q_head": objective.critic == "q",
        "v_head": objective.critic == "v",
        "behaviour_head": objective.critic == "v" and objective.behaviour == "learned",
    }
    negative = any(low < 0 for low, _ in sampler.value_bounds(objective.discount))
    values = {"value_min": -1.0} if negative and objective.reward_scale is None else {}
    options = facts | heads | values | {"vocabulary_size": vocabulary, "initial_value": 0.0} | given
    for name, least in facts.items():
        if name in given and given[name] < least:
            raise ValueError(f"model.{name}: expected at least the data's {least}, found {given[name]}. Leave it out.")
    return model_config(config.size, **options)


def _fit_checkpoint(config: RunConfig, sampler: Sampler, facts: dict[str, int]) -> ModelConfig:
    assert config.start is not None
    content = load_config(config.start)
    found: ModelConfig = content["model"]
    for name, least in facts.items():
        if getattr(found, name) < least:
            raise ValueError(
                f"{config.start}: expected a model with {name} of at least the data's {least}, found "
                f"{getattr(found, name)}. Start from a larger model, or leave data out of the mixture."
            )
    sampler.use_slots(content["cameras"], content["goal_cameras"])
    return found


def scale_rewards(config: RunConfig, sampler: Sampler, model: ModelConfig) -> tuple[Any, dict[str, float]]:
    """Unless a scale is given, scale each dataset's rewards so that the largest value they allow fills the bins."""
    objective = config.objective
    if objective.reward_scale is not None:
        return objective, {source.config.name: objective.reward_scale for source in sampler.sources}
    scales = []
    for low, high in sampler.value_bounds(objective.discount):
        fits = [model.value_max / high] if high > 0 else []
        fits += [model.value_min / low] if low < 0 and model.value_min < 0 else []
        scales.append(min(fits) if fits else 1.0)
    sampler.constants["reward_scale"] *= torch.tensor(scales, device=sampler.device)
    names = [source.config.name for source in sampler.sources]
    return dataclasses.replace(objective, reward_scale=1.0), dict(zip(names, scales, strict=True))


def versions() -> dict[str, str]:
    found = {"pac": pac.__version__, "torch": torch.__version__, "python": platform.python_version()}
    try:
        root = Path(__file__).parent
        commit = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
        if commit.returncode == 0:
            found["commit"] = commit.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    return found


# --------------------------------------------------------------------------------------------------------------- verb


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "train", help="train a policy and a critic on a mixture", description=__doc__
    )
    parser.add_argument("recipe", help="recipe in TOML, or one that ships with PAC, such as smoke")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings in place of the recipe's, dotted")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--start", help="checkpoint to fine-tune from: its weights, and nothing else of it")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    overrides = [*args.overrides, *([f"start={args.start}"] if args.start else [])]
    with distributed.one_voice():
        config = load_recipe(args.recipe, overrides)
        with distributed.world(choose_device(config.machine.device)) as world:
            try:
                return _train(config, args, world)
            except torch.OutOfMemoryError as error:
                raise ValueError(
                    f"Out of GPU memory: {str(error).splitlines()[0]} Lower mixture.batch_size, raise "
                    "machine.accumulate, or set machine.recompute=true; continue with --resume."
                ) from error


def _train(config: RunConfig, args: argparse.Namespace, world: World) -> int:
    run = Run(config, args.out, world)
    world.on_main(lambda: run.directory.open(resume=args.resume, overwrite=args.overwrite))
    world.on_main(run.check_disk)
    resumed = args.resume and run.resume()
    if world.is_main:
        if not resumed:
            run.directory.write_json("config.json", run.describe())
        mixtures.print_plan(run.plan, run.console)
        begun = f"from step {run.state.step:,} " if resumed else ""
        run.console.print(
            f"{config.method}, size {config.size}, {count_parameters(run.state.target) / 1e6:.2f}M parameters, "
            f"{run.steps:,} steps {begun}on {world.device} x {world.size}, target every {run.target_period} -> "
            f"{args.out}"
        )
    run.train()
    if run.interrupted is not None:
        run.console.print(f"Stopped at step {run.state.step:,}; everything is saved. Continue with --resume.")
        return 128 + run.interrupted
    return 0
