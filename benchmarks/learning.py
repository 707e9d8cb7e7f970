"""Does PAC improve on cloning from poor data? Meta-World, scripts with systematic faults, one GPU.

    python benchmarks/learning.py collect --out runs/learning              # 16 cores: half a minute
    python benchmarks/learning.py study methods --out runs/learning        # see STUDIES for what each compares
    python benchmarks/learning.py table runs/learning/methods.jsonl

Runs share the GPU, one process each; `nvidia-cuda-mps-control -d` first lets their kernels overlap. Each run is an
ordinary `pac train`, then trials with sampled actions from starts that no training episode had. Reward is 1 at success,
which ends the episode; a time limit does not end the world.
"""

import argparse
import itertools
import json
import multiprocessing as mp
import os
import shutil
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlp import MLPActorCritic

import pac.train
from pac import cli
from pac.intervals import wilson
from pac.model import PAC
from pac.recipe import parse_recipe
from pac.rollout import Trial, jobs_of, rollout
from pac.train import Run

TASKS = ("drawer-open", "push", "window-open", "button-press-topdown")
HORIZON = 200
# One mood an episode (a success is then a clean demonstration), or moods that switch within it (then none is).
NOISE = "+noise:sigma=0.1"
DATA = {
    "episode": f"scripted+faults{NOISE}",
    "switching": f"scripted+faults:switch=15-50{NOISE}",
    "noiseless": "scripted+faults",
}


def collect(out: Path, kinds: list[str], tasks: list[str], episodes: int, workers: int) -> None:
    """`pac collect`, for each task and each kind of fault."""
    for kind in kinds:
        behaviour, tasks = DATA[kind], [f"metaworld/{task.removeprefix('metaworld/')}" for task in tasks]
        options = ["--episodes", str(episodes), "--workers", str(workers), "--max-steps", str(HORIZON)]
        folder = ["--behaviour", behaviour, "--out", str(out / f"{kind}-{episodes}")]
        if cli.main(["collect", *tasks, *options, "--stop-at-success", *folder]):
            raise SystemExit(1)


def recipe(data: Path, setting: dict[str, Any]) -> dict[str, Any]:
    """What the settings of a study mean as a recipe. The defaults are PAC's own, but for the length."""
    tasks = [setting["task"]] if "task" in setting else list(TASKS)
    datasets = [{"name": task, "path": str(data / f"metaworld-{task}")} for task in tasks]
    defaults = {"reward": "success"} | setting.get("data", {})
    return {
        "seed": setting.get("seed", 0),
        "length": f"{setting.get('steps', 3000)} steps",
        "model": {"size": "micro"} | setting.get("model", {}),
        "objective": {"discount": 0.97} | setting.get("objective", {}),
        "optimiser": setting.get("optimiser", {}),
        "schedules": schedules(setting),
        "machine": setting.get("machine", {}),
        "proprio_noise": setting.get("proprio_noise", 0.1),
        "mixture": {
            "batch_size": setting.get("batch", 16),
            "window": setting.get("window", 17),
            "defaults": defaults,
            "groups": [{"name": "poor", "weight": 1, "datasets": datasets}],
        },
    }


def schedules(setting: dict[str, Any]) -> dict[str, Any]:
    """The recipe's; `alpha` has points (share of the run, value), so that a run of any length turns at the same place.
    Two at one place are a jump.
    """
    found, points = dict(setting.get("schedules", {})), list[list[float]]()
    for share, value in setting.get("alpha", []):
        step = round(share * setting.get("steps", 3000))
        if points and points[-1][0] == step:
            points[-1][0] -= 1  # the last update under the old value; the next is under the new one
        points.append([step, value])
    return found | ({"imitation_weight": points} if points else {})


def train(name: str, setting: dict[str, Any], data: Path) -> dict[str, Any]:
    """Train one setting and try it; where it has `halfway`, in the middle of the run as well."""
    torch.set_num_threads(1)
    started, folder = time.time(), Path(tempfile.mkdtemp())
    vars(pac.train)["PAC"] = MLPActorCritic if setting.get("mlp") else PAC
    run = Run(parse_recipe(recipe(data / setting["faults"], setting)), folder)
    curve, found, batches, trying = list[dict[str, Any]](), dict[str, Any](), run.batches(), 0.0
    while run.state.step < run.steps:
        if run.state.step % run.target_period == 0:
            run.update.copy_target()
        run.update(next(batches), run.controls(run.state.step))
        if run.state.step % (run.steps // 8) == 0:
            alpha = run.controls(run.state.step - 1).imitation_weight  # of the last update; None: the data's own
            curve.append({"step": run.state.step, "alpha": alpha})
            curve[-1] |= {k: round(v, 5) for k, v in run.update.tally.read().items()}
        if setting.get("halfway") and run.state.step == run.steps // 2:
            began = time.time()
            found["halfway"] = play(run, setting)
            trying = time.time() - began
    seconds = time.time() - started - trying
    found["trials"] = play(run, setting)
    shutil.rmtree(folder)
    result = {"name": name, "setting": setting, "seconds": seconds, "curve": curve} | found
    return result | {"evaluation_seconds": time.time() - started - seconds}


def play(run: Run, setting: dict[str, Any]) -> dict[str, list[Any]]:
    """Trials of the policy as it is, by task."""
    trials: dict[str, list[Any]] = {}
    policy = run.policy(values=setting.get("objective", {}).get("method") != "filtered-bc")
    tasks = [f"metaworld/{task}" for task in ([setting["task"]] if "task" in setting else TASKS)]
    jobs, discount = jobs_of(tasks, setting.get("trials", 50), seed=10_000), run.config.objective.discount
    for trial in rollout(policy, jobs, workers=0, envs_per_worker=50, max_steps=HORIZON, stop_at_success=True):
        trials.setdefault(trial.task.removeprefix("metaworld/"), []).append(outcome(trial, discount))
    return trials


def outcome(trial: Trial, discount: float) -> dict[str, Any]:
    """Success, and how well the critic knew: its value of the first action beside the discounted return."""
    achieved = discount ** (trial.length - 1) if trial.success else 0.0
    predicted = None if trial.values is None else round(float(trial.values[0]), 4)
    return {
        "index": trial.index,
        "success": bool(trial.success),
        "predicted": predicted,
        "achieved": round(achieved, 4),
    }


# ----------------------------------------------------------------------------------------------------------- studies

METHODS: dict[str, dict[str, Any]] = {
    "BC+Q": {"objective": {"method": "bc+q"}},
    "PAC": {"objective": {"method": "pac"}, "data": {"imitation_weight": 0.5}},
    "PAC+V": {"objective": {"method": "pac+v"}},
    "filtered BC": {"objective": {"method": "filtered-bc"}},
}


def methods_study(seeds: tuple[int, ...], faults: str) -> dict[str, dict[str, Any]]:
    """One model a task, three methods and filtered cloning, the same data and trials for all."""
    return {
        f"{method} {task} {seed}": setting | {"task": task, "seed": seed, "faults": faults}
        for seed, (method, setting), task in itertools.product(seeds, METHODS.items(), TASKS)
    }


def inputs_study(seeds: tuple[int, ...], faults: str) -> dict[str, dict[str, Any]]:
    """What the Perceiver needs: scaling and gains of its inputs, and noise on them, for PAC."""
    paper = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3]
    few, fine = [0.25, 0.5, 1.0, 2.0, 4.0], [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    variants: dict[str, dict[str, Any]] = {
        "raw, paper's gains": {"model": {"proprio_scaling": "raw", "gains": paper}},
        "paper's gains": {"model": {"gains": paper}},
        "gains to 32": {"model": {"gains": fine}},
        "gains to 4": {"model": {"gains": few}},
        "gains to 4, noise 0.1": {"model": {"gains": few}, "proprio_noise": 0.1},
        "gains to 4, noise 0.3": {"model": {"gains": few}, "proprio_noise": 0.3},
        "gains to 1, noise 0.1": {"model": {"gains": few[:3]}, "proprio_noise": 0.1},
        "gains to 4, noise 0.1, lr 3e-4": {
            "model": {"gains": few},
            "proprio_noise": 0.1,
            "optimiser": {"peak_rate": 3e-4},
        },
        "nano, gains to 4": {"model": {"size": "nano", "gains": few}},
        "nano, gains to 4, noise 0.1": {"model": {"size": "nano", "gains": few}, "proprio_noise": 0.1},
    }
    base = METHODS["PAC"] | {"optimiser": {"peak_rate": 1e-3}, "proprio_noise": 0.0, "window": 2, "batch": 128}
    return {
        f"PAC, {name} {task} {seed}": base | variant | {"task": task, "seed": seed, "faults": faults}
        for seed, (name, variant), task in itertools.product(seeds, variants.items(), TASKS)
    }


# Alpha by the share of the run that is behind: see `schedules`.
TURNS: dict[str, list[list[float]]] = {
    "alpha 0.5": [[0, 0.5]],
    "alpha 0": [[0, 0.0]],
    "alpha 1, then 0": [[0.5, 1.0], [0.5, 0.0]],
    "alpha 1, sliding to 0.3": [[0.5, 1.0], [0.75, 0.3]],
    "alpha 1": [[0, 1.0]],
}


def turning_study(seeds: tuple[int, ...], faults: str) -> dict[str, dict[str, Any]]:
    """Cloning turned into RL on the same data, against an alpha fixed from the start: PAC throughout, so that all have
    the same critic and as many updates; tried half-way, just before the turn, and at the end.
    """
    return {
        f"{name} {task} {seed}": METHODS["PAC"]
        | {"alpha": points, "halfway": True, "task": task, "seed": seed, "faults": faults}
        for seed, (name, points), task in itertools.product(seeds, TURNS.items(), TASKS)
    }


STUDIES = {"methods": methods_study, "inputs": inputs_study, "turning": turning_study}


def study(args: argparse.Namespace) -> None:
    settings = STUDIES[args.name](tuple(args.seeds), args.faults)
    wanted = [key for key in settings if not args.only or any(o in key for o in args.only)]
    settings = {key: settings[key] for key in wanted if settings[key]["task"] in args.tasks}
    file, began = args.out / f"{args.name}.jsonl", time.time()
    done = {row["name"] for row in read(file)} if file.exists() else set()
    for key, setting in settings.items():
        settings[key] = merge(setting, args.set)
    context = mp.get_context("spawn")
    with ProcessPoolExecutor(args.processes, mp_context=context) as pool:
        jobs = {pool.submit(train, k, s, args.out): k for k, s in settings.items() if f"{k}{args.tag}" not in done}
        for job in as_completed(jobs):
            result = job.result()
            result["name"] += args.tag
            with file.open("a") as lines:
                lines.write(json.dumps(result) + "\n")
            won = {task: sum(t["success"] for t in trials) for task, trials in result["trials"].items()}
            last = {k: v for k, v in result["curve"][-1].items() if k in SHOWN}
            print(
                f"{time.time() - began:4.0f}s {result['name']:36s} {result['seconds']:4.0f}s {won} {last}", flush=True
            )


def merge(table: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`other` over `table`, section by section."""
    both = {k: merge(table[k], v) if isinstance(v, dict) and k in table else v for k, v in other.items()}
    return table | both


SHOWN = ("loss/imitation", "loss/critic", "policy/entropy", "critic/value", "weights/effective_samples")


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def table(file: Path) -> None:
    """Success in percent by task, seeds apart, and pooled with Wilson's interval; predicted over achieved value."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in read(file):
        task = row["setting"].get("task", "")
        name = row["name"].replace(f" {task} {row['setting'].get('seed', 0)}", "")
        if "halfway" in row:
            rows[f"{name}; half-way"].append(row | {"trials": row["halfway"]})
        rows[name].append(row)
    print("| |" + "|".join(TASKS) + "|pooled|predicted / achieved|\n|" + "---|" * (len(TASKS) + 3))
    for name, runs in rows.items():
        cells = []
        for task in TASKS:
            found = [
                r["trials"][task]
                for r in sorted(runs, key=lambda r: r["setting"].get("seed", 0))
                if task in r["trials"]
            ]
            cells.append("/".join(f"{100 * np.mean([t['success'] for t in trials]):.0f}" for trials in found))
        trials = [t for r in runs for group in r["trials"].values() for t in group]
        won = sum(t["success"] for t in trials)
        low, high = wilson(won, len(trials))
        pooled = f"{100 * won / len(trials):.0f} [{100 * low:.0f}, {100 * high:.0f}]"
        known = [t for t in trials if t["predicted"] is not None]
        means = (np.mean([t[k] for t in known]) for k in ("predicted", "achieved")) if known else ()
        print(f"|{name}|" + "|".join(cells) + f"|{pooled}|" + " / ".join(f"{m:.3f}" for m in means) + "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    processes = min(14, os.cpu_count() or 1)
    verb = verbs.add_parser("collect")
    verb.add_argument("--episodes", type=int, default=300, help="a task")
    verb.add_argument("--kinds", nargs="+", choices=DATA, default=["noiseless"])
    verb.add_argument("--tasks", nargs="+", default=list(TASKS))
    verb = verbs.add_parser("study")
    verb.add_argument("name", choices=STUDIES)
    verb.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    verb.add_argument("--faults", default="noiseless-300", help="folder of the data in --out")
    verb.add_argument("--only", nargs="*", default=[], help="settings whose name holds one of these")
    verb.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    verb.add_argument("--set", type=json.loads, default={}, help="JSON that joins every setting")
    verb.add_argument("--tag", default="", help="joins every name")
    for verb in verbs.choices.values():
        verb.add_argument("--out", type=Path, default=Path("runs/learning"))
        verb.add_argument("--processes", type=int, default=processes)
    verbs.add_parser("table").add_argument("file", type=Path)
    args = parser.parse_args()
    if args.verb == "collect":
        collect(args.out, args.kinds, args.tasks, args.episodes, args.processes)
    elif args.verb == "study":
        study(args)
    else:
        table(args.file)


if __name__ == "__main__":
    main()
