"""`pac inspect`: what a dataset holds, and what looks wrong with it, before a run learns from it.

Sizes, returns, success and per-dimension statistics come from the index and the stored statistics, so that they cost
the same for any size; histograms and pictures come from a sample of episodes.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.data.statistics import SCALE_FLOOR
from pac.data.store import ACTION, REWARD, STATE, Dataset, verify
from pac.data.tokenizer import Tokenizer
from pac.evaluation.intervals import wilson
from pac.report.dataset_page import Sample, draw_sample, html_page

ROWS = 40  # of a printed table


def describe(path: str | Path, *, check_files: bool = False) -> dict[str, Any]:
    """Everything `pac inspect` prints, as plain values."""
    dataset = Dataset(path)
    sample = draw_sample(dataset)
    index, spec = dataset.index, dataset.spec
    ends = {
        "terminated": int((index["terminated"] & ~index["truncated"]).sum()),
        "time limit": int((index["truncated"] & ~index["terminated"]).sum()),
        "both": int((index["terminated"] & index["truncated"]).sum()),
        "neither": int((~index["terminated"] & ~index["truncated"]).sum()),
    }
    report: dict[str, Any] = {
        "path": str(path),
        "robot": spec.robot,
        "episodes": len(dataset),
        "steps": dataset.num_steps,
        "bytes": sum(file.stat().st_size for file in Path(path).iterdir()),
        "tasks": list(_tasks(dataset)),
        **_summary(index),
        "length": _spread(index["length"]),
        "ends": ends,
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
        "verified": not (damage := verify(path)) if check_files else None,
    }
    return report | {"warnings": (damage if check_files else []) + list(find_problems(dataset, report, sample))}


def find_problems(dataset: Dataset, report: dict[str, Any], sample: Sample) -> Iterator[str]:
    """What looks wrong, each with the likely fix."""
    if not len(dataset):
        yield "No episodes: the first one was never finished. Import or collect again."
        return
    yield from _state_problems(report, sample)
    yield from _action_problems(dataset, report)
    yield from _reward_problems(dataset)
    yield from _end_problems(dataset, report["ends"])
    yield from _text_problems(dataset)
    for camera, frames in sample.frames.items():
        if all(frame.std() < 1 for frame in frames):
            yield f"Camera {camera!r} shows one flat colour: check the rendering, or leave it out with --keys."
    if dataset.spec.control_rate is None:
        yield "Control rate unknown: give --fps at import, so that the policy can be run at the right speed."


def print_report(report: dict[str, Any], console: Console) -> None:
    console.print(
        f"[bold]{escape(report['path'])}[/]  {report['episodes']:,} episodes, {report['steps']:,} steps, ", end=""
    )
    console.print(f"{report['bytes'] / 1e6:,.1f} MB, control rate {report['control_rate'] or 'unknown'}")
    cameras = ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in report["cameras"].items()) or "none"
    console.print(f"Cameras: {cameras}. Rewards: {', '.join(report['rewards'])}.")
    console.print("Ends: " + ", ".join(f"{count:,} {name}" for name, count in report["ends"].items() if count) + ".")
    tasks = Table("task", "episodes", "return, mean [95%]", "success [95%]", box=SIMPLE, pad_edge=False)
    for row in [*report["tasks"][:ROWS], {"instruction": "all", "episodes": report["episodes"], **report}]:
        tasks.add_row(escape(row["instruction"]) or "(no instruction)", f"{row['episodes']:,}", *_intervals(row))
    console.print(tasks)
    _print_rest(len(report["tasks"]), "tasks", console)
    for kind in ("state", "action"):
        table = Table(kind, "min", "max", "mean", "std", box=SIMPLE, pad_edge=False)
        for row in report[kind][:ROWS]:
            table.add_row(escape(row["name"]), *(f"{row[key]:.4g}" for key in ("min", "max", "mean", "std")))
        console.print(table)
        _print_rest(len(report[kind]), f"{kind} dimensions", console)
    if report["verified"] is not None:
        console.print("Checksums: " + ("all files are as written." if report["verified"] else "[red]damaged[/]."))
    for warning in report["warnings"]:
        console.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False)


def _print_rest(count: int, name: str, console: Console) -> None:
    if count > ROWS:
        console.print(f"... and {count - ROWS} {name} more; --json lists all.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="folder of a dataset")
    parser.add_argument("--verify", action="store_true", help="read every byte and compare checksums")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one page with histograms and pictures")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if the files are damaged."""
    report = describe(args.path, check_files=args.verify)
    if args.html:
        dataset = Dataset(args.path)
        args.html.write_text(html_page(report, dataset.index, draw_sample(dataset)))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report, Console())
    return int(report["verified"] is False)


def _tasks(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """One summary an instruction; episodes are sorted once, since there may be many of both."""
    task = dataset.index["instruction"]
    order = np.argsort(task, kind="stable")
    ends = np.searchsorted(task[order], np.arange(len(dataset.instructions) + 1))
    for name, first, last in zip(dataset.instructions, ends, ends[1:], strict=False):
        yield {"instruction": name, "episodes": int(last - first), **_summary(dataset.index[order[first:last]])}


def _summary(index: np.ndarray) -> dict[str, Any]:
    known = index["success"][index["success"] >= 0]
    won = int((known == 1).sum())
    low, high = wilson(won, len(known))
    success = {"rate": won / len(known), "low": low, "high": high, "known": len(known)} if len(known) else None
    return {"return": _spread(index["return"]), "success": success}


def _spread(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    mean, std = float(values.mean()), float(values.std())
    error = 1.96 * std / math.sqrt(max(1, len(values) - 1))
    ends = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": mean, "low": mean - error, "high": mean + error, "std": std} | ends


def _dimensions(dataset: Dataset, feature: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    table = dataset.statistics(feature)
    return [
        {
            "name": names[i] if i < len(names) else str(i),
            "min": table["min"][i],
            "max": table["max"][i],
            "mean": table["mean"][i],
            "std": math.sqrt(table["variance"][i]),
        }
        for i in range(len(table["mean"]))
    ]


def _state_problems(report: dict[str, Any], sample: Sample) -> Iterator[str]:
    constant = [row["name"] for row in report["state"] if row["min"] == row["max"]]
    if constant:
        yield f"Constant state dimensions: {_listed(constant)}. They carry nothing; leave them out with --keys."
    moving = [row for row in report["state"] if row["min"] < row["max"]]
    still = [row["name"] for row in moving if row["std"] < SCALE_FLOOR * max(1, abs(row["mean"]))]
    if still:
        yield (
            f"State dimensions that hardly move: {_listed(still)}. Standardising divides them by a floor instead of "
            "their deviation; check their units."
        )
    if not all(np.isfinite(values).all() for values in (sample.state, sample.action, sample.reward)):
        yield "NaN or infinite values in the arrays: the files were changed after writing. Import again."


def _action_problems(dataset: Dataset, report: dict[str, Any]) -> Iterator[str]:
    constant = [row["name"] for row in report["action"] if row["min"] == row["max"]]
    if constant:
        yield f"Constant action dimensions: {_listed(constant)}. There is nothing to learn about them."
    if dataset.bounds_are_measured:
        yield (
            "Action bounds were measured, not given: the robot may allow more than the data shows. Give the true ones "
            "at import if you know them."
        )
        return
    ranges = zip(report["action"], dataset.action_high - dataset.action_low, strict=True)
    narrow = [row["name"] for row, size in ranges if 0 < row["max"] - row["min"] < 0.2 * size]
    if narrow:
        yield (
            f"Actions that use under a fifth of their bounds: {_listed(narrow)}. 101 bins on the whole range are "
            "coarse for them; import with tighter bounds, or with none to have them measured."
        )


def _reward_problems(dataset: Dataset) -> Iterator[str]:
    reward = dataset.statistics(REWARD)
    if reward["min"] == reward["max"]:
        yield f"Every reward is {reward['min'][0]:g}: a critic learns nothing from it. Relabel it, or only clone."
    success, returns = dataset.index["success"], dataset.index["return"]
    won, failed = returns[success == 1], returns[success == 0]
    if len(won) and len(failed) and won.mean() < failed.mean():
        yield (
            f"Successful episodes have the lower return ({won.mean():.4g} against {failed.mean():.4g}): rewards and "
            "success labels disagree, or rewards are costs. Relabel one of them."
        )


def _end_problems(dataset: Dataset, ends: dict[str, int]) -> Iterator[str]:
    index, lengths = dataset.index, dataset.index["length"]
    if len(dataset) > 1 and ends["terminated"] == len(dataset) and (lengths == lengths[0]).all() and lengths[0] > 1:
        yield (
            f"All episodes end in a termination after exactly {lengths[0]} steps: these look like time limits, which "
            "would teach the critic that the world ends. Import with a format or option that tells the two apart."
        )
    lost = int((~index["last_known"] & ~index["terminated"]).sum())
    if lost:
        yield (
            f"{lost} episodes end without their last observation: that transition is left out, since there is nothing "
            "to bootstrap from. Record the final observation if you can."
        )
    if ends["neither"]:
        yield f"{ends['neither']} episodes end with neither termination nor time limit: they are treated as cut off."


def _text_problems(dataset: Dataset) -> Iterator[str]:
    tokenizer = Tokenizer()
    if "" in dataset.instructions:
        empty = int((dataset.index["instruction"] == dataset.instructions.index("")).sum())
        yield f"{empty} episodes have no instruction: tasks cannot be told apart. Import with --instruction."
    long = [text for text in dataset.instructions if len(tokenizer.pieces(text)) > tokenizer.num_tokens]
    if long:
        yield (
            f"{len(long)} instructions are longer than {tokenizer.num_tokens} tokens and lose their end, as "
            f"{long[0][:60]!r}. Shorten them, or use a tokenizer of your own."
        )


def _intervals(row: dict[str, Any]) -> tuple[str, str]:
    spread, success = row["return"], row["success"]
    returns = f"{spread['mean']:.4g} [{spread['low']:.4g}, {spread['high']:.4g}]" if spread else "-"
    if not success:
        return returns, "-"
    return returns, f"{success['rate']:.1%} [{success['low']:.1%}, {success['high']:.1%}]"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
