"""Ways to act of one policy: which is better, sampled or most likely actions."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pac.evaluation.compare import METRICS, Difference
from pac.evaluation.summary import ALL

SAMPLINGS = {"sample": "sampled actions", "mode": "most likely actions", "mean": "mean actions"}
SAMPLINGS |= {"median": "median actions", "interquartile": "actions sampled between the quartiles"}


@dataclass(frozen=True, kw_only=True)
class SamplingPair:
    """Two actors that are one policy, which acts in two ways."""

    name: str  # of the policy
    first: str  # an actor
    second: str
    ways: tuple[str, str]  # their `sampling`


def sampling_pairs(actors: Mapping[str, Mapping[str, Any]]) -> list[SamplingPair]:
    """Return the pairs among actors that differ in `sampling` alone. Values are those of `Actor.describe`."""
    pairs = []
    for (first, one), (second, other) in itertools.combinations(actors.items(), 2):
        ways = one.get("sampling"), other.get("sampling")
        others = [json.dumps({**about, "sampling": None}, sort_keys=True, default=str) for about in (one, other)]
        if None not in ways and ways[0] != ways[1] and others[0] == others[1]:
            base = first.rpartition(" (")[0]
            name = base if base and base == second.rpartition(" (")[0] else f"{first} and {second}"
            pairs.append(SamplingPair(name=name, first=first, second=second, ways=(str(ways[0]), str(ways[1]))))
    return pairs


def sampling_notes(
    pairs: Sequence[SamplingPair], differences: Sequence[Difference], *, stop_at_success: bool = False
) -> list[str]:
    """Return a sentence on each pair: which way to act is better, and by how much.

    The first metric that shows a difference decides. Where episodes end at success, returns do not compare.
    """
    notes = []
    for pair in pairs:
        found = {d.metric: d for d in differences if (d.first, d.second, d.where) == (pair.first, pair.second, ALL)}
        metrics = [found[metric] for metric in METRICS if metric in found]
        if stop_at_success and "success" in found:
            metrics = [found["success"]]
        if metrics:
            decided = next((d for d in metrics if d.shown), metrics[0])
            notes.append(f"{pair.name}: {_which_way(pair, decided)}")
    return notes


def without(differences: Iterable[Difference], pairs: Iterable[SamplingPair]) -> list[Difference]:
    """Return the differences of other pairs of actors."""
    known = {(pair.first, pair.second) for pair in pairs}
    return [d for d in differences if (d.first, d.second) not in known]


def _which_way(pair: SamplingPair, d: Difference) -> str:
    first, second = (SAMPLINGS.get(way, way) for way in pair.ways)
    if d.difference < 0:
        first, second, d = second, first, _reversed(d)
    scale, unit = (100, " points of success") if d.metric == "success" else (1, f" of {METRICS[d.metric]}")
    if d.metric == "percent":
        unit = " points of percent of expert"
    size = f"{scale * d.difference:.1f}{unit} [{scale * d.low:.1f}, {scale * d.high:.1f}]"
    if d.shown:
        return f"{first} are better than {second}, by {size} over {d.pairs:,} pairs."
    if d.difference == 0:
        return (
            f"{first} and {second} cannot be told apart with {d.pairs:,} pairs: no difference in {METRICS[d.metric]}."
        )
    return f"{first} and {second} cannot be told apart with {d.pairs:,} pairs. The difference is {size}."


def _reversed(d: Difference) -> Difference:
    return dataclasses.replace(d, first=d.second, second=d.first, difference=-d.difference, low=-d.high, high=-d.low)
