"""Evaluation for people: any kind of task, a progress bar, and the command that does the same.

`Agent.evaluate` and `pac.compare` call `play`. `pac.evaluation.evaluate` does the work.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pac.envs.given import EnvLike, is_given, one_at_a_time, tasks_of
from pac.evaluation.plan import Actor
from pac.evaluation.result import Evaluation
from pac.evaluation.runner import evaluate
from pac.files import progress_bar

Tasks = str | EnvLike | Sequence[str | EnvLike]


def task_names(tasks: Tasks) -> list[str]:
    """Return the task name of each task, Gymnasium id, environment, or function that makes one."""
    return tasks_of(tasks if isinstance(tasks, Sequence) and not isinstance(tasks, str) else [tasks])


def play(
    actors: Mapping[str, Actor],
    tasks: Tasks,
    episodes: int,
    *,
    seed: int = 0,
    max_steps: int | None = None,
    stop_at_success: bool = False,
    cameras: Sequence[str] = (),
    workers: int | None = None,
    any_instruction: bool = False,
    json: str | Path | None = None,
) -> Evaluation:
    """Play `episodes` evaluation episodes per task with every actor, from the same initial states.

    `seed` decides the initial states. `cameras` are rendered in place of those of the policy. `workers` is the number
    of processes, by default one per core. With `json` each episode is on disk at once, and a second call continues.
    `any_instruction` allows texts that training did not have.
    """
    names = task_names(tasks)
    limits: dict[str, Any] = {"max_steps": max_steps, "stop_at_success": stop_at_success, "cameras": tuple(cameras)}
    processes = (os.cpu_count() or 1) if workers is None else workers
    given = any(map(is_given, names))  # these environments are in this process alone
    choices = {(actor.sampling, actor.instruction) for actor in actors.values() if actor.checkpoint}
    has_command = not given and len(choices) < 2  # a command has one way of acting for all checkpoints
    command = (
        "" if not has_command else _command(actors, names, episodes, seed, limits | {"json": json}, any_instruction)
    )
    console = Console(stderr=True)
    if command:
        console.print(f"The same as: {command}", markup=False, highlight=False, soft_wrap=True)
    with progress_bar(console) as bars:
        lines = {label: bars.add_task(escape(label), total=episodes * len(names)) for label in actors}
        return evaluate(
            list(actors.values()),
            names,
            episodes,
            **limits,
            seed=seed,
            workers=0 if given else processes,
            envs_per_worker=1 if any(map(one_at_a_time, names)) else None,
            any_instruction=any_instruction,
            journal=None if json is None else Path(json),
            command=command,
            progress=lambda label, done, _: bars.update(lines[label], completed=done),
        )


def _command(
    actors: Mapping[str, Actor],
    tasks: Sequence[str],
    episodes: int,
    seed: int,
    options: Mapping[str, Any],
    any_instruction: bool,
) -> str:
    """Return the command line that gives the same numbers."""
    words = ["pac", "evaluate"]
    for label, actor in actors.items():
        spec = str(actor.checkpoint or actor.behaviour)
        words.append(spec if len(actors) == 1 or label == spec else f"{label}={spec}")
    words += ["--tasks", *tasks, "--episodes", str(episodes)]
    words += ["--seed", str(seed)] if seed else []
    samplings = list(dict.fromkeys(actor.sampling for actor in actors.values()))
    words += ["--sampling", *samplings] if samplings != ["sample"] else []
    texts = {actor.instruction for actor in actors.values() if actor.checkpoint}
    words += [word for text in texts if text is not None for word in ("--instruction", text)]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [] if value in (None, False, ()) else [option] if value is True else [option, *_texts(value)]
    return shlex.join(words + ["--any-instruction"] * any_instruction)


def _texts(value: Any) -> list[str]:
    return list(map(str, value)) if isinstance(value, tuple) else [str(value)]
