"""Half-trained learners of Meta-World: networks that cloned a few scripted episodes for a few updates.

    nice python benchmarks/bc_learners.py --out runs/learners          # the tasks of the wheel
    pac collect metaworld/soccer --behaviour learner:folder=runs/learners --out data/soccer

Each task has one network. It is evaluated after more and more updates. The stages in its file are the updates whose
success is nearest to 25%. Such an agent fails in a way that depends on the state. The initial states differ from those
of `pac collect` with seed 0. It prints the success after each number of updates.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

from pac import behaviours, envs
from pac.behaviours.learner import act, learner_file

HIDDEN, EPISODES, BATCH, RATE = 64, 5, 64, 1e-4
CHECKPOINTS = (30, 45, 60, 80, 110, 150, 200, 270, 360, 500, 700, 1000)  # updates
AIM, STAGES = 0.25, 3  # the stages are those whose success is nearest to the aim
ENOUGH = 0.6  # success at which training stops
MAX_STEPS, EVALUATION_EPISODES, SEED = 200, 20, 1000
MIN_SCALE = 0.01  # of a squashed input; smaller ones are constant
TASKS = (
    *("button-press", "button-press-topdown", "button-press-wall", "coffee-push", "door-lock", "drawer-open"),
    *("faucet-close", "faucet-open", "handle-press", "handle-press-side", "plate-slide", "plate-slide-back"),
    *("plate-slide-back-side", "plate-slide-side", "soccer", "window-close", "window-open"),
)
Layers = list[tuple[np.ndarray, np.ndarray]]


def squash(states: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(states) * np.log1p(np.abs(states)), np.float32)


def demonstrate(env: Any, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return states and actions of scripted episodes, each until its success."""
    behaviour, states, actions = behaviours.make("scripted"), list[np.ndarray](), list[np.ndarray]()
    for index in range(episodes):
        observation, _ = env.reset(seed=envs.episode_seed(env.task.name, SEED, index))
        behaviour.begin(env, np.random.default_rng(index))
        for _ in range(MAX_STEPS):
            states.append(observation["observation.state"])
            actions.append(behaviour.act(observation))
            observation, _, _, _, info = env.step(actions[-1])
            if info["success"]:
                break
    return np.array(states), np.array(actions)


class Clone(nn.Module):
    """The network of a learner: `pac.behaviours.learner.act` computes the same."""

    def __init__(self, states: np.ndarray, num_actions: int) -> None:
        super().__init__()
        inputs = squash(states)
        self.mean, self.scale = inputs.mean(0), np.maximum(inputs.std(0), MIN_SCALE)
        sizes = [inputs.shape[1], HIDDEN, HIDDEN, num_actions]
        self.linears = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.layers = nn.ModuleList(self.linears)  # registers their parameters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.linears[:-1]:
            x = torch.relu(nn.functional.layer_norm(layer(x), (HIDDEN,)))
        return torch.tanh(self.linears[-1](x))

    def export(self) -> Layers:
        """Return weights (in, out) and biases in half precision. The first layer standardises its inputs."""
        pairs = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in self.linears]
        weight = pairs[0][0] / self.scale[:, None]
        pairs[0] = weight, pairs[0][1] - self.mean @ weight
        return [(weight.astype(np.float16), bias.astype(np.float16)) for weight, bias in pairs]


def success(env: Any, layers: Layers, episodes: int) -> float:
    """Return the share of episodes in which a network succeeds."""
    low, high = np.array(env.task.action_low), np.array(env.task.action_high)
    plain, won = [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers], 0
    for index in range(EPISODES, EPISODES + episodes):
        if won == 0 and index == EPISODES + episodes // 2:
            return 0.0  # not worth more episodes
        observation, _ = env.reset(seed=envs.episode_seed(env.task.name, SEED, index))
        for _ in range(MAX_STEPS):
            action = act(plain, observation["observation.state"])
            observation, _, _, _, info = env.step((low + (high - low) * (action + 1) / 2).astype(np.float32))
            if info["success"]:
                won += 1
                break
    return won / episodes


def train(task: str) -> tuple[list[Layers], dict[str, Any]]:
    """Clone, and return the chosen stages and the success at every checkpoint."""
    torch.manual_seed(0)
    env = envs.make(task, max_steps=MAX_STEPS)
    states, actions = demonstrate(env, EPISODES)
    low, high = np.array(env.task.action_low), np.array(env.task.action_high)
    clone = Clone(states, actions.shape[1])
    inputs = torch.from_numpy((squash(states) - clone.mean) / clone.scale)
    targets = torch.from_numpy(np.asarray(2 * (actions - low) / (high - low) - 1, np.float32))
    optimiser = torch.optim.Adam(clone.parameters(), RATE)
    curve, networks = dict[int, float](), dict[int, Layers]()
    for before, checkpoint in itertools.pairwise((0, *CHECKPOINTS)):
        for _ in range(checkpoint - before):
            rows = torch.randint(len(inputs), (BATCH,))
            loss = (clone(inputs[rows]) - targets[rows]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        networks[checkpoint] = clone.export()
        curve[checkpoint] = success(env, networks[checkpoint], EVALUATION_EPISODES)
        if curve[checkpoint] >= ENOUGH:
            break
    chosen = sorted(sorted(curve, key=lambda at: (round(abs(curve[at] - AIM), 3), -curve[at]))[:STAGES])
    facts = {"success": curve, "stages": chosen, "steps": len(states)}
    env.close()
    return [networks[at] for at in chosen], facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="for example metaworld/soccer (default: those of the wheel)")
    parser.add_argument("--out", type=Path, default=Path("runs/learners"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for task in options.tasks or [f"metaworld/{task}" for task in TASKS]:
        began = time.time()
        stages, facts = train(task)
        arrays = {
            f"{layer}.{name}": np.ascontiguousarray([stage[layer][i] for stage in stages])
            for layer in range(3)
            for i, name in enumerate(("weight", "bias"))
        }
        save_file(arrays, options.out / learner_file(task))
        print(task, json.dumps(facts), f"{time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
