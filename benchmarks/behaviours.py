"""Success and returns of behaviours: the planner at three settings, scripts on fifty tasks, and faults.

    MUJOCO_GL=disabled python benchmarks/behaviours.py --processes 16               # everything: about 8 minutes
    MUJOCO_GL=disabled python benchmarks/behaviours.py --processes 16 --part faults  # one part; the others are kept
    python benchmarks/behaviours.py --render                                         # the table again, from the JSON

Writes runs/behaviours.json (every episode) and runs/behaviours.md. Success is success at any of 500 steps; an
episode of Meta-World ends there. Episodes start from `episode_seed(task, seed, i)`, the same for every behaviour.
"""

import argparse
import collections
import json
import math
import multiprocessing as mp
import os
import shlex
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core

import numpy as np

from pac import behaviours, envs
from pac.evaluation.intervals import mean_interval, wilson

EpisodeResult = dict[str, Any]
EPISODES = {"planner": 6, "scripted": 50, "faults": 100}
SUITE = (
    *("acrobot.swingup", "ball_in_cup.catch", "cartpole.swingup", "cheetah.run", "finger.spin", "finger.turn_easy"),
    *("fish.upright", "hopper.stand", "pendulum.swingup", "point_mass.easy", "quadruped.walk", "reacher.easy"),
    *("swimmer.swimmer6", "walker.run", "walker.stand", "walker.walk"),
)
PLANNERS = ("planner:quality=good", "planner:quality=medium", "planner:quality=poor", "random")
SCRIPTED = tuple(name for name in envs.TASKS if name.startswith("metaworld/"))
STUDIED = ("drawer-open", "push", "window-open", "button-press-topdown")
OTHERS = ("reach", "door-open", "pick-place", "drawer-close", "faucet-open", "peg-insert-side")
FAULTS = (
    *("noise:sigma=0.3", "noise:sigma=1", "uniform:p=0.3", "uniform:p=0.6", "wrong-goal", "stop-short", "hesitate"),
    *("other-skill", "slow", "faults", "faults:switch=15-50"),
)


def list_jobs(part: str, episodes: int, seed: int) -> list[EpisodeResult]:
    """Return the episodes to play, the longest first."""
    pairs = {
        "planner": [(f"control/{task}", planner) for planner in PLANNERS for task in SUITE],
        "scripted": [(task, "scripted") for task in SCRIPTED],
        "faults": [(f"metaworld/{task}", f"scripted+{fault}") for fault in FAULTS for task in (*STUDIED, *OTHERS)],
    }[part]
    return [
        {"part": part, "task": task, "behaviour": behaviour, "seed": seed, "index": index}
        for task, behaviour in pairs
        for index in range(episodes)
    ]


def play_episode(job: EpisodeResult) -> EpisodeResult:
    """Play one episode."""
    seed = envs.episode_seed(job["task"], job["seed"], job["index"])
    env, behaviour = envs.make(job["task"]), behaviours.make(job["behaviour"])
    observation, _ = env.reset(seed=seed)
    start, total, length, clean, success, over = time.perf_counter(), 0.0, 0, 0, False, False
    behaviour.begin(env, np.random.default_rng([seed, 1]))  # 1: a stream apart from the environment's
    while not (over or success):
        observation, reward, terminated, truncated, info = env.step(behaviour.act(observation))
        total, length, clean = total + reward, length + 1, clean + (behaviour.labels["fault_mode"] == 0)
        success, over = bool(info.get("success", False)), terminated or truncated
    env.close()
    seconds = time.perf_counter() - start
    found = {"length": length, "return": round(total, 4), "clean": clean / length, "seconds": round(seconds, 3)}
    return job | found | ({"success": success} if env.task.has_success else {})


def write(path: Path, report: dict[str, Any]) -> None:
    """Write the report atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(report, indent=0))
    temporary.replace(path)


def measure(jobs: list[EpisodeResult], report: dict[str, Any], path: Path, processes: int) -> None:
    begun = written = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=mp.get_context("spawn")) as pool:
        futures = [pool.submit(play_episode, job) for job in jobs]
        for done, future in enumerate(as_completed(futures), 1):
            report["episodes"].append(future.result())
            if time.perf_counter() - written > 10 or done == len(jobs):
                written = time.perf_counter()
                write(path, report)
                print(f"{done} of {len(jobs)} episodes, {written - begun:.0f} s", flush=True)


# --------------------------------------------------------------------------------------------------------------- tables


def group(episodes: Iterable[EpisodeResult]) -> dict[tuple[str, str], list[EpisodeResult]]:
    """Return the episodes by task without family and behaviour."""
    groups = collections.defaultdict(list)
    for episode in episodes:
        groups[episode["task"].partition("/")[2], episode["behaviour"]].append(episode)
    return groups


def show_return(episodes: list[EpisodeResult]) -> str:
    """Return mean and 95% interval of the return, and seconds per episode."""
    returns = np.array([episode["return"] for episode in episodes])
    low, high = mean_interval(returns)
    return (
        f"{returns.mean():.0f} ± {(high - low) / 2:.0f} ({np.mean([episode['seconds'] for episode in episodes]):.1f} s)"
    )


def show_success(episodes: list[EpisodeResult], limit: int = 500) -> str:
    """Return the percentage of episodes that succeeded within `limit` steps, with Wilson's 95% interval."""
    won = sum(episode["success"] and episode["length"] <= limit for episode in episodes)
    low, high = wilson(won, len(episodes))
    return f"{100 * won / len(episodes):.0f} [{100 * low:.0f}, {100 * high:.0f}]"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def planner_lines(episodes: list[EpisodeResult]) -> list[str]:
    groups = group(episodes)
    tasks = sorted({task for task, _ in groups})
    rows = [[task, *(show_return(groups[task, planner]) for planner in PLANNERS)] for task in tasks]
    return table(["task", *(name.removeprefix("planner:quality=") for name in PLANNERS)], rows)


def scripted_lines(episodes: list[EpisodeResult]) -> list[str]:
    groups = group(episodes)
    pooled = f"All tasks: {show_success(episodes)}% of {len(episodes)} episodes."
    rows = [
        [task, show_success(found), f"{np.median([t['length'] for t in found if t['success']] or [math.nan]):.0f}"]
        for (task, _), found in sorted(groups.items())
    ]
    return [pooled, "", *table(["task", "success %", "median steps to it"], rows)]


def fault_lines(episodes: list[EpisodeResult]) -> list[str]:
    groups = group(episodes)
    tasks = [task for task in (*STUDIED, *OTHERS) if any(task == found for found, _ in groups)]
    lines = list[str]()
    for limit in (500, 150):
        rows = []
        for fault in FAULTS:
            cells = [groups[task, f"scripted+{fault}"] for task in tasks]
            everything = [episode for cell in cells for episode in cell]
            clean = np.mean([episode["clean"] for episode in everything])
            rows.append([f"`{fault}`", *(show_success(cell, limit) for cell in cells)])
            rows[-1] += [show_success(everything, limit), *([f"{100 * clean:.0f}"] if limit == 500 else [])]
        lines += [f"Success % within {limit} steps:", ""]
        head = ["fault", *tasks, "pooled", *(["clean steps %"] if limit == 500 else [])]
        lines += [*table(head, rows), ""]
    return lines[:-1]


PARTS = {
    "planner": (
        "Planners: return of 1000 steps, mean ± 95% (Student's t), and seconds per episode",
        planner_lines,
    ),
    "scripted": ("Scripted policies of Meta-World: success at any of 500 steps (95%: Wilson)", scripted_lines),
    "faults": (
        "Scripted policies with faults: success (95%: Wilson), and the share of steps without a fault",
        fault_lines,
    ),
}


def render(report: dict[str, Any]) -> str:
    lines = ["# Behaviours", "", "`benchmarks/behaviours.py` makes this page and the file of every episode beside it."]
    for part, (title, show) in PARTS.items():
        episodes = [episode for episode in report["episodes"] if episode["part"] == part]
        if episodes:
            lines += ["", f"## {title}", "", f"`{report['commands'][part]}`", "", *show(episodes)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--episodes", type=int, help=f"of each task and behaviour; usual: {EPISODES}")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tasks", nargs="+", help="only these, e.g. walker.walk drawer-open")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/behaviours.json"))
    parser.add_argument("--render", action="store_true", help="only write the Markdown from the JSON")
    options = parser.parse_args()
    empty: dict[str, Any] = {"commands": {}, "episodes": []}
    report = json.loads(options.out.read_text()) if options.out.exists() else empty
    parts = [] if options.render else list(PARTS) if options.part == "all" else [options.part]
    report["episodes"] = [episode for episode in report["episodes"] if episode["part"] not in parts]
    command = shlex.join(["python", *sys.argv])
    jobs = [job for part in parts for job in list_jobs(part, options.episodes or EPISODES[part], options.seed)]
    jobs = [job for job in jobs if not options.tasks or job["task"].partition("/")[2] in options.tasks]
    report["commands"] |= dict.fromkeys(parts, command)
    if jobs:
        measure(jobs, report, options.out, options.processes)
    options.out.with_suffix(".md").write_text(render(report))
    print(f"wrote {options.out.with_suffix('.md')}")


if __name__ == "__main__":
    main()
