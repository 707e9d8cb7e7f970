"""`pac demo`: from poor data to a better policy in a world small enough for any CPU.

A point must reach a goal within 30 steps. Whoever logged the data changed its mind every other step: a quarter of the
time towards the goal, else towards a decoy opposite the goal, or nowhere. One episode in six succeeds, wandering, and
no episode is worth cloning whole.
The real model and objectives learn from that log, and every policy is tried from the same starts.
"""

import argparse
import contextlib
import copy
import multiprocessing
import os
import queue
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from pac.config import ModelConfig, ObjectiveConfig, model_config
from pac.intervals import wilson
from pac.model import PAC
from pac.objectives import loss, sample_actions
from pac.types import Batch, Observation

HORIZON, REACH, STRIDE = 30, 0.15, 0.15
METHODS = {  # alpha, and how the loss is made
    "filtered BC": (1.0, ObjectiveConfig(critic="none", improve=False)),
    "BC+Q": (1.0, ObjectiveConfig(improve=False, discount=0.95)),
    "PAC": (0.5, ObjectiveConfig(discount=0.95, epsilon=0.3)),
    "PAC+V": (0.0, ObjectiveConfig(critic="v", discount=0.95)),
}


@dataclass(frozen=True)
class Log:
    """Logged transitions, one a row; `success` says whether the row's episode reached its goal."""

    state: Float[Tensor, "row 4"]  # position, goal
    action: Float[Tensor, "row 2"]
    next_state: Float[Tensor, "row 4"]
    reached: Bool[Tensor, " row"]
    success: Bool[Tensor, " row"]


def starts(count: int, generator: torch.Generator) -> Float[Tensor, "row 4"]:
    """Positions and goals at least 0.8 apart."""
    drawn = torch.rand(8 * count, 4, generator=generator) * 2 - 1
    return drawn[(drawn[:, :2] - drawn[:, 2:]).norm(dim=1) > 0.8][:count]


def step(
    state: Float[Tensor, "row 4"], action: Float[Tensor, "row 2"]
) -> tuple[Float[Tensor, "row 4"], Bool[Tensor, " row"]]:
    position = (state[:, :2] + STRIDE * action.clamp(-1, 1)).clamp(-1, 1)
    return torch.cat([position, state[:, 2:]], 1), (position - state[:, 2:]).norm(dim=1) < REACH


def collect(episodes: int, generator: torch.Generator) -> Log:
    """Log the fickle behaviour."""
    state, alive, rows = starts(episodes, generator), torch.ones(episodes, dtype=torch.bool), []
    for t in range(HORIZON):
        if t % 2 == 0:
            mood = torch.rand(episodes, 1, generator=generator)
        towards = torch.where(mood < 0.25, state[:, 2:], -state[:, 2:]) - state[:, :2]
        wanted = torch.where(mood < 0.65, towards / towards.norm(dim=1, keepdim=True).clamp(min=1e-6), 0.0)
        action = (wanted + 0.2 * torch.randn(episodes, 2, generator=generator)).clamp(-1, 1)
        next_state, reached = step(state, action)
        rows.append((state, action, next_state, reached, alive))
        state, alive = next_state, alive & ~reached
    states, actions, next_states, reached_at, kept = (torch.stack(column) for column in zip(*rows, strict=True))
    success = (~alive).expand(HORIZON, -1)
    return Log(states[kept], actions[kept], next_states[kept], reached_at[kept], success[kept])


def make_batch(log: Log, rows: Tensor, imitation_weight: float) -> Batch:
    count, real = len(rows), torch.ones(len(rows), 1, dtype=torch.bool)
    reached = log.reached[rows, None].float()
    return Batch(
        observation=Observation.of(torch.stack([log.state[rows], log.next_state[rows]], 1)),
        action=log.action[rows, None],
        action_mask=real[..., None].expand(-1, -1, 2),
        reward=reached,
        discount=1 - reached,
        mask=real,
        imitation_weight=torch.full((count,), imitation_weight),
        critic_weight=torch.full((count,), 2.0),  # the number of action dimensions
    )


def demo_model(objective: ObjectiveConfig) -> ModelConfig:
    small = {"num_proprio": 4, "num_actions": 2, "num_cameras": 0, "num_goal_images": 0, "num_text_tokens": 0}
    heads = {"q_head": objective.critic == "q", "v_head": objective.critic == "v"}
    return model_config("nano", num_latents=8, initial_value=0.0, **small, **heads)


def train(log: Log, method: str, seed: int, steps: int, report: Callable[[int], None] = lambda updates: None) -> PAC:
    """A short run with AdamW and a target network that is copied every 20 updates."""
    imitation_weight, objective = METHODS[method]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    usable = log.success.nonzero()[:, 0] if method == "filtered BC" else torch.arange(len(log.state))
    model = PAC(demo_model(objective))
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.05)
    for update in range(steps):
        rows = usable[torch.randint(len(usable), (128,), generator=generator)]
        per_example, _ = loss(model, target, make_batch(log, rows, imitation_weight), objective, generator)
        optimizer.zero_grad()
        per_example.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 20 == 19:
            target.load_state_dict(model.state_dict())
            report(20)
    return model


@torch.no_grad()
def evaluate(model: PAC, trials: int) -> Bool[Tensor, " trial"]:
    """Which trials reach their goal, with sampled actions; every model gets the same starts."""
    generator = torch.Generator().manual_seed(10_000)
    state, done = starts(trials, generator), torch.zeros(trials, dtype=torch.bool)
    for _ in range(HORIZON):
        logits = model.policy_logits(model.encode(Observation.of(state)), 2)
        action = model.config.action_bins.decode(sample_actions(logits, 1, generator)[:, 0], logits)
        state, reached = step(state, action)
        done = done | reached
    return done


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("demo", help="watch offline RL beat cloning on poor data, on any CPU")
    parser.add_argument("--seeds", type=int, default=2, help="each with its own data (default: 2)")
    parser.add_argument("--steps", type=int, default=2000, help="updates a run (default: 2000)")
    parser.add_argument("--trials", type=int, default=400, help="evaluation episodes a run (default: 400)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if min(args.seeds, args.trials) < 1 or args.steps < 40:
        raise ValueError(
            f"expected at least 1 seed, 1 trial and 40 steps, found {args.seeds}, {args.trials} and {args.steps}."
        )
    console = Console()
    console.print(" ".join((__doc__ or "").split()))
    jobs = [(method, seed, args.steps, args.trials) for seed in range(args.seeds) for method in METHODS]
    results = run_jobs(jobs, console)
    logged = [int(make_log(seed).reached.sum()) for seed in range(args.seeds)]
    console.print(summary_table(results, logged, args.trials))


Job = tuple[str, int, int, int]  # method, seed, updates, trials


def run_jobs(jobs: list[Job], console: Console) -> dict[str, list[int]]:
    """Train and try every job, a core each, with a bar for each; successes by method, in the order of the seeds."""
    context = multiprocessing.get_context("spawn")
    workers = min(len(jobs), os.cpu_count() or 1)
    with context.Manager() as manager, Progress(console=console) as progress:
        updates = manager.Queue()
        bars = {job[:2]: progress.add_task(f"{job[0]}, seed {job[1]}", total=job[2]) for job in jobs}
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            running = [pool.submit(run_job, job, updates) for job in jobs]
            while not all(future.done() for future in running):
                with contextlib.suppress(queue.Empty):
                    done, count = updates.get(timeout=0.2)
                    progress.advance(bars[done], count)
            finished = [future.result() for future in running]
        for job in jobs:
            progress.update(bars[job[:2]], completed=job[2])
    return {method: [n for job, n in zip(jobs, finished, strict=True) if job[0] == method] for method in METHODS}


def run_job(job: Job, updates: "queue.Queue[Any]") -> int:
    method, seed, steps, trials = job
    torch.set_num_threads(1)
    model = train(make_log(seed), method, seed, steps, lambda count: updates.put(((method, seed), count)))
    return int(evaluate(model, trials).sum())


EPISODES = 600


def make_log(seed: int) -> Log:
    return collect(EPISODES, torch.Generator().manual_seed(seed))


def summary_table(results: dict[str, list[int]], logged: list[int], trials: int) -> Table:
    table = Table(title="Goal reached, % (sampled actions, same starts; Wilson 95%, pooled over seeds)")
    for column in ("", "success", "95% interval", "each seed"):
        table.add_column(column, justify="right" if column else "left")
    rows = {"the logged data": (logged, EPISODES)} | {method: (wins, trials) for method, wins in results.items()}
    for name, (successes, each) in rows.items():
        count = each * len(successes)
        low, high = wilson(sum(successes), count)
        seeds = " / ".join(f"{100 * k / each:.0f}" for k in successes)
        table.add_row(name, f"{100 * sum(successes) / count:.1f}", f"[{100 * low:.1f}, {100 * high:.1f}]", seeds)
    return table
