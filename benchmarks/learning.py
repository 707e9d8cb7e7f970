"""Does the Perceiver fit, and does PAC improve on cloning? Poor Meta-World data, one multi-task model, one GPU.

    python benchmarks/learning.py collect --out runs/learning            # 16 cores: about a minute
    python benchmarks/learning.py study  --out runs/learning --study fit # see STUDIES for what each compares

Needs metaworld 3.1.1 and mujoco 3.3.0. Every episode is driven by a scripted expert whose mind wanders: every 15 to 50
steps it may act on a wrong object position, stop, or follow another task's script: a third of the steps of a successful
episode are driven properly. Reward is 1 at the first success, which ends the episode; a time limit does not end the
world.
"""

import argparse
import copy
import itertools
import json
import math
import multiprocessing as mp
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pac.model.pac as pac_module
from pac.bins import Bins
from pac.config import ObjectiveConfig, model_config
from pac.model import PAC
from pac.objectives import imitation_loss, loss, sample_actions
from pac.types import Batch, Observation

TASKS = ("drawer-open", "door-open", "window-open", "button-press-topdown")
HORIZON = 150


# ---------------------------------------------------------------------------------------------------------- episodes


def make_env(task: str, seed: int) -> Any:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env = ALL_V3_ENVIRONMENTS[f"{task}-v3"]()
    env._partially_observable = False
    env._freeze_rand_vec = False
    env._set_task_called = True
    env.seeded_rand_vec = True
    env.seed(seed)
    return env


def drive(task: str, seed: int, clean: float) -> dict[str, np.ndarray]:
    """One episode of the wandering expert; `clean` is the chance that a stretch is driven properly."""
    from metaworld.policies import ENV_POLICY_MAP

    random = np.random.default_rng(seed)
    env, experts = make_env(task, seed), [ENV_POLICY_MAP[f"{name}-v3"]() for name in TASKS]
    expert = experts[TASKS.index(task)]
    state, _ = env.reset()
    states, actions, reached, remaining = [state], list[np.ndarray](), False, 0
    while len(actions) < HORIZON and not reached:
        if remaining == 0:
            remaining = int(random.integers(15, 51))
            mood = (
                "clean" if random.random() < clean else random.choice(["astray", "stop", "other"], p=[0.5, 0.25, 0.25])
            )
            offset, other = random.uniform(-0.2, 0.2, 3), experts[random.integers(len(experts))]
        seen = state.copy()
        if mood == "astray":
            seen[4:7] += offset
        action = (other if mood == "other" else expert).get_action(seen)
        action = np.zeros(4) if mood == "stop" else np.asarray(action, np.float64)
        action = np.clip(action + random.normal(0, 0.1, 4), -1, 1)
        state, _, _, _, info = env.step(action.astype(np.float32))
        states.append(state)
        actions.append(action)
        reached, remaining = bool(info["success"]), remaining - 1
    env.close()
    return {
        "state": np.array(states, np.float32),
        "action": np.array(actions, np.float32),
        "success": np.array(reached),
    }


def collect(out: Path, episodes: int, clean: float, workers: int) -> None:
    jobs = [(task, 1000 * i + TASKS.index(task), clean) for task in TASKS for i in range(episodes)]
    with ProcessPoolExecutor(workers, mp_context=mp.get_context("spawn")) as pool:
        done = list(pool.map(drive, *zip(*jobs, strict=True), chunksize=4))
    rows: dict[str, list[np.ndarray]] = {k: [] for k in ("state", "next_state", "action", "reward", "task", "success")}
    for (task, _, _), episode in zip(jobs, done, strict=True):
        length = len(episode["action"])
        rows["state"].append(episode["state"][:-1])
        rows["next_state"].append(episode["state"][1:])
        rows["action"].append(episode["action"])
        rows["reward"].append(np.r_[np.zeros(length - 1, np.float32), np.float32(episode["success"])])
        rows["task"].append(np.full(length, TASKS.index(task)))
        rows["success"].append(np.full(length, bool(episode["success"])))
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "data.npz", **{name: np.concatenate(parts) for name, parts in rows.items()})
    for task in TASKS:
        success = [bool(e["success"]) for (t, _, _), e in zip(jobs, done, strict=True) if t == task]
        lengths = [len(e["action"]) for (t, _, _), e in zip(jobs, done, strict=True) if t == task]
        print(
            f"{task}: {episodes} episodes, success {np.mean(success):.2f}, mean length {np.mean(lengths):.0f}",
            flush=True,
        )


# ------------------------------------------------------------------------------------------------------------ models


class MLP(nn.Module):
    """The mark to reach: three hidden layers on standardised inputs, the same bins."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        sizes = (num_inputs, 512, 512, 512)
        layers = [x for a, b in itertools.pairwise(sizes) for x in (nn.Linear(a, b), nn.GELU())]
        self.net = nn.Sequential(*layers, nn.Linear(512, num_actions * 101))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs).unflatten(-1, (-1, 101))


def make_observation(state: Tensor, task: Tensor, stats: tuple[Tensor, Tensor]) -> Observation:
    """`state` has any leading axes; the instruction is the task's number as one token."""
    return Observation.of(
        state,
        text=task[..., None],
        proprio_centre=stats[0].expand_as(state),
        proprio_scale=stats[1].expand_as(state),
    )


def make_batch(data: dict[str, Tensor], rows: Tensor, stats: tuple[Tensor, Tensor], alpha: float, beta: float) -> Batch:
    state = torch.stack([data["state"][rows], data["next_state"][rows]], 1)
    reward, real = data["reward"][rows, None], torch.ones(len(rows), 1, dtype=torch.bool, device=rows.device)
    weight = torch.ones(len(rows), device=rows.device)
    return Batch(
        observation=make_observation(state, data["task"][rows, None].expand(-1, 2), stats),
        action=data["action"][rows, None],
        action_mask=real[..., None].expand(-1, -1, 4),
        reward=reward,
        discount=1 - reward,
        mask=real,
        imitation_weight=weight * alpha,
        critic_weight=weight * beta,
    )


def train(name: str, setting: dict[str, Any], out: Path, device: str) -> dict[str, Any]:
    """Train one setting, try it, and append what came of it to results.jsonl."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    seed, steps, lr = setting.get("seed", 0), setting.get("steps", 4000), setting.get("lr", 3e-4)
    torch.manual_seed(seed)
    arrays = np.load(out / "data.npz")
    data = {key: torch.from_numpy(arrays[key]).to(device) for key in arrays.files}
    usable = (
        data["success"].nonzero()[:, 0] if setting.get("filtered") else torch.arange(len(data["task"]), device=device)
    )
    stats = data["state"].mean(0), data["state"].std(0).clamp(min=1e-3)
    objective = ObjectiveConfig(**{"reward_scale": 1.0, "discount": 0.98} | setting.get("objective", {}))
    is_mlp = setting.get("mlp", False)
    if is_mlp:
        model: Any = MLP(data["state"].shape[1] + len(TASKS), 4).to(device)
    else:
        pac_module.INPUT_QUERY_GAIN = setting.get("query_gain", pac_module.INPUT_QUERY_GAIN)
        pac_module.EMBEDDING_STD = setting.get("embedding_std", pac_module.EMBEDDING_STD)
        heads = {"q_head": objective.critic == "q", "v_head": objective.critic == "v"}
        sizes = {"num_proprio": 39, "num_actions": 4, "num_cameras": 0, "num_goal_images": 0, "num_text_tokens": 1}
        options = {"initial_value": 0.0, "proprio_scaling": "standardise"} | sizes | heads | setting.get("model", {})
        model = PAC(model_config(setting.get("size", "micro"), **options)).to(device)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=1e-3, fused=device == "cuda"
    )
    bins, started, curve, metrics = Bins.cells(-1, 1, 101), time.time(), [], {}
    mask = torch.ones(setting.get("batch", 256), 4, dtype=torch.bool, device=device)
    for update in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (update + 1) / 200) * (0.55 + 0.45 * math.cos(math.pi * update / steps))
        rows = usable[torch.randint(len(usable), (len(mask),), device=device)]
        if is_mlp:
            logits = model(mlp_inputs(data["state"][rows], data["task"][rows], stats))
            per_example = imitation_loss(logits, bins.encode(data["action"][rows]), mask)
            metrics = {"loss/imitation": per_example.mean()}
        else:
            batch = make_batch(data, rows, stats, setting.get("alpha", 1.0), setting.get("beta", 4.0))
            per_example, metrics = loss(model, target, batch, objective)
        optimizer.zero_grad()
        per_example.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % setting.get("period", 25) == 0:
            target.load_state_dict(model.state_dict())
        if update % max(1, steps // 8) == 0 or update == steps - 1:
            curve.append({"update": update} | {key: round(value.item(), 4) for key, value in metrics.items()})
    seconds = time.time() - started
    result = {"name": name, "setting": setting, "seconds": seconds, "updates_per_s": steps / seconds, "curve": curve}
    if setting.get("trials"):
        tried = {task: evaluate(model, stats, task, setting["trials"], device, objective.discount) for task in TASKS}
        for i, what in enumerate(("success", "predicted", "achieved")):
            result[what] = {task: numbers[i] for task, numbers in tried.items()}
    with (out / "results.jsonl").open("a") as file:
        file.write(json.dumps(result) + "\n")
    return result


def mlp_inputs(state: Tensor, task: Tensor, stats: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat([(state - stats[0]) / stats[1], nn.functional.one_hot(task, len(TASKS)).float()], -1)


@torch.no_grad()
def evaluate(
    model: Any, stats: tuple[Tensor, Tensor], task: str, trials: int, device: str, discount: float
) -> tuple[int, float, float]:
    """Successes with sampled actions, from starts that no training episode had; and how well the critic knew: its
    mean value of the first actions beside the discounted return that followed.
    """
    envs = [make_env(task, 0) for _ in range(min(25, trials))]
    bins, successes, predicted, achieved = Bins.cells(-1, 1, 101), 0, 0.0, 0.0
    for first in range(0, trials, len(envs)):
        envs = envs[: trials - first]
        for i, env in enumerate(envs):
            env.seed(10_000_000 + first + i)
        states = np.stack([env.reset()[0] for env in envs]).astype(np.float32)
        index, done = torch.full((len(envs),), TASKS.index(task), device=device), np.zeros(len(envs), bool)
        for t in range(HORIZON):
            state = torch.from_numpy(states).to(device)
            if isinstance(model, MLP):
                logits = model(mlp_inputs(state, index, stats))
            else:
                encoded = model.encode(make_observation(state, index, stats))
                logits = model.policy_logits(encoded, 4)
            action = bins.decode(sample_actions(logits, 1), logits)
            if t == 0 and isinstance(model, PAC) and model.config.q_head:
                values = model.q_logits(encoded, action, torch.ones_like(action[:, 0], dtype=torch.bool))
                predicted += model.config.value_bins.mean(values).sum().item() / trials
            chosen = action[:, 0].cpu().numpy()
            for i in np.flatnonzero(~done):
                states[i], _, _, _, info = envs[i].step(chosen[i])
                done[i] = bool(info["success"])
                achieved += discount**t * done[i] / trials
        successes += int(done.sum())
    return successes, predicted, achieved


# ----------------------------------------------------------------------------------------------------------- studies


def fit_study() -> dict[str, dict[str, Any]]:
    """Cloning loss of the Perceiver, by input scaling and initialisation, against an MLP's on the same bins."""
    clone: dict[str, Any] = {"objective": {"critic": "none", "improve": False}, "steps": 3000}
    return {
        "mlp": clone | {"mlp": True},
        "base": clone,
        "raw": clone | {"model": {"proprio_scaling": "raw"}},
        "centre": clone | {"model": {"proprio_scaling": "centre"}},
        "query gain 6": clone | {"query_gain": 6.0},
        "unit embeddings": clone | {"embedding_std": 1.0},
        "query gain 1": clone | {"query_gain": 1.0},
        "lr 1e-3": clone | {"lr": 1e-3},
        "fine gains": clone | {"model": {"gains": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)}},
        "linear": clone | {"model": {"number_encoder": "linear"}},
        "mu-law": clone | {"model": {"number_encoder": "mu-law"}},
        "nano": clone | {"size": "nano"},
        "tiny": clone | {"size": "tiny"},
    }


def methods_study() -> dict[str, dict[str, Any]]:
    """The paper's comparison on poor data: both kinds of cloning against PAC and PAC+V, three seeds each."""
    shared: dict[str, Any] = {
        "steps": 3000,
        "trials": 50,
        "model": {"gains": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)},
    }
    methods: dict[str, dict[str, Any]] = {
        "PAC": {"alpha": 0.5, "objective": {"epsilon": 0.1}},
        "BC+Q": {"objective": {"improve": False}},
        "PAC+V": {"alpha": 0.0, "objective": {"critic": "v"}},
        "filtered BC": {"filtered": True, "objective": {"critic": "none", "improve": False}},
    }
    return {f"{name} {seed}": shared | method | {"seed": seed} for name, method in methods.items() for seed in range(3)}


def dial_study() -> dict[str, dict[str, Any]]:
    """Longer runs, and how hard to select (epsilon) at how much cloning (alpha)."""
    shared = methods_study()["PAC 0"] | {"steps": 5500}
    runs: dict[str, dict[str, Any]] = {"BC+Q": {"objective": {"improve": False}}}
    for alpha, epsilon, seed in ((0.5, 0.1, 0), (0.5, 0.1, 1), (0.75, 0.5, 0), (0.75, 0.5, 1), (0.75, 0.1, 0)):
        runs[f"PAC {alpha} {epsilon} {seed}"] = {"alpha": alpha, "objective": {"epsilon": epsilon}, "seed": seed}
    return {name: shared | {"alpha": 1.0} | run for name, run in runs.items()}


STUDIES = {"fit": fit_study, "methods": methods_study, "dial": dial_study}


def study(out: Path, name: str, only: list[str], processes: int, device: str) -> None:
    """Several small runs share a GPU well: each is bound by its own kernel launches."""
    settings = {key: setting for key, setting in STUDIES[name]().items() if not only or key in only}
    with ProcessPoolExecutor(processes, mp_context=mp.get_context("spawn")) as pool:
        running = [pool.submit(train, key, setting, out, device) for key, setting in settings.items()]
        for job in running:
            result = job.result()
            last = result["curve"][-1]
            tried = {what: list(result.get(what, {}).values()) for what in ("success", "predicted", "achieved")}
            print(f"{result['name']:24s} {result['updates_per_s']:6.1f}/s {tried} {last}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("collect", "study"))
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--episodes", type=int, default=300, help="a task")
    parser.add_argument("--clean", type=float, default=0.2, help="share of stretches that are driven properly")
    parser.add_argument("--study", choices=STUDIES, default="fit")
    parser.add_argument("--only", nargs="*", default=[], help="some of the study's settings, by name")
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    args = parser.parse_args()
    if args.command == "collect":
        collect(args.out, args.episodes, args.clean, args.processes)
    else:
        study(args.out, args.study, args.only, args.processes, "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
