"""One update: batch -> loss -> gradient -> weights; eager, compiled, or captured whole in a CUDA graph.

A small model is bound by the launches of its kernels, thousands an update. Where shapes repeat, everything from the
noise to the optimiser's step is recorded once and replayed with one launch; a batch is copied into the memory that
the recording reads. The first updates of each shape run eagerly, as the warm-up that a capture needs: no update is
computed that does not count.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from pac.config import MachineConfig, ObjectiveConfig
from pac.model import PAC
from pac.model.attention import LatentBlock
from pac.model.cuda_graphs import CapturedGraph
from pac.objectives import StepOverrides, loss
from pac.training.distributed import ProcessGroup, reshard, whole_tensor
from pac.training.optim import copy_weights, optimizer_tensors, set_learning_rate
from pac.types import Batch

WARM_UP = 3  # eager updates of a shape before it is captured
MOST_GRAPHS = 8
MOST_COMPILED = 8  # shapes: dynamo's limit, past which it raises


@dataclass(kw_only=True)
class TrainState:
    """Everything that changes during a run. Batches and noise follow from the step, so there is no more to save."""

    model: PAC
    target: PAC
    optimizer: torch.optim.AdamW
    step: int = 0

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """By the file they are saved in; the tensors themselves, not copies."""
        return {
            "model": dict(self.model.state_dict()),
            "target": dict(self.target.state_dict()),
            "optimizer_state": optimizer_tensors(self.model, self.optimizer),
        }


@dataclass(frozen=True, kw_only=True)
class ScheduleValues:
    """What follows a schedule at a step; None: as the datasets and the objective say."""

    learning_rate: float
    imitation_weight: float | None = None
    critic_weight: float | None = None
    temperature: float | None = None


class MetricAccumulator:
    """Sums of metrics since they were last read, kept on the device: reading them waits for it. What processes add are
    their shares of a metric; a reading adds these up, so that nothing is sent for metrics in between.
    """

    def __init__(self, processes: ProcessGroup) -> None:
        self.processes, self.sums = processes, dict[str, Tensor]()
        self.count = torch.zeros((), device=processes.device)

    def add(self, metrics: dict[str, Tensor], bad: Tensor) -> None:
        """The metrics of an update; those of one that was refused say nothing and are left out."""
        for name, value in metrics.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(value, dtype=torch.float32)
            self.sums[name] += torch.where(bad > 0, torch.zeros_like(value), value)
        self.count += 1 - bad

    def read(self) -> dict[str, float]:
        """Means since the last reading; all processes read at the same steps."""
        if not self.sums or not self.count:
            return {}
        values = self.processes.sum(torch.stack(list(self.sums.values()))).div(self.count).tolist()
        self.clear()
        return dict(zip(self.sums, values, strict=True))

    def clear(self) -> None:
        for total in (*self.sums.values(), self.count):
            total.zero_()


class TrainStep:
    """Performs updates on a `TrainState`. Call it with a batch and the values of schedules."""

    def __init__(
        self,
        state: TrainState,
        objective: ObjectiveConfig,
        machine: MachineConfig,
        processes: ProcessGroup,
        *,
        window: int,
        batch_size: int,
        clip_norm: float | None,
        seed: int,
        proprio_noise: float = 0.0,
    ) -> None:
        self.state, self.objective, self.machine, self.processes = state, objective, machine, processes
        self.window, self.batch_size, self.clip_norm, self.seed = window, batch_size, clip_norm, seed
        self.proprio_noise = proprio_noise
        self.tally, on_gpu = MetricAccumulator(processes), processes.device.type == "cuda"
        self.parameters = [p for p in state.model.parameters() if p.requires_grad]
        self.dtype = compute_dtype(machine, processes.device)
        self.use_graphs = on_gpu and processes.size == 1 and machine.graphs != "off"
        self.loss: Callable[..., Any] = loss
        if machine.compile and processes.size == 1:
            self.loss = torch.compile(loss, fullgraph=True, dynamic=False)
        elif machine.compile:  # weights come and go between modules, outside of any graph
            for model in (state.model, state.target):
                compile_blocks(model)
        if machine.recompute:
            recompute_blocks(state.model)
        self.refused = torch.zeros((), device=processes.device)  # updates refused because something was not finite
        self.first_refused = torch.full((), -1.0, device=processes.device)
        self._values = {  # controls, where a captured update reads them
            name: torch.zeros((), device=processes.device)
            for name in ("imitation_weight", "critic_weight", "temperature", "step")
        }
        self._compiled: set[Any] = set()
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, CapturedGraph[Batch, None]] = {}
        self._pool: Any = None  # memory of all graphs: one runs at a time, and leaves nothing there that another reads

    def begin(self, seed: int) -> None:
        """Serve another run of the same shape: what was captured stays, counts and noise begin anew."""
        self.seed = seed
        self.tally.clear()
        self.refused.zero_()
        self.first_refused.fill_(-1)

    def __call__(self, batch: Batch, controls: ScheduleValues) -> None:
        """One update. On a GPU it returns before the work is done."""
        set_learning_rate(self.state.optimizer, controls.learning_rate)
        given = {name: getattr(controls, name) for name in ("imitation_weight", "critic_weight", "temperature")}
        for name, value in (given | {"step": float(self.state.step)}).items():
            if value is not None:
                self._values[name].fill_(value)
        used = frozenset(name for name, value in given.items() if value is not None)
        torch.manual_seed(hash_seed(self.seed, self.state.step))
        if self.use_graphs:
            self._replay(batch, used)
        else:
            self._run(batch, used)
        self.state.step += 1

    def _run(self, batch: Batch, used: frozenset[str]) -> None:
        bad = self._unsound(batch)
        if bad.device.type == "cpu" and bad:  # the loss would raise
            self._refuse(bad)
            return
        # NaN has no bin: as an index it would stop a GPU for good, where this update is to be refused.
        batch = replace(batch, action=batch.action.nan_to_num(), reward=batch.reward.nan_to_num())
        given = self._given(batch, used)
        if self.proprio_noise:
            batch = self._blur(batch)
        if "imitation_weight" in used:
            batch = replace(batch, imitation_weight=self._values["imitation_weight"].expand(len(batch.mask)))
        if "critic_weight" in used:
            batch = replace(batch, critic_weight=self._values["critic_weight"].expand(len(batch.mask)))
        num_real = self.processes.sum(batch.mask.sum()).clamp(min=1)
        self.state.optimizer.zero_grad(set_to_none=True)
        total, metrics = torch.zeros((), device=self.processes.device), dict[str, Tensor]()
        parts = self.machine.accumulate
        for i in range(parts):
            part = batch[i::parts]
            with self._precision():
                values, measured = self._loss_of(part, used)(
                    self.state.model, self.state.target, part, self.objective, None, _part(given, i, parts)
                )
                share = values.sum() / num_real
            # Sharded gradients are averaged over processes, while `share` is a part of a sum.
            (share * self.processes.size).backward()
            total = total + share.detach()
            weight = part.mask.sum() / num_real  # of this part's means in those of the whole batch, on all processes
            metrics = {name: metrics.get(name, 0) + value * weight for name, value in measured.items()}
        reshard(self.state.target)
        norm = self._clip()
        finite = torch.isfinite(self.processes.sum(total)) & torch.isfinite(norm)
        bad = torch.maximum(bad, (~finite).float())
        self._step(bad)
        self.tally.add(metrics | {"loss/total": total, "optim/gradient_norm": norm / self.processes.size}, bad)

    def _loss_of(self, part: Batch, used: frozenset[str]) -> Callable[..., Any]:
        """Compiled for the first shapes that come, eager for the rest."""
        form = (used, *((x.shape, x.stride()) for x in part.tensors()))
        if len(self._compiled) < MOST_COMPILED:
            self._compiled.add(form)
        return self.loss if form in self._compiled else loss

    def _unsound(self, batch: Batch) -> Tensor:
        """1 if a real action or reward of any process is not finite: an action would become some bin in silence."""
        action = batch.action.isfinite() | ~batch.action_mask | ~batch.mask[..., None]
        reward = batch.reward.isfinite() | ~batch.mask
        return self.processes.sum((~(action.all() & reward.all())).float()).clamp(max=1)

    def _clip(self) -> Tensor:
        """The norm of the whole gradient, which is clipped if there is a limit."""
        norm = whole_tensor(get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        if self.clip_norm is not None:
            clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        return norm

    def _step(self, bad: Tensor) -> None:
        """The optimiser's step, unless something was not finite; on the GPU it decides that there."""
        self._refuse(bad)
        if self.processes.device.type == "cuda":
            self.state.optimizer.found_inf = bad  # type: ignore[attr-defined]
            self.state.optimizer.step()
        elif not bad:
            self.state.optimizer.step()

    def _refuse(self, bad: Tensor) -> None:
        """Count an update that is refused."""
        self.first_refused.copy_(
            torch.where((bad > 0) & (self.first_refused < 0), self._values["step"], self.first_refused)
        )
        self.refused += bad

    def counters(self) -> dict[str, Any]:
        """What `restore` needs so that metrics go on as if nothing had happened; all processes ask."""
        sums = {name: float(self.processes.sum(total)) for name, total in self.tally.sums.items()}
        return {"sums": sums, "count": float(self.tally.count), "refused": float(self.refused)}

    def restore(self, counters: dict[str, Any]) -> None:
        share = float(self.processes.is_main)  # the sums are over processes: one of them takes them on
        self.tally.sums = {
            k: torch.tensor(x * share, device=self.processes.device) for k, x in counters["sums"].items()
        }
        self.tally.count.fill_(counters["count"])
        self.refused.fill_(counters["refused"])

    def _given(self, batch: Batch, used: frozenset[str]) -> StepOverrides:
        """Noise for every window of the whole batch; this process takes its rows. So it is the same on any number."""
        uniform = None
        if self.objective.critic == "q":
            shape = (self.batch_size, self.window, batch.action.shape[-1], self.objective.num_samples)
            uniform = torch.rand(shape, device=self.processes.device)[batch.row]
        temperature = self._values["temperature"] if "temperature" in used else None
        return StepOverrides(uniform=uniform, temperature=temperature, gather=self.processes.gather)

    def _blur(self, batch: Batch) -> Batch:
        """The same noise for all of a window: what changes within it is what actions are judged by."""
        seen = batch.observation
        shape = (self.batch_size, 1, seen.proprio.shape[-1])
        noise = torch.randn(shape, device=self.processes.device)[batch.row] * seen.proprio_scale * self.proprio_noise
        return replace(batch, observation=replace(seen, proprio=seen.proprio + noise))

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

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(
            self.processes.device.type, dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None
        )

    def copy_target(self) -> None:
        copy_weights(self.state.model, self.state.target)


def compute_dtype(machine: MachineConfig, device: torch.device) -> torch.dtype | None:
    """What products are computed in; None: as the weights are."""
    thin = machine.precision == "bfloat16" or (machine.precision == "auto" and device.type == "cuda")
    return torch.bfloat16 if thin else None


def hash_seed(seed: int, step: int) -> int:
    """A seed for every step of every run: two multiplications by odd constants, so that neighbours differ."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) % 2**63


def compile_blocks(model: PAC) -> None:
    """Compile what happens between the hooks that put a sharded block's weights together and part them."""
    for block in model.blocks:
        assert isinstance(block, LatentBlock)
        parts: tuple[nn.Module, ...] = (block.attention, block.mlp)
        for part in parts:
            part.forward = torch.compile(part.forward, fullgraph=True, dynamic=False)


def recompute_blocks(model: PAC) -> None:
    """Activation checkpointing: keep a block's input only, and compute the rest again in the backward pass. A block
    draws no random numbers; to ask for the generator's state would end a capture.
    """
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda latents, forward=forward: checkpoint(
            forward, latents, use_reentrant=False, preserve_rng_state=False
        )


def _part(given: StepOverrides, i: int, parts: int) -> StepOverrides:
    uniform = None if given.uniform is None else given.uniform[i::parts]
    return StepOverrides(uniform=uniform, temperature=given.temperature, gather=given.gather)
