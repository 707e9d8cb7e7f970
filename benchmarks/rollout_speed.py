"""Speed of rollouts, beside the raw speed of the same environments in the same run.

    python benchmarks/rollout_speed.py [--workers 2] [--envs 16] [--rounds 4] [--quick] [--json FILE]

`simulator` is the simulator alone. `raw` is one environment of ours in this process. Both take prepared actions. A
rollout is measured after each of its environments has played one episode: with resets, but without start-up. The ratio
is to raw speed times the number of workers. Run it on an idle machine, for about 5 minutes (1 with --quick). Every
process gets one thread.
"""

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pac import envs
from pac.rollout import ActorLike, make_jobs, rollout
from pac.types import Query, Reply, TaskSpec

TASKS = ("pendulum.swingup", "cartpole.swingup", "cheetah.run", "walker.walk", "humanoid.walk")
ALL_TASKS = (*(f"control/{name}" for name in TASKS), "metaworld/drawer-open")
CAMERAS = {"control/walker.walk": "side", "metaworld/drawer-open": "corner"}
Result = dict[str, Any]


class SmallPolicy:
    """An MLP with two hidden layers of 64 for one task. Batches are padded to powers of two."""

    name = "small"

    def __init__(self, task: TaskSpec) -> None:
        torch.manual_seed(0)
        sizes = (task.state_dim, 64, 64, len(task.action_low))
        layers = [torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.Tanh()) for a, b in itertools.pairwise(sizes)]
        self.network = torch.nn.Sequential(*layers)
        self.width, self.calls, self.queries, self.seconds = task.state_dim, 0, 0, 0.0

    @torch.inference_mode()
    def act(self, queries: Sequence[Query]) -> list[Reply]:
        start = time.perf_counter()
        states = np.zeros((1 << (len(queries) - 1).bit_length(), self.width), np.float32)
        for i, query in enumerate(queries):
            states[i] = query.observation["observation.state"]
        actions = self.network(torch.from_numpy(states)).numpy()
        replies = [Reply(action=action) for action in actions[: len(queries)]]
        self.calls, self.queries = self.calls + 1, self.queries + len(queries)
        self.seconds += time.perf_counter() - start
        return replies


def steps_per_second(
    step: Callable[[np.ndarray], bool], reset: Callable[[], object], task: TaskSpec, steps: int
) -> float:
    """Return the speed of stepping with resets, without the first episode."""
    random = np.random.default_rng(0)
    actions = random.uniform(task.action_low, task.action_high, (1000, len(task.action_low))).astype(np.float32)
    for counted in (task.max_steps, steps):
        reset()
        start = time.perf_counter()
        for i in range(counted):
            if step(actions[i % 1000]):
                reset()
    return steps / (time.perf_counter() - start)


def measure_raw(task: str, steps: int) -> Result:
    env = envs.make(task)
    seeds = iter(range(1_000_000))

    def step(action: np.ndarray) -> bool:
        _, _, terminated, truncated, _ = env.step(action)
        return terminated or truncated

    result = {"raw": steps_per_second(step, lambda: env.reset(seed=next(seeds)), env.task, steps)}
    if task.startswith("control/"):
        simulator = env.simulator
        left = iter([env.task.max_steps] * 1_000_000)
        count = {"left": next(left)}

        def step_alone(action: np.ndarray) -> bool:
            simulator.step(action)
            count["left"] = count["left"] - 1 or next(left)
            return count["left"] == env.task.max_steps

        result["simulator"] = steps_per_second(step_alone, simulator.reset, env.task, steps)
    return result


def sustained(actor: ActorLike, task: str, workers: int, envs_per_worker: int, rounds: int, **options: Any) -> float:
    """Return steps per second between the first and the last episode of every environment."""
    slots = max(workers, 1) * envs_per_worker
    jobs, times, lengths = make_jobs([task], slots * (2 + rounds)), [], []
    for result in rollout(actor, jobs, workers=workers, envs_per_worker=envs_per_worker, **options):
        times.append(time.perf_counter())
        lengths.append(result.length)
    # Results come in order, so a late one holds back others. Fit a line through all arrivals except those at the ends.
    middle = slice(slots - 1, len(jobs) - slots)
    return float(np.polyfit(times[middle], np.cumsum(lengths)[middle], 1)[0])


def measure(task: str, workers: Sequence[int], envs_per_worker: int, rounds: int, steps: int) -> list[Result]:
    baseline = measure_raw(task, steps)
    results = []
    for count in workers:
        policy = SmallPolicy(envs.spec(task))
        found = {
            "policy": sustained(policy, task, count, envs_per_worker, rounds),
            "random": sustained("random", task, count, 2, rounds * max(envs_per_worker // 2, 1)),
        }
        ratios = {f"{name} ratio": speed / (max(count, 1) * baseline["raw"]) for name, speed in found.items()}
        batch, micro = policy.queries / policy.calls, 1e6 * policy.seconds / policy.queries
        results.append(
            {"task": task, "workers": count, **baseline, **found, **ratios, "batch": batch, "policy us": micro}
        )
    return results


def measure_images(task: str, camera: str, workers: Sequence[int], frames: int) -> list[Result]:
    """Return frames per second: rendering alone, with steps in this process, and in rollouts."""
    from pac.envs.rendering import Renderer

    env = envs.make(task)
    env.reset(seed=0)
    simulator = env.simulator
    model, data = (
        (simulator.physics.model.ptr, simulator.physics.data.ptr)
        if task.startswith("control/")
        else (simulator.unwrapped.model, simulator.unwrapped.data)
    )
    renderer = Renderer(model, 80, 80)
    for counted in (5, frames):
        start = time.perf_counter()
        for _ in range(counted):
            renderer.draw(data, camera, 80, 80)
    raw = frames / (time.perf_counter() - start)
    renderer.close()
    env.close()
    results = []
    for count in workers:
        speed = sustained("random", task, count, 2, 10, cameras=[camera], max_steps=max(frames // 10, 5))
        ratio = speed / (max(count, 1) * raw)
        results.append(
            {"task": f"{task}: {camera}", "workers": count, "renderer": raw, "frames": speed, "ratio": ratio}
        )
    return results


def show(results: list[Result], title: str, console: Console) -> None:
    names = list(dict.fromkeys(name for result in results for name in result))
    table = Table(*names, title=title)
    for result in results:
        values = [result.get(name, "") for name in names]
        table.add_row(
            *(
                f"{value:.3g}"
                if isinstance(value, float) and value < 100
                else str(value)
                if not isinstance(value, float)
                else f"{value:,.0f}"
                for value in values
            )
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(ALL_TASKS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--envs", type=int, default=16, help="environments a worker")
    parser.add_argument("--rounds", type=int, default=4, help="episodes of each environment that count")
    parser.add_argument("--no-images", action="store_true", help="where there is no GL")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds, steps, frames = (1, 2_000, 60) if args.quick else (args.rounds, 10_000, 400)
    console = Console(width=150)
    stepping = [r for task in args.tasks for r in measure(task, args.workers, args.envs, rounds, steps)]
    show(stepping, "Steps a second", console)
    images = []
    if not args.no_images:
        images = [r for task, camera in CAMERAS.items() for r in measure_images(task, camera, args.workers, frames)]
        show(images, "80x80 images per second", console)
    if args.json:
        machine = {"machine": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        machine |= {"python": platform.python_version(), "torch": torch.__version__}
        args.json.write_text(json.dumps({"machine": machine, "steps": stepping, "images": images}, indent=2))


if __name__ == "__main__":
    main()
