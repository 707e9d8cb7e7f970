"""Baselines: BC, TD3+BC, IQL and CQL of d3rlpy, on the same data and the same evaluation episodes as PAC.

    python benchmarks/peers.py DATA... --grid --out runs/peers/grid.json           # settings, tried with seed 0
    python benchmarks/peers.py DATA... --chosen runs/peers/grid.json --out runs/peers/peers.json
    pac report runs/poor/results.json runs/peers/peers.json --out page.html       # PAC beside them

One model per dataset of `pac collect`, from proprioception alone. Evaluation episodes start from the initial states of
`pac study`. Their limits are those of the data unless others are given. Both commands continue where they were stopped:
`OUT.runs.jsonl` has a line per run. A failed run, a dead process, Ctrl-C and SIGTERM lose only unfinished runs.
--out is written from the finished ones.

Beside `pac study study/multitask`, on its poor data. The grid sees two tasks that PAC was tuned on:
    poor=runs/multitask/data/poor/metaworld
    rules="--methods bc td3+bc iql --episodes 34 --max-steps 200 --stop-at-success --device cpu --processes 2"
    python benchmarks/peers.py $poor-{drawer-close,handle-press} $rules --grid --steps 5000 \\
        --out results/peers/grid.json                                             # 25 minutes of two cores
    python benchmarks/peers.py $poor-{button-press-topdown,coffee-button,handle-press-side} \\
        $poor-{plate-slide-back,reach-wall,window-close} $rules --chosen results/peers/grid.json --steps 10000 \\
        --out results/peers/poor.json                                             # 70, with other work beside it
and the same two of CQL, `--methods cql --device cuda` and files of its own, 7 minutes of one H200 with 16 cores (8 and
18 processes at once, under MPS: 200 s a run of 10,000).
Beside `pac study study/cartpole`, with the grid on the same task, 11 minutes of two cores:
    data=runs/cartpole/data/mixed/control-cartpole.swingup
    rules="--methods bc td3+bc iql --device cpu --processes 2"
    python benchmarks/peers.py $data $rules --episodes 20 --grid --steps 5000 --out results/peers/cartpole_grid.json
    python benchmarks/peers.py $data $rules --episodes 50 --chosen results/peers/cartpole_grid.json --steps 10000 \\
        --out results/peers/cartpole.json
On a page, `<!-- pac: table study/multitask.json peers/poor.json tasks=metaworld/coffee-button,... -->`.

**Equal terms.** States are standardised and actions brought to [-1, 1] with the statistics and bounds that PAC reads; a
time limit ends no world; rewards are PAC's (`--reward success`: 1 at success), then scaled as each peer's authors do.
Each starts from the settings its authors published for such data; GRID adds a few around them and, where rewards
are dense, a shorter horizon as PAC has; `--grid` takes those with the best mean over all datasets, with a seed that
the comparison must not use. PAC's own were chosen likewise.
Batches are gathered here by numpy, 2 ms an update faster than with the library's buffer, which tests compare with ours.

**Cost**, an update on one slow CPU core: BC 1.7 ms, TD3+BC 12, IQL 17, CQL 230, so 10,000 of them take 0.3, 2, 3 and 39
minutes; 20 episodes of 200 steps in Meta-World 4 seconds, and IQL and CQL have them twice. The grid has 14 settings
where rewards are sparse, 18 elsewhere; it need not see every task. `--steps 10000 cql=1000` gives CQL fewer. Fewer are
no bargain: after 6,000, with gamma 0.99 and -1 a step, IQL's mean value was -24 and still falling (it ends above -100).

d3rlpy pins a gymnasium that our simulators do not take, so it is no extra of ours. Install it without its requirements:
    pip install --no-deps d3rlpy==2.8.1 gym==0.26.2
    pip install structlog 'dataclasses-json<0.7' scikit-learn cloudpickle h5py tqdm
"""

import argparse
import dataclasses
import hashlib
import importlib
import itertools
import json
import multiprocessing as mp
import os
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32
from rich.console import Console

from pac.cli.tables import print_grids
from pac.data.relabel import episode_returns, reward_column
from pac.data.store import ACTION, STATE, TERMINATED, Dataset
from pac.evaluation import EpisodeRecord, evaluate, experts, summarise, tables
from pac.evaluation.compare import warnings
from pac.evaluation.plan import versions
from pac.evaluation.records import by_actor
from pac.evaluation.result import make_document
from pac.files import write_atomically as write_text
from pac.files import write_json
from pac.improve.loop import StoppedError, signals
from pac.policy import one_thread
from pac.training.setup import choose_device
from pac.types import Query, Reply

EVALUATION_SEED = 10_000  # of `pac study`
ROWS = 64  # queries are answered in batches of exactly so many
METHODS = {"cql": "CQL", "iql": "IQL", "td3+bc": "TD3+BC", "bc": "BC"}  # the slowest first
CONFIGS = {"cql": "CQLConfig", "iql": "IQLConfig", "td3+bc": "TD3PlusBCConfig", "bc": "BCConfig"}
STOCHASTIC = ("cql", "iql")  # these offer samples beside their best action

# What is tried, the published first. "rewards": "minus one" is -1 a step until success, which IQL's authors use where
# rewards are sparse (AntMaze); "by return" makes the spread of returns 1,000, as they do where rewards are dense.
GRID: dict[str, dict[str, dict[str, list[Any]]]] = {
    "success": {
        "bc": {"learning_rate": [1e-3, 3e-4]},
        "td3+bc": {"alpha": [2.5, 1.0], "rewards": ["as they are", "minus one"], "gamma": [0.99]},
        "iql": {"expectile": [0.9, 0.7], "weight_temp": [10.0, 3.0], "rewards": ["minus one"], "gamma": [0.99]},
        "cql": {"conservative_weight": [5.0, 1.0], "rewards": ["minus one", "as they are"], "gamma": [0.99]},
    },
    "world": {
        "bc": {"learning_rate": [1e-3, 3e-4]},
        "td3+bc": {"alpha": [2.5, 1.0], "rewards": ["as they are"], "gamma": [0.99, 0.95]},
        "iql": {"expectile": [0.7, 0.9], "weight_temp": [3.0, 10.0], "rewards": ["by return"], "gamma": [0.99, 0.95]},
        "cql": {"conservative_weight": [5.0, 1.0], "rewards": ["as they are"], "gamma": [0.99, 0.95]},
    },
}


def library() -> Any:
    """d3rlpy, or what to do about its absence."""
    try:
        return importlib.import_module("d3rlpy")
    except ImportError as error:
        raise ValueError(
            f"Expected d3rlpy, found none that can be imported ({error}). Its pins do not fit our simulators', so: "
            "pip install --no-deps d3rlpy==2.8.1 gym==0.26.2, then pip install structlog 'dataclasses-json<0.7' "
            "scikit-learn cloudpickle h5py tqdm."
        ) from error


@dataclass(frozen=True, eq=False)
class Transitions:
    """A dataset as the peers read it, raw: a row a transition."""

    observation: Float32[np.ndarray, "step state"]
    action: Float32[np.ndarray, "step action"]
    reward: Float32[np.ndarray, " step"]
    next_observation: Float32[np.ndarray, "step state"]
    terminal: Bool[np.ndarray, " step"]  # nothing follows; a time limit is none

    def __len__(self) -> int:
        return len(self.reward)

    def batch(self, rows: np.ndarray) -> Any:
        """As the library's `update` takes them. What follows a terminal is zero, as in its own batches."""
        alive = 1 - self.terminal[rows, None].astype(np.float32)
        return library().dataset.TransitionMiniBatch(
            observations=self.observation[rows],
            actions=self.action[rows],
            rewards=self.reward[rows, None],
            next_observations=self.next_observation[rows] * alive,
            next_actions=np.zeros_like(self.action[rows]),  # none of these methods reads it
            terminals=1 - alive,
            intervals=np.ones((len(rows), 1), np.float32),
            transitions=[],
        )


def read_transitions(dataset: Dataset, reward: str | None) -> Transitions:
    """Every transition whose next observation is known or does not matter, under an extra reward or the stored one."""
    index, arrays = dataset.index, dataset.arrays
    lost = ~index["last_known"] & ~index["terminated"]
    steps = np.concatenate(
        [np.arange(row, row + n - gone) for row, n, gone in zip(index["row"], index["length"], lost, strict=True)]
    )
    return Transitions(
        observation=arrays[STATE][steps],
        action=arrays[ACTION][steps],
        reward=reward_column(dataset, reward)[steps],
        next_observation=arrays[STATE][steps + 1],
        terminal=arrays[TERMINATED][steps],
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: what shapes it, and so what its results may be reused for."""

    method: str
    setting: dict[str, Any]  # of the method
    data: str
    version: str  # of the data
    task: str
    reward: str  # "success" or "world"
    seed: int
    steps: int
    episodes: int
    max_steps: int | None
    stop_at_success: bool
    evaluation_seed: int = EVALUATION_SEED

    @property
    def extra_reward(self) -> str | None:
        return None if self.reward == "world" else self.reward


def make(job: Job, dataset: Dataset, device: str, *, compiled: bool = False) -> Any:
    """The untrained peer."""
    d3rlpy = library()
    scalers, setting = d3rlpy.preprocessing, dict(job.setting)
    high = np.where(dataset.action_high > dataset.action_low, dataset.action_high, dataset.action_low + 1)
    common = {
        "observation_scaler": scalers.StandardObservationScaler(mean=dataset.proprio_centre, std=dataset.proprio_scale),
        "action_scaler": scalers.MinMaxActionScaler(minimum=dataset.action_low, maximum=high.astype(np.float32)),
        "compile_graph": compiled,
    }
    rewards = setting.pop("rewards", "as they are")
    if rewards == "minus one":
        common["reward_scaler"] = scalers.ConstantShiftRewardScaler(shift=-1.0)
    elif rewards == "by return":
        returns = episode_returns(dataset, job.extra_reward)
        if returns.max() > returns.min():
            common["reward_scaler"] = scalers.ReturnBasedRewardScaler(
                return_max=float(returns.max()), return_min=float(returns.min()), multiplier=1000.0
            )
    if job.method == "cql":  # as in the library's reproduction of the paper: deeper, and alpha is fixed
        deep = d3rlpy.models.VectorEncoderFactory([256, 256, 256])
        common |= {"actor_encoder_factory": deep, "critic_encoder_factory": deep, "alpha_learning_rate": 0.0}
    if job.method == "iql":  # the authors let the actor's rate decay
        decay = d3rlpy.optimizers.CosineAnnealingLRFactory(T_max=job.steps)
        common["actor_optim_factory"] = d3rlpy.optimizers.AdamFactory(lr_scheduler_factory=decay)
    algorithm = getattr(d3rlpy.algos, CONFIGS[job.method])(**common, **setting).create(device=device)
    algorithm.create_impl((dataset.spec.state_dim,), dataset.spec.action_dim)
    return algorithm


def train(job: Job, dataset: Dataset, device: str, *, compiled: bool = False) -> tuple[Any, list[dict[str, Any]]]:
    """A trained peer, and its losses and values at eight moments."""
    library().seed(job.seed)
    algorithm, data = make(job, dataset, device, compiled=compiled), read_transitions(dataset, job.extra_reward)
    generator, curve = np.random.default_rng(job.seed), list[dict[str, Any]]()
    looked_at = np.random.default_rng(0).integers(len(data), size=1024)
    for step in range(1, job.steps + 1):
        losses = algorithm.update(data.batch(generator.integers(len(data), size=algorithm.batch_size)))
        if step % max(1, job.steps // 8) == 0 or step == job.steps:
            values = {} if job.method == "bc" else _values(algorithm, data, looked_at)
            curve.append({"step": step} | {name: float(loss) for name, loss in losses.items()} | values)
            if not all(np.isfinite(value) for value in curve[-1].values()):
                raise ValueError(f"{name_of(job)} diverged: expected finite losses, found {curve[-1]}.")
    return algorithm, curve


def _values(algorithm: Any, data: Transitions, rows: np.ndarray) -> dict[str, float]:
    """Of logged actions, in the peer's own units of reward: those of one that diverges grow without end."""
    found = algorithm.predict_value(data.observation[rows], data.action[rows])
    return {"value_mean": float(found.mean()), "value_max": float(found.max())}


class Peer:
    """A trained peer as `rollout` asks for one: a reply depends on its own query alone."""

    def __init__(self, algorithm: Any, name: str, *, sampled: bool = False) -> None:
        self.algorithm, self.name, self.sampled = algorithm, name, sampled
        self.device = next(algorithm.impl.policy.parameters()).device if sampled else torch.device("cpu")

    def act(self, queries: Sequence[Query]) -> list[Reply]:
        replies = list[Reply]()
        with one_thread(torch.device("cpu")):
            for first in range(0, len(queries), ROWS):
                some = list(queries[first : first + ROWS])
                replies += self._answer(some + some[-1:] * (ROWS - len(some)))[: len(some)]
        return replies

    def _answer(self, queries: list[Query]) -> list[Reply]:
        states = np.stack([np.asarray(query.observation[STATE], np.float32) for query in queries])
        actions = self._sample(states, queries) if self.sampled else self.algorithm.predict(states)
        return [
            Reply(action=np.clip(action, query.task.action_low, query.task.action_high).astype(np.float32))
            for action, query in zip(actions, queries, strict=True)
        ]

    @torch.no_grad()
    def _sample(self, states: np.ndarray, queries: list[Query]) -> np.ndarray:
        """What `sample_action` does, but with noise keyed on each query."""
        config = self.algorithm.config
        found = self.algorithm.impl.policy(
            config.observation_scaler.transform(torch.from_numpy(states).to(self.device))
        )
        noise = torch.from_numpy(np.stack([_noise(query) for query in queries])).to(self.device) * found.logstd.exp()
        squashed = config.get_type() == "cql"  # a Gaussian before tanh; IQL's is after it, and cut off
        actions = torch.tanh(found.mu + noise) if squashed else (found.squashed_mu + noise).clamp(-1, 1)
        raw: np.ndarray = config.action_scaler.reverse_transform(actions).cpu().numpy()
        return raw


def _noise(query: Query) -> np.ndarray:
    key = np.array([query.seed % 2**64, query.step], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    return generator.standard_normal(len(query.task.action_low), np.float32)


def perform(job: Job, row: str, device: str, compiled: bool) -> dict[str, Any]:
    """Train, then evaluate, in a process of its own."""
    torch.set_num_threads(1)
    started, dataset = time.time(), Dataset(job.data)
    algorithm, curve = train(job, dataset, device, compiled=compiled)
    seconds = time.time() - started
    actors: dict[str, Any] = {}
    for sampled in (False, True) if job.method in STOCHASTIC else (False,):
        label = f"{row}{', sampled' if sampled else ''}, seed {job.seed}"
        actors[label] = Peer(algorithm, label, sampled=sampled)
    found = evaluate(
        actors,
        [job.task],
        job.episodes,
        seed=job.evaluation_seed,
        max_steps=job.max_steps,
        stop_at_success=job.stop_at_success,
        workers=0,
        envs_per_worker=50,
    )
    facts = {"run": name_of(job), "row": row, "each": job.task, "seed": job.seed, "seconds": seconds}
    facts |= {"evaluation_seconds": time.time() - started - seconds, "device": device, "curve": curve}
    return {"job": dataclasses.asdict(job), "facts": facts, "episodes": [entry.as_json() for entry in found.records]}


def name_of(job: Job) -> str:
    return f"{METHODS[job.method]}{control_group(job.setting)}, {job.task}, seed {job.seed}"


def control_group(setting: Mapping[str, Any]) -> str:
    return " (" + ", ".join(f"{name} {value}" for name, value in setting.items()) + ")" if setting else ""


def settings_of(method: str, reward: str, discounts: Sequence[float] = ()) -> list[dict[str, Any]]:
    """What is tried of a method, the published first; `discounts`, if any, instead of the grid's."""
    table = GRID[reward][method] | ({"gamma": list(discounts)} if discounts and method != "bc" else {})
    return [dict(zip(table, values, strict=True)) for values in itertools.product(*table.values())]


def plan(args: argparse.Namespace) -> list[tuple[Job, str]]:
    """The runs that a command asks for, each with its row in the tables. Seed by seed: one that is cut short has all
    methods; and the slowest first, so that the last do not keep others waiting."""
    chosen = read_chosen(args.chosen, args) if args.chosen else {}
    jobs = []
    for folder, method in itertools.product(args.data, [name for name in METHODS if name in args.methods]):
        rules = rules_of(folder)
        reward = args.reward or ("success" if rules["stop_at_success"] else "world")
        rules |= {
            name: value for name in ("max_steps", "stop_at_success") if (value := getattr(args, name)) is not None
        }
        settings = settings_of(method, reward, args.discount or ())
        settings = settings if args.grid else [chosen[method] if chosen else settings[0]]
        for setting, seed in itertools.product(settings, args.seeds):
            job = Job(
                method=method, setting=setting, data=str(folder), reward=reward, seed=seed,
                steps=args.steps.get(method, args.steps[""]), episodes=args.episodes,
                evaluation_seed=args.evaluation_seed, **rules,
            )  # fmt: skip
            jobs.append((job, METHODS[method] + (control_group(setting) if args.grid else "")))
    if len({(job.max_steps, job.stop_at_success, job.reward) for job, _ in jobs}) > 1:
        raise ValueError(
            "Expected data that was collected under the same rules, found several. Give each a --out file, or all "
            "the same rules: --max-steps, --stop-at-success and --reward."
        )
    if len({job.task for job, _ in jobs}) < len(args.data):
        raise ValueError("Expected one dataset a task, found two of one task. Give each a --out file.")
    return sorted(jobs, key=lambda pair: (args.seeds.index(pair[0].seed), list(METHODS).index(pair[0].method)))


def rules_of(folder: Path) -> dict[str, Any]:
    """The task of a dataset and the limits it was collected under: evaluation keeps to them unless told otherwise."""
    try:
        settings = json.loads((folder / "collect.json").read_text())["settings"]
        rules = {name: settings[name] for name in ("task", "max_steps", "stop_at_success")}
        return rules | {"version": hashlib.sha256((folder / "committed.json").read_bytes()).hexdigest()[:12]}
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: expected a dataset of `pac collect`, found {error!r}. Name its folder.") from error


def read_chosen(path: Path, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What won on the grid, which must not have seen these seeds."""
    document = json.loads(path.read_text())
    chosen: dict[str, dict[str, Any]] = document.get("chosen", {})
    if missing := sorted(set(args.methods) - set(chosen)):
        raise ValueError(
            f"{path}: expected settings that --grid chose for {missing[0]}, found none. Run --grid with it."
        )
    if both := sorted(set(args.seeds) & {run["seed"] for run in document["runs"]}):
        raise ValueError(
            f"{path} was chosen with seed {both[0]}: expected others in --seeds, or luck is picked with it."
        )
    return chosen


def scores(done: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of every method's settings (as JSON), the mean over tasks: success, or the return where a world knows none.
    Where a grid was cut short, settings with fewer tasks than others are left out: those they have may be the easy."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in done:
        best = [EpisodeRecord.from_json(entry) for entry in run["episodes"] if ", sampled," not in entry["actor"]]
        score = np.mean([entry.total if entry.success is None else float(entry.success) for entry in best])
        setting = json.dumps(run["job"]["setting"])
        found.setdefault(run["job"]["method"], {}).setdefault(setting, []).append(float(score))
    most = {method: max(map(len, table.values())) for method, table in found.items()}
    return {m: {k: float(np.mean(v)) for k, v in table.items() if len(v) == most[m]} for m, table in found.items()}


def choose(done: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each method the setting with the best score; the first of equals, so the published one."""
    return {method: json.loads(max(table, key=lambda k: table[k])) for method, table in scores(done).items()}


def serve(link: Connection) -> None:
    """In a process of its own: one run after the other. To import what they need takes as long as a run of BC."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the one who started us
    with suppress(EOFError):  # there are no more
        while True:
            job, row, device, compiled = link.recv()
            try:
                link.send(perform(job, row, device, compiled))
            except Exception as error:
                link.send(str(error) or repr(error))


def results(
    todo: Sequence[tuple[Job, str]], processes: int, device: str, compiled: bool
) -> Generator[tuple[Job, dict[str, Any] | str]]:
    """As they come: what a run gave, or what went wrong. A process that dies takes its own run along and no other."""
    waiting, busy = deque(todo), dict[Connection, tuple[BaseProcess, Job]]()
    started, idle = list[BaseProcess](), list[tuple[Connection, BaseProcess]]()
    context = mp.get_context("spawn")
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                if not idle:
                    ours, theirs = context.Pipe()
                    started.append(context.Process(target=serve, args=(theirs,), daemon=True))
                    started[-1].start()
                    theirs.close()
                    idle.append((ours, started[-1]))
                (link, process), (job, row) = idle.pop(), waiting.popleft()
                busy[link] = process, job
                with suppress(OSError):  # it has died: seen below
                    link.send((job, row, device, compiled))
            ready = wait(list(busy))
            for link in [link for link in busy if link in ready]:
                process, job = busy.pop(link)
                try:
                    found = link.recv()
                    idle.append((link, process))
                except (EOFError, OSError):
                    process.join()
                    found = f"expected a result, found that its process had died (exit code {process.exitcode})."
                yield job, found
    finally:
        for process in started:
            process.terminate()
            process.join()


def perform_all(jobs: Sequence[tuple[Job, str]], args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Do what the journal does not have yet; returns what there is then, in the order of the jobs."""
    journal = args.out.with_name(f"{args.out.name}.runs.jsonl")
    journal.parent.mkdir(parents=True, exist_ok=True)
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []  # the last may have been cut off
    write_text(journal, "".join(f"{line}\n" for line in lines))
    done = {json.dumps(run["job"]): run for run in map(json.loads, lines)}
    todo = [(job, row) for job, row in jobs if key(job) not in done]
    device = str(choose_device(args.device))
    try:
        with signals(), closing(results(todo, args.processes, device, args.compile)) as found:
            for job, run in found:
                if isinstance(run, str):
                    console.print(f"{name_of(job)} failed: {run} The others go on.", style="red", soft_wrap=True)
                    continue
                with journal.open("a") as file:
                    file.write(json.dumps(run) + "\n")
                done[key(job)] = json.loads(json.dumps(run))
                console.print(f"{name_of(job)}: {run['facts']['seconds']:.0f} s, {result(run)}", soft_wrap=True)
    except StoppedError:
        console.print("Stopped. What is done is kept; the same command does the rest.", style="red", soft_wrap=True)
    return [done[key(job)] for job, _ in jobs if key(job) in done]


def key(job: Job) -> str:
    return json.dumps(dataclasses.asdict(job))


def result(run: Mapping[str, Any]) -> str:
    found = by_actor(EpisodeRecord.from_json(entry) for entry in run["episodes"]).values()
    known = all(entry.success is not None for group in found for entry in group)
    means = [np.mean([entry.success if known else entry.total for entry in group]) for group in found]
    return ("success " if known else "return ") + " / ".join(f"{100 * m:.0f}%" if known else f"{m:.4g}" for m in means)


def document(
    jobs: Sequence[tuple[Job, str]], done: Sequence[Mapping[str, Any]], command: str
) -> tuple[dict[str, Any], list[tables.Grid]]:
    """As `pac evaluate` and `pac study` write it; and tables of methods, seeds together."""
    records = [EpisodeRecord.from_json(entry) for run in done for entry in run["episodes"]]
    rules, tasks = jobs[0][0], list(dict.fromkeys(job.task for job, _ in jobs))
    table = experts.load(experts.TABLE)
    whole = rules.max_steps is None and not rules.stop_at_success
    known = {task: table[task].mean for task in tasks if whole and task in table}
    rows = by_actor(dataclasses.replace(entry, actor=entry.actor.rpartition(", seed ")[0]) for entry in records)
    summaries = {row: summarise(group, experts=known) for row, group in rows.items()}
    settings = {
        "seed": rules.evaluation_seed,
        "tasks": tasks,
        "actors": {label: {"study": "peers"} for label in by_actor(records)},
        "max_steps": rules.max_steps,
        "stop_at_success": rules.stop_at_success,
        "cameras": [],
        "versions": versions() | {"d3rlpy": library().__version__},
    }
    made = make_document(
        records,
        settings,
        summaries,
        episodes=rules.episodes,
        experts={task: table[task] for task in known},
        command=command,
        runs=[{**run["facts"], **run["job"]} for run in done],
        notes=warnings(summaries, []),
    )
    metrics = ("success", "percent") if rules.stop_at_success else tuple(tables.METRICS)
    return made, tables.grids(summaries, metrics=metrics)


def updates(text: str) -> tuple[str, int]:
    """Of a method, or of all (its name is then empty)."""
    method, _, number = text.rpartition("=")
    if method not in ("", *METHODS):
        raise argparse.ArgumentTypeError(f"expected N or METHOD=N, METHOD one of {', '.join(METHODS)}, found {text!r}")
    return method, int(number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="folders of `pac collect`, one a task")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", help="of training (default: 1 2 3; with --grid 0)")
    parser.add_argument("--steps", type=updates, nargs="+", default=[], metavar="N", help="updates; cql=N of CQL alone")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--evaluation-seed", type=int, default=EVALUATION_SEED, help="default: %(default)s")
    parser.add_argument("--max-steps", type=int, help="of an episode (default: as the data)")
    parser.add_argument(
        "--stop-at-success",
        action=argparse.BooleanOptionalAction,
        help="default: as the data",
    )
    parser.add_argument("--reward", choices=GRID, help="default: success where the data stopped at it, else world")
    parser.add_argument("--discount", type=float, nargs="+", help="instead of the grid's")
    parser.add_argument("--grid", action="store_true", help="try all settings, and write which was best")
    parser.add_argument("--chosen", type=Path, help="what --grid wrote; without it, published settings")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compile", action="store_true", help="the library's CUDA graphs")
    parser.add_argument("--out", type=Path, required=True, help="JSON of all episodes")
    args = parser.parse_args(arguments)
    args.steps = {"": 50_000} | dict(args.steps)
    args.seeds = args.seeds or ([0] if args.grid else [1, 2, 3])
    console = Console(highlight=False)
    library()  # an error now rather than in every process
    jobs = plan(args)
    done = perform_all(jobs, args, console)
    if not done:
        return 1
    given = sys.argv[1:] if arguments is None else list(arguments)
    made, grids = document(jobs, done, shlex.join(["python", "benchmarks/peers.py", *given]))
    if args.grid:
        made["chosen"] = choose(done)
        for method, table in scores(done).items():
            for setting, score in table.items():
                mark = "*" if json.loads(setting) == made["chosen"][method] else " "
                console.print(
                    f"{mark} {METHODS[method]}{control_group(json.loads(setting))}: {score:.4g}", soft_wrap=True
                )
    else:
        print_grids(grids, console if console.is_terminal else Console(width=200))
    write_json(args.out, made)
    return int(len(done) < len(jobs))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"{error}")
