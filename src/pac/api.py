"""The functions of `import pac`: collect, train, load, compare.

They write what the command line writes, print the command that does the same, and continue in a folder that they began.
"""

import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pac.agent import Agent
from pac.collection import CollectionFolder, CollectionSettings, collect_data, folder_name, load_actors
from pac.collection import collect as collect_folders
from pac.dataset import Dataset
from pac.envs.given import EnvLike, is_given, one_at_a_time, task_of
from pac.evaluation import Evaluation
from pac.evaluation.in_training import TrainingEvaluator
from pac.evaluation.plan import make_actors
from pac.evaluation.play import Tasks, play
from pac.evaluation.runner import cameras_of
from pac.files import problem
from pac.recipe import data_groups
from pac.recipe_keys import as_override, expand_key
from pac.report.dataset_summary import print_warnings
from pac.training.logging import make_console
from pac.training.run import train_in
from pac.training.run_dir import RunDirectory
from pac.types import Sampling

DataLike = Dataset | str | Path


def train(
    data: DataLike | Sequence[DataLike] | None = None,
    *,
    method: str | None = None,
    size: str | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    start: "str | Path | Agent | None" = None,
    recipe: str | Path | None = None,
    weights: Sequence[float] | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Agent:
    """Train a policy and a critic, and return the agent.

    `data` is a dataset or a list of them, each with its share in `weights`. `method` is bc, filtered-bc, bc+q, pac
    (default) or pac+v. `size` is the model's (`pac info` lists them; default micro). `steps` is the number of updates.
    `start` fine-tunes a checkpoint. `settings` are a recipe's keys, dotted or short: `discount=0.97`,
    `**{"checkpoint.every": "500 steps"}` (docs/training.md). `recipe` is a file that the other settings change.

    The run is in the folder `out`. A second call continues there, as after an interrupt. With other settings it is
    refused, unless `overwrite`.
    """
    datasets = _datasets(data)
    chosen = {"method": method, "size": size, "steps": steps, "seed": seed, **settings}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    for name in chosen:
        expand_key(name)  # raises on an unknown name
    texts = _data_texts(datasets, weights)
    chosen |= _rewards(datasets, texts)
    if start is not None:
        chosen["start"] = str(start.path if isinstance(start, Agent) else start)
    if recipe is None and not datasets:
        raise ValueError("pac.train: expected data or a recipe, found neither. Pass a Dataset.")
    out = Path(out) if out is not None else _default_out(recipe, datasets, method)
    overrides = [as_override(name, value) for name, value in chosen.items()]
    words = ["pac", "train", *([str(recipe)] if recipe else []), *overrides]
    words += [word for text in texts for word in ("--data", text)] + ["--out", str(out)]
    command, resume = shlex.join(words), RunDirectory(out).is_run() and not overwrite
    _say(f"The same as: {command}{' --resume' * resume}{' --overwrite' * overwrite}")
    trainer = train_in(
        out,
        recipe,
        overrides,
        data=texts,
        resume=resume,
        overwrite=overwrite and out.exists(),
        command=command,
        evaluator=TrainingEvaluator(),
        collect=collect_data,
        before_start=print_warnings,
    )
    if trainer.interrupted == signal.SIGINT:
        raise KeyboardInterrupt(f"Stopped at step {trainer.state.step:,}. The same call continues in {out}.")
    if trainer.interrupted is not None:
        raise SystemExit(128 + trainer.interrupted)
    return load(out)


def load(path: str | Path, *, device: str | None = None, sampling: Sampling = "sample") -> Agent:
    """Load the agent in a run, a checkpoint, an improvement or a folder of `Agent.save`.

    `device` is "cpu" or "cuda", by default a GPU if there is one. `sampling` says how actions are chosen: "sample",
    "mode", "mean", "median" or "interquartile" (docs/evaluation.md).
    """
    return Agent.load(path, device=device, sampling=sampling)


def collect(
    task: str | EnvLike,
    behaviour: "str | Path | Agent" = "scripted",
    *,
    episodes: int = 100,
    out: str | Path | None = None,
    seed: int = 0,
    cameras: Sequence[str] = (),
    max_steps: int | None = None,
    stop_at_success: bool = False,
    workers: int | None = None,
) -> Dataset:
    """Collect episodes of a task and return them as a dataset.

    `behaviour` is a behaviour such as "random" or "scripted+faults" (docs/behaviours.md), an agent, or its folder.
    `cameras` are rendered in place of those that an agent uses.
    `out` is the dataset's folder (default: data/TASK). A second call continues at the first missing episode.
    """
    if episodes < 1:
        raise problem("pac.collect", expected="1 or more episodes", found=episodes, fix="Raise it.")
    name = task_of(task)
    actor, names, shares = load_actors([str(behaviour.path if isinstance(behaviour, Agent) else behaviour)])
    place = Path(out) if out is not None else Path("data") / folder_name(name)
    limits: dict[str, Any] = {"cameras": tuple(cameras), "max_steps": max_steps, "stop_at_success": stop_at_success}
    limits["cameras"] = limits["cameras"] or cameras_of(actor, [name], max_steps)[name]
    settings = CollectionSettings(task=name, behaviours=names, weights=shares, seed=seed, **limits)
    options: dict[str, Any] = {"workers": (os.cpu_count() or 1) if workers is None else workers}
    if is_given(name):  # the environment is in this process alone
        options = {"workers": 0, "envs_per_worker": 1 if one_at_a_time(name) else None}
    else:
        _say(f"The same as: {settings.command()} --episodes {episodes} --out {shlex.quote(str(place))}")
    collect_folders([CollectionFolder(place, settings)], actor, episodes, console=Console(stderr=True), **options)
    return Dataset(place)


def compare(
    first: "Agent | str | Path",
    second: "Agent | str | Path",
    tasks: Tasks,
    *,
    episodes: int = 50,
    seed: int = 0,
    instruction: str | None = None,
    any_instruction: bool = False,
    max_steps: int | None = None,
    stop_at_success: bool = False,
    cameras: Sequence[str] = (),
    workers: int | None = None,
    json: str | Path | None = None,
) -> Evaluation:
    """Play the same episodes with two agents, and return their paired differences with 95% intervals.

    An actor may be a behaviour, too, such as "random". The options are those of `Agent.evaluate`.
    """
    labels = [str(one.path if isinstance(one, Agent) else one) for one in (first, second)]
    if len({Path(label).name for label in labels}) == len(labels):
        labels = [Path(label).name for label in labels]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({number})" for number, label in enumerate(labels, start=1)]
    actors = {}
    for label, one in zip(labels, (first, second), strict=True):
        if not isinstance(one, Agent) and Path(one).is_dir():
            one = load(one)
        if isinstance(one, Agent):
            actors[label] = one.actor(label, instruction=instruction)
        else:
            (actors[label],) = make_actors({label: str(one)})
    return play(
        actors,
        tasks,
        episodes,
        seed=seed,
        any_instruction=any_instruction,
        max_steps=max_steps,
        stop_at_success=stop_at_success,
        cameras=cameras,
        workers=workers,
        json=json,
    )


def _datasets(data: Any) -> list[Dataset]:
    given: list[Any] = [] if data is None else list(data) if isinstance(data, list | tuple) else [data]
    for wrong in (one for one in given if not isinstance(one, Dataset | str | Path)):
        expected, fix = "a pac.Dataset or a folder", "Make one with pac.Dataset.from_arrays or from_episodes."
        raise problem("pac.train", expected=expected, found=type(wrong).__name__, fix=fix)
    return [one if isinstance(one, Dataset) else Dataset.open(one) for one in given]


def _data_texts(datasets: Sequence[Dataset], weights: Sequence[float] | None) -> list[str]:
    """Return the datasets as `pac train --data` takes them."""
    if weights is None:
        return [str(data.path.absolute()) for data in datasets]
    if len(weights) != len(datasets) or min(weights) < 0:
        expected = f"a weight of 0 or more for each of {len(datasets)} datasets"
        raise problem("weights", expected=expected, found=list(weights), fix="Give as many numbers as datasets.")
    return [f"{data.path.absolute()}@{float(weight):g}" for data, weight in zip(datasets, weights, strict=True)]


def _rewards(datasets: Sequence[Dataset], texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of the rewards that datasets were opened with."""
    names = [group["name"] for group in data_groups(texts)]
    rewards = {data.reward for data in datasets}
    if rewards == {None}:
        return {}
    if len(datasets) == 1:
        return {"reward": str(datasets[0].reward)}
    pairs = zip(names, datasets, strict=True)
    return {f"mixture.groups.{name}.reward": data.reward for name, data in pairs if data.reward is not None}


def _default_out(recipe: str | Path | None, datasets: Sequence[Dataset], method: str | None) -> Path:
    name = datasets[0].path.name if datasets else Path(str(recipe)).stem
    return Path("runs") / f"{name}-{method or 'pac'}"


def _say(text: str) -> None:
    make_console().print(text, markup=False, highlight=False, soft_wrap=True)
