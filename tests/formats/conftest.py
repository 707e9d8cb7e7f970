"""Adds this folder to the path, for `foreign.py` with the writers of foreign formats."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
