"""Whether a round is promoted, and whether all is learned.

A trial's score is 1 or 0 for success where the world defines it, else its return over the expert's (where no expert was
measured, over the mean return of the policy that is to be kept up with). A round is compared with the promoted one on
the same initial states. It is refused if the 95% interval of the paired difference lies wholly below -tolerance: if it
is surely worse. Few trials make a wide interval and refuse little; they never refuse for being few.
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
    scopes: Mapping[str, Sequence[str]],  # "targets" and "others": their tasks; each is judged by itself, pooled
    *,
    experts: Mapping[str, float],
    tolerance: float,
) -> Verdict:
    """The new round against the promoted one."""
    pairs, words, refused = pair(new, old), list[str](), False
    for name, tasks in scopes.items():
        part = {task: pairs[task] for task in tasks if pairs.get(task)}
        if not part:
            continue
        difference, (low, high) = compare_pairs(part, experts)
        worse = high < -tolerance
        refused |= worse
        sign = "surely worse" if worse else "surely better" if low > 0 else "no worse, as far as can be told"
        words.append(f"{name} {sign}: {100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points")
    return Verdict(promoted=not refused, reason="; ".join(words))


def compare_pairs(pairs: Pairs, experts: Mapping[str, float]) -> tuple[float, Interval]:
    """Mean paired difference of scores, new minus old, and its interval.

    All tasks with success: Tango's over the pooled pairs, which holds for few trials. Else the tasks weigh the same.
    """
    steps = [scores(task, [(a, b) for a, b in group], experts) for task, group in pairs.items()]
    if all(entry.success is not None for group in pairs.values() for both in group for entry in both):
        together = np.concatenate(steps)
        better, worse = int((together > 0).sum()), int((together < 0).sum())
        return float(together.mean()), paired_difference(better, worse, len(together))
    return float(np.mean([step.mean() for step in steps])), stratified_mean(steps)


def scores(task: str, group: Sequence[tuple[EpisodeRecord, EpisodeRecord]], experts: Mapping[str, float]) -> np.ndarray:
    """Differences of score of one task's pairs."""
    if all(a.success is not None and b.success is not None for a, b in group):
        return np.array([float(bool(a.success)) - float(bool(b.success)) for a, b in group])
    reference = experts.get(task) or abs(float(np.mean([b.total for _, b in group]))) or 1.0
    return np.array([(a.total - b.total) / reference for a, b in group])


def shares(
    records: Sequence[EpisodeRecord], tasks: Sequence[str], experts: Mapping[str, float]
) -> dict[str, float | None]:
    """Of each task: mean success, or mean return over the expert's; None where neither is known."""
    rows = summarise(records).tasks
    found: dict[str, float | None] = {}
    for task in tasks:
        row, expert = rows[task], experts.get(task)
        if row.success is not None:
            found[task] = row.success.mean
        else:
            found[task] = row.returns.mean / expert if expert else None
    return found


def mastered(
    records: Sequence[EpisodeRecord], tasks: Sequence[str], experts: Mapping[str, float], mastery: float
) -> bool:
    """Whether the mean of every task reaches the share; a task whose share is not known never does."""
    return all(share is not None and share >= mastery for share in shares(records, tasks, experts).values())
