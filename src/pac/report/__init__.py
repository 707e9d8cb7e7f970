"""`pac report`: one self-contained HTML page. `write_report` makes it from Python."""

from pac.report.page import write_report
from pac.report.sources import Curve, LoadedEvaluation, LoadedImprovement, LoadedRun, read_sources

__all__ = ["Curve", "LoadedEvaluation", "LoadedImprovement", "LoadedRun", "read_sources", "write_report"]
