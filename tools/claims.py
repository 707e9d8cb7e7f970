"""The headline table of results/README.md: one line per claim of the paper, with our number and its interval.

`claims.json` names the files, the method and the baseline. The numbers come from the episodes. The paper's come from
`paper.json`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pac.evaluation import Estimate
from pac.evaluation.summary import ALL
from pac.evaluation.tables import METRICS, Cell, Grid, markdown
from tools.archive import Document
from tools.demo_blocks import Demo, difference
from tools.episode_blocks import metrics_of
from tools.results import Results
from tools.round_blocks import Improvement

HEADER = (
    "claim",
    "dataset",
    "method",
    "result [95% interval]",
    "compared with",
    "paired difference [95% interval]",
    "the paper's scores",
    "agrees with the paper",
)
Found = Results | Demo | Improvement
Named = dict[str, tuple[Estimate, str]]  # by the name of a row: the pooled result in percent, and its metric


def claims(
    document: Document, read: Callable[[Sequence[str]], Found], printed: Mapping[str, Mapping[str, str]], path: Path
) -> str:
    """Return the table.

    `read` returns the results of files. `printed` has the paper's scores as texts, by their key and name.
    """
    lines: list[list[Cell]] = []
    for entry in document["claims"]:
        found = read([*entry["files"]])
        (ours, metric), (baseline, _) = (_result(found, entry, name, path) for name in _pair(entry))
        unit = f"% {entry['unit']}" if "unit" in entry else metric
        method, other = _pair(entry)
        cells = [f"[{entry['claim']}]({entry['page']})", entry["dataset"], method]
        cells += [f"{ours.mean:.1f}{unit} [{ours.low:.1f}, {ours.high:.1f}]", f"{other}: {baseline.mean:.1f}"]
        cells += [_difference(found, entry), _printed(entry, printed), _verdict(entry, read, path)]
        lines.append([(cell, False) for cell in cells])
    text = markdown([Grid("Claims of the paper, and our results", list(HEADER), lines)])
    return text.replace("---:", "---")  # words, not numbers


def _pair(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["method"], entry["baseline"]


def _result(found: Found, entry: Mapping[str, Any], name: str, path: Path) -> tuple[Estimate, str]:
    known = _pooled(found, entry)
    if name not in known:
        raise ValueError(f"{path}: expected a row of {entry['page']}, found {name!r}. Rows: {', '.join(known)}.")
    return known[name]


def _pooled(found: Found, entry: Mapping[str, Any]) -> Named:
    if isinstance(found, Demo):
        rows = {method: found.rows(found.scores(method)) for method in found.methods}
        return {method: (next(reversed(made.values())), "%") for method, made in rows.items()}
    if isinstance(found, Improvement):
        task = entry["task"]
        metric = f"% {found.metric(task)}"
        final = {"final policy": (found.score(found.final, task), metric)} if found.final else {}
        return {"round 0": (found.score(found.rounds[0], task), metric), **final}
    summaries = found.summaries(_domain(found, entry))
    metric = metrics_of(summaries)[0]
    _, pick, scale = METRICS[metric]
    estimates = {row: pick(summary.pooled[ALL]) for row, summary in summaries.items()}
    return {row: (_scaled(one, scale), f"% {metric}") for row, one in estimates.items() if one}


def _domain(found: Results, entry: Mapping[str, Any]) -> str:
    return str(entry.get("domain", next(iter(found.domains))))


def _difference(found: Found, entry: Mapping[str, Any]) -> str:
    """Return the paired difference of method and baseline, pooled over tasks and seeds."""
    if isinstance(found, Improvement):
        return "not paired"
    if isinstance(found, Demo):
        apart = difference(*(found.scores(name) for name in _pair(entry)))
        return f"{apart.mean:+.1f} [{apart.low:+.1f}, {apart.high:+.1f}]"
    metric = metrics_of(found.summaries(_domain(found, entry)))[0]
    made, complaints = found.comparison(_domain(found, entry)).differences()
    if complaints:
        raise ValueError(complaints[0])
    names = {*_pair(entry)}
    (one,) = (d for d in made if {d.first, d.second} == names and d.where == ALL and d.metric == metric)
    scale = METRICS[metric][2] * (1 if one.first == entry["method"] else -1)
    low, high = sorted((scale * one.low, scale * one.high))
    return f"{scale * one.difference:+.1f} [{low:+.1f}, {high:+.1f}]"


def _printed(entry: Mapping[str, Any], printed: Mapping[str, Mapping[str, str]]) -> str:
    """Return the paper's scores, such as `55.0 (PAC), 17.0 (filtered BC)`."""
    about = entry.get("paper")
    if about is None:
        return "none"
    return ", ".join(f"{printed[about['key']][row]} ({name})" for name, row in about["scores"].items())


def _verdict(entry: Mapping[str, Any], read: Callable[[Sequence[str]], Found], path: Path) -> str:
    """Return the verdict. `{other}` stands for the score of another study, which the entry names."""
    if "other" not in entry:
        return str(entry["agrees"])
    other = entry["other"]
    score, _ = _result(read(other["files"]), other, other["method"], path)
    return str(entry["agrees"]).format(other=f"{score.mean:.1f}")


def _scaled(entry: Estimate, scale: float) -> Estimate:
    ends = scale * entry.mean, scale * entry.low, scale * entry.high
    return Estimate(mean=ends[0], low=ends[1], high=ends[2], n=entry.n, method=entry.method)
