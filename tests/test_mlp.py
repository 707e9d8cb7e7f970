"""An MLP in the Perceiver's place. The runs of a study, which are processes of their own, train it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlp
import pytest
from runs import dump
from safetensors import safe_open
from study.test_study import table

import pac


@pytest.mark.slow
def test_a_study_trains_it(tmp_path: Path) -> None:
    content = table()
    methods = {"PAC": "pac", "PAC-V": "pac+v"}
    rows = {name: {"objective": {"method": method}} for name, method in methods.items()}
    content["study"] |= {"seeds": [1], "rows": rows}
    command = [sys.executable, mlp.__file__, str(dump(content, tmp_path / "points.toml"))]
    paths = [str(Path(pac.__file__).parents[1]), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--processes", "1"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["episodes"]) == 2 * 4
    runs = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(runs) == 2
    for run in runs:
        with safe_open(run / "checkpoints" / "last" / "pretrained_model" / "model.safetensors", "pt") as weights:
            assert {name.split(".")[0] for name in weights.keys()} == {"policy", "q", "v"}  # noqa: SIM118
