"""`pac report`: one self-contained HTML page. `write_report` makes it from Python."""

from pac.report.page import make_page, write_report
from pac.report.sources import Curve, Evaluation, Improvement, LoadedRun, read

__all__ = ["Curve", "Evaluation", "Improvement", "LoadedRun", "make_page", "read", "write_report"]
