"""What the demo does: its worlds, its data, and what is trained on it. All that decides its numbers is here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pac.collection import folder_name
from pac.files import write_json

FILTERED, BCQ, PACQ, PACV = "filtered BC", "BC+Q", "PAC", "PAC+V"
# Trained side by side, one core each; a target network costs half as much again.
LANES = ((PACQ, FILTERED), (BCQ, PACV))
METHODS = {FILTERED: "filtered-bc", BCQ: "bc+q", PACQ: "pac", PACV: "pac+v"}
CLONING, LOG = (FILTERED, BCQ), "the data"
TRIAL_SEED = 10_000  # initial states that no training episode had


@dataclass(frozen=True, kw_only=True)
class World:
    """Tasks of one suite, whose data is made and whose trials are played alike."""

    name: str
    tasks: tuple[str, ...]
    behaviour: str
    max_steps: int  # of an episode, in the data and in trials
    stop_at_success: bool  # of a trial; the data goes on, since its rewards do
    imitation_weight: float  # alpha of PAC: how far the data is worth cloning
    experts: Mapping[str, float]  # the return that counts as 100%, where the world does not know success


WORLDS = (
    World(
        name="metaworld",
        tasks=("metaworld/handle-press", "metaworld/door-close", "metaworld/drawer-close"),
        behaviour="scripted+faults:clean=0.4,backwards=0.4,switch=5-15",
        max_steps=150,
        stop_at_success=True,
        imitation_weight=0.25,
        experts={},
    ),
    World(
        name="control",
        tasks=("control/cartpole.balance",),
        behaviour="planner:quality=poor+faults:clean=0.4,backwards=0.4,switch=5-15",
        max_steps=250,
        stop_at_success=False,
        imitation_weight=0.9,
        experts={"control/cartpole.balance": 246.2},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the numbers, apart from the code."""

    seed: int
    tasks: int  # of each world, the last so many
    episodes: int  # of each task
    steps: int  # updates of each method
    batch: int  # windows in an update
    trials: int  # of each task and method

    @property
    def worlds(self) -> tuple[World, ...]:
        return tuple(replace(world, tasks=world.tasks[-self.tasks :]) for world in WORLDS)


FULL = {"tasks": 3, "episodes": 100, "steps": 1000, "batch": 32, "trials": 50}
QUICK = {"tasks": 1, "episodes": 80, "steps": 800, "batch": 16, "trials": 30}


def recipe(method: str, settings: Settings) -> dict[str, Any]:
    """What is trained, as `pac train` reads it. All methods share model, data, updates, batches and rates; cloning
    that filters takes successes, and of tasks that do not know success the best quarter of the episodes.
    """
    datasets = [
        {"name": task, "path": folder_name(task)}
        | ({"success_only": False, "return_quantile": 0.75} if method == FILTERED and world.experts else {})
        | ({"imitation_weight": world.imitation_weight} if method == PACQ else {})
        for world in settings.worlds
        for task in world.tasks
    ]
    return {
        "seed": settings.seed,
        "length": f"{settings.steps} steps",
        "proprio_noise": 0.05,
        "model": {"size": "nano", "num_latents": 8, "gains": [0.5, 2.0]},
        "objective": {"method": METHODS[method], "discount": 0.95} | ({"epsilon": 0.2} if method == PACQ else {}),
        "optimiser": {"peak_rate": 1e-3},
        "mixture": {
            "batch_size": settings.batch,
            "window": 9,
            "groups": [{"name": "demo", "weight": 1, "datasets": datasets}],
        },
        "checkpoint": {"every": "100 steps", "keep_last": 1},
        "machine": {"device": "cpu", "log_every": 10, "workers": 1},
    }


def claim(folder: Path, settings: Settings) -> None:
    """The folder holds results of these settings and of no others."""
    file, wanted = folder / "settings.json", described(settings)
    if not file.exists():
        write_json(file, wanted)
    found = json.loads(file.read_text())
    if found != wanted:
        names = [name for name in wanted if found.get(name) != wanted[name]]
        raise ValueError(
            f"{folder}: expected a demo of the same settings, found other {', '.join(names)}. Remove the folder, or "
            "name another --out."
        )


def described(settings: Settings) -> dict[str, Any]:
    made: dict[str, Any] = asdict(settings) | {"worlds": [asdict(world) for world in settings.worlds]}
    made["recipes"] = {method: recipe(method, settings) for method in METHODS}
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain
