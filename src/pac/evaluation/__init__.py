"""Evaluation: trials in; returns, success, intervals, comparisons and tables out.

`summarise(trials)` is what training, improvement and reports call; `cli` is `pac evaluate`. docs/evaluation.md says
what each number means.
"""

from pac.evaluation.compare import Difference, compare, warnings
from pac.evaluation.records import EpisodeRecord, read, record
from pac.evaluation.summary import Estimate, Row, Summary, best, summarise

__all__ = [
    "Difference",
    "EpisodeRecord",
    "Estimate",
    "Row",
    "Summary",
    "best",
    "compare",
    "read",
    "record",
    "summarise",
    "warnings",
]
