"""The result of an evaluation: episodes, summaries, differences, notes, and the JSON document that holds them all."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from pac.evaluation.compare import Difference, compare, warnings
from pac.evaluation.experts import Expert
from pac.evaluation.records import FORMAT, EpisodeRecord, by_actor
from pac.evaluation.samplings import sampling_notes, sampling_pairs, without
from pac.evaluation.summary import Estimate, Summary, summarise
from pac.evaluation.tables import grids, plain
from pac.files import problem


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation:
    """The result of `evaluate`. `print` shows its tables."""

    records: list[EpisodeRecord]  # in the order of actors, tasks and indices
    summaries: dict[str, Summary]  # by the actor's label
    differences: list[Difference]  # between each pair of actors
    notes: list[str]  # warnings about what the episodes do not show
    document: dict[str, Any]  # everything above, as plain values for JSON
    finished: bool  # False: it was stopped, and `records` holds the episodes until then

    def __str__(self) -> str:
        return plain(grids(self.summaries, self.differences), self.notes)

    __repr__ = __str__

    @property
    def success(self) -> Estimate | None:
        """Success over all tasks with its interval, if there is one actor. None: no task defines success."""
        return self._only.overall.success

    @property
    def returns(self) -> Estimate:
        """Mean return over all tasks with its interval, if there is one actor."""
        return self._only.overall.returns

    @property
    def _only(self) -> Summary:
        if len(self.summaries) != 1:
            fix = "Use `summaries[LABEL].overall` and `differences`."
            raise problem("Evaluation", expected="one actor", found=", ".join(self.summaries), fix=fix)
        return next(iter(self.summaries.values()))

    def with_notes(self, notes: Sequence[str]) -> "Evaluation":
        """Return a copy with more notes, in the document too."""
        notes = [*notes, *self.notes]
        return dataclasses.replace(self, notes=notes, document=self.document | {"notes": notes})


def make_document(
    records: Sequence[EpisodeRecord],
    settings: Mapping[str, Any],
    summaries: Mapping[str, Summary],
    *,
    episodes: int,
    experts: Mapping[str, Expert],
    command: str,
    **more: Any,
) -> dict[str, Any]:
    """Return an evaluation as plain values for JSON. `more` are entries of its own."""
    return {
        "format": FORMAT,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "settings": dict(settings),
        "episodes_per_task": episodes,
        "experts": {task: dataclasses.asdict(expert) for task, expert in experts.items()},
        "summary": {label: dataclasses.asdict(summary) for label, summary in summaries.items()},
        **more,
        "episodes": [entry.as_json() for entry in records],
    }


def make_result(
    records: Sequence[EpisodeRecord],
    settings: Mapping[str, Any],
    *,
    episodes: int,
    experts: Mapping[str, Expert],
    bootstrap: bool,
    notes: Sequence[str],
    command: str,
    finished: bool,
) -> Evaluation:
    """Return the evaluation whose episodes, played under `settings`, are `records`."""
    whole = settings["max_steps"] is None and not settings["stop_at_success"]
    known = {task: experts[task] for task in settings["tasks"] if whole and task in experts}
    choices: dict[str, Any] = {"experts": {task: expert.mean for task, expert in known.items()}, "bootstrap": bootstrap}
    summaries = {label: summarise(group, **choices) for label, group in by_actor(records).items()}
    differences = compare(records, **choices)
    pairs = sampling_pairs(settings["actors"])
    ways = sampling_notes(pairs, differences, stop_at_success=settings["stop_at_success"])
    others = without(differences, pairs)
    notes = [*ways, *notes, *warnings(summaries, others), *_about_experts(settings["tasks"], experts, whole)]
    more = {"bootstrap": bootstrap, "differences": list(map(dataclasses.asdict, differences)), "notes": notes}
    return Evaluation(
        records=list(records),
        summaries=summaries,
        differences=differences,
        notes=notes,
        document=make_document(records, settings, summaries, episodes=episodes, experts=known, command=command, **more),
        finished=finished,
    )


def _about_experts(tasks: Sequence[str], experts: Mapping[str, Expert], whole: bool) -> list[str]:
    """Return notes on tasks without a percent of expert. `whole`: episodes run to their own end, as the experts' do."""
    missing = [task for task in tasks if task not in experts]
    if len(missing) == len(tasks):
        return []
    if not whole:
        return ["Percent of expert is not shown: --max-steps and --stop-at-success change what a return means."]
    return [f"No expert was measured for {', '.join(missing)}: not part of percent of expert."] if missing else []
