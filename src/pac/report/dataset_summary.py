"""Summary of a dataset, and warnings of likely mistakes in it: the library part of `pac inspect`.

Sizes, returns, success and statistics per dimension come from the index and the stored statistics, so they cost the
same for any size. Warnings also look at a sample of episodes. `pac train` prints them before its first step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from pac.data.relabel import Labels, episode_returns, equal_reward, label, label_episode
from pac.data.statistics import SCALE_FLOOR, normalise_action
from pac.data.store import ACTION, IMAGES, REWARD, STATE, Dataset, verify
from pac.data.tokenizer import Tokenizer
from pac.data.windows import WindowedDataset
from pac.evaluation.intervals import wilson
from pac.training.trainer import Trainer

SAMPLED_EPISODES = 200  # a tenth of that with images
MOST_WARNINGS = 4  # of one dataset before a run


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of some episodes, evenly spaced over the dataset."""

    state: np.ndarray  # (rows, dims)
    action: np.ndarray  # (steps, dims), normalised
    reward: np.ndarray  # (steps,)
    frames: dict[str, list[np.ndarray]]  # camera -> first and last image of a few episodes


def draw_sample(dataset: Dataset, reward: str | None = None) -> Sample:
    """Return a sample of the dataset, the same one every time. `reward` is a rule or a stored column."""
    count = min(len(dataset), SAMPLED_EPISODES // (10 if dataset.spec.cameras else 1))
    episodes = [dataset.episode(int(i), copy=False) for i in np.linspace(0, len(dataset) - 1, count)]
    if reward is not None:
        episodes = [label_episode(episode, reward) for episode in episodes]
    if not episodes:
        empty = np.zeros((0, dataset.spec.action_dim), np.float32)
        return Sample(state=np.zeros((0, 0)), action=empty, reward=np.zeros(0), frames={})
    shown = episodes[:: max(1, count // 4)][:4]
    state = [episode.observation.get(STATE, np.zeros((0, 0))) for episode in episodes]
    action = np.concatenate([episode.action for episode in episodes])
    return Sample(
        state=np.concatenate(state),
        action=normalise_action(action, dataset.action_low, dataset.action_high),
        reward=np.concatenate([episode.reward for episode in episodes]),
        frames={
            name: [episode.observation[IMAGES + name][t] for episode in shown for t in (0, -1)]
            for name in dataset.spec.cameras
        },
    )


def describe_dataset(path: str | Path, *, reward: str | None = None, check_files: bool = False) -> dict[str, Any]:
    """Return the summary and the warnings as plain values.

    `reward` is a rule or a stored column: returns, ends and warnings are then those under it. `check_files` compares
    the checksum of every byte.
    """
    dataset = Dataset(path)
    index, spec = index_under(dataset, reward), dataset.spec
    damage = verify(path) if check_files else []
    report: dict[str, Any] = {
        "path": str(path),
        "robot": spec.robot,
        "episodes": len(dataset),
        "steps": dataset.num_steps,
        "bytes": sum(file.stat().st_size for file in Path(path).iterdir()),
        "reward": reward,
        "tasks": list(_tasks(dataset, index)),
        **_results(index),
        "length": _spread(index["length"]),
        "ends": _ends(index),
        "last_observation_unknown": int((~index["last_known"]).sum()),
        "control_rate": spec.control_rate,
        "cameras": {name: list(size) for name, size in spec.cameras.items()},
        "goal_cameras": {name: list(size) for name, size in spec.goal_cameras.items()},
        "rewards": [REWARD, *(f"{REWARD}.{name}" for name in spec.extra_rewards)],
        "state": _dimensions(dataset, STATE, spec.state_names),
        "action": _dimensions(dataset, ACTION, spec.action_names),
        "action_bounds": {
            "measured": dataset.bounds_are_measured,
            "low": dataset.action_low.tolist(),
            "high": dataset.action_high.tolist(),
        },
        "verified": not damage if check_files else None,
    }
    rate = "Control rate unknown: give `control_rate` (--fps) at import, so that the policy runs at the right speed."
    rates = [rate] if len(dataset) and spec.control_rate is None else []
    return report | {"warnings": damage + list(_warnings(dataset, reward)) + rates}


def training_warnings(sources: Sequence[WindowedDataset], *, critic: bool) -> list[str]:
    """Return a few warnings of each dataset of a run. A warning that several datasets share is there once.

    Rewards and ends are those of the mixture. Without a critic they do not matter.
    """
    names: dict[str, list[str]] = {}
    for source in sources:
        config = source.config
        rewards = critic and config.goals != "hindsight"  # whose rewards depend on the goal drawn
        found = list(_warnings(source.dataset, config.reward, source.kept, rewards=rewards))
        if len(found) > MOST_WARNINGS:
            found[MOST_WARNINGS - 1 :] = [f"There is more: run `pac inspect {source.dataset.path}`."]
        for text in found:
            names.setdefault(text, []).append(source.config.name)
    return [f"{_listed(datasets)}: {text}" for text, datasets in names.items()]


def print_warnings(run: Trainer) -> None:
    """Print the warnings about a run's data, unless the run has begun."""
    if run.state.step == 0:
        for warning in training_warnings(run.sampler.sources, critic=run.objective.critic != "none"):
            run.console.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False)


def format_results(row: dict[str, Any]) -> tuple[str, str]:
    """Return the mean return and the success rate of a task, each with its interval, as text."""
    spread, success = row["return"], row["success"]
    returns = f"{spread['mean']:.4g} [{spread['low']:.4g}, {spread['high']:.4g}]" if spread else "-"
    if not success:
        return returns, "-"
    return returns, f"{success['rate']:.1%} [{success['low']:.1%}, {success['high']:.1%}]"


def index_under(dataset: Dataset, reward: str | None) -> np.ndarray:
    """Return the index of the episodes, with the returns and the ends under a reward."""
    if reward is None or not len(dataset):
        return dataset.index
    index = np.array(label(dataset, reward).index)
    index["return"] = episode_returns(dataset, reward)
    return index


def _tasks(dataset: Dataset, index: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the results per instruction. Episodes are sorted once, since there may be many of both."""
    task = index["instruction"]
    order = np.argsort(task, kind="stable")
    ends = np.searchsorted(task[order], np.arange(len(dataset.instructions) + 1))
    for name, first, last in zip(dataset.instructions, ends, ends[1:], strict=False):
        yield {"instruction": name, "episodes": int(last - first), **_results(index[order[first:last]])}


def _results(index: np.ndarray) -> dict[str, Any]:
    known = index["success"][index["success"] >= 0]
    successes = int((known == 1).sum())
    low, high = wilson(successes, len(known))
    success = {"rate": successes / len(known), "low": low, "high": high, "known": len(known)} if len(known) else None
    return {"return": _spread(index["return"]), "success": success}


def _spread(values: np.ndarray) -> dict[str, float] | None:
    """Return mean, 95% interval of the mean, standard deviation and extremes."""
    if not len(values):
        return None
    mean, std = float(values.mean()), float(values.std())
    error = 1.96 * std / math.sqrt(max(1, len(values) - 1))
    ends = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": mean, "low": mean - error, "high": mean + error, "std": std} | ends


def _dimensions(dataset: Dataset, feature: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    table = dataset.statistics(feature)
    names += tuple(map(str, range(len(names), len(table["mean"]))))
    std = np.sqrt(table["variance"]).tolist()
    rows = zip(names, table["min"], table["max"], table["mean"], std, strict=False)
    return [dict(zip(("name", "min", "max", "mean", "std"), row, strict=True)) for row in rows]


def _ends(index: np.ndarray) -> dict[str, int]:
    """Return how many episodes end in which way."""
    terminated, truncated = index["terminated"], index["truncated"]
    return {
        "terminated": int((terminated & ~truncated).sum()),
        "time limit": int((truncated & ~terminated).sum()),
        "both": int((terminated & truncated).sum()),
        "neither": int((~terminated & ~truncated).sum()),
    }


def _warnings(
    dataset: Dataset, reward: str | None = None, kept: np.ndarray | None = None, *, rewards: bool = True
) -> Iterator[str]:
    """Yield likely mistakes, each with its likely fix. `reward` is that of a mixture, `kept` are the episodes it uses.

    Warnings about rewards are left out without `rewards`.
    """
    if not len(dataset):
        yield "No episodes: the first one was never finished. Import or collect again."
        return
    sample, labels = draw_sample(dataset, reward), label(dataset, reward)
    if rewards:
        yield from _reward_warnings(dataset, labels, reward, kept)
    yield from _state_warnings(_dimensions(dataset, STATE, dataset.spec.state_names), sample)
    yield from _action_warnings(dataset, _dimensions(dataset, ACTION, dataset.spec.action_names))
    yield from _end_warnings(dataset, labels.index)
    yield from _text_warnings(dataset)
    for camera, frames in sample.frames.items():
        if all(frame.std() < 1 for frame in frames):
            yield f"Camera {camera!r} shows one flat colour: check the rendering, or leave it out (--keys)."


def _state_warnings(state: list[dict[str, Any]], sample: Sample) -> Iterator[str]:
    if constant := _constant(state):
        yield f"Constant state dimensions: {constant}. They carry no information. Leave them out (--keys)."
    moving = [row for row in state if row["min"] < row["max"]]
    still = [row["name"] for row in moving if row["std"] < SCALE_FLOOR * max(1, abs(row["mean"]))]
    if still:
        yield (
            f"State dimensions that hardly move: {_listed(still)}. Standardising divides them by a floor. Check their "
            "units."
        )
    if not all(np.isfinite(values).all() for values in (sample.state, sample.action, sample.reward)):
        yield "NaN or infinite values in the arrays: the files were changed after writing. Import again."


def _action_warnings(dataset: Dataset, action: list[dict[str, Any]]) -> Iterator[str]:
    if constant := _constant(action):
        yield f"Constant action dimensions: {constant}. There is nothing to learn about them."
    if dataset.bounds_are_measured:
        yield (
            "Action bounds were measured: the robot may allow more. Give `action_low` and `action_high` if you know "
            "the true ones."
        )
        return
    ranges = zip(action, dataset.action_high - dataset.action_low, strict=True)
    narrow = [row["name"] for row, size in ranges if 0 < row["max"] - row["min"] < 0.2 * size]
    if narrow:
        yield (
            f"Actions that use under a fifth of their bounds: {_listed(narrow)}. 101 bins are coarse for them. Give "
            "tighter `action_low` and `action_high`, or neither."
        )


def _reward_warnings(dataset: Dataset, labels: Labels, reward: str | None, kept: np.ndarray | None) -> Iterator[str]:
    stored = dataset.statistics(REWARD)
    differ = reward is None and kept is None and stored["min"] != stored["max"]  # known without reading any
    if not differ and (value := equal_reward(labels, kept)) is not None:
        yield (
            f'Every reward is {value:g}: a critic learns nothing from it. Set `reward` to "sparse-success", '
            '"time-to-go" or a stored column, or clone with objective.method=bc.'
        )
    success = dataset.index["success"]
    if reward == "time-to-go" and (count := int(((success == 0) & labels.index["terminated"]).sum())):
        yield (
            f"{count} failures are terminal: with time-to-go a short failure beats a slow success. "
            'Set `reward` to "sparse-success", or mark their ends as `timeouts`.'
        )
    if reward is not None:
        return
    returns = dataset.index["return"]
    won, failed = returns[success == 1], returns[success == 0]
    if len(won) and len(failed) and won.mean() < failed.mean():
        yield (
            f"Successful episodes have the lower return ({won.mean():.4g} against {failed.mean():.4g}): rewards and "
            "success labels disagree, or rewards are costs. Relabel one of them."
        )


def _end_warnings(dataset: Dataset, index: np.ndarray) -> Iterator[str]:
    """Warn of the ends as they are stored, and of those of `index` where a rule decides them."""
    lengths, terminal = index["length"], _ends(dataset.index)["terminated"]
    if len(dataset) > 1 and terminal == len(dataset) and (lengths == lengths[0]).all() and lengths[0] > 1:
        yield (
            f"All episodes end in a termination after exactly {lengths[0]} steps: these look like time limits. Mark "
            "them in `timeouts` (--format arrays), not in `terminals`."
        )
    lost = int((~index["last_known"] & ~index["terminated"]).sum())
    if lost:
        yield (
            f"{lost} episodes end without their last observation, so that transition is left out. Give "
            "`next_observations` if you can."
        )
    if neither := _ends(index)["neither"]:
        yield f"{neither} episodes end with neither termination nor time limit: they are treated as cut off."


def _text_warnings(dataset: Dataset) -> Iterator[str]:
    tokenizer = Tokenizer()
    if "" in dataset.instructions and len(dataset.instructions) > 1:
        empty = int((dataset.index["instruction"] == dataset.instructions.index("")).sum())
        fix = "Tasks cannot be told apart. Give `instruction` (--instruction) at import."
        yield f"{empty} episodes have no instruction. {fix}"
    long = [text for text in dataset.instructions if len(tokenizer.pieces(text)) > tokenizer.num_tokens]
    if long:
        yield (
            f"{len(long)} instructions are longer than {tokenizer.num_tokens} tokens and lose their end, such as "
            f"{long[0][:60]!r}. Shorten them, or use a tokenizer of your own."
        )


def _constant(rows: list[dict[str, Any]]) -> str:
    """Return the names of the dimensions that never change."""
    return _listed([row["name"] for row in rows if row["min"] == row["max"]])


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
