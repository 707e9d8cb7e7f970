"""Comparison of actors on the same initial states: paired differences with intervals, and warnings.

An episode of one actor is paired with the other's of the same task, seed and index. The recorded hashes of the two
initial states must agree.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pac.evaluation.intervals import episodes_for, paired_difference, pairs_for, stratified_bootstrap
from pac.evaluation.records import EpisodeRecord, by_actor
from pac.evaluation.summary import ALL, Estimate, Summary, mean_of_means

HALF_WIDTH = 0.05  # a success rate whose interval is wider than this on either side gets a warning
FEW_EPISODES = 10  # per task: with fewer, the interval of a mean rests on the normal distribution alone
BOOTSTRAP = "paired stratified bootstrap"
Pairs = dict[str, list[tuple[EpisodeRecord, EpisodeRecord]]]  # task -> episodes from the same initial states
METRICS = {"success": "success", "percent": "percent of expert", "return": "return"}  # the main ones first


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A paired difference of two actors: `first` minus `second`."""

    first: str
    second: str
    where: str  # a task, or "all"
    metric: str  # "success", "return" or "percent" (of expert)
    difference: float
    low: float
    high: float
    pairs: int
    method: str  # of the interval
    needed: int | None  # pairs that show a difference of this size with a probability of 80%

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def compare(
    records: Iterable[EpisodeRecord], *, experts: Mapping[str, float] | None = None, bootstrap: bool = False
) -> list[Difference]:
    """Return the differences of all pairs of actors, per task and pooled.

    Intervals are not widened for the number of comparisons.
    """
    differences: list[Difference] = []
    groups = by_actor(records)
    for first, second in itertools.combinations(groups, 2):
        pairs = pair(groups[first], groups[second])
        scopes = {task: {task: pairs[task]} for task in pairs} if len(pairs) > 1 else {}
        for where, part in (scopes | {ALL: pairs}).items() if pairs else []:
            differences += [
                Difference(
                    first=first,
                    second=second,
                    where=where,
                    metric=metric,
                    difference=found.mean,
                    low=found.low,
                    high=found.high,
                    pairs=found.n,
                    method=found.method,
                    needed=pairs_for(found.mean, (found.low, found.high), found.n),
                )
                for metric, found in _differences(part, experts or {}, bootstrap).items()
            ]
    return differences


def pair(first: Sequence[EpisodeRecord], second: Sequence[EpisodeRecord]) -> Pairs:
    """Return the pairs of each task. Episodes that only one of the two actors has are left out."""
    others = {record.start: record for record in second}
    pairs: Pairs = {}
    for record in first:
        if (other := others.get(record.start)) is None:
            continue
        if other.state != record.state:
            raise ValueError(
                f"{record.task}, seed {record.seed}, episode {record.index}: expected {record.actor!r} and "
                f"{other.actor!r} to start from the same state, found {record.state} and {other.state}. Their "
                "simulators may differ in version. Evaluate both again."
            )
        pairs.setdefault(record.task, []).append((record, other))
    return pairs


def _differences(pairs: Pairs, experts: Mapping[str, float], bootstrap: bool) -> dict[str, Estimate]:
    """Return the difference of each metric that these tasks have."""
    groups = [[(a, b) for a, b in group if None not in (a.success, b.success)] for group in pairs.values()]
    with_success = [group for group in groups if group]
    found = {"success": _success(with_success, bootstrap)} if with_success else {}
    found["return"] = _returns(pairs, dict.fromkeys(pairs, 1.0), bootstrap)
    if scales := {task: 100 / experts[task] for task in pairs if experts.get(task)}:
        found["percent"] = _returns(pairs, scales, bootstrap)
    return found


def _success(groups: Sequence[Sequence[tuple[EpisodeRecord, EpisodeRecord]]], bootstrap: bool) -> Estimate:
    """Return the difference of success rates. Pairs weigh the same, as episodes do in a pooled success rate."""
    differences = [np.array([int(bool(a.success)) - int(bool(b.success)) for a, b in group]) for group in groups]
    pooled = np.concatenate(differences)
    if bootstrap:
        low, high = stratified_bootstrap(differences, weights=[len(group) for group in differences])
    else:
        low, high = paired_difference(int((pooled > 0).sum()), int((pooled < 0).sum()), len(pooled))
    method = BOOTSTRAP if bootstrap else "Tango's score over pooled pairs"
    return Estimate(mean=float(pooled.mean()), low=low, high=high, n=len(pooled), method=method)


def _returns(pairs: Pairs, scales: Mapping[str, float], bootstrap: bool) -> Estimate:
    """Return the difference of scaled returns. Tasks weigh the same; the pairs of a task are a sample."""
    differences = [scale * np.array([a.total - b.total for a, b in pairs[task]]) for task, scale in scales.items()]
    found = mean_of_means(differences, bootstrap)
    return dataclasses.replace(found, method=BOOTSTRAP if bootstrap else f"paired {found.method}")


def warnings(summaries: Mapping[str, Summary], differences: Sequence[Difference]) -> list[str]:
    """Return sentences on what the episodes do not show: wide intervals, differences that may be chance."""
    notes = [note for name, summary in summaries.items() for note in _weak(name, summary)]
    for actors in dict.fromkeys((d.first, d.second) for d in differences):
        pooled = {d.metric: d for d in differences if (d.first, d.second) == actors and d.where == ALL}
        main = next(pooled[metric] for metric in METRICS if metric in pooled)
        notes += [] if main.shown else [_undecided(main)]
    sizes = {name: summary.overall.episodes for name, summary in summaries.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        notes.append(
            f"The actors do not have the same number of episodes ({counts}). Compare them by their paired differences."
        )
    return notes


def _weak(name: str, summary: Summary) -> list[str]:
    """Return warnings about the intervals of one actor."""
    success, notes = summary.overall.success, []
    if success is not None and success.half_width > HALF_WIDTH:
        low, high = 100 * success.low, 100 * success.high
        rate = min(max(0.5, success.low), success.high)  # the rate in the interval that needs the most episodes
        notes.append(
            f"{name}: {success.n:,} episodes place success between {low:.1f} and {high:.1f}%. To know it within "
            f"{100 * HALF_WIDTH:.0f} points takes up to {episodes_for(HALF_WIDTH, rate):,} episodes."
        )
    few = min(row.episodes for row in summary.tasks.values())
    if few < FEW_EPISODES:
        notes.append(f"{name}: a task has {few} episode{'s' * (few != 1)}. The interval of its return means little.")
    elif same := [task for task, row in summary.tasks.items() if row.unusual < min(FEW_EPISODES, row.episodes / 2)]:
        notes.append(
            f"{name}: most returns are equal in {', '.join(same)}. Fewer than {FEW_EPISODES} differ, so the "
            "interval of the return is too short."
        )
    return notes


def _undecided(d: Difference) -> str:
    """Return the warning about a difference whose interval includes 0."""
    if d.needed is None:
        more = "More pairs are needed" if d.pairs < 2 else "They did not differ"
    else:
        more = f"A difference of this size would take about {d.needed:,} pairs"
    return f"{d.first} and {d.second} are not distinguishable in {METRICS[d.metric]} with {d.pairs:,} pairs. {more}."
