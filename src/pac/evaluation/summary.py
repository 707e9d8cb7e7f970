"""Trials of one actor -> return, success and percent of expert, per task and pooled, each with its interval."""

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
    """A number, its 95% interval, and how it came about."""

    mean: float
    low: float
    high: float
    n: int  # of trials; of tasks where the interval is one over tasks
    method: str

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is said of a task, or of several."""

    tasks: int
    trials: int
    length: float  # mean number of steps
    unusual: int  # trials whose return is not the commonest one: a mean's interval rests on them
    returns: Estimate
    success: Estimate | None  # None: no world in it defines success
    percent: Estimate | None  # of the expert's return; None: no expert was measured


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One actor: a row a task, and rows that pool them: each suite's, where there are several, and "all"."""

    tasks: dict[str, Row]
    pooled: dict[str, Row]

    @property
    def overall(self) -> Row:
        return self.pooled[ALL]

    @property
    def rows(self) -> dict[str, Row]:
        return self.tasks | self.pooled


def summarise(
    trials: Iterable[EpisodeRecord | HasEpisode], *, experts: Mapping[str, float] | None = None, bootstrap: bool = False
) -> Summary:
    """Of one actor's trials. `experts` holds the return that counts as 100%; tasks it does not name have no percentage.

    With `bootstrap` all intervals come from drawing trials anew within each task: they then say how much other trials
    of these same tasks would change the numbers, also for percent of expert.
    """
    groups: dict[str, list[EpisodeRecord]] = {}
    for trial in trials:
        entry = trial if isinstance(trial, EpisodeRecord) else record(trial)
        groups.setdefault(entry.task, []).append(entry)
    if not groups:
        raise ValueError("summarise: expected at least one trial, found none.")
    if len(actors := {entry.actor for group in groups.values() for entry in group}) > 1:
        raise ValueError(f"summarise: expected trials of one actor, found {sorted(actors)}. Call it once for each.")
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
    lengths = [entry.length for group in groups.values() for entry in group]
    commonest = Counter(round(entry.total, 6) for group in groups.values() for entry in group).most_common(1)[0][1]
    return Row(
        tasks=len(groups),
        trials=len(lengths),
        length=float(np.mean(lengths)),
        unusual=len(lengths) - commonest,
        returns=_returns(list(groups.values()), bootstrap),
        success=_success(list(groups.values()), bootstrap),
        percent=_percent({task: group for task, group in groups.items() if experts.get(task)}, experts, bootstrap),
    )


def _totals(group: Sequence[EpisodeRecord], scale: float = 1.0) -> np.ndarray:
    return scale * np.array([entry.total for entry in group])


def _returns(groups: Sequence[Sequence[EpisodeRecord]], bootstrap: bool) -> Estimate:
    """Each task weighs the same; the tasks are given, their trials a sample."""
    values = [_totals(group) for group in groups]
    return _mean_of_means(values, bootstrap)


def _mean_of_means(values: Sequence[np.ndarray], bootstrap: bool) -> Estimate:
    interval = stratified_bootstrap(values) if bootstrap else stratified_mean(values)
    method = "stratified bootstrap over trials" if bootstrap else "standard error over trials"
    mean = float(np.mean([array.mean() for array in values]))
    return _estimate(mean, interval, sum(map(len, values)), method)


def _success(groups: Sequence[Sequence[EpisodeRecord]], bootstrap: bool) -> Estimate | None:
    """Each trial weighs the same, as in the paper: Wilson's interval over the pooled trials."""
    told = [[entry.success for entry in group if entry.success is not None] for group in groups]
    outcomes = [np.array(group, dtype=np.float64) for group in told if group]
    if not outcomes:
        return None
    trials, successes = sum(map(len, outcomes)), int(sum(array.sum() for array in outcomes))
    if bootstrap:
        interval = stratified_bootstrap(outcomes, weights=[len(array) for array in outcomes])
        low, high = (min(1.0, max(0.0, end)) for end in interval)
        return _estimate(successes / trials, (low, high), trials, "stratified bootstrap over trials")
    return _estimate(successes / trials, wilson(successes, trials), trials, "Wilson over pooled trials")


def _percent(
    groups: Mapping[str, Sequence[EpisodeRecord]], experts: Mapping[str, float], bootstrap: bool
) -> Estimate | None:
    """One task: its return's interval, scaled. Several: mean of the tasks' percentages, standard errors over tasks."""
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
    """Whom the paper prints bold: those within the interval of the best mean. Nobody, where there is no contest."""
    known = {name: estimate for name, estimate in estimates.items() if estimate is not None}
    if len(known) < 2:
        return set()
    top = max(known.values(), key=lambda estimate: estimate.mean)
    floor = top.low if math.isfinite(top.low) else top.mean
    return {name for name, estimate in known.items() if estimate.mean >= floor}
