"""Exports are read back equal by our readers and by Minari, and have the layout that LeRobot documents."""

import dataclasses
import itertools
import json
import tempfile
from pathlib import Path

import minari
import numpy as np
import pyarrow.parquet as pq
import pytest
from foreign import IMAGES, STATE, assert_same, change, episode_sets, make_episode, tricky, without_last
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pac.data.store import Dataset, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.formats import detect_format
from pac.formats.transfer import export_dataset, import_dataset
from pac.types import Episode

few = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BOUNDS = 1.5


def store(path: Path, episodes: list[Episode], **known: object) -> Path:
    size = episodes[0].action.shape[1]
    spec = DatasetSpec.of(
        episodes[0], action_low=np.full(size, -BOUNDS), action_high=np.full(size, BOUNDS), control_rate=20.0, **known
    )
    with DatasetWriter(path, spec) as writer:
        for episode in episodes:
            writer.append(episode)
    return path


def with_extras(episodes: list[Episode], success: bool | None) -> list[Episode]:
    return [dataclasses.replace(e, success=success, extra_rewards={"lift": e.reward * 2}) for e in episodes]


@pytest.mark.parametrize("format", ["minari", "lerobot"])
@given(episodes=episode_sets(), success=st.sampled_from([None, True, False]), last=st.booleans())
@few
def test_export_and_import_round_trip(format: str, episodes: list[Episode], success: bool | None, last: bool) -> None:
    episodes = with_extras(episodes if last else without_last(episodes), success)
    expected = without_last(episodes) if format == "lerobot" else episodes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        notes = export_dataset(store(folder / "store", episodes), folder / "out", format)
        assert detect_format(folder / "out") == format
        assert bool(notes) == ((last or success is None) if format == "lerobot" else not last)
        import_dataset([folder / "out"], folder / "again")
        again = Dataset(folder / "again")
        assert_same(list(again), expected)
        assert again.spec.control_rate == 20
        np.testing.assert_array_equal(again.action_high, np.full(episodes[0].action.shape[1], BOUNDS, np.float32))


@given(episodes=episode_sets(), seed=st.none() | st.integers(0, 9))
@few
def test_minari_loads_an_export(episodes: list[Episode], seed: int | None) -> None:
    episodes = change(episodes, seed=seed, success=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_dataset(store(folder / "store", episodes), folder / "robot-v3", "minari")
        dataset = minari.MinariDataset(folder / "robot-v3" / "data")
        assert (dataset.total_episodes, dataset.spec.dataset_id) == (len(episodes), "robot-v3")
        assert dataset.total_steps == sum(len(e.action) for e in episodes)
        metadata = list(dataset.storage.get_episode_metadata(range(len(episodes))))
        for found, attributes, expected in zip(dataset.iterate_episodes(), metadata, episodes, strict=True):
            bare = list(expected.observation) == [STATE]
            observations = {STATE: found.observations} if bare else found.observations
            assert observations.keys() == expected.observation.keys()
            for key, values in expected.observation.items():
                np.testing.assert_array_equal(observations[key], values)
                assert observations[key].dtype == values.dtype
                space = dataset.observation_space if bare else dataset.observation_space[key]
                assert space.contains(values[0])
            np.testing.assert_array_equal(found.actions, expected.action)
            np.testing.assert_array_equal(found.rewards, expected.reward)
            assert found.terminations[-1] == expected.terminated
            assert not found.terminations[:-1].any()
            assert found.truncations[-1] == expected.truncated
            assert not found.truncations[:-1].any()
            assert dataset.action_space.contains(found.actions[0])
            assert attributes["options"]["instruction"] == expected.instruction
            assert attributes.get("seed") == seed


def test_minari_loads_an_export_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_dataset(store(tmp_path / "store", tricky()), tmp_path / "sets" / "robot-v0", "minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    assert minari.load_dataset("robot-v0").total_episodes == 6


def test_lerobot_export_has_every_key_of_its_layout(tmp_path: Path) -> None:
    episodes = change(tricky(("left", "right")), success=False)
    names = {"state_names": ("x", "y", "z"), "action_names": ("dx", "dy"), "robot": "arm"}
    out = tmp_path / "out"
    export_dataset(store(tmp_path / "store", episodes, **names), out, "lerobot")

    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    layout = {"meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"}
    assert files == layout | {"data/chunk-000/file-000.parquet", "meta/pac.json"}

    info = json.loads((out / "meta/info.json").read_text())
    known = "codebase_version robot_type total_episodes total_frames total_tasks chunks_size data_files_size_in_mb "
    known += "video_files_size_in_mb fps splits data_path video_path features"
    assert set(info) == set(known.split())
    frames = sum(len(e.action) for e in episodes)
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 20, "arm")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (6, frames, 4)
    assert info["splits"] == {"train": "0:6"}
    assert info["features"]["observation.images.left"] == {
        "dtype": "image",
        "shape": [4, 6, 3],
        "names": ["height", "width", "channels"],
    }
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]}
    assert info["features"]["next.reward"] == {"dtype": "float32", "shape": [1], "names": None}

    path = out / info["data_path"].format(chunk_index=0, file_index=0)
    data = pq.ParquetFile(path)
    assert data.num_row_groups == len(episodes), "one row group an episode"
    assert data.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert data.schema_arrow.names == list(info["features"])
    table = data.read()
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["observation.images.left"] == "struct<bytes: binary, path: string>"
    assert types["action"] == "fixed_size_list<element: float>[2]"
    assert (types["timestamp"], types["index"], types["next.done"]) == ("float", "int64", "bool")
    assert table["index"].to_pylist() == list(range(frames))
    lengths = [len(e.action) for e in episodes]
    assert table["frame_index"].to_pylist() == [t for length in lengths for t in range(length)]
    assert table["episode_index"].to_pylist() == [i for i, length in enumerate(lengths) for _ in range(length)]
    np.testing.assert_allclose(table["timestamp"].to_numpy(), np.array(table["frame_index"]) / 20, rtol=1e-6)

    rows = pq.read_table(out / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["length"] for row in rows] == lengths
    assert [row["tasks"] for row in rows] == [[e.instruction] for e in episodes]
    starts = np.cumsum([0, *lengths]).tolist()
    assert [(r["dataset_from_index"], r["dataset_to_index"]) for r in rows] == list(itertools.pairwise(starts))
    fixed = "episode_index tasks length data/chunk_index data/file_index dataset_from_index dataset_to_index "
    fixed += "meta/episodes/chunk_index meta/episodes/file_index"
    measures = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
    assert set(rows[0]) == set(fixed.split()) | {f"stats/{f}/{m}" for f in info["features"] for m in measures}
    np.testing.assert_allclose(rows[0]["stats/action/mean"], episodes[0].action.mean(0), rtol=1e-5)
    assert np.shape(rows[0]["stats/observation.images.left/mean"]) == (3, 1, 1)

    stats = json.loads((out / "meta/stats.json").read_text())
    assert set(stats) == set(info["features"])
    assert all(set(table) == set(measures) for table in stats.values())
    actions = np.concatenate([e.action for e in episodes]).astype(np.float64)
    for name, value in (("mean", actions.mean(0)), ("std", actions.std(0)), ("max", actions.max(0))):
        np.testing.assert_allclose(stats["action"][name], value, rtol=1e-6)
    assert stats["action"]["count"] == [frames]

    tasks = pq.read_table(out / "meta/tasks.parquet")
    pandas = json.loads(tasks.schema.metadata[b"pandas"])
    assert pandas["index_columns"] == ["task"]
    assert dict(zip(tasks["task"].to_pylist(), tasks["task_index"].to_pylist(), strict=True)) == {
        "walk": 0,
        "pick up the red cube": 1,
        "öffne die Tür": 2,
        "": 3,
    }


def test_large_lerobot_export_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pac.formats.lerobot_out.FILE_MEGABYTES", 0)
    monkeypatch.setattr("pac.formats.lerobot_out.FILES_PER_CHUNK", 4)
    episodes = change(tricky(("left",)), success=True)
    export_dataset(store(tmp_path / "store", episodes), tmp_path / "out", "lerobot")
    names = sorted(str(path.relative_to(tmp_path / "out/data")) for path in (tmp_path / "out/data").rglob("*.parquet"))
    assert names == [f"chunk-{i // 4:03d}/file-{i % 4:03d}.parquet" for i in range(6)]
    import_dataset([tmp_path / "out"], tmp_path / "again")
    assert_same(list(Dataset(tmp_path / "again")), without_last(episodes))


def test_goal_images_are_left_out_with_a_note(tmp_path: Path) -> None:
    episode = make_episode(np.random.default_rng(0), steps=2, cameras=("top",))
    goal = {"top": episode.observation[IMAGES + "top"][-1]}
    episodes = [dataclasses.replace(episode, goal_images=goal)]
    for format in ("lerobot", "minari"):
        notes = export_dataset(store(tmp_path / f"store-{format}", episodes), tmp_path / format, format)
        assert any("goal images" in note for note in notes), format


def test_lerobot_needs_a_control_rate(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "store", DatasetSpec.of(tricky()[0])) as writer:
        writer.append(tricky()[0])
    with pytest.raises(ValueError, match=r"control rate.*--fps"):
        export_dataset(tmp_path / "store", tmp_path / "out", "lerobot")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    export_dataset(tmp_path / "store", tmp_path / "out", "lerobot", fps=10.0)
