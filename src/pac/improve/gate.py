"""The gate: whether a round is promoted, and whether all targets are mastered.

The score of an episode is 1 or 0 for success where the environment defines it. Elsewhere it is the return over the
expert's, or over the promoted policy's mean return where no expert was measured. A round is compared with the promoted
one on the same initial states. It is refused if it is significantly worse: the 95% interval of the paired difference
lies wholly below -tolerance. With few episodes the interval is wide, so that a round is not refused for having few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pac.evaluation.compare import Pairs, pair
from pac.evaluation.intervals import Interval, paired_difference, stratified_mean
from pac.evaluation.records import EpisodeRecord
from pac.evaluation.summary import summarise


@dataclass(frozen=True, kw_only=True)
class Verdict:
    promoted: bool
    reason: str


def judge(
    new: Sequence[EpisodeRecord],
    old: Sequence[EpisodeRecord],
    groups: Mapping[str, Sequence[str]],
    *,
    experts: Mapping[str, float],
    tolerance: float,
) -> Verdict:
    """Compare a round with the promoted one. `groups` are "targets" and "others": their tasks are pooled."""
    pairs, words, refused = pair(new, old), list[str](), False
    for name, tasks in groups.items():
        part = {task: pairs[task] for task in tasks if pairs.get(task)}
        if not part:
            continue
        difference, (low, high) = compare_pairs(part, experts)
        worse = high < -tolerance
        refused |= worse
        size = "significantly worse" if worse else "significantly better" if low > 0 else "not significantly worse"
        words.append(f"{name} {size}: {100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points")
    return Verdict(promoted=not refused, reason="; ".join(words))


def compare_pairs(pairs: Pairs, experts: Mapping[str, float]) -> tuple[float, Interval]:
    """Return the mean paired difference of scores, new minus old, and its interval.

    Where all tasks define success it is Tango's interval over the pooled pairs, which holds for few pairs too. Else
    the tasks weigh the same.
    """
    steps = [score_differences(task, group, experts) for task, group in pairs.items()]
    if all(entry.success is not None for group in pairs.values() for both in group for entry in both):
        pooled = np.concatenate(steps)
        better, worse = int((pooled > 0).sum()), int((pooled < 0).sum())
        return float(pooled.mean()), paired_difference(better, worse, len(pooled))
    return float(np.mean([step.mean() for step in steps])), stratified_mean(steps)


def score_differences(
    task: str, group: Sequence[tuple[EpisodeRecord, EpisodeRecord]], experts: Mapping[str, float]
) -> np.ndarray:
    """Return the difference of scores of each pair of one task."""
    if all(a.success is not None and b.success is not None for a, b in group):
        return np.array([float(bool(a.success)) - float(bool(b.success)) for a, b in group])
    reference = experts.get(task) or abs(float(np.mean([b.total for _, b in group]))) or 1.0
    return np.array([(a.total - b.total) / reference for a, b in group])


def mastered(
    records: Sequence[EpisodeRecord], tasks: Sequence[str], experts: Mapping[str, float], mastery: float
) -> bool:
    """Return whether each task's mean success, or mean return over the expert's, reaches `mastery`.

    A task with neither success nor expert is never mastered.
    """
    rows = summarise(records).tasks
    for task in tasks:
        success, expert = rows[task].success, experts.get(task, 0.0)
        share = -np.inf if not expert else rows[task].returns.mean / expert
        if (share if success is None else success.mean) < mastery:
            return False
    return True
