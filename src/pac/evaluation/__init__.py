"""Evaluation: actors play the same episodes; out come returns, success, intervals, comparisons and tables.

`evaluate(actors, tasks, episodes)` does all of it. `summarise(episodes)` makes the numbers of episodes that were played
already. docs/evaluation.md defines each number.
"""

from pac.evaluation.compare import Difference, compare, warnings
from pac.evaluation.plan import Actor
from pac.evaluation.records import EpisodeRecord, read_evaluation, record
from pac.evaluation.result import Evaluation
from pac.evaluation.runner import EvaluationInterruptedError, evaluate
from pac.evaluation.summary import Estimate, Row, Summary, best, summarise

__all__ = [
    "Actor",
    "Difference",
    "EpisodeRecord",
    "Estimate",
    "Evaluation",
    "EvaluationInterruptedError",
    "Row",
    "Summary",
    "best",
    "compare",
    "evaluate",
    "read_evaluation",
    "record",
    "summarise",
    "warnings",
]
