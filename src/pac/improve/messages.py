"""What the console says of rounds, and the table at the end."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.improve import data


def say(console: Console, number: int, text: str) -> None:
    """One line about a round."""
    console.print(f"round {number}: {text}", markup=False, highlight=False, soft_wrap=True)


def say_result(console: Console, rounds: Sequence[dict[str, Any]], budget: int) -> None:
    """The last of the rounds: what it reached, the verdict, how long it took, and how long the rest may take."""
    entry = rounds[-1]
    each = sum(sum(r["seconds"].values()) for r in rounds) / len(rounds)
    left = data.minutes((budget - len(rounds)) * each)
    means = ", ".join(f"{task} {_shown(row)}" for task, row in entry["summary"].items())
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in entry["seconds"].items())
    verdict = "promoted" if entry["promoted"] else "REFUSED, back to the promoted checkpoint"
    say(console, entry["round"], f"{means}. {verdict} ({entry['reason']}). {times}; at most {left} left")


def table(rounds: Sequence[dict[str, Any]], tasks: Sequence[str]) -> Table:
    """One row a round."""
    made = Table(box=SIMPLE, pad_edge=False)
    for name in ("round", "from", "new episodes", "updates", *tasks, "promoted", "seconds"):
        made.add_column(escape(name), justify="left" if name in ("from", "promoted") else "right")
    for entry in rounds:
        made.add_row(
            str(entry["round"]),
            escape(str(entry["start"]).removesuffix("/").replace("/train/checkpoints/", ":")),
            str(sum(entry["episodes"].values())),
            f"{entry['steps']:,}",
            *(_shown(entry["summary"][task]) for task in tasks),
            "yes" if entry["promoted"] else "no",
            f"{sum(entry['seconds'].values()):.0f}",
        )
    return made


def _shown(row: dict[str, Any]) -> str:
    scale, digits = (100, 1) if row["unit"] == "success" else (1, 0)
    ends = ["?" if row[end] is None else f"{scale * row[end]:.{digits}f}" for end in ("low", "high")]
    return f"{scale * row['mean']:.{digits}f}{'%' if scale == 100 else ''} [{ends[0]}, {ends[1]}]"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def names(tasks: Sequence[str]) -> str:
    return ", ".join(tasks)
