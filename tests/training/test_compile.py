"""The compiled losses equal the eager ones up to rounding, without graph breaks and large arrays."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_compiled_losses_equal_the_eager_ones() -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "compiled.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["q", "v", "parts", "arrays"]
