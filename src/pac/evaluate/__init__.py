"""Evaluation: trials in; returns, success, intervals, comparisons and tables out.

`summarise(trials)` is what training, improvement and reports call; `cli` is `pac evaluate`. docs/evaluation.md says
what each number means.
"""

from pac.evaluate.compare import Difference, compare, warnings
from pac.evaluate.records import Record, read, record
from pac.evaluate.summary import Estimate, Row, Summary, best, summarise

__all__ = [
    "Difference",
    "Estimate",
    "Record",
    "Row",
    "Summary",
    "best",
    "compare",
    "read",
    "record",
    "summarise",
    "warnings",
]
