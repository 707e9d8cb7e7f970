"""The headline table of results/README.md: one line per claim of the paper, with our number and its interval.

`claims.json` names the files, the row and the row it is compared with. The numbers come from the episodes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pac.evaluation import Estimate
from pac.evaluation.summary import ALL
from pac.evaluation.tables import METRICS, Cell, Grid, markdown
from tools.archive import Document
from tools.demo_blocks import Demo
from tools.episode_blocks import metrics_of
from tools.results import Results
from tools.round_blocks import Improvement

HEADER = ("claim", "dataset", "method", "result", "95% interval", "compared with", "agrees with the paper")
WORDS = {"success": "% success", "percent": "% of expert"}
Named = dict[str, tuple[Estimate, str]]  # by the name of a row: the pooled result in percent, and its unit


def claims(document: Document, found: Mapping[int, Results | Demo | Improvement], path: Path) -> str:
    """Return the table. `found` has what the files of each claim hold, by the claim's number."""
    lines: list[list[Cell]] = []
    for number, entry in enumerate(document["claims"]):
        known = _pooled(found[number], entry)
        for name in (entry["method"], entry["baseline"]):
            if name not in known:
                raise ValueError(
                    f"{path}: expected a row of {entry['page']}, found {name!r}. Rows: {', '.join(known)}."
                )
        (ours, unit), (other, _) = known[entry["method"]], known[entry["baseline"]]
        cells = [f"[{entry['claim']}]({entry['page']})", entry["dataset"], entry["method"], f"{ours.mean:.1f}{unit}"]
        cells += [f"{ours.low:.1f} to {ours.high:.1f}", f"{entry['baseline']}: {other.mean:.1f}", entry["agrees"]]
        lines.append([(cell, False) for cell in cells])
    text = markdown([Grid("Claims of the paper, and our results", list(HEADER), lines)])
    return text.replace("---:", "---")  # words, not numbers


def _pooled(found: Results | Demo | Improvement, entry: Mapping[str, Any]) -> Named:
    if isinstance(found, Demo):
        rows = {method: found.rows(found.scores(method)) for method in found.methods}
        return {method: (next(reversed(made.values())), "% success or of expert") for method, made in rows.items()}
    if isinstance(found, Improvement):
        task, metric = entry["task"], WORDS[found.metric(entry["task"])]
        final = {"final policy": (found.score(found.final, task), metric)} if found.final else {}
        return {"round 0": (found.score(found.rounds[0], task), metric), **final}
    domain = entry.get("domain", next(iter(found.domains)))
    summaries = found.summaries(domain)
    metric = metrics_of(summaries)[0]
    _, pick, scale = METRICS[metric]
    estimates = {row: pick(summary.pooled[ALL]) for row, summary in summaries.items()}
    return {row: (_scaled(entry, scale), WORDS[metric]) for row, entry in estimates.items() if entry}


def _scaled(entry: Estimate, scale: float) -> Estimate:
    ends = scale * entry.mean, scale * entry.low, scale * entry.high
    return Estimate(mean=ends[0], low=ends[1], high=ends[2], n=entry.n, method=entry.method)
