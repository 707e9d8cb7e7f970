"""Summary of one actor: return, success and percent of expert, per task and pooled, each with its interval."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pac.evaluation.intervals import FEW, mean_interval, stratified_bootstrap, stratified_mean, wilson
from pac.evaluation.records import EpisodeRecord

ALL = "all"
Groups = Mapping[str, Sequence[EpisodeRecord]]  # task -> episodes


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, its 95% interval, and the method behind the interval."""

    mean: float
    low: float
    high: float
    n: int  # episodes or pairs; tasks, where the interval is one over tasks
    method: str

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, kw_only=True)
class Row:
    """The numbers of one task, or of several pooled tasks."""

    tasks: int
    episodes: int
    length: float  # mean number of steps
    unusual: int  # episodes whose return is not the most common one; the interval of the mean rests on them
    returns: Estimate
    success: Estimate | None  # None: no task in it defines success
    percent: Estimate | None  # of the expert's return; None: no expert was measured


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One actor: a row per task, and pooled rows: "all", and one per suite where there are several."""

    tasks: dict[str, Row]
    pooled: dict[str, Row]

    @property
    def overall(self) -> Row:
        return self.pooled[ALL]

    @property
    def rows(self) -> dict[str, Row]:
        return self.tasks | self.pooled


def summarise(
    records: Iterable[EpisodeRecord], *, experts: Mapping[str, float] | None = None, bootstrap: bool = False
) -> Summary:
    """Return the summary of one actor's episodes. `experts` has the return of each task that counts as 100%.

    With `bootstrap` all intervals come from resampling episodes within each task. They then tell how much the numbers
    would change with other episodes of these same tasks, for percent of expert too.
    """
    groups: dict[str, list[EpisodeRecord]] = {}
    for entry in records:
        groups.setdefault(entry.task, []).append(entry)
    if not groups:
        raise ValueError("summarise: expected at least one episode, found none.")
    if len(actors := {entry.actor for group in groups.values() for entry in group}) > 1:
        raise ValueError(f"summarise: expected episodes of one actor, found {sorted(actors)}. Call it once per actor.")
    known = experts or {}
    suites: dict[str, dict[str, list[EpisodeRecord]]] = {}
    for task, group in groups.items():
        suites.setdefault(task.partition("/")[0], {})[task] = group
    pooled = (suites if len(suites) > 1 else {}) | {ALL: groups}
    return Summary(
        tasks={task: _row({task: group}, known, bootstrap) for task, group in groups.items()},
        pooled={name: _row(part, known, bootstrap) for name, part in pooled.items()},
    )


def _row(groups: Groups, experts: Mapping[str, float], bootstrap: bool) -> Row:
    """Return the numbers of one or several tasks."""
    lengths = [entry.length for group in groups.values() for entry in group]
    most_common = Counter(round(entry.total, 6) for group in groups.values() for entry in group).most_common(1)[0][1]
    return Row(
        tasks=len(groups),
        episodes=len(lengths),
        length=float(np.mean(lengths)),
        unusual=len(lengths) - most_common,
        returns=mean_of_means([_totals(group) for group in groups.values()], bootstrap),
        success=_success(groups, bootstrap),
        percent=_percent({task: group for task, group in groups.items() if experts.get(task)}, experts, bootstrap),
    )


def _totals(group: Sequence[EpisodeRecord], scale: float = 1.0) -> np.ndarray:
    return scale * np.array([entry.total for entry in group])


def mean_of_means(groups: Sequence[np.ndarray], bootstrap: bool = False) -> Estimate:
    """Return the mean of the groups' means. Tasks weigh the same; the episodes of each are a sample."""
    low, high = stratified_bootstrap(groups) if bootstrap else stratified_mean(groups)
    return Estimate(
        mean=float(np.mean([group.mean() for group in groups])),
        low=low,
        high=high,
        n=sum(map(len, groups)),
        method="stratified bootstrap over episodes" if bootstrap else "standard error over episodes",
    )


def _success(groups: Groups, bootstrap: bool) -> Estimate | None:
    """Return the success rate. Episodes weigh the same, as in the paper: Wilson's interval over the pooled episodes."""
    known = [[entry.success for entry in group if entry.success is not None] for group in groups.values()]
    outcomes = [np.array(group, dtype=np.float64) for group in known if group]
    if not outcomes:
        return None
    number, successes = sum(map(len, outcomes)), int(sum(array.sum() for array in outcomes))
    (low, high), method = wilson(successes, number), "Wilson over pooled episodes"
    if bootstrap:
        low, high = stratified_bootstrap(outcomes, weights=[len(array) for array in outcomes])
        low, high, method = max(0.0, low), min(1.0, high), "stratified bootstrap over episodes"
    return Estimate(mean=successes / number, low=low, high=high, n=number, method=method)


def _percent(groups: Groups, experts: Mapping[str, float], bootstrap: bool) -> Estimate | None:
    """Return the percent of expert. One task: its return, scaled. Several: the mean and standard error over tasks."""
    if not groups:
        return None
    values = [_totals(group, 100 / experts[task]) for task, group in groups.items()]
    if bootstrap or len(groups) == 1:
        return mean_of_means(values, bootstrap)
    means = [float(array.mean()) for array in values]
    low, high = mean_interval(means)
    factor = "1.96" if len(means) >= FEW else "Student's t"
    method = f"standard error over tasks, {factor}"
    return Estimate(mean=float(np.mean(means)), low=low, high=high, n=len(means), method=method)


def best(estimates: Mapping[str, Estimate | None]) -> set[str]:
    """Return the names that the paper prints bold: those within the interval of the best mean. One alone is not."""
    known = {name: estimate for name, estimate in estimates.items() if estimate is not None}
    if len(known) < 2:
        return set()
    top = max(known.values(), key=lambda estimate: estimate.mean)
    floor = top.low if math.isfinite(top.low) else top.mean
    return {name for name, estimate in known.items() if estimate.mean >= floor}
