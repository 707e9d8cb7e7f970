"""Success of the data that studies call poor: kinds of fault on tasks of Meta-World.

    python benchmarks/data_quality.py --out runs/data_quality     # collects what is missing, then writes the table

Poor data succeeds in 10 to 40% of its episodes. With less, a method has too little to learn from. With more, cloning
is right by construction. Episodes are those of `pac collect` with seed 0 and at most 200 steps, as in the studies.
Writes results/data_quality.csv and prints the table of the page docs/behaviours.md. The learner's column
leaves tasks without a learner out.
"""

import argparse
import csv
import io
from pathlib import Path

from pac.behaviours.learner import installed_folder, learner_file
from pac.cli import main as pac
from pac.collection import folder_name
from pac.data.store import Dataset
from pac.evaluation.intervals import wilson
from pac.files import write_atomically

MAX_STEPS, LOW, HIGH = 200, 0.1, 0.4
KINDS = {
    "backwards": "scripted+faults:clean=0.4,backwards=0.4,switch=5-15",
    "some-dims": "scripted+faults:clean=0.15,some-dims=0.85,switch=5-15",
    "distorted": "scripted+faults:clean=0.15,biased=0.45,delay=0.2,stale=0.1,scaled=0.1,switch=5-15",
    "misled": "scripted+faults:clean=0.2,wrong-goal=0.3,other-skill=0.2,hesitate=0.3,act-for=1-5,switch=5-15",
    "learner": "learner:stage=0.5-1+noise:sigma=0.2",
}
TASKS = (
    *("button-press", "button-press-topdown", "button-press-wall", "coffee-button", "coffee-push", "door-lock"),
    *("door-open", "door-unlock", "drawer-open", "faucet-close", "faucet-open", "hand-insert", "handle-press"),
    *("handle-press-side", "plate-slide", "plate-slide-back", "plate-slide-back-side", "plate-slide-side", "push"),
    *("push-wall", "reach-wall", "soccer", "stick-push", "sweep", "window-close", "window-open"),
    *("coffee-pull", "pick-place", "sweep-into"),
)
COLUMNS = ("kind", "task", "behaviour", "episodes", "successes", "success", "low", "high", "mean_return")


def collect(out: Path, kinds: list[str], tasks: list[str], episodes: int, workers: int) -> None:
    """Collect the episodes that are missing."""
    for kind in kinds:
        names = [f"metaworld/{task}" for task in tasks]
        if kind == "learner":
            names = [name for name in names if (installed_folder() / learner_file(name)).is_file()]
        rules = ["--max-steps", str(MAX_STEPS), "--workers", str(workers), "--episodes", str(episodes)]
        folder = ["--out", str(out / kind / (folder_name(names[0]) if len(names) == 1 else ""))]
        pac(["collect", *names, "--behaviour", KINDS[kind], *rules, *folder])


def measure(out: Path) -> list[dict[str, str]]:
    """Return a row per kind and task that was collected."""
    rows = []
    for kind, behaviour in KINDS.items():
        for path in sorted((out / kind).glob("metaworld-*")):
            index = Dataset(path).index
            won, count = int((index["success"] == 1).sum()), len(index)
            low, high = wilson(won, count)
            numbers = [f"{won / count:.3f}", f"{low:.3f}", f"{high:.3f}", f"{index['return'].mean():.1f}"]
            task = path.name.removeprefix("metaworld-")
            values = [kind, task, behaviour, str(count), str(won), *numbers]
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """Return Markdown with success in percent, a task per line. Numbers outside 10 to 40% are in parentheses."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    found = {(row["task"], row["kind"]): row for row in rows}
    lines = [f"| task | {' | '.join(kinds)} |", "|---" + "|---:" * len(kinds) + "|"]
    tasks = sorted({row["task"] for row in rows})
    lines += [f"| {task} | {' | '.join(cell(found.get((task, kind))) for kind in kinds)} |" for task in tasks]
    within = [sum(is_poor(row) for row in rows if row["kind"] == kind) for kind in kinds]
    return "\n".join([*lines, f"| tasks within 10 to 40% | {' | '.join(map(str, within))} |"])


def cell(row: dict[str, str] | None) -> str:
    if row is None:
        return "-"
    text = f"{100 * float(row['success']):.0f} [{100 * float(row['low']):.0f}, {100 * float(row['high']):.0f}]"
    return text if is_poor(row) else f"({text})"


def is_poor(row: dict[str, str]) -> bool:
    return LOW <= int(row["successes"]) / int(row["episodes"]) <= HIGH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/data_quality"), help="folder of the episodes")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--episodes", type=int, default=40, help="per task and kind")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", type=Path, default=Path("results/data_quality.csv"))
    options = parser.parse_args()
    collect(options.out, options.kinds, options.tasks, options.episodes, options.workers)
    rows, text = measure(options.out), io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(options.table, text.getvalue())
    print(table(rows))


if __name__ == "__main__":
    main()
