"""Networks of trained Control Suite agents. `FOLDER` has one safetensors file per task."""

from pathlib import Path

FOLDER = Path(__file__).parent
