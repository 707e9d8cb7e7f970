"""Fill a table of experts from measured episodes: for each task the best mean return among the behaviours.

    python -m tools.experts results/behaviours.parquet

The episodes come from `benchmarks/behaviours.py` or `pac evaluate --json`. A behaviour is left out if its episodes
ended early (at success, say), since whole episodes give another return. Random actions and behaviours with faults
are left out too.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pac import envs
from pac.evaluation.experts import TABLE, Expert, save
from tools.archive import read_document


def from_episodes(episodes: Iterable[Mapping[str, Any]], where: str) -> dict[str, Expert]:
    """Return the behaviour with the best mean return of each task, among those whose episodes were all whole."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for episode in episodes:
        groups.setdefault((episode["task"], episode.get("behaviour") or episode["actor"]), []).append(episode)
    experts: dict[str, Expert] = {}
    for (task, behaviour), group in groups.items():
        whole = min(episode["length"] for episode in group) >= envs.spec(task).max_steps
        mean = sum(float(episode["return"]) for episode in group) / len(group)
        sound = behaviour != "random" and "+" not in behaviour
        if whole and sound and mean > 0 and (task not in experts or mean > experts[task].mean):
            experts[task] = Expert(mean=mean, n=len(group), source=f"{behaviour}, {where}")
    return experts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.experts", description=__doc__)
    parser.add_argument(
        "results", type=Path, help="JSON or Parquet with episodes: task, behaviour or actor, length, return"
    )
    parser.add_argument("--where", help="the source that the table names (default: the file)")
    parser.add_argument("--out", type=Path, default=TABLE, help="table to fill (default: the one that ships with PAC)")
    args = parser.parse_args(arguments)
    experts = from_episodes(read_document(args.results)["episodes"], args.where or str(args.results))
    save(experts, args.out)
    print(f"{args.out}: {len(experts)} experts from {args.results}.")


if __name__ == "__main__":
    main()
