"""Damaged files of every format are read or give a clean error. They cause no other exception, crash or hang."""

import subprocess
import sys
from pathlib import Path

import foreign
import numpy as np
from foreign import tricky

import pac


def write_all(folder: Path) -> None:
    """Write one dataset of every format, each in a folder named after it."""
    images = tricky(("left", "right"))
    sparse = tricky(("left",), sparse=True, success=True)
    equal = [foreign.make_episode(np.random.default_rng(i), steps=4) for i in range(3)]

    def place(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        return folder / name

    for data_format in ("hdf5", "arrow", "parquet"):
        foreign.write_minari(place(f"minari-{data_format}"), images, data_format)
    foreign.write_minari(place("minari-jpeg"), tricky(("left",), size=(32, 32)), "hdf5", jpeg_encoding=True)
    for version in ("v2.1", "v3.0"):
        foreign.write_lerobot(place(f"lerobot-{version}") / "set", images, version=version)
    videos = tricky(("left",), size=(32, 32))
    path = foreign.write_lerobot(place("lerobot-video") / "set", videos, version="v3.0", images="video")
    foreign.write_videos(path, videos, "v3.0")
    foreign.write_robomimic(place("robomimic") / "demo.hdf5", sparse)
    foreign.write_d4rl(place("d4rl") / "set.hdf5", tricky())
    foreign.write_ogbench(place("ogbench") / "maze.npz", tricky(), masks=True, rewards=True)
    foreign.write_arrays(place("arrays") / "set.npz", tricky(("left",)))
    foreign.write_rlds(place("rlds"), images, last_step="observation")
    foreign.write_tdmpc2(place("tdmpc2") / "chunk_0.pt", equal, [0, 1, 2])
    foreign.write_tdmpc2(place("tdmpc2-reduced") / "chunk_0.pt", equal, [0, 1, 2], reduced=True)


def test_damaged_files_give_clean_errors(tmp_path: Path) -> None:
    write_all(tmp_path / "sets")
    program = Path(__file__).with_name("mutate.py")
    source = Path(pac.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "sets"), "60"],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(source), "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(found.stdout.splitlines()) == 14
