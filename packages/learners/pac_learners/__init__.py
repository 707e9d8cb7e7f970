"""Networks of trained agents of the Control Suite and Meta-World. `FOLDER` has one safetensors file per task."""

from pathlib import Path

FOLDER = Path(__file__).parent
