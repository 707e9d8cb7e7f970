"""Several actors on the same initial states: the difference of each pair, with its interval, and what cannot be said.

A trial of one actor is paired with the other's from the same (task, seed, index). That the two started from the same
state is checked, not assumed.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pac.evaluation.intervals import (
    Interval,
    paired_difference,
    pairs_for,
    stratified_bootstrap,
    stratified_mean,
    trials_for,
)
from pac.evaluation.records import EpisodeRecord, by_actor
from pac.evaluation.summary import ALL, Summary

HALF_WIDTH = 0.05  # a success rate known less well than this gets a warning
FEW_TRIALS = 10  # of a task: below, a mean's interval rests on the normal distribution alone
Pairs = dict[str, list[tuple[EpisodeRecord, EpisodeRecord]]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`first` minus `second`."""

    first: str
    second: str
    where: str  # a task, or "all"
    metric: str  # "success", "return" or "percent" (of expert)
    difference: float
    low: float
    high: float
    pairs: int
    method: str
    needed: int | None  # pairs that would show a difference of this size, with a chance of 80%

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def compare(
    records: Iterable[EpisodeRecord], *, experts: Mapping[str, float] | None = None, bootstrap: bool = False
) -> list[Difference]:
    """All pairs of actors, each task and all of them. Intervals are not widened for the number of comparisons."""
    differences: list[Difference] = []
    groups = by_actor(records)
    for first, second in itertools.combinations(groups, 2):
        pairs = pair(groups[first], groups[second])
        scopes = {task: {task: pairs[task]} for task in pairs} if len(pairs) > 1 else {}
        for where, part in (scopes | {ALL: pairs}).items() if pairs else []:
            made = _differences(part, experts or {}, bootstrap)
            differences += [
                Difference(
                    first=first,
                    second=second,
                    where=where,
                    metric=metric,
                    difference=value,
                    low=interval[0],
                    high=interval[1],
                    pairs=number,
                    method=method,
                    needed=pairs_for(value, interval, number),
                )
                for metric, (value, interval, number, method) in made.items()
            ]
    return differences


def pair(first: Sequence[EpisodeRecord], second: Sequence[EpisodeRecord]) -> Pairs:
    """By task; trials that only one of the two has are left out."""
    others = {record.start: record for record in second}
    pairs: Pairs = {}
    for record in first:
        if (other := others.get(record.start)) is None:
            continue
        if other.state != record.state:
            raise ValueError(
                f"{record.task}, seed {record.seed}, trial {record.index}: expected {record.actor!r} and "
                f"{other.actor!r} to start from the same state, found {record.state} and {other.state}. Were they run "
                "with other versions of the simulator? Run both anew."
            )
        pairs.setdefault(record.task, []).append((record, other))
    return pairs


Made = tuple[float, Interval, int, str]


def _differences(pairs: Pairs, experts: Mapping[str, float], bootstrap: bool) -> dict[str, Made]:
    told = {task: [(a, b) for a, b in group if None not in (a.success, b.success)] for task, group in pairs.items()}
    made: dict[str, Made] = {}
    if any(told.values()):
        made["success"] = _success([group for group in told.values() if group], bootstrap)
    made["return"] = _returns(list(pairs.values()), [1.0] * len(pairs), bootstrap)
    if known := {task: group for task, group in pairs.items() if experts.get(task)}:
        made["percent"] = _returns(list(known.values()), [100 / experts[task] for task in known], bootstrap)
    return made


def _success(groups: Sequence[Sequence[tuple[EpisodeRecord, EpisodeRecord]]], bootstrap: bool) -> Made:
    """Each pair weighs the same, as each trial does in a pooled success rate."""
    steps = [np.array([int(bool(a.success)) - int(bool(b.success)) for a, b in group]) for group in groups]
    together = np.concatenate(steps)
    value, number = float(together.mean()), len(together)
    if bootstrap:
        interval = stratified_bootstrap(steps, weights=[len(group) for group in steps])
        return value, interval, number, "paired stratified bootstrap"
    only_first, only_second = int((together > 0).sum()), int((together < 0).sum())
    return value, paired_difference(only_first, only_second, number), number, "Tango's score over pooled pairs"


def _returns(
    groups: Sequence[Sequence[tuple[EpisodeRecord, EpisodeRecord]]], scales: Sequence[float], bootstrap: bool
) -> Made:
    """Each task weighs the same; its pairs are the sample."""
    steps = [
        scale * np.array([a.total - b.total for a, b in group]) for group, scale in zip(groups, scales, strict=True)
    ]
    interval = stratified_bootstrap(steps) if bootstrap else stratified_mean(steps)
    method = "paired stratified bootstrap" if bootstrap else "paired standard error over trials"
    return float(np.mean([step.mean() for step in steps])), interval, sum(map(len, steps)), method


def warnings(summaries: Mapping[str, Summary], differences: Sequence[Difference]) -> list[str]:
    """What the trials cannot support, in words."""
    notes = [note for name, summary in summaries.items() for note in _weak(name, summary)]
    for pair in dict.fromkeys((d.first, d.second) for d in differences):
        pooled = {d.metric: d for d in differences if (d.first, d.second) == pair and d.where == ALL}
        notes += [_undecided(d) for d in pooled.values() if not d.shown and _speaks(d, pooled)]
    sizes = {name: summary.overall.trials for name, summary in summaries.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        notes.append(
            f"The actors do not have the same trials ({counts}): only differences of pairs compare like with like."
        )
    return notes


def _weak(name: str, summary: Summary) -> list[str]:
    success, notes = summary.overall.success, []
    if success is not None and success.half_width > HALF_WIDTH:
        low, high = 100 * success.low, 100 * success.high
        rate = min(max(0.5, success.low), success.high)  # what the interval allows and needs the most trials
        notes.append(
            f"{name}: {success.n:,} trials place success between {low:.1f} and {high:.1f}%; to know it within "
            f"{100 * HALF_WIDTH:.0f} points takes up to {trials_for(HALF_WIDTH, rate):,}."
        )
    few = min(row.trials for row in summary.tasks.values())
    if few < FEW_TRIALS:
        notes.append(f"{name}: a task has {few} trial{'s' * (few != 1)}; the interval of its return means little.")
    elif same := [task for task, row in summary.tasks.items() if row.unusual < min(FEW_TRIALS, row.trials / 2)]:
        notes.append(
            f"{name}: most returns are equal in {', '.join(same)}; with fewer than {FEW_TRIALS} others, the "
            "interval of the return is too short."
        )
    return notes


def _speaks(difference: Difference, others: Mapping[str, Difference]) -> bool:
    """One warning a pair of actors: success if there is any, else percent of expert, else return."""
    return difference.metric == next(metric for metric in ("success", "percent", "return") if metric in others)


def _undecided(d: Difference) -> str:
    names = {"success": "success", "percent": "percent of expert", "return": "return"}
    if d.needed is None:
        more = "more are needed to tell" if d.pairs < 2 else "no difference was seen"
    else:
        more = f"a difference of the size seen would take about {d.needed:,}"
    return f"{d.first} and {d.second} are not distinguishable in {names[d.metric]} with {d.pairs:,} pairs; {more}."
