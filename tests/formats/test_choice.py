"""Episodes and cameras are chosen before they are read. Files that are missing are counted, and may be left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pytest
from foreign import IMAGES, STATE, assert_same, make_episode, tricky

from pac.cli import parse
from pac.data.store import Dataset
from pac.formats import lerobot, open_source
from pac.formats.choice import EpisodeRanges, describe
from pac.formats.options import ImportOptions
from pac.types import Episode

EQUAL = [make_episode(np.random.default_rng(i), steps=4, task="walker-walk") for i in range(6)]
WRITERS: dict[str, Callable[[Path, list[Episode]], Path]] = {
    "minari": lambda folder, episodes: foreign.write_minari(folder, episodes, "hdf5"),
    "minari-arrow": lambda folder, episodes: foreign.write_minari(folder, episodes, "arrow"),
    "d4rl": lambda folder, episodes: foreign.write_d4rl(folder / "set.hdf5", episodes),
    "robomimic": lambda folder, episodes: foreign.write_robomimic(folder / "demo.hdf5", episodes),
    "ogbench": lambda folder, episodes: foreign.write_ogbench(folder / "maze.npz", episodes),
    "arrays": lambda folder, episodes: foreign.write_arrays(folder / "set.npz", episodes),
    "rlds": lambda folder, episodes: foreign.write_rlds(folder, episodes, last_step="transition", shards=2),
    "tdmpc2": lambda folder, episodes: foreign.write_tdmpc2(folder / "chunk_0.pt", EQUAL, [1] * 6),
    "lerobot-2": lambda folder, episodes: foreign.write_lerobot(folder / "set", episodes, version="v2.1"),
    "lerobot-3": lambda folder, episodes: foreign.write_lerobot(folder / "set", episodes, version="v3.0"),
}


def read(path: Path, **options: Any) -> list[Episode]:
    return list(open_source(path, options=ImportOptions(**options)).episodes)


@pytest.mark.parametrize("format", WRITERS)
def test_episodes_by_the_index_of_the_source(tmp_path: Path, format: str) -> None:
    path = WRITERS[format](tmp_path, tricky(sparse=format == "robomimic"))
    every = read(path)
    assert len(every) == 6
    for text, chosen in {"0:2": [0, 1], "1:3,5": [1, 2, 5], "4:": [4, 5], ":1": [0]}.items():
        assert_same(read(path, episodes=text), [every[i] for i in chosen])
    source = open_source(path, options=ImportOptions(episodes="0:2"))
    assert source.num_episodes in (2, None)
    for text in ("0:7", "6", "4:5,8:9"):
        with pytest.raises(ValueError, match=r"expected --episodes within 0:6, found .*Correct --episodes\."):
            read(path, episodes=text)


@pytest.mark.parametrize("text", ["", "a", "3:1", "3:3", "-1", "1:2:3", "1,,2", ":"])
def test_wrong_ranges(text: str) -> None:
    if text == ":":
        assert 10**9 in EpisodeRanges(text)
        return
    with pytest.raises(ValueError, match=r"--episodes: expected .*, found .*Write for example --episodes 0:80"):
        EpisodeRanges(text)


def test_a_split_of_a_format_without_splits_is_refused(tmp_path: Path) -> None:
    path = foreign.write_d4rl(tmp_path / "set.hdf5", tricky())
    with pytest.raises(ValueError, match=r"--split: expected lerobot or rlds or robomimic, found d4rl"):
        read(path, split="train")


def test_ranges_are_described_shortly() -> None:
    assert describe([3, 1, 2, 7]) == "1:4,7"
    assert describe([]) == "none"
    assert describe(range(0, 100, 2)).endswith(",14,...")


def test_numbers_of_a_split_are_those_of_the_source(tmp_path: Path) -> None:
    episodes = tricky(sparse=True)
    path = foreign.write_robomimic(tmp_path / "demo.hdf5", episodes)
    (found,) = read(path, split="even", episodes="3:5")  # demo_4
    np.testing.assert_array_equal(found.action, episodes[4].action)
    with pytest.raises(ValueError, match="expected --episodes that are in 0,2,4, found 3"):
        read(path, split="even", episodes="3")


@pytest.mark.parametrize("format", ["minari", "robomimic", "rlds", "lerobot-3"])
def test_cameras(tmp_path: Path, format: str) -> None:
    path = WRITERS[format](tmp_path, tricky(("left", "right"), sparse=True))
    assert list(read(path, cameras=("right",))[0].observation) == [STATE, IMAGES + "right"]
    assert list(read(path, cameras=())[0].observation) == [STATE]
    with pytest.raises(ValueError, match=r"camera 'rigt' \(from --cameras\), found cameras left, right.*'right'"):
        read(path, cameras=("rigt",))


def test_a_camera_that_is_left_out_is_not_decoded(tmp_path: Path) -> None:
    path = foreign.write_lerobot(tmp_path / "set", tricky(("top",)), version="v3.0", images="video")
    assert list(read(path, cameras=())[0].observation) == [STATE]  # there is no video


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_missing_videos(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    episodes = [make_episode(np.random.default_rng(i), steps=5, cameras=("a", "b"), size=(32, 32)) for i in range(4)]
    path = foreign.write_lerobot(tmp_path / "set", episodes, version=version, images="video")
    foreign.write_videos(path, episodes, version)
    gone = [1, 3] if version == "v2.1" else [0, 1, 2, 3]
    for index in gone if version == "v2.1" else [0]:
        name = f"episode_{index:06d}" if version == "v2.1" else "file-000"
        next(file for file in path.rglob(f"{name}.mp4") if "images.b" in str(file)).unlink()
    way = "skip-features, which leaves out b"
    with pytest.raises(ValueError, match=rf"of all 4 episodes, found b missing in {len(gone)}, the first .*{way}"):
        open_source(path)
    source = open_source(path, options=ImportOptions(missing="skip-features"))
    found = list(source.episodes)
    assert [list(e.observation) for e in found] == [[STATE, IMAGES + "a"]] * 4
    assert any(note == f"Left out, because files are missing in {len(gone)} episodes: b." for note in source.notes)
    if version == "v3.0":
        with pytest.raises(ValueError, match="an episode with all its files"):
            open_source(path, options=ImportOptions(missing="skip-episodes"))
        return
    source = open_source(path, options=ImportOptions(missing="skip-episodes"))
    np.testing.assert_array_equal([e.action for e in source.episodes], [episodes[0].action, episodes[2].action])
    assert any("2 of 4 episodes left out, because files are missing: b" in note for note in source.notes)
    assert len(read(path, episodes="0,2")) == 2, "the chosen episodes are whole"
    monkeypatch.setattr(lerobot, "_video_frames", None)
    assert len(read(path, cameras=())) == 4


def test_missing_arrays(tmp_path: Path) -> None:
    """Without its arrays an episode cannot be read, whatever the option."""
    path = foreign.write_lerobot(tmp_path / "a", tricky(), version="v3.0")
    (path / "data/chunk-000/file-001.parquet").unlink()
    assert_same(read(path, missing="skip-episodes"), read(path, episodes="0:3"))
    with pytest.raises(ValueError, match=r"data missing in 3.*--missing skip-episodes, which reads 3 episodes"):
        read(path, missing="skip-features")
    path = foreign.write_minari(tmp_path / "b", tricky(), "arrow")
    every = read(path)
    (path / "data/4/part-0.arrow").unlink()
    assert_same(read(path, missing="skip-episodes"), every[:4] + every[5:])
    path = foreign.write_rlds(tmp_path / "c", tricky(), last_step="observation", shards=3)
    every = read(path)
    (path / "1.0.0/synthetic-train.tfrecord-00001-of-00003").unlink()
    with pytest.raises(ValueError, match=r"3 shards.*found 2.*read only these 2 with --missing skip-episodes"):
        read(path)
    source = open_source(path, options=ImportOptions(missing="skip-episodes"))
    assert_same(list(source.episodes), every[:2] + every[4:])
    assert "1 of 3 shards are missing" in source.notes[0]


def test_the_command_has_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign.write_lerobot(tmp_path / "set", tricky(("top", "side")), version="v2.1")
    (path / "data/chunk-000/episode_000001.parquet").unlink()
    words = ["import", path, "--out", tmp_path / "out", "--cameras", "side", "--episodes", "0:4"]
    run, args = parse([str(word) for word in [*words, "--missing", "skip-episodes"]])
    run(args)
    data = Dataset(tmp_path / "out")
    assert (len(data), list(data.spec.cameras)) == (3, ["side"])
    printed = capsys.readouterr().out
    assert "note: 4 of 6 episodes, as --episodes says." in printed
    assert "note: 1 of 4 episodes left out, because files are missing: data." in printed


@pytest.mark.parametrize(
    "names", [["x", "y"], [["x", "y"]], {"motors": ["x", "y"]}, {"y": 1, "x": 0}, {"x": ["x"], "": "y"}]
)
def test_lerobot_names_of_all_kinds(names: Any) -> None:
    assert lerobot._dimension_names([{"shape": [2], "names": names}]) == ("x", "y")
    assert lerobot._dimension_names([{"shape": [3], "names": names}]) == ()


def test_names_of_dimensions_travel(tmp_path: Path) -> None:
    """They reach the store, errors and exports, and a dataset without names takes more episodes."""
    import h5py

    from pac.formats.transfer import export_dataset, import_dataset

    path = foreign.write_robomimic(tmp_path / "demo.hdf5", tricky(sparse=True))
    import_dataset([path], tmp_path / "plain")
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            for place in ("obs", "next_obs"):
                demo[f"{place}/gripper"] = np.zeros((len(demo["actions"]), 1))
                demo[f"{place}/arm"] = demo[f"{place}/{STATE}"][:]
                del demo[f"{place}/{STATE}"]
    import_dataset([path], tmp_path / "out")
    names = ("arm_0", "arm_1", "arm_2", "gripper")
    assert Dataset(tmp_path / "out").spec.state_names == names
    export_dataset(tmp_path / "out", tmp_path / "minari", "minari")
    assert open_source(tmp_path / "minari").state_names == names
    export_dataset(tmp_path / "out", tmp_path / "lerobot", "lerobot", fps=10.0)
    assert open_source(tmp_path / "lerobot").state_names == names
    episodes = tricky()
    episodes[1].action[1, 1] = np.nan
    foreign.write_lerobot(tmp_path / "bad", episodes, version="v2.1")
    info = tmp_path / "bad/meta/info.json"
    text = info.read_text()
    assert '"action": {"dtype": "float32", "shape": [2], "names": null' in text
    info.write_text(text.replace('"shape": [2], "names": null', '"shape": [2], "names": ["arm", "gripper"]', 1))
    with pytest.raises(ValueError, match=r"key 'action', step 1, dimension 1 \(gripper\): expected a finite number"):
        read(tmp_path / "bad")
    three = foreign.write_lerobot(tmp_path / "named", tricky(), version="v2.1", fps=20)
    info = three / "meta/info.json"
    info.write_text(
        info.read_text().replace('"shape": [3], "names": null', '"shape": [3], "names": ["x", "y", "z"]', 1)
    )
    import_dataset([three], tmp_path / "plain")
    assert Dataset(tmp_path / "plain").spec.state_names == ()
    assert len(Dataset(tmp_path / "plain")) == 12
