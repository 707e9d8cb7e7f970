"""How fast training is: the engine of `pac train` beside the plain baseline of benchmarks/plain.py, in the same run.

    python benchmarks/train_speed.py --only checks control small data profile --json FILE  # CUDA: under
    python benchmarks/train_speed.py --only large scaling data profile --json FILE         # 10 minutes each
    python benchmarks/train_speed.py --device cpu --size nano --quick                      # CPU: does it run?

checks    the baseline's loss is ours on the same batch and weights; captured updates equal eager ones; a refused one
          changes nothing
control   XXS on the shapes of the paper's Control mixture: 512 windows of 5 observations, 32 suite tasks, their text
small     micro on six small suite tasks, bound by launches, 128 and 512 windows; the baseline is fit to the same data
large     L with all numbers and 50 words, 128 windows (512 states)
scaling   time against windows, real tokens, and sampled actions: captured; XXS along the actions compiled too
data      what data costs in these three: streamed from disk and resident on the GPU, by the real sampler
profile   where the GPU's time goes in these three

With --cases the last two look at those alone. Times are medians between CUDA events of successive updates; a case that
no longer fits --budget is left out, and said to be. FLOPs are useful ones (`pac.model.flops`), of what a batch holds,
whoever pads it. With --json, sections of an earlier run that are not run again stay in the file.
"""

import argparse
import contextlib
import copy
import gc
import itertools
import json
import re
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import plain
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

from pac.data.store import STATE, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.envs.tasks import TASKS, static_spec
from pac.model import PAC
from pac.model.flops import Load, update_flops
from pac.objectives import StepOverrides, loss
from pac.recipe import parse_recipe
from pac.training.distributed import ProcessGroup
from pac.training.step import WARM_UP
from pac.training.trainer import Trainer
from pac.types import Batch, Episode

Row = dict[str, Any]

CASES = ("control", "small", "large")
SECTIONS = ("checks", *CASES, "data", "scaling", "profile")
CONTROL = tuple(task for task in TASKS if task.startswith("control/"))
SMALL = tuple(f"control/{name}" for name in ("reacher.easy", "cartpole.swingup", "ball_in_cup.catch", "walker.walk"))
SMALL += ("control/hopper.stand", "control/cheetah.run")
WORDS = "pick the small red block up with your left hand, turn it round, and put it behind the green one; "
FIRST = 8  # updates whose losses are compared: some eager, some replayed
CATEGORIES = {  # of kernels, by the first pattern that fits their name
    "fused elementwise": r"^triton_poi",
    "fused reductions": r"^triton_(per|red)",
    "attention": r"flash|fmha|sdpa|attention",
    "matmul": r"gemm|nvjet|cutlass|cublas|splitk|aten::(mm|bmm|addmm|convolution)|xmma|^triton_tem|mkldnn",
    "optimiser": r"adam|lpnorm|multi_tensor|_foreach|_fused|lerp|addcdiv",
    "copies": r"memcpy|memset|copy|catarray|fill|aten::cat",
    "elementwise and reductions": r"elementwise|reduce|softmax|layer_?norm|index|scatter|gather|scan|sort|aten::",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and the data to train it on."""

    name: str
    size: str
    windows: int
    datasets: tuple[str, ...]  # folders below the bench's
    seconds: float = 60.0  # a compilation on an H200, for the plan
    num_samples: int = 10

    @property
    def where(self) -> Row:
        return {"case": self.name, "size": self.size, "windows": self.windows}


@dataclass(kw_only=True)
class Bench:
    """Device, time budget and results."""

    device: torch.device
    folder: Path
    compile: bool
    quick: bool = False
    budget: float = 540.0
    json: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    peak: float = float("nan")  # FLOP/s of a large matrix product
    console: Console = field(default_factory=lambda: Console(width=180))

    @property
    def seconds(self) -> float:
        """Return the seconds of updates in one measurement."""
        return 0.1 if self.quick else 3.0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def say(self, text: str) -> None:
        self.console.print(f"[{self.elapsed:6.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def report(self, section: str, row: Row) -> None:
        self.found.setdefault(section, []).append(row)
        self.say(f"{section}: " + ", ".join(f"{k} {shown(v)}" for k, v in row.items() if not isinstance(v, list)))

    def fits(self, section: str, what: str, seconds: float) -> bool:
        """Return whether the budget allows something of this many seconds. Note it if not."""
        if self.quick or self.elapsed + seconds < self.budget:
            return True
        self.report("left out", {"section": section, "what": what, "seconds needed": seconds})
        return False

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Limit an error to this part. Results so far are always written."""
        self.say(f"--- {what}")
        try:
            yield
        except Exception as error:
            text = traceback.format_exc()
            self.say(text)
            line = {"what": what, "error": f"{type(error).__name__}: {error}"[:2000], "where": text[-2000:]}
            self.found.setdefault("errors", []).append(line)
        finally:
            gc.collect()
            if self.device.type == "cuda":
                with contextlib.suppress(RuntimeError):
                    torch.cuda.empty_cache()
            self.write()

    def write(self) -> None:
        if self.json is not None:
            self.json.parent.mkdir(parents=True, exist_ok=True)
            new = self.json.with_name(self.json.name + ".new")
            new.write_text(json.dumps(self.found, indent=1, default=str) + "\n")
            new.replace(self.json)


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# -------------------------------------------------------------------------------------------------------- measuring


def forget(device: torch.device) -> None:
    """Free what earlier cases left, compiled code too: a second shape would be compiled for any shape."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def gpu_state() -> str:
    """Return clock, power and temperature from the driver."""
    asked = "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", asked, "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    return "unknown"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(
    call: Callable[[], Any], device: torch.device, *, seconds: float, warm: int = WARM_UP + 3, most: int = 100
) -> float:
    """Return the median time from the end of a call to the end of the next, without waiting in between."""
    for _ in range(warm):
        call()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(2):
        call()
    synchronize(device)
    count = int(max(5, min(most, seconds / ((time.perf_counter() - start) / 2))))
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(count):
            call()
            marks.append(time.perf_counter())
        return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(marks))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def matrix_peak(device: torch.device, quick: bool) -> float:
    """Return the FLOP/s of a large product of random numbers: bf16 on CUDA, fp32 on the CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (256 if quick else 1536, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (milliseconds(lambda: a @ b, device, seconds=0.1 if quick else 1.0) / 1e3)


class Memory:
    """Peak memory since creation, beyond the memory in use before."""

    def __init__(self, device: torch.device) -> None:
        forget(device)
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            self.before = torch.cuda.memory_allocated()
            self.before_reserved = torch.cuda.memory_reserved()
        self.again()

    def again(self) -> None:
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def row(self) -> Row:
        """Allocated is what tensors take; reserved includes what the allocator and graphs keep."""
        if not self.on_gpu:
            return {"peak GB": None, "reserved GB": None}
        return {
            "peak GB": (torch.cuda.max_memory_allocated() - self.before) / 1e9,
            "reserved GB": (torch.cuda.max_memory_reserved() - self.before_reserved) / 1e9,
        }


# --------------------------------------------------------------------------------------------------------- the data


def write_task(
    path: Path, *, state: int, low: Sequence[float], high: Sequence[float], control_group: str, quick: bool
) -> None:
    """Write noise in the shape of a suite task."""
    random = np.random.default_rng(state)
    episodes, length = (2, 40) if quick else (20, 1000)
    bounds = tuple(float(x) for x in low), tuple(float(x) for x in high)
    spec = DatasetSpec(state_dim=state, action_dim=len(low), action_low=bounds[0], action_high=bounds[1])
    with DatasetWriter(path, spec) as writer:
        for _ in range(episodes):
            writer.append(
                Episode(
                    observation={STATE: random.standard_normal((length + 1, state), np.float32)},
                    action=(random.random((length, len(low)), np.float32) * 2 - 1).clip(*bounds),
                    reward=random.random(length, np.float32),
                    terminated=False,
                    truncated=True,
                    instruction=control_group,
                )
            )


def write_data(bench: Bench, names: Sequence[str]) -> None:
    """Write the datasets that are missing: "control/<task>", "all" for every input, "numbers-<n>"."""
    for name in names:
        path = bench.folder / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in TASKS:
            task = static_spec(name, (), None)
            shape: Row = {"state": task.state_dim, "low": task.action_low, "high": task.action_high}
            write_task(path, **shape, control_group=task.instruction, quick=bench.quick)
        else:
            state, actions, control_group = (
                (223, 38, 5 * WORDS) if name == "all" else (int(name.split("-")[1]), 6, "walk")
            )
            write_task(
                path,
                state=state,
                low=[-1] * actions,
                high=[1] * actions,
                control_group=control_group,
                quick=bench.quick,
            )


# ------------------------------------------------------------------------------------------------------- the engine


def make_run(bench: Bench, case: Case, **machine: Any) -> Trainer:
    """Return the engine that `pac train` builds."""
    write_data(bench, case.datasets)
    datasets = [{"name": name, "path": str(bench.folder / name)} for name in case.datasets]
    settings = {"device": bench.device.type, "workers": 4, "data": "stream" if bench.device.type == "cuda" else "auto"}
    table = {
        "model": {"size": case.size},
        "objective": {"method": "pac", "num_samples": case.num_samples},
        "mixture": {
            "batch_size": case.windows,
            "window": 5,
            "groups": [{"name": "all", "weight": 1, "datasets": datasets}],
        },
        "machine": settings | machine,
    }
    return Trainer(parse_recipe(table), bench.folder / "run", ProcessGroup(device=bench.device))


def take(run: Trainer, count: int) -> list[Batch]:
    """Return the first batches of a run, on the device of the model."""
    stream = run.batches()
    try:
        return [next(stream) for _ in range(count)]
    finally:
        stream.close()


def updates(run: Trainer, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return a function that makes one update per call, on these batches in turn."""
    ring = itertools.cycle(batches)

    def call() -> None:
        run.update(next(ring), run.schedule_values(run.state.step))

    return call


def useful_flops(run: Trainer) -> float:
    """Return the FLOPs of an update, for the mean of the mixture's windows."""
    total, mixture = 0.0, run.config.mixture
    for source in run.sampler.sources:
        spec = source.dataset.spec
        load = Load(
            num_proprio=spec.state_dim, num_images=0, num_text_tokens=source.num_text, num_actions=spec.action_dim
        )
        share = float(mixture.probabilities[source.config.name])
        size = mixture.batch_size, mixture.window, run.objective.num_samples
        total += share * update_flops(run.model_config, load, *size)
    return total


def real_tokens(run: Trainer) -> float:
    """Return the mean number of input tokens of an update's windows."""
    mixture, gains = run.config.mixture, run.model_config.num_gains
    tokens = sum(
        float(mixture.probabilities[source.config.name]) * (gains * source.dataset.spec.state_dim + source.num_text)
        for source in run.sampler.sources
    )
    return mixture.batch_size * mixture.window * tokens


def speed(bench: Bench, run: Trainer, ms: float) -> Row:
    return {"ms": ms, "updates/s": 1e3 / ms, "of matrix peak": useful_flops(run) / (ms / 1e3) / bench.peak}


# -------------------------------------------------------------------------------------------- control, small, large


def measure(bench: Bench, section: str, case: Case) -> Trainer | None:
    """Measure the baseline, then our engine, in rows of `section`. Return the fastest engine, warm, if there is one."""
    rows: list[Row] = []
    run: Trainer | None = None

    def note(row: Row) -> None:
        base = next((r["ms"] for r in rows if r["kind"].startswith("plain")), None)
        rows.append(case.where | row | {"times faster": base / row["ms"] if base else None})
        bench.report(section, rows[-1])

    with bench.guarded(f"{case.name}: plain baseline"):
        if bench.fits(section, f"{case.name}: baseline", case.seconds):
            note(measure_plain(bench, case))
    with bench.guarded(f"{case.name}: ours, eager"):
        if bench.fits(section, f"{case.name}: eager", 10):
            found, run = measure_ours(bench, case, {"compile": False}, ("eager", "graph"))
            for row in found:
                note(row)
    if not bench.compile:
        return run
    run = None
    with bench.guarded(f"{case.name}: ours, compiled"):
        if bench.fits(section, f"{case.name}: compiled", case.seconds):
            kinds = ("compiled + graph", "compiled")
            found, run = measure_ours(bench, case, {"compile": True}, kinds)
            for row in found:
                note(row)
    compare_first(bench, case, rows)
    return run


def measure_plain(bench: Bench, case: Case) -> Row:
    run = make_run(bench, case, compile=False)
    batch = take(run, 1)[0]
    config, objective = run.model_config, run.objective
    flops = useful_flops(run)
    del run
    memory = Memory(bench.device)
    with bench.device:
        model = plain.PlainPAC(config)
    update = plain.make_update(model, plain.pad(batch, config), objective, compiled=bench.compile)
    start = time.perf_counter()
    update()
    synchronize(bench.device)
    started = time.perf_counter() - start
    ms = milliseconds(update, bench.device, seconds=bench.seconds)
    kind = "plain, compiled" if bench.compile else "plain, eager"
    row = {"kind": kind, "ms": ms, "updates/s": 1e3 / ms, "of matrix peak": flops / (ms / 1e3) / bench.peak}
    return row | memory.row() | {"start s": started}


def measure_ours(bench: Bench, case: Case, machine: Row, kinds: Sequence[str]) -> tuple[list[Row], Trainer]:
    """Rows of one engine with and without graphs, which share what was compiled; the first kind starts from seed 0."""
    memory, rows = Memory(bench.device), list[Row]()
    run = make_run(bench, case, **machine)
    batches = take(run, 4)
    call = updates(run, batches)
    for kind in kinds if bench.device.type == "cuda" else kinds[:1]:
        run.update.use_graphs = "graph" in kind and bench.device.type == "cuda"
        memory.again()
        start, row = time.perf_counter(), dict[str, Any]()
        if run.state.step == 0:
            for _ in range(FIRST):
                call()
            row = {"first loss": run.update.metrics.take_means()["loss/total"]}
        started = time.perf_counter() - start
        ms = milliseconds(call, bench.device, seconds=bench.seconds)
        row = {"kind": kind} | speed(bench, run, ms) | memory.row() | row | {"start s": started}
        rows.append(row | {"graphs": len(run.update._graphs), "refused": int(run.update.refused)})
    run.update.use_graphs = bench.device.type == "cuda"
    check_refusal(bench, run, f"{case.name}, {case.windows} windows, {kinds[0]}", batches[0])
    return rows, run


def compare_first(bench: Bench, case: Case, rows: Sequence[Row]) -> None:
    """Compare the first losses of captured updates, eager and compiled, from equal weights, batches and noise."""
    found = {row["kind"]: row["first loss"] for row in rows if "first loss" in row}
    if {"eager", "compiled + graph"} <= found.keys():
        error = abs(found["compiled + graph"] / found["eager"] - 1)
        what = f"{case.name}, {case.windows} windows: mean loss of {FIRST} updates, compiled + graph against eager"
        check(bench, what, error, 1e-2)


def check(bench: Bench, what: str, error: float, limit: float, **more: Any) -> None:
    bench.report("checks", {"what": what, "error": error, "limit": limit, "passed": bool(error <= limit)} | more)


# --------------------------------------------------------------------------------------------------- data, profile


@dataclass(frozen=True, eq=False)
class Warm:
    """An engine after its measurement."""

    case: Case
    call: Callable[[], None]
    ms: float


def look_closer(bench: Bench, case: Case, names: Sequence[str], run: Trainer | None) -> Warm | None:
    """What data costs an engine, which may be warm already; if it is to be profiled, it is returned."""
    asked = [name for name in names if name in ("data", "profile")]
    what = f"{case.name}, {case.windows} windows"
    if not asked or not bench.fits("data", what, case.seconds if bench.compile and run is None else 10):
        return None
    warm: Warm | None = None
    with bench.guarded(f"{what}: batches that lie ready"):
        if run is None:
            forget(bench.device)
            run = make_run(bench, case, compile=bench.compile)
        call = updates(run, take(run, 4))
        fixed = milliseconds(call, bench.device, seconds=bench.seconds)
        kinds: tuple[Literal["stream", "gpu"], ...] = ("stream", "gpu")
        for kind in kinds if bench.device.type == "cuda" else kinds[:1]:
            if "data" in asked:
                with bench.guarded(f"{case.name}: data, {kind}"):
                    bench.report("data", case.where | fed(run, kind, fixed, seconds=bench.seconds))
        warm = Warm(case, call, fixed) if "profile" in asked else None
    return warm


def fed(run: Trainer, kind: Literal["stream", "gpu"], fixed: float, *, seconds: float) -> Row:
    """Measure the training loop on fresh batches, beside the same updates on prepared batches."""
    on_gpu = run.processes.device.type != "cpu" and kind == "gpu"
    run.sampler = run.sampler.replace(device=run.processes.device if on_gpu else None)
    batches, waited = run.batches(), list[float]()

    def step() -> None:
        if run.state.step % run.target_period == 0:
            run.update.copy_target()
        start = time.perf_counter()
        batch = next(batches)
        waited.append(time.perf_counter() - start)
        run.update(batch, run.schedule_values(run.state.step))

    try:
        for _ in range(WARM_UP + 5):
            step()
        synchronize(run.processes.device)
        waited.clear()
        count = int(max(5, min(400, seconds / (fixed / 1e3))))
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize(run.processes.device)
        ms = (time.perf_counter() - start) / count * 1e3
    finally:
        batches.close()
    return {
        "data": kind,
        "GB": sum(source.num_bytes for source in run.sampler.sources) / 1e9,
        "ms": ms,
        "ms, batches ready": fixed,
        "wait share": max(0.0, 1 - fixed / ms),
        "ms in next()": 1e3 * statistics.mean(waited),  # of the host, which may be ahead of the GPU
        "graphs": len(run.update._graphs),
        "refused": int(run.update.refused),
    }


def category(name: str) -> str:
    return next((kind for kind, pattern in CATEGORIES.items() if re.search(pattern, name, re.IGNORECASE)), "other")


def profiled(call: Callable[[], None], device: torch.device, wall: float, *, count: int = 3) -> Row:
    """Return milliseconds of an update by kind of kernel. The gap is the remaining time."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    synchronize(device)
    with profile(activities=activities) as found:
        for _ in range(count):
            call()
        synchronize(device)
    kernels: dict[str, float] = {}
    launches, spans = 0, list[tuple[float, float]]()
    for event in found.events() or ():
        is_kernel = event.device_type.name == ("CUDA" if on_gpu else "CPU")
        if (
            not is_kernel
            or getattr(event, "is_user_annotation", False)
            or event.name.startswith(("ProfilerStep", "Optimizer."))
        ):
            continue
        spent = event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
        launches += 1
        kernels[event.name] = kernels.get(event.name, 0.0) + spent / 1e3 / count
        spans.append((event.time_range.start, event.time_range.end))
    if not kernels:
        raise RuntimeError("the profiler saw no kernels here")
    kinds = dict.fromkeys((*CATEGORIES, "other"), 0.0)
    for name, ms in kernels.items():
        kinds[category(name)] += ms
    busy = covered(spans) / 1e3 / count
    top = sorted(kernels.items(), key=lambda item: -item[1])[:15]
    return {
        "ms": wall,
        "busy ms": busy,
        "launch gaps": max(0.0, 1 - busy / wall),
        "kernels": launches / count,
        **{f"{kind} ms": ms for kind, ms in kinds.items()},
        "top": [{"kernel": name[:120], "kind": category(name), "ms": ms} for name, ms in top],
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of spans, because kernels may overlap."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


# ----------------------------------------------------------------------------------------------------------- checks


def check_loss(bench: Bench, case: Case) -> None:
    """Padded and token by token or not, the loss and its gradient are the same: same weights, batch and noise."""
    run = make_run(bench, case, compile=False)
    model, config = run.state.model, run.model_config
    with torch.no_grad():  # heads start almost flat: whatever they read, the loss would be the same
        for name, parameter in model.named_parameters():
            parameter.mul_(100 if name.endswith("decoder.head.weight") else 1)
    batch = take(run, 1)[0][: min(64, case.windows)]
    twin = plain.PlainPAC(config).to(bench.device)
    twin.load_state_dict(model.state_dict())
    shape = (len(batch.mask), 5, batch.action.shape[-1], run.objective.num_samples)
    uniform = torch.rand(shape, device=bench.device)
    padded = F.pad(uniform, (0, 0, 0, config.num_actions - shape[2]))
    pairs: list[tuple[PAC, Batch, Tensor]] = [(model, batch, uniform), (twin, plain.pad(batch, config), padded)]
    for precision, limit, gradient_limit in (("float32", 1e-4, 1e-2), ("bfloat16", 1e-2, 1e-1)):
        values, gradients = list[float](), list[Tensor]()
        for network, given, noise in pairs:
            target = copy.deepcopy(network).requires_grad_(False)
            with torch.autocast(bench.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                each, _ = loss(network, target, given, run.objective, None, StepOverrides(uniform=noise))
            mean = each.sum() / given.mask.sum()
            network.zero_grad()
            mean.backward()
            values.append(float(mean.detach()))
            named = dict(network.named_parameters())
            gradients.append(torch.cat([p.grad.flatten() for p in named.values() if p.grad is not None]))
        apart = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
        what = f"{case.name}: %s of the baseline against ours, {precision}"
        check(bench, what % "loss", abs(values[1] / values[0] - 1), limit, loss=values[0])
        check(bench, what % "gradient", apart, gradient_limit)


def check_resident(bench: Bench, case: Case) -> None:
    """Check that data on the GPU gives the same batches as data on disk."""
    run = make_run(bench, case, compile=False)
    other = run.sampler.replace(device=None if bench.device.type == "cpu" else run.processes.device)
    apart, strides = 0.0, True
    for step in range(3):
        for found, x in zip(other.batch(step).tensors(), run.sampler.batch(step).tensors(), strict=True):
            assert found.shape == x.shape
            assert found.device.type == bench.device.type
            strides &= found.stride() == x.stride()
            apart = max(apart, float((found.cpu().double() - x.double()).abs().max()) if x.numel() else 0.0)
    what = f"{case.name}: batches of data on the device against those from disk, values and strides"
    check(bench, what, apart if strides else float("inf"), 1e-6)


def check_capture(bench: Bench, case: Case) -> None:
    """Eager and captured updates from the same start, of two shapes in turn; all of it in float32."""
    machines: dict[str, Row] = {"eager": {"graphs": "off"}, "eager again": {"graphs": "off"}, "captured": {}}
    machines |= {"captured, recomputed": {"recompute": True}}
    expected: tuple[Tensor, Tensor, float] | None = None
    for kind, machine in machines.items():
        with bench.guarded(f"checks: {kind}"):
            forget(bench.device)
            run = make_run(bench, case, precision="float32", **machine)
            before = weights(run)
            full = take(run, 2 * (WARM_UP + 5))
            for i, batch in enumerate(full):
                controls = replace(run.schedule_values(run.state.step), learning_rate=1e-4 * (1 + i % 3))
                run.update(batch[: len(batch.mask) // 2] if i % 2 else batch, controls)  # of two shapes
            after, value = weights(run), run.update.metrics.take_means()["loss/total"]
            if kind == "eager":
                expected = before, after, value
            elif expected is not None:
                moved = float((after - expected[1]).norm() / (expected[1] - expected[0]).norm())
                check(bench, f"weights, {kind} against eager, over how far they moved", moved, 2e-2)
                check(bench, f"mean loss, {kind} against eager", abs(value / expected[2] - 1), 1e-4)
            graphs = len(run.update._graphs)
            if bench.device.type == "cuda" and "captured" in kind:
                check(bench, f"graphs, {kind}", abs(graphs - 2), 0, graphs=graphs)
            check_refusal(bench, run, kind, full[0])


def weights(run: Trainer) -> Tensor:
    """Return a copy of all weights but key biases, whose gradient is rounding that Adam enlarges."""
    named = run.state.model.named_parameters()
    return torch.cat([p.detach().flatten() for name, p in named if not name.endswith("key.bias")])


def check_refusal(bench: Bench, run: Trainer, kind: str, batch: Batch) -> None:
    """A reward that is not finite: no weight changes and the update is counted; the next one goes on."""
    step, before = run.state.step, weights(run)
    moments = [x.clone() for x in run.state.tensors()["optimizer_state"].values()]
    reward = batch.reward.masked_fill(batch.mask, float("nan"))
    run.update(replace(batch, reward=reward), run.schedule_values(step))
    kept = all(map(torch.equal, moments, run.state.tensors()["optimizer_state"].values()))
    same = torch.equal(weights(run), before) and kept
    noted = int(run.update.refused) == 1 and int(run.update.first_refused) == step
    run.update(batch, replace(run.schedule_values(step), learning_rate=1e-4))
    went_on = int(run.update.refused) == 1 and not torch.equal(weights(run), before)
    finite = bool(weights(run).isfinite().all())
    facts = {"weights and moments kept": same, "noted": noted, "went on": went_on, "finite": finite}
    check(bench, f"refused update, {kind}", float(not all(facts.values())), 0, **facts)
    run.update.refused.zero_()
    run.update.first_refused.fill_(-1)


# ---------------------------------------------------------------------------------------------------------- scaling


def scale(bench: Bench, size: str, base: Case, compiled: bool) -> None:
    """Time of an update as one thing grows, the others as in `base`; compiled, if at all, along the samples alone,
    since every shape takes a minute to compile.
    """
    factors = (0.25, 0.5, 1.0) if compiled or bench.quick else (0.25, 0.5, 1.0, 2.0, 4.0)
    axes: dict[str, list[Case]] = {
        "samples": [replace(base, num_samples=n) for n in (10, 20, 40)],
        "windows": [replace(base, windows=max(1, int(base.windows * x))) for x in factors],
        "tokens": [replace(base, datasets=(f"numbers-{n}",)) for n in ((3, 5) if bench.quick else (24, 112, 223))],
    }
    known: dict[tuple[Case, bool], Row] = {}
    for axis, cases in axes.items():
        rows: list[Row] = []
        for case in cases:
            key = case, compiled and axis == "samples"
            if key not in known and bench.fits("scaling", f"{size}, {axis}", case.seconds if key[1] else 10):
                with bench.guarded(f"scaling: {size}, {axis}"):
                    known[key] = scaled(bench, *key)
            if key in known:
                rows.append(known[key])
        for row in rows:
            against = {"ms / first": row["ms"] / rows[0]["ms"], "tokens / first": row["tokens"] / rows[0]["tokens"]}
            bench.report("scaling", {"size": size, "axis": axis} | row | against)
        if axis == "tokens" and len(rows) > 2:
            line = np.polyfit([r["tokens"] for r in rows], [r["ms"] for r in rows], 1)
            off = max(abs(np.polyval(line, r["tokens"]) / r["ms"] - 1) for r in rows)
            facts = {"ms": float(line[1]), "ms a million tokens": float(line[0]) * 1e6, "largest deviation": float(off)}
            bench.report("straight", {"size": size} | facts)


def scaled(bench: Bench, case: Case, compiled: bool) -> Row:
    memory = Memory(bench.device)
    run = make_run(bench, case, compile=compiled)
    ms = milliseconds(updates(run, take(run, 4)), bench.device, seconds=bench.seconds)
    facts = {"windows": case.windows, "samples": case.num_samples, "tokens": real_tokens(run), "compiled": compiled}
    return facts | speed(bench, run, ms) | {"windows/s": case.windows / ms * 1e3} | memory.row()


# ------------------------------------------------------------------------------------------------------------- main


def cases(size: str | None, quick: bool) -> dict[str, list[Case]]:
    """Return the cases of each section. `size` replaces all sizes."""
    tasks = CONTROL[::8] if quick else CONTROL
    control = Case(name="control", size=size or "XXS", windows=4 if quick else 512, datasets=tasks, seconds=60)
    small = Case(name="small", size=size or "micro", windows=8 if quick else 512, datasets=SMALL, seconds=40)
    large = Case(name="large", size=size or "L", windows=2 if quick else 128, datasets=("all",), seconds=100)
    fewer = [replace(small, windows=128)] if not quick else []
    return {"control": [control], "small": [small, *fewer], "large": [large]}


def print_plan(bench: Bench, only: Sequence[str], looked_at: Sequence[str], chosen: dict[str, list[Case]]) -> None:
    cost = {"checks": 60.0 if bench.compile else 20.0, "scaling": 3 * 60.0 + 90}
    for name, listed in chosen.items():
        cost[name] = sum(2 * case.seconds * bench.compile + 20 for case in listed)
    closer = sum(0.4 * case.seconds * bench.compile + 20 for name in looked_at for case in chosen[name])
    cost |= {"data": closer * ("data" in only), "profile": 5.0}
    parts = {name: cost[name] for name in only}
    bench.say("plan, in seconds of an H200: " + ", ".join(f"{k} {v:.0f}" for k, v in parts.items()))
    bench.say(f"in all {sum(parts.values()):.0f} of {bench.budget:.0f}; what no longer fits is left out")


def drop(found: dict[str, Any], only: Sequence[str], looked_at: Sequence[str]) -> None:
    """Remove earlier results and notes of what is measured again."""
    for section in only:
        found[section] = [row for row in found.get(section, []) if row.get("case", "") not in ("", *looked_at)]
    if "scaling" in only:
        found.pop("straight", None)
    found["left out"] = [row for row in found.get("left out", []) if row["section"] not in only]


def bench_all(bench: Bench, only: Sequence[str], looked_at: Sequence[str], size: str | None) -> None:
    chosen = cases(size, bench.quick)
    print_plan(bench, only, looked_at, chosen)
    bench.peak = matrix_peak(bench.device, bench.quick)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    about = {"sections": list(only), "device": name, "torch": torch.__version__, "matrix TFLOP/s": bench.peak / 1e12}
    about["gpu"] = gpu_state()
    bench.found.setdefault("runs", []).append(about)
    drop(bench.found, only, looked_at)
    bench.say(f"{name}, torch {torch.__version__}, matrix product {bench.peak / 1e12:.4g} TFLOP/s")
    with bench.guarded("writing data"):
        write_data(bench, sorted({name for listed in chosen.values() for case in listed for name in case.datasets}))
    if "checks" in only:
        with bench.guarded("checks: loss"):
            check_loss(bench, chosen["control"][0])
        with bench.guarded("checks: data"):
            check_resident(bench, chosen["control"][0])
        check_capture(bench, replace(chosen["small"][0], windows=8 if bench.quick else 64))
    warm: list[Warm | None] = []
    for section, listed in chosen.items():
        for case in listed:
            run = measure(bench, section, case) if section in only else None
            if section in looked_at:
                warm.append(look_closer(bench, case, only, run))
            run = None
    for engine in warm:  # when all that depends on launches was timed: a profiler might leave something behind
        if engine is not None:
            with bench.guarded(f"{engine.case.name}: profile"):
                bench.report("profile", engine.case.where | profiled(engine.call, bench.device, engine.ms))
    engine = None
    warm.clear()
    if "scaling" in only:
        base = chosen["small"][0]
        scale(bench, base.size, base, compiled=False)
        if not bench.quick:
            base = chosen["control"][0]
            scale(bench, base.size, base, compiled=bench.compile)
    about |= {"seconds": bench.elapsed, "gpu at the end": gpu_state()}
    bench.write()


def tables(bench: Bench) -> None:
    for section in (*SECTIONS, "straight", "left out", "errors"):
        rows = bench.found.get(section)
        if not rows:
            continue
        columns = [c for c in dict.fromkeys(c for row in rows for c in row) if c not in ("top", "where")]
        table = Table(title=section, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="right", overflow="fold")
        for row in rows:
            table.add_row(*(shown(row.get(column, "")) for column in columns))
        bench.console.print(table)
    for row in bench.found.get("profile", []):
        kernels = "; ".join(f"{t['ms']:.3g} ms {t['kernel'][:50]}" for t in row["top"][:6])
        bench.console.print(f"{row['case']}, {row['windows']} windows: {kernels}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, help="whose data and profile; those named in --only, or all"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", help="in place of every size")
    parser.add_argument("--quick", action="store_true", help="a few windows of each, uncompiled")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds after which nothing new begins")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there, after each part")
    args = parser.parse_args()
    found = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            device=torch.device(args.device),
            folder=Path(folder),
            compile=args.device == "cuda" and not args.quick,
            quick=args.quick,
            budget=args.budget,
            json=args.json,
            found=found,
        )
        looked_at = args.cases or [name for name in CASES if name in args.only] or CASES
        bench_all(bench, args.only, looked_at, args.size)
        tables(bench)


if __name__ == "__main__":
    main()
