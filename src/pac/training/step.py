"""One update: batch, loss, gradient, weights. It runs eagerly, compiled, or captured whole in a CUDA graph.

A small model is bound by the launches of its kernels, thousands per update. Where shapes repeat, everything from the
noise to the optimiser's step is captured once and replayed with one launch. The first updates of each shape run
eagerly: they are the warm-up that a capture needs, and they count.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from pac.config import MachineConfig
from pac.model import PAC
from pac.model.attention import LatentBlock
from pac.model.cuda_graphs import CapturedGraph
from pac.objectives import StepOverrides, loss
from pac.recipe import RunConfig
from pac.training.distributed import ProcessGroup, reshard, whole_tensor
from pac.training.optim import copy_weights, optimizer_tensors, set_learning_rate
from pac.types import Batch

WARM_UP = 3  # eager updates of a shape before it is captured
MOST_GRAPHS = 8
MOST_COMPILED = 8  # shapes; past this limit dynamo raises
SCHEDULED = ("imitation_weight", "critic_weight", "temperature")  # values of the loss that may follow a schedule


@dataclass(kw_only=True)
class TrainState:
    """Everything that changes during a run. Batches and noise follow from the step."""

    model: PAC
    target: PAC
    optimizer: torch.optim.AdamW
    step: int = 0

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of each part, without copies."""
        return {
            "model": dict(self.model.state_dict()),
            "target": dict(self.target.state_dict()),
            "optimizer_state": optimizer_tensors(self.model, self.optimizer),
        }


@dataclass(frozen=True, kw_only=True)
class ScheduleValues:
    """Values of schedules at a step. None: those of the datasets and the objective."""

    learning_rate: float
    imitation_weight: float | None = None
    critic_weight: float | None = None
    temperature: float | None = None


class MetricAccumulator:
    """Sums of metrics since they were last read. They stay on the device, and reading waits for it.

    Each process adds its share of a metric. Only a reading adds up the shares of all processes.
    """

    def __init__(self, processes: ProcessGroup) -> None:
        self.processes, self.sums = processes, dict[str, Tensor]()
        self.count = torch.zeros((), device=processes.device)

    def add(self, metrics: dict[str, Tensor], bad: Tensor) -> None:
        """Add the metrics of an update, unless it was refused."""
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(value, dtype=torch.float32)
            self.sums[name] += torch.where(bad > 0, torch.zeros_like(value), value)
        self.count += 1 - bad

    def take_means(self) -> dict[str, float]:
        """Return the means since the last reading. All processes must call this at the same step."""
        if not self.sums or not self.count:
            return {}
        values = self.processes.sum(torch.stack(list(self.sums.values()))).div(self.count).tolist()
        self.clear()
        return dict(zip(self.sums, values, strict=True))

    def clear(self) -> None:
        for total in (*self.sums.values(), self.count):
            total.zero_()


class TrainStep:
    """Updates of a `TrainState`. Call it with a batch and the values of schedules."""

    def __init__(self, state: TrainState, config: RunConfig, processes: ProcessGroup) -> None:
        self.state, self.config, self.processes = state, config, processes
        self.objective, self.machine, self.seed = config.objective, config.machine, config.seed
        self.metrics = MetricAccumulator(processes)
        self.parameters = [p for p in state.model.parameters() if p.requires_grad]
        self.dtype = compute_dtype(self.machine, processes.device)
        self.use_graphs = processes.device.type == "cuda" and processes.size == 1 and self.machine.graphs != "off"
        self.loss: Callable[..., Any] = loss
        if self.machine.compile and processes.size == 1:
            self.loss = torch.compile(loss, fullgraph=True, dynamic=False)
        elif self.machine.compile:  # sharded weights are gathered and split between modules, outside of any graph
            for model in (state.model, state.target):
                compile_blocks(model)
        if self.machine.recompute:
            recompute_blocks(state.model)
        self.refused = torch.zeros((), device=processes.device)  # updates refused because something was not finite
        self.first_refused = torch.full((), -1.0, device=processes.device)
        self._values = {name: torch.zeros((), device=processes.device) for name in (*SCHEDULED, "step")}
        self._compiled: set[Any] = set()
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, CapturedGraph[Batch, None]] = {}
        self._pool: Any = None  # memory of all graphs: one runs at a time, and leaves nothing there that another reads

    def begin(self, seed: int) -> None:
        """Serve another run of the same shape. Captured graphs stay, counts and noise start anew."""
        self.seed = seed
        self.metrics.clear()
        self.refused.zero_()
        self.first_refused.fill_(-1)

    def __call__(self, batch: Batch, schedule: ScheduleValues) -> None:
        """Do one update. On a GPU this returns before the work is done."""
        set_learning_rate(self.state.optimizer, schedule.learning_rate)
        used = frozenset(name for name in SCHEDULED if getattr(schedule, name) is not None)
        for name in used:
            self._values[name].fill_(getattr(schedule, name))
        self._values["step"].fill_(float(self.state.step))
        torch.manual_seed(hash_seed(self.seed, self.state.step))
        if self.use_graphs:
            self._replay(batch, used)
        else:
            self._run(batch, used)
        self.state.step += 1

    def _run(self, batch: Batch, used: frozenset[str]) -> None:
        bad = self._has_nonfinite_data(batch)
        if bad.device.type == "cpu" and bad:  # the loss would raise
            self._refuse(bad)
            return
        # NaN has no bin. As an index it would crash the GPU, while this update is only to be refused.
        batch = replace(batch, action=batch.action.nan_to_num(), reward=batch.reward.nan_to_num())
        overrides = self._overrides(batch, used)
        if self.config.proprio_noise:
            batch = self._add_proprio_noise(batch)
        weights: dict[str, Any] = {name: self._values[name].expand(len(batch.mask)) for name in used - {"temperature"}}
        batch = replace(batch, **weights)
        num_real = self.processes.sum(batch.mask.sum()).clamp(min=1)
        self.state.optimizer.zero_grad(set_to_none=True)
        device = self.processes.device
        total, metrics = torch.zeros((), device=device), dict[str, Tensor]()
        parts = self.machine.accumulate
        for i in range(parts):
            part = batch[i::parts]
            noise = {name: getattr(overrides, name) for name in ("uniform", "hiding")}
            given = replace(overrides, **{name: x[i::parts] for name, x in noise.items() if x is not None})
            compute = self._loss_of(part, used)
            with torch.autocast(device.type, self.dtype or torch.bfloat16, enabled=self.dtype is not None):
                values, measured = compute(self.state.model, self.state.target, part, self.objective, None, given)
                share = values.sum() / num_real
            # Sharded gradients are averaged over processes, while `share` is a part of a sum.
            (share * self.processes.size).backward()
            total = total + share.detach()
            weight = part.mask.sum() / num_real  # share of this part in the whole batch of all processes
            metrics = {name: metrics.get(name, 0) + value * weight for name, value in measured.items()}
        reshard(self.state.target)
        norm = self._clip_gradient()
        finite = torch.isfinite(self.processes.sum(total)) & torch.isfinite(norm)
        bad = torch.maximum(bad, (~finite).float())
        self._step_optimizer(bad)
        self.metrics.add(metrics | {"loss/total": total, "optim/gradient_norm": norm / self.processes.size}, bad)

    def _loss_of(self, part: Batch, used: frozenset[str]) -> Callable[..., Any]:
        """Return the compiled loss for the first shapes, the eager one for all others."""
        key = (used, *((x.shape, x.stride()) for x in part.tensors()))
        if len(self._compiled) < MOST_COMPILED:
            self._compiled.add(key)
        return self.loss if key in self._compiled else loss

    def _has_nonfinite_data(self, batch: Batch) -> Tensor:
        """Return 1 if a real action or reward of any process is not finite. Such an action has no bin."""
        action = batch.action.isfinite() | ~batch.action_mask | ~batch.mask[..., None]
        reward = batch.reward.isfinite() | ~batch.mask
        return self.processes.sum((~(action.all() & reward.all())).float()).clamp(max=1)

    def _clip_gradient(self) -> Tensor:
        """Clip the gradient if there is a limit, and return the norm it had."""
        norm = whole_tensor(get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        if (limit := self.config.optimiser.clip_norm) is not None:
            clip_grads_with_norm_(self.parameters, limit, norm)
        return norm

    def _step_optimizer(self, bad: Tensor) -> None:
        """Take the optimiser's step unless something was not finite. A GPU decides that without the host."""
        self._refuse(bad)
        if self.processes.device.type == "cuda":
            self.state.optimizer.found_inf = bad  # type: ignore[attr-defined]
            self.state.optimizer.step()
        elif not bad:
            self.state.optimizer.step()

    def _refuse(self, bad: Tensor) -> None:
        """Count the update as refused if `bad` is 1."""
        is_first = (bad > 0) & (self.first_refused < 0)
        self.first_refused.copy_(torch.where(is_first, self._values["step"], self.first_refused))
        self.refused += bad

    def counters(self) -> dict[str, Any]:
        """Return the metrics that are not written yet, for `restore`. All processes must call this."""
        sums = {name: float(self.processes.sum(total)) for name, total in self.metrics.sums.items()}
        return {"sums": sums, "count": float(self.metrics.count), "refused": float(self.refused)}

    def restore(self, counters: dict[str, Any]) -> None:
        share, device = float(self.processes.is_main), self.processes.device  # the sums are over all processes
        self.metrics.sums = {name: torch.tensor(x * share, device=device) for name, x in counters["sums"].items()}
        self.metrics.count.fill_(counters["count"])
        self.refused.fill_(counters["refused"])

    def _overrides(self, batch: Batch, used: frozenset[str]) -> StepOverrides:
        """Return the noise and temperature of this step.

        Every process draws the noise of the whole batch and takes its rows. So it does not depend on their number.
        """
        uniform, hiding, mixture, device = None, None, self.config.mixture, self.processes.device
        rows, num_actions = (mixture.batch_size, mixture.window), batch.action.shape[-1]
        if self.objective.critic == "q":
            uniform = torch.rand(*rows, num_actions, self.objective.num_samples, device=device)[batch.row]
            if self.objective.hidden_dims:
                hiding = torch.rand(*rows, 2, num_actions + 1, device=device)[batch.row]
        temperature = self._values["temperature"] if "temperature" in used else None
        return StepOverrides(uniform=uniform, hiding=hiding, temperature=temperature, gather=self.processes.gather)

    def _add_proprio_noise(self, batch: Batch) -> Batch:
        """Add the same noise at all steps of a window, which keeps the changes within it."""
        seen = batch.observation
        shape = (self.config.mixture.batch_size, 1, seen.proprio.shape[-1])
        noise = torch.randn(shape, device=self.processes.device)[batch.row] * seen.proprio_scale
        return replace(batch, observation=replace(seen, proprio=seen.proprio + noise * self.config.proprio_noise))

    def _replay(self, batch: Batch, used: frozenset[str]) -> None:
        """Replay the update of these shapes. The first updates of a shape run eagerly: they are its warm-up."""
        key = (used, *((x.shape, x.stride()) for x in batch.tensors()))
        self._seen[key] = self._seen.get(key, 0) + 1
        if key not in self._graphs:
            if self._seen[key] <= WARM_UP or len(self._graphs) >= MOST_GRAPHS:
                self._run(batch, used)
                return
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            run = functools.partial(self._run, used=used)
            self._graphs[key] = CapturedGraph(run, batch, self.processes.device, pool=self._pool)
        self._graphs[key](batch)

    def copy_target(self) -> None:
        copy_weights(self.state.model, self.state.target)


def compute_dtype(machine: MachineConfig, device: torch.device) -> torch.dtype | None:
    """Return the dtype of products, or None for that of the weights."""
    short = machine.precision == "bfloat16" or (machine.precision == "auto" and device.type == "cuda")
    return torch.bfloat16 if short else None


def hash_seed(seed: int, step: int) -> int:
    """Return a seed for a step of a run. Multiplying by odd constants makes neighbours differ."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % 2**63


def compile_blocks(model: PAC) -> None:
    """Compile the parts of blocks between the hooks that gather and split sharded weights."""
    for block in model.blocks:
        assert isinstance(block, LatentBlock)
        parts: tuple[nn.Module, ...] = (block.attention, block.mlp)
        for part in parts:
            part.forward = torch.compile(part.forward, fullgraph=True, dynamic=False)


def recompute_blocks(model: PAC) -> None:
    """Apply activation checkpointing: keep only a block's input, and compute it again in the backward pass.

    A block draws no random numbers, and asking for the generator's state would end a capture.
    """
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda latents, forward=forward: checkpoint(
            forward, latents, use_reentrant=False, preserve_rng_state=False
        )
