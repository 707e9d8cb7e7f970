"""Behaviours: actors without a checkpoint, for making data, and wrappers that lower its quality.

`make("scripted+faults:clean=0.3,switch=15-50")` builds one. docs/behaviours.md lists all of them.
"""

from pac.behaviours.base import FAULT_MODES, Behaviour
from pac.behaviours.spec import BASES, WRAPPERS, make

__all__ = ["BASES", "FAULT_MODES", "WRAPPERS", "Behaviour", "make"]
