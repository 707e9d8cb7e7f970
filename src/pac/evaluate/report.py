"""What is said of an evaluation: the JSON document, the tables, and the notes beside them."""

import argparse
import dataclasses
import datetime
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pac.evaluate import experts, tables
from pac.evaluate.compare import compare, warnings
from pac.evaluate.plan import Contestant, versions
from pac.evaluate.records import FORMAT, Record, by_actor
from pac.evaluate.summary import summarise


@dataclasses.dataclass(frozen=True)
class Result:
    document: dict[str, Any]
    grids: list[tables.Grid]
    notes: list[str]


class Report:
    """`settings` shape the trials: trials of other settings do not mix with these."""

    def __init__(self, args: argparse.Namespace, actors: Sequence[Contestant], tasks: Sequence[str]) -> None:
        self.args, self.tasks = args, list(tasks)
        self.experts = experts.load(args.experts)
        self.settings: dict[str, Any] = {
            "seed": args.seed,
            "tasks": self.tasks,
            "actors": {actor.label: actor.describe() for actor in actors},
            "max_steps": args.max_steps,
            "stop_at_success": args.stop_at_success,
            "cameras": list(args.cameras),
            "versions": versions(),
        }

    def build(self, records: Sequence[Record], complaints: Sequence[str] = ()) -> Result:
        whole = self.args.max_steps is None and not self.args.stop_at_success
        known = {task: self.experts[task].mean for task in self.tasks if whole and task in self.experts}
        choices: dict[str, Any] = {"experts": known, "bootstrap": self.args.bootstrap}
        summaries = {label: summarise(group, **choices) for label, group in by_actor(records).items()}
        differences = compare(records, **choices)
        notes = [*complaints, *warnings(summaries, differences), *self._about_experts(known, whole)]
        document = {
            "format": FORMAT,
            "command": command(self.args),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "settings": self.settings,
            "trials_per_task": self.args.trials,
            "bootstrap": self.args.bootstrap,
            "experts": experts.used(self.experts, known),
            "summary": {label: dataclasses.asdict(summary) for label, summary in summaries.items()},
            "differences": [dataclasses.asdict(d) for d in differences],
            "notes": notes,
            "trials": [entry.as_json() for entry in records],
        }
        return Result(document, tables.grids(summaries, differences), notes)

    def _about_experts(self, known: Mapping[str, float], whole: bool) -> list[str]:
        missing = [task for task in self.tasks if task not in self.experts]
        if not whole and len(missing) < len(self.tasks):
            return ["Percent of expert is not shown: --max-steps and --stop-at-success change what a return means."]
        if known and missing:
            return [f"No expert was measured for {', '.join(missing)}: not part of percent of expert."]
        return []


def command(args: argparse.Namespace) -> str:
    """The command line again, without what its output cannot depend on."""
    parts = ["pac", "evaluate", *args.actor, "--tasks", *args.tasks, "--trials", args.trials, "--seed", args.seed]
    for name, default in (
        ("sampling", ["sample"]),
        ("best_of", [1]),
        ("goals", []),
        ("show", []),
        ("cameras", []),
        ("max_steps", None),
    ):
        value = getattr(args, name, default)
        if value != default:
            parts += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
    parts += ["--stop-at-success"] * args.stop_at_success + ["--bootstrap"] * args.bootstrap
    parts += [] if args.experts == experts.TABLE else ["--experts", args.experts]
    return shlex.join(map(str, parts))
