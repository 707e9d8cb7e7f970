"""Summary of one actor: return, success and percent of expert, per task and pooled, each with its interval."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pac.evaluation.intervals import FEW, Interval, mean_interval, stratified_bootstrap, stratified_mean, wilson
from pac.evaluation.records import EpisodeRecord, HasEpisode, record

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, its 95% interval, and the method behind the interval."""

    mean: float
    low: float
    high: float
    n: int  # episodes; tasks, where the interval is one over tasks
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
    episodes: Iterable[EpisodeRecord | HasEpisode],
    *,
    experts: Mapping[str, float] | None = None,
    bootstrap: bool = False,
) -> Summary:
    """Return the summary of one actor's episodes. `experts` has the return of each task that counts as 100%.

    With `bootstrap` all intervals come from resampling episodes within each task. They then tell how much the numbers
    would change with other episodes of these same tasks, for percent of expert too.
    """
    groups: dict[str, list[EpisodeRecord]] = {}
    for episode in episodes:
        entry = episode if isinstance(episode, EpisodeRecord) else record(episode)
        groups.setdefault(entry.task, []).append(entry)
    if not groups:
        raise ValueError("summarise: expected at least one episode, found none.")
    if len(actors := {entry.actor for group in groups.values() for entry in group}) > 1:
        raise ValueError(f"summarise: expected episodes of one actor, found {sorted(actors)}. Call it once per actor.")
    known = experts or {}
    rows = {task: _row({task: group}, known, bootstrap) for task, group in groups.items()}
    suites = list(dict.fromkeys(task.partition("/")[0] for task in groups))
    pooled = {}
    for suite in suites if len(suites) > 1 else []:
        part = {task: group for task, group in groups.items() if task.partition("/")[0] == suite}
        pooled[suite] = _row(part, known, bootstrap)
    pooled[ALL] = _row(groups, known, bootstrap)
    return Summary(tasks=rows, pooled=pooled)


def _row(groups: Mapping[str, Sequence[EpisodeRecord]], experts: Mapping[str, float], bootstrap: bool) -> Row:
    """Return the numbers of one or several tasks."""
    lengths = [entry.length for group in groups.values() for entry in group]
    most_common = Counter(round(entry.total, 6) for group in groups.values() for entry in group).most_common(1)[0][1]
    return Row(
        tasks=len(groups),
        episodes=len(lengths),
        length=float(np.mean(lengths)),
        unusual=len(lengths) - most_common,
        returns=_returns(list(groups.values()), bootstrap),
        success=_success(list(groups.values()), bootstrap),
        percent=_percent({task: group for task, group in groups.items() if experts.get(task)}, experts, bootstrap),
    )


def _totals(group: Sequence[EpisodeRecord], scale: float = 1.0) -> np.ndarray:
    return scale * np.array([entry.total for entry in group])


def _returns(groups: Sequence[Sequence[EpisodeRecord]], bootstrap: bool) -> Estimate:
    """Return the mean return. Tasks weigh the same; the episodes of each task are a sample."""
    values = [_totals(group) for group in groups]
    return _mean_of_means(values, bootstrap)


def _mean_of_means(values: Sequence[np.ndarray], bootstrap: bool) -> Estimate:
    interval = stratified_bootstrap(values) if bootstrap else stratified_mean(values)
    method = "stratified bootstrap over episodes" if bootstrap else "standard error over episodes"
    mean = float(np.mean([array.mean() for array in values]))
    return _estimate(mean, interval, sum(map(len, values)), method)


def _success(groups: Sequence[Sequence[EpisodeRecord]], bootstrap: bool) -> Estimate | None:
    """Return the success rate. Episodes weigh the same, as in the paper: Wilson's interval over the pooled episodes."""
    known = [[entry.success for entry in group if entry.success is not None] for group in groups]
    outcomes = [np.array(group, dtype=np.float64) for group in known if group]
    if not outcomes:
        return None
    number, successes = sum(map(len, outcomes)), int(sum(array.sum() for array in outcomes))
    if bootstrap:
        interval = stratified_bootstrap(outcomes, weights=[len(array) for array in outcomes])
        low, high = (min(1.0, max(0.0, end)) for end in interval)
        return _estimate(successes / number, (low, high), number, "stratified bootstrap over episodes")
    return _estimate(successes / number, wilson(successes, number), number, "Wilson over pooled episodes")


def _percent(
    groups: Mapping[str, Sequence[EpisodeRecord]], experts: Mapping[str, float], bootstrap: bool
) -> Estimate | None:
    """Return the percent of expert. One task: its return, scaled. Several: the mean and standard error over tasks."""
    if not groups:
        return None
    values = [_totals(group, 100 / experts[task]) for task, group in groups.items()]
    if bootstrap or len(groups) == 1:
        return _mean_of_means(values, bootstrap)
    means = [float(array.mean()) for array in values]
    factor = "1.96" if len(means) >= FEW else "Student's t"
    method = f"standard error over tasks, {factor}"
    return _estimate(float(np.mean(means)), mean_interval(means), len(means), method)


def _estimate(mean: float, interval: Interval, n: int, method: str) -> Estimate:
    return Estimate(mean=mean, low=interval[0], high=interval[1], n=n, method=method)


def best(estimates: Mapping[str, Estimate | None]) -> set[str]:
    """Return the names that the paper prints bold: those within the interval of the best mean. One alone is not."""
    known = {name: estimate for name, estimate in estimates.items() if estimate is not None}
    if len(known) < 2:
        return set()
    top = max(known.values(), key=lambda estimate: estimate.mean)
    floor = top.low if math.isfinite(top.low) else top.mean
    return {name for name, estimate in known.items() if estimate.mean >= floor}
