"""`pac report`: one self-contained HTML page. `write_report` makes it from Python."""

from pac.report.page import make_page, write_report
from pac.report.sources import Curve, LoadedEvaluation, LoadedImprovement, LoadedRun, read_sources

__all__ = ["Curve", "LoadedEvaluation", "LoadedImprovement", "LoadedRun", "make_page", "read_sources", "write_report"]
