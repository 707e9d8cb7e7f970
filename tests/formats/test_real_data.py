"""Datasets of real robots are imported as their files say. They are not in the repository.

The folder is named by PAC_TEST_DATA, by default ../shared/data from the root of the repository.
"""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pac.data.store import Dataset, verify
from pac.formats import open_source
from pac.formats.options import ImportOptions
from pac.formats.transfer import import_dataset

DATA = Path(os.environ.get("PAC_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def source(name: str) -> Path:
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in {DATA}: name a folder that has it with PAC_TEST_DATA")
    return DATA / name


def test_first_camera_episode_of_a_lerobot_dataset() -> None:
    pytest.importorskip("av")
    path = source("g1_bottle")
    dataset = open_source(path, options=ImportOptions(split="camera"))
    assert (dataset.format, dataset.num_episodes, dataset.fps) == ("lerobot", 12, 30)
    episode = next(dataset.episodes)
    table = pq.read_table(path / "data/chunk-000/episode_000010.parquet")
    assert episode.action.shape == episode.observation["observation.state"].shape == (table.num_rows, 26)
    for key, values in (("action", episode.action), ("observation.state", episode.observation["observation.state"])):
        np.testing.assert_array_equal(values, np.stack(table[key].to_numpy()))
    frames = episode.observation["observation.images.cam_high"]
    assert frames.shape == (table.num_rows, 480, 640, 3)
    changes = [np.abs(after.astype(int) - before).mean() for before, after in itertools.pairwise(frames[:20])]
    assert max(changes) < 20, "frames follow each other"
    assert (episode.terminated, episode.truncated, episode.success) == (False, True, None)
    assert (dataset.state_names[0], dataset.action_names[-1]) == ("kLeftShoulderPitch", "kRightHandThumbRotation")
    assert episode.instruction == "Pick up the yellow bottle on the table."
    assert not episode.reward.any()


def test_missing_videos_are_counted_before_anything_is_decoded() -> None:
    found = r"cam_high missing in 68, the first .*episode_000000\.mp4.*skip-episodes, which reads 12 episodes \(10:22\)"
    with pytest.raises(ValueError, match=found):
        open_source(source("g1_bottle"), options=ImportOptions(split="train"))


def test_missing_videos_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = source("g1_bottle")
    options = ImportOptions(split="train", episodes="9:11", missing="skip-episodes")
    (summary,) = import_dataset([path], tmp_path / "a", options=options)
    assert (summary.episodes, list(Dataset(tmp_path / "a").spec.cameras)) == (1, ["cam_high"])
    assert "1 of 2 episodes left out, because files are missing: cam_high." in summary.notes
    options = ImportOptions(split="train", missing="skip-features")
    (summary,) = import_dataset([path], tmp_path / "b", options=options)
    assert (summary.episodes, summary.steps, summary.keys) == (80, 29417, {"observation.state": ("observation.state",)})
    assert Dataset(tmp_path / "b").spec.state_names[-1] == "kRightHandThumbRotation"


def test_import_of_an_rlds_dataset(tmp_path: Path) -> None:
    path = source("bridge_rlds")
    (summary,) = import_dataset([path], tmp_path / "store")
    assert (summary.format, summary.episodes, summary.steps) == ("rlds", 25, 250)
    assert any("transition" in note for note in summary.notes)
    dataset = Dataset(tmp_path / "store")
    assert verify(dataset.path) == []
    assert dataset.spec.cameras == {f"image_{i}": (64, 64) for i in range(4)}
    assert (dataset.spec.state_dim, dataset.spec.action_dim, len(dataset.instructions)) == (7, 7, 4)
    info = json.loads((path / "1.0.0/dataset_info.json").read_text())
    assert len(dataset) == sum(int(length) for length in info["splits"][0]["shardLengths"])
    assert all(((episode.action[:, 6] >= 0) & (episode.action[:, 6] <= 1)).all() for episode in dataset), "grippers"
