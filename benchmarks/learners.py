"""Train learners of the Control Suite and keep each at several stages, to collect replay data with them.

    tasks="control/walker.walk control/cartpole.swingup"
    pac collect $tasks --behaviour planner:quality=medium --episodes 20 --out runs/planners
    python benchmarks/learners.py $tasks --start runs/planners --minutes 3.5 --out runs/learners
    pac collect $tasks --behaviour learner:folder=runs/learners+noise:sigma=0.1 --out data

The method is Twin Delayed DDPG (Fujimoto et al., 2018) with three-step returns and normalised layers. Environments
explore with different amounts of noise (Horgan et al., 2018). Each task has one small network, and all tasks share one
batched product. Each task has a process that acts. One process learns, on the GPU. A quarter of each batch comes from
the episodes in `--start`. OUT gets one file per task with four stages (`pac.behaviours.learner`), and learners.json
with the returns. Both are written at every stage.

Acting and learning do not wait for each other, so no two runs are equal. Episodes that `pac collect` makes from the
files are repeatable.
"""

import argparse
import json
import multiprocessing
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn import functional

from pac import envs
from pac.behaviours.learner import NUM_LAYERS, act, learner_file
from pac.data.store import STATE, Dataset

HIDDEN, NUM_ENVS, ROWS = 256, 10, 160_000  # rows: steps kept per environment
DISCOUNT, STEPS, POLYAK, RATE = 0.99, 3, 0.005, 3e-4
BATCH, START_SHARE = 512, 0.25
NOISES = np.geomspace(0.05, 0.8, NUM_ENVS)
STAGES = (0.125, 0.25, 0.5, 1.0)  # shares of the training after which a stage is kept
STEPS_PER_UPDATE = 8  # of a task's environments, at most


@dataclass(frozen=True)
class Shapes:
    """Sizes of all tasks, padded to the largest. A row of experience is state, action, reward, last of its episode."""

    tasks: tuple[str, ...]
    states: tuple[int, ...]
    actions: tuple[int, ...]

    @classmethod
    def of(cls, tasks: list[str]) -> "Shapes":
        specs = [envs.spec(task) for task in tasks]
        return cls(tuple(tasks), tuple(s.state_dim for s in specs), tuple(len(s.action_low) for s in specs))

    @property
    def state(self) -> int:
        return max(self.states)

    @property
    def action(self) -> int:
        return max(self.actions)

    @property
    def row(self) -> int:
        return self.state + self.action + 2

    @property
    def actor(self) -> list[tuple[int, int]]:
        return [(self.state, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, self.action)]

    @property
    def critic(self) -> list[tuple[int, int]]:
        return [(self.state + self.action, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)]


class Shared:
    """Files that the processes share: experience, its number of rows, returns, and the weights of the actor."""

    def __init__(self, folder: Path, shapes: Shapes) -> None:
        self.shapes = shapes
        count, size = len(shapes.tasks), sum(a * b + b for a, b in shapes.actor)
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = self._open(folder / "rows", (count, ROWS, NUM_ENVS, shapes.row), np.float32)
        self.filled = self._open(folder / "filled", (count,), np.int64)
        self.returns = self._open(folder / "returns", (count, NUM_ENVS), np.float32)
        self.actor = self._open(folder / "actor", (count, size), np.float32)
        self.updates = self._open(folder / "updates", (1,), np.int64)  # -1: it is over

    def _open(self, path: Path, shape: tuple[int, ...], kind: Any) -> np.ndarray:
        return np.memmap(path, kind, "r+" if path.exists() else "w+", shape=shape)

    def layers(self, task: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the layers of the current actor without the padding."""
        flat, layers, place = np.array(self.actor[task]), [], 0
        for size, out in self.shapes.actor:
            weight, bias = flat[place : place + size * out], flat[place + size * out : place + size * out + out]
            layers.append((weight.reshape(size, out), bias))
            place += size * out + out
        first, last = layers[0], layers[-1]
        num_states, num_actions = self.shapes.states[task], self.shapes.actions[task]
        layers[0] = (np.ascontiguousarray(first[0][:num_states]), first[1])
        layers[-1] = (np.ascontiguousarray(last[0][:, :num_actions]), last[1][:num_actions])
        return layers


def explore(folder: Path, shapes: Shapes, task: int) -> None:
    """Act in all environments of one task, each with another amount of noise."""
    shared, name, random = Shared(folder, shapes), shapes.tasks[task], np.random.default_rng(task)
    environments = [envs.make(name) for _ in range(NUM_ENVS)]
    low, high = np.array(environments[0].task.action_low), np.array(environments[0].task.action_high)
    states = np.stack([env.reset(seed=int(random.integers(2**62)))[0][STATE] for env in environments])
    gained = np.zeros(NUM_ENVS)
    first, layers = int(shared.filled[task]), shared.layers(task)
    at = first
    while shared.updates[0] >= 0 and at + 2 < ROWS:
        if (at - first) * NUM_ENVS > 5_000 + STEPS_PER_UPDATE * shared.updates[0]:
            time.sleep(0.01)
            continue
        if at % 20 == 0:
            layers = shared.layers(task)
        noise = random.normal(0, 1, (NUM_ENVS, len(low))) * NOISES[:, None]
        actions = np.clip(act(layers, states) + noise, -1, 1)
        raw = (low + (high - low) * (actions + 1) / 2).astype(np.float32)
        rows, over = np.zeros((NUM_ENVS, shapes.row), np.float32), False
        rows[:, : states.shape[1]] = states
        rows[:, shapes.state : shapes.state + len(low)] = actions
        for i, env in enumerate(environments):
            observation, reward, terminated, truncated, _ = env.step(raw[i])
            if terminated:
                raise ValueError(f"{name}: a task that ends early; these learners know only those that do not.")
            states[i], over = observation[STATE], truncated
            rows[i, -2], gained[i] = reward, gained[i] + reward
        shared.rows[task, at] = rows
        at += 1
        if over:  # of all environments: episodes have one length. Their last states take a row, too
            shared.rows[task, at] = 0
            shared.rows[task, at, :, : states.shape[1]] = states
            shared.rows[task, at, :, -1] = 1
            at += 1
            shared.returns[task], gained[:] = gained, 0
            states = np.stack([env.reset(seed=int(random.integers(2**62)))[0][STATE] for env in environments])
        shared.filled[task] = at


def start_from(shared: Shared, folder: Path, task: int) -> int:
    """Write the episodes of a dataset to the first rows. Return the number of rows."""
    path = folder / shared.shapes.tasks[task].replace("/", "-")
    episodes = list(Dataset(path))
    if len(episodes) < NUM_ENVS:
        raise SystemExit(f"{path}: expected {NUM_ENVS} episodes or more to begin with, found {len(episodes)}.")
    spec, shapes, at = envs.spec(shared.shapes.tasks[task]), shared.shapes, 0
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    for first in range(0, len(episodes) - NUM_ENVS + 1, NUM_ENVS):
        length = min(len(episode.action) for episode in episodes[first : first + NUM_ENVS])
        for i, episode in enumerate(episodes[first : first + NUM_ENVS]):
            rows = np.zeros((length + 1, shapes.row), np.float32)
            rows[:, : spec.state_dim] = episode.observation[STATE][: length + 1]
            actions = (episode.action[:length] - low) / (high - low) * 2 - 1
            rows[:length, shapes.state : shapes.state + len(low)] = actions
            rows[:length, -2], rows[length, -1] = episode.reward[:length], 1
            shared.rows[task, at : at + length + 1, i] = rows
        at += length + 1
    shared.filled[task] = at
    return at


def network(sizes: list[tuple[int, int]], count: int, device: torch.device) -> list[Tensor]:
    """Return weights (count, in, out) and biases (count, 1, out) in turn."""
    layers = []
    for size, out in sizes:
        scale = size**-0.5 if out == HIDDEN else 0.01 * size**-0.5
        layers += [torch.randn(count, size, out, device=device) * scale, torch.zeros(count, 1, out, device=device)]
    return layers


def forward(layers: list[Tensor], x: Tensor) -> Tensor:
    """Compute `pac.behaviours.learner.act` before its tanh. `x` (count, batch, in) is squashed already."""
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = functional.relu(functional.layer_norm(torch.baddbmm(bias, x, weight), (HIDDEN,)))
    return torch.baddbmm(layers[-1], x, layers[-2])


class Agents:
    """Networks of all tasks, and their updates."""

    def __init__(self, shapes: Shapes, starts: list[int], device: torch.device) -> None:
        count = len(shapes.tasks)
        self.shapes, self.device, self.count = shapes, device, count
        self.actor, self.critic = network(shapes.actor, count, device), network(shapes.critic, 2 * count, device)
        self.target_actor = [p.clone() for p in self.actor]
        self.target_critic = [p.clone() for p in self.critic]
        kept = {"lr": torch.tensor(RATE, device=device), "capturable": True} if device.type == "cuda" else {"lr": RATE}
        for parameter in (*self.actor, *self.critic):
            parameter.requires_grad_()
        self.optimisers = [torch.optim.Adam(parameters, **kept) for parameters in (self.actor, self.critic)]
        self.rows = torch.zeros(count, ROWS, NUM_ENVS, shapes.row, device=device)
        self.filled = torch.zeros(count, 1, device=device)
        self.starts = torch.tensor(starts, device=device, dtype=torch.float32)[:, None]
        places = torch.arange(shapes.action, device=device)
        self.mask = (places < torch.tensor(shapes.actions, device=device)[:, None]).float()[:, None]
        self.copied = [0] * count

    def copy_experience(self, shared: Shared) -> None:
        """Copy the new experience."""
        for task in range(self.count):
            end = int(shared.filled[task])
            if end > self.copied[task]:
                new = torch.from_numpy(np.array(shared.rows[task, self.copied[task] : end]))
                self.rows[task, self.copied[task] : end] = new.to(self.device)
                self.copied[task] = end
        self.filled.copy_(torch.tensor(self.copied, dtype=torch.float32)[:, None])

    def follow(self, index: Tensor, env: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the transitions of several steps that begin at `index` (task, batch).

        They are state, action, sum of discounted rewards, the state after them, the number of steps (fewer at the end
        of an episode), and validity. Validity is 0 at the last state of an episode, which has no action.
        """
        split = self.shapes.state, self.shapes.action, 1, 1
        task = torch.arange(self.count, device=self.device)[:, None]
        state, action, total, last = self.rows[task, index, env].split(split, -1)
        valid, going, at = 1 - last, torch.ones_like(last), index
        for k in range(1, STEPS + 1):
            at = torch.where(going[..., 0] > 0, index + k, at)
            after, _, reward, last = self.rows[task, at, env].split(split, -1)
            going = going * (1 - last)
            if k < STEPS:
                total = total + DISCOUNT**k * going * reward
        return state, action, total, after, (at - index)[..., None].float(), valid

    def update(self, with_actor: bool) -> None:
        with torch.no_grad():
            shape, cut = (self.count, BATCH), STEPS + 1
            recent = torch.rand(shape, device=self.device) * (self.filled - cut)
            started = torch.rand(shape, device=self.device) * (self.starts - cut).clamp(min=0)
            early = (torch.rand(shape, device=self.device) < START_SHARE) & (self.starts > cut)
            index = torch.where(early, started, recent).long()
            env = torch.randint(NUM_ENVS, shape, device=self.device)
            state, action, total, after, ahead, valid = self.follow(index, env)
            state, after = squash(state), squash(after)
            noise = (torch.randn(*shape, self.shapes.action, device=self.device) * 0.2).clamp(-0.5, 0.5)
            then = (torch.tanh(forward(self.target_actor, after)) + noise).clamp(-1, 1) * self.mask
            values = self.value(self.target_critic, after, then)
            target = (1 - DISCOUNT) * total + DISCOUNT**ahead * values.min(0).values
        loss = ((self.value(self.critic, state, action) - target).square() * valid).mean((1, 2)).sum()
        self.step(self.optimisers[1], self.critic, loss * 100)
        if with_actor:
            chosen = torch.tanh(forward(self.actor, state)) * self.mask
            fixed = [p.detach() for p in self.critic]
            value = self.value(fixed, state, chosen).mean(0)
            self.step(self.optimisers[0], self.actor, -(value * valid).mean((1, 2)).sum())
            with torch.no_grad():
                pairs = (self.target_actor, self.actor), (self.target_critic, self.critic)
                for targets, sources in pairs:
                    torch._foreach_lerp_(targets, [p.detach() for p in sources], 2 * POLYAK)

    def value(self, critic: list[Tensor], state: Tensor, action: Tensor) -> Tensor:
        """Return the values of both critics, (2, task, batch, 1)."""
        both = torch.cat([state, action], -1)
        return forward(critic, torch.cat([both, both])).unflatten(0, (2, self.count))

    def step(self, optimiser: torch.optim.Optimizer, parameters: list[Tensor], loss: Tensor) -> None:
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimiser.step()

    def write_actor(self, shared: Shared) -> None:
        """Write the weights of the actor for the processes that act."""
        shared.actor[:] = torch.cat([p.detach().flatten(1) for p in self.actor], 1).cpu().numpy()

    def captured(self) -> Any:
        """Return a function that makes two updates, the second with the actor. On a GPU it is one CUDA graph."""

        def both() -> None:
            self.update(with_actor=False)
            self.update(with_actor=True)

        if self.device.type != "cuda":
            return both
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                both()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            both()
        return graph.replay


def squash(states: Tensor) -> Tensor:
    return states.sign() * states.abs().log1p()


def learn(shared: Shared, agents: Agents, minutes: float, processes: list[Any], out: Path) -> None:
    begin, stages, curve = time.monotonic(), [list[Any]() for _ in shared.shapes.tasks], list[dict[str, Any]]()
    agents.copy_experience(shared)
    update, updates = agents.captured(), 0
    while len(curve) < len(STAGES):
        for _ in range(25):
            update()
        updates += 50
        shared.updates[0] = updates
        agents.copy_experience(shared)
        agents.write_actor(shared)
        past = (time.monotonic() - begin) / 60
        if past < minutes * STAGES[len(curve)]:
            continue
        check_alive(processes)
        for task, kept in enumerate(stages):
            kept.append(shared.layers(task))
        returns = np.array(shared.returns)[:, : NUM_ENVS // 2].mean(1).tolist()  # of the environments with less noise
        steps = [rows * NUM_ENVS for rows in agents.copied]
        curve.append({"minutes": past, "updates": updates, "steps": steps, "returns": returns})
        save(out, shared.shapes.tasks, stages, curve)
        shown = ", ".join(f"{t.split('/')[1]} {r:.0f}" for t, r in zip(shared.shapes.tasks, returns, strict=True))
        print(f"{past:.1f} min, {updates:,} updates, {min(steps):,} steps or more: {shown}", flush=True)


def save(out: Path, tasks: tuple[str, ...], stages: list[list[Any]], curve: list[dict[str, Any]]) -> None:
    for task, kept in zip(tasks, stages, strict=True):
        arrays = {}
        for i in range(NUM_LAYERS):
            arrays[f"{i}.weight"] = np.stack([layers[i][0] for layers in kept]).astype(np.float16)
            arrays[f"{i}.bias"] = np.stack([layers[i][1] for layers in kept]).astype(np.float16)
        new = out / f"{learner_file(task)}.new"
        save_file(arrays, new)
        new.replace(out / learner_file(task))
    new = out / "learners.json.new"
    new.write_text(json.dumps({"tasks": tasks, "moments": curve}, indent=1))
    new.replace(out / "learners.json")


def check_alive(processes: list[Any]) -> None:
    if any(process.exitcode for process in processes):  # 0: it has filled its rows
        raise SystemExit("A process that acts has died. Its error is above.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--start", type=Path, help="folder of datasets, one per task, whose episodes the learners begin with"
    )
    parser.add_argument("--minutes", type=float, default=3.5)
    parser.add_argument("--scratch", type=Path, help="for what the processes share, gigabytes (default: OUT/scratch)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_float32_matmul_precision("high")
    shapes, scratch = Shapes.of(given.tasks), given.scratch or given.out / "scratch"
    if scratch.exists():
        raise SystemExit(f"{scratch} exists: another run uses it, or left it behind. Remove it.")
    if (given.out / "learners.json").exists():
        raise SystemExit(f"{given.out} has learners already. Choose another --out.")
    given.out.mkdir(parents=True, exist_ok=True)
    context, processes = multiprocessing.get_context("spawn"), list[Any]()
    shared = Shared(scratch, shapes)
    try:
        starts = [start_from(shared, given.start, i) if given.start else 0 for i in range(len(shapes.tasks))]
        agents = Agents(shapes, starts, torch.device(given.device))
        agents.write_actor(shared)
        for i in range(len(shapes.tasks)):
            processes.append(context.Process(target=explore, args=(scratch, shapes, i), daemon=True))
            processes[-1].start()
        while min(np.array(shared.filled) - starts) < 100:
            check_alive(processes)
            time.sleep(0.1)
        learn(shared, agents, given.minutes, processes, given.out)
    finally:
        shared.updates[0] = -1
        for process in processes:
            process.join(timeout=20)
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
