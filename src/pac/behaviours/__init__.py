"""Behaviours: data when there is none. What acts without a checkpoint, and wrappers that make its quality a dial.

`make("scripted+faults:clean=0.3,switch=15-50")` builds one; docs/behaviours.md lists them all.
"""

from pac.behaviours.base import FAULT_MODES, Behaviour
from pac.behaviours.spec import BASES, WRAPPERS, make

__all__ = ["BASES", "FAULT_MODES", "WRAPPERS", "Behaviour", "make"]
