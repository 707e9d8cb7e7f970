"""What is said of an evaluation: the JSON document, the tables, and the notes beside them."""

import dataclasses
import datetime
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pac.evaluation import experts, tables
from pac.evaluation.compare import compare, warnings
from pac.evaluation.plan import Actor, versions
from pac.evaluation.records import FORMAT, EpisodeRecord, by_actor
from pac.evaluation.summary import summarise


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """An evaluation as it is asked for: the options of `pac evaluate` that its numbers depend on, by their names."""

    actor: tuple[str, ...]  # LABEL=ACTOR
    tasks: tuple[str, ...]  # names, suites or globs
    trials: int  # of each task
    seed: int
    sampling: tuple[str, ...] = ("sample",)
    best_of: tuple[int, ...] = (1,)
    goals: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    max_steps: int | None = None
    stop_at_success: bool = False
    bootstrap: bool = False
    experts: Path = experts.TABLE

    @property
    def whole(self) -> bool:
        """Whether episodes run to their own end, so that returns compare with an expert's."""
        return self.max_steps is None and not self.stop_at_success

    @property
    def command(self) -> str:
        """The command line that gives the same."""
        words = ["pac", "evaluate", *self.actor]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
        return shlex.join(words)


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    document: dict[str, Any]
    grids: list[tables.Grid]
    notes: list[str]


class EvaluationReport:
    """`settings` shape the trials: trials of other settings do not mix with these."""

    def __init__(self, request: EvaluationRequest, actors: Sequence[Actor], tasks: Sequence[str]) -> None:
        self.request, self.tasks = request, list(tasks)
        self.experts = experts.load(request.experts)
        self.settings: dict[str, Any] = {
            "seed": request.seed,
            "tasks": self.tasks,
            "actors": {actor.label: actor.describe() for actor in actors},
            "max_steps": request.max_steps,
            "stop_at_success": request.stop_at_success,
            "cameras": list(request.cameras),
            "versions": versions(),
        }

    def build(self, records: Sequence[EpisodeRecord], complaints: Sequence[str] = ()) -> EvaluationResult:
        request = self.request
        known = {task: self.experts[task].mean for task in self.tasks if request.whole and task in self.experts}
        choices: dict[str, Any] = {"experts": known, "bootstrap": request.bootstrap}
        summaries = {label: summarise(group, **choices) for label, group in by_actor(records).items()}
        differences = compare(records, **choices)
        notes = [*complaints, *warnings(summaries, differences), *self._about_experts(known)]
        document = {
            "format": FORMAT,
            "command": request.command,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "settings": self.settings,
            "episodes_per_task": request.trials,
            "bootstrap": request.bootstrap,
            "experts": experts.used(self.experts, known),
            "summary": {label: dataclasses.asdict(summary) for label, summary in summaries.items()},
            "differences": [dataclasses.asdict(d) for d in differences],
            "notes": notes,
            "episodes": [entry.as_json() for entry in records],
        }
        return EvaluationResult(document, tables.grids(summaries, differences), notes)

    def _about_experts(self, known: Mapping[str, float]) -> list[str]:
        missing = [task for task in self.tasks if task not in self.experts]
        if not self.request.whole and len(missing) < len(self.tasks):
            return ["Percent of expert is not shown: --max-steps and --stop-at-success change what a return means."]
        if known and missing:
            return [f"No expert was measured for {', '.join(missing)}: not part of percent of expert."]
        return []
