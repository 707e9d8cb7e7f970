"""Errors about a source have four parts: expected, found, file and key, and the next step."""

import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from foreign import STATE, tricky

from pac.formats import open_source
from pac.formats.checks import need
from pac.formats.options import ImportOptions
from pac.formats.tensorfile import read_tensors
from pac.types import Episode


def assert_error(path: Path, *words: str, **options: Any) -> None:
    """Check that reading raises a ValueError with four parts and all of `words`."""
    with pytest.raises(ValueError, match="expected") as caught:
        list(open_source(path, options=ImportOptions(**options)).episodes)
    message = str(caught.value)
    for word in ("expected ", "found ", *words):
        assert word in message, message
    assert message.rstrip().endswith((".", "?", "'")), message


def edit_hdf5(path: Path, edit: Callable[[Any], None]) -> Path:
    with h5py.File(path, "r+") as file:
        edit(file)
    return path


def replace(file: Any, key: str, values: Any) -> None:
    del file[key]
    file[key] = values


def with_value(value: float, key: str) -> list[Episode]:
    """Return episodes with `value` in one field of the second."""
    episodes = tricky()
    target = {"action": episodes[1].action, "reward": episodes[1].reward, "state": episodes[1].observation[STATE]}[key]
    target.flat[2] = value
    return episodes


WRITERS: dict[str, Callable[[Path, list[Episode]], Path]] = {
    "minari": lambda folder, episodes: foreign.write_minari(folder, episodes, "hdf5"),
    "minari-arrow": lambda folder, episodes: foreign.write_minari(folder, episodes, "arrow"),
    "d4rl": lambda folder, episodes: foreign.write_d4rl(folder / "set.hdf5", episodes),
    "robomimic": lambda folder, episodes: foreign.write_robomimic(folder / "demo.hdf5", episodes),
    "ogbench": lambda folder, episodes: foreign.write_ogbench(folder / "maze.npz", episodes, rewards=True),
    "arrays": lambda folder, episodes: foreign.write_arrays(folder / "set.npz", episodes, following=False),
    "rlds": lambda folder, episodes: foreign.write_rlds(folder, episodes, last_step="transition"),
    "lerobot-2": lambda folder, episodes: foreign.write_lerobot(folder / "set", episodes, version="v2.1"),
    "lerobot-3": lambda folder, episodes: foreign.write_lerobot(folder / "set", episodes, version="v3.0"),
}


@pytest.mark.parametrize("format", sorted(WRITERS))
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["action", "reward", "state"])
def test_nan_and_infinity_are_refused(tmp_path: Path, format: str, value: float, key: str) -> None:
    path = WRITERS[format](tmp_path, with_value(value, key))
    assert_error(path, "finite number", f"found {value}", "step", "key '", str(path))


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_truncated_files(tmp_path: Path, format: str) -> None:
    path = WRITERS[format](tmp_path, tricky())
    files = [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size * 2 // 3)
    with pytest.raises(ValueError, match=r"expected .* found") as caught:
        list(open_source(path, format.split("-")[0]).episodes)
    assert str(largest) in str(caught.value), "the error names the damaged file"


@pytest.mark.parametrize("name", ["set.hdf5", "maze.npz", "chunk_0.pt", "x.tfrecord-00000-of-00001"])
def test_file_of_another_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"this is a text file, not a dataset, and long enough for any header")
    format = {"set.hdf5": "d4rl", "maze.npz": "ogbench", "chunk_0.pt": "tdmpc2"}.get(name, "rlds")
    with pytest.raises(ValueError, match=f"{name}.*expected .* found"):
        list(open_source(path, format).episodes)
    with pytest.raises(ValueError, match=f"{name}.*expected .* found"):
        list(open_source(path, "auto").episodes)


def test_missing_path_empty_folder_and_unknown_format(tmp_path: Path) -> None:
    assert_error(tmp_path / "nowhere", "nothing there", "nowhere")
    (tmp_path / "empty").mkdir()
    assert_error(tmp_path / "empty", "none of them", "--format")
    with pytest.raises(ValueError, match="Did you mean 'minari'"):
        open_source(tmp_path, "minary")


def test_missing_keys(tmp_path: Path) -> None:
    path = foreign.write_d4rl(tmp_path / "a.hdf5", tricky())
    assert_error(edit_hdf5(path, lambda file: file.__delitem__("actions")), str(path), "none of them")
    with pytest.raises(ValueError, match=r"a\.hdf5.*expected key 'actions', found keys .*observations"):
        open_source(path, "d4rl")
    path = foreign.write_robomimic(tmp_path / "b.hdf5", tricky(sparse=True))
    assert_error(
        edit_hdf5(path, lambda file: file.__delitem__("data/demo_2/rewards")), "b.hdf5", "demo_2", "key 'rewards'"
    )
    path = foreign.write_minari(tmp_path / "c", tricky(), "hdf5")
    edit_hdf5(path / "data/main_data.hdf5", lambda file: file.__delitem__("episode_1/truncations"))
    assert_error(path, "main_data.hdf5", "episode_1", "key 'truncations'")
    path = foreign.write_lerobot(tmp_path / "d", tricky(), version="v3.0")
    file = path / "data/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(file).drop_columns("action"), file)
    assert_error(path, "file-000.parquet", "key 'action'")
    path = foreign.write_ogbench(tmp_path / "e.npz", tricky())
    assert_error(path, "e.npz", "key 'velocity'", keys={"action": ("velocity",)})
    path = foreign.save_tensordict(tmp_path / "f.pt", {"obs": torch.zeros(1, 2, 3)})
    assert_error(path, "f.pt", "key 'action'", "found keys obs")


def test_wrong_dtypes(tmp_path: Path) -> None:
    path = foreign.write_d4rl(tmp_path / "a.hdf5", tricky())
    rows = sum(len(e.action) for e in tricky())
    assert_error(
        edit_hdf5(path, lambda file: replace(file, "actions", np.array([b"x"] * rows))), "a.hdf5", "numbers", "|S1"
    )
    path = foreign.write_d4rl(tmp_path / "b.hdf5", tricky())
    assert_error(
        edit_hdf5(path, lambda file: replace(file, "terminals", np.full(rows, 7))), "key 'terminals'", "flags 0 or 1"
    )
    path = foreign.write_minari(tmp_path / "c", tricky(), "hdf5")
    text = np.array([b"?"] * 6)
    edit_hdf5(path / "data/main_data.hdf5", lambda file: replace(file, "episode_0/observations", text))
    assert_error(path, "episode_0", "numbers")
    path = tmp_path / "d.npz"
    np.savez(path, observations=np.array([{}], object), actions=np.zeros((1, 1)), terminals=np.ones(1))
    assert_error(path, "d.npz", "key 'observations'", "object")
    tensors = {name: torch.zeros(1, 2, 3) for name in ("obs", "action", "reward", "task")}
    assert_error(foreign.save_tensordict(tmp_path / "e.pt", tensors), "e.pt", "key 'task'", "integers")


def test_ragged_lengths(tmp_path: Path) -> None:
    path = foreign.write_d4rl(tmp_path / "a.hdf5", tricky())
    assert_error(edit_hdf5(path, lambda file: replace(file, "rewards", np.zeros(3))), "a.hdf5", "'reward'", "3")
    path = foreign.write_robomimic(tmp_path / "b.hdf5", tricky(sparse=True))
    edit = lambda file: replace(file, "data/demo_0/obs/observation.state", np.zeros((9, 3), np.float32))  # noqa: E731
    assert_error(edit_hdf5(path, edit), "b.hdf5", "demo_0", "observation.state", "5 or 6 rows", "found 10")
    path = foreign.write_minari(tmp_path / "c", tricky(), "hdf5")
    edit_hdf5(path / "data/main_data.hdf5", lambda file: replace(file, "episode_1/rewards", np.zeros(2)))
    assert_error(path, "episode_1", "reward", "found 2")
    path = tmp_path / "d.npz"
    np.savez(path, observations=np.zeros((5, 2)), actions=np.zeros((4, 1)), terminals=np.zeros(5))
    assert_error(path, "d.npz", "'actions'", "5 rows", "found 4")
    path = foreign.write_lerobot(tmp_path / "e", tricky(), version="v2.1")
    file = path / "data/chunk-000/episode_000000.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)
    assert_error(path, "episode_000000.parquet", "5 rows", "found 4")
    table = pq.read_table(file).set_column(0, STATE, pa.array([[1.0, 2.0, 3.0]] * 3 + [[1.0]], pa.list_(pa.float32())))
    pq.write_table(pa.concat_tables([table.slice(0, 1), table]), file)
    assert_error(path, "episode_000000.parquet", STATE, "every frame")


def test_missing_files(tmp_path: Path) -> None:
    path = foreign.write_lerobot(tmp_path / "a", tricky(), version="v3.0")
    (path / "data/chunk-000/file-001.parquet").unlink()
    assert_error(path, "files of all 6 episodes", "data missing in 3", "file-001.parquet", "reads 3 episodes (0:3)")
    path = foreign.write_rlds(tmp_path / "b", tricky(), last_step="observation", shards=3)
    (path / "1.0.0/synthetic-train.tfrecord-00001-of-00003").unlink()
    assert_error(path, "3 shards", "found 2")
    path = foreign.write_minari(tmp_path / "c", tricky(), "arrow")
    (path / "data/4/part-0.arrow").unlink()
    assert_error(path, "missing in 1", "4/part-0.arrow", "reads 5 episodes (0:4,5)")
    path = foreign.write_lerobot(tmp_path / "d", tricky(("top",)), version="v3.0", images="video")
    assert_error(path, "top missing in 6", "file-000.mp4", "--missing skip-features")


def test_empty_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "actions"):
            file[name] = np.zeros((0, 2), np.float32)
        for name in ("rewards", "terminals", "timeouts"):
            file[name] = np.zeros(0, np.float32)
    assert_error(tmp_path / "a.hdf5", "a.hdf5", "at least one row")
    np.savez(tmp_path / "b.npz", observations=np.zeros((0, 2)), actions=np.zeros((0, 2)), terminals=np.zeros(0))
    assert_error(tmp_path / "b.npz", "b.npz", "at least one transition")
    path = foreign.write_rlds(tmp_path / "c", tricky(), last_step="observation")
    (path / "1.0.0/synthetic-train.tfrecord-00000-of-00001").write_bytes(b"")
    assert_error(path, "at least one episode")
    path = foreign.write_lerobot(tmp_path / "d", tricky(), version="v2.1")
    (path / "meta/episodes.jsonl").write_text("")
    assert_error(path, "at least one episode", "meta")
    path = foreign.write_minari(tmp_path / "e", tricky(), "hdf5")
    metadata = json.loads((path / "data/metadata.json").read_text()) | {"total_episodes": 0}
    (path / "data/metadata.json").write_text(json.dumps(metadata))
    assert_error(path, "total_episodes", "at least 1")


def test_cameras_that_differ_between_episodes(tmp_path: Path) -> None:
    episodes = tricky(("top",), sparse=True)
    path = foreign.write_robomimic(tmp_path / "a.hdf5", episodes)
    assert_error(edit_hdf5(path, lambda file: file.__delitem__("data/demo_3/obs/top")), "demo_3", "key 'top'")
    episodes[2] = foreign.make_episode(np.random.default_rng(0), steps=2, cameras=("top",), size=(8, 8), sparse=True)
    path = foreign.write_robomimic(tmp_path / "b.hdf5", episodes)
    assert_error(path, "features of the first episode", "(8, 8, 3)", "(4, 6, 3)")
    path = foreign.write_robomimic(tmp_path / "c.hdf5", tricky(("top",), sparse=True))
    assert_error(path, "images", "Did you mean 'top'", keys={"observation.images.front": ("topp",)})
    assert_error(path, "--keys", "one key for a camera", keys={"observation.images.front": ("top", "top")})
    assert_error(path, "--keys camera", "observation.images.<camera>", keys={"camera": ("top",)})


def test_d4rl_without_time_limits_is_refused(tmp_path: Path) -> None:
    path = foreign.write_d4rl(tmp_path / "v0.hdf5", tricky(), timeouts=False, next_observations=False)
    assert_error(path, "v0.hdf5", "timeouts", "--max-episode-steps")


def test_flags_in_the_middle_of_an_episode(tmp_path: Path) -> None:
    path = foreign.write_minari(tmp_path, tricky(), "hdf5")
    flags = np.array([False, True, False, False, True])
    edit_hdf5(path / "data/main_data.hdf5", lambda file: replace(file, "episode_0/terminations", flags))
    assert_error(path, "episode_0", "'terminations'", "last step only")


def test_hdf5_links_to_other_files_are_refused(tmp_path: Path) -> None:
    other = foreign.write_d4rl(tmp_path / "other.hdf5", tricky())
    path = foreign.write_d4rl(tmp_path / "a.hdf5", tricky())
    assert_error(
        edit_hdf5(path, lambda file: replace(file, "rewards", h5py.ExternalLink(str(other), "rewards"))), "another file"
    )
    (tmp_path / "secret").write_bytes(bytes(64))

    def external(file: Any) -> None:
        del file["rewards"]
        file.create_dataset("rewards", (16,), "f4", external=[(str(tmp_path / "secret"), 0, 64)])

    assert_error(edit_hdf5(foreign.write_d4rl(tmp_path / "b.hdf5", tricky()), external), "rewards", "another file")


def test_hdf5_with_impossible_size_is_refused(tmp_path: Path) -> None:
    def huge(file: Any) -> None:
        del file["rewards"]
        file.create_dataset("rewards", (10**12,), "f8", chunks=(1024,))

    assert_error(edit_hdf5(foreign.write_d4rl(tmp_path / "a.hdf5", tricky()), huge), "rewards", "less data")


class Exploit:
    """Object that runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize(("protocol", "found"), [(2, "posix.system"), (4, "another instruction")])
def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int, found: str) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "chunk_0.pt"
    fields = {"obs": torch.zeros(1, 2, 3), "task": Exploit(f"touch {mark}")}
    torch.save(fields, path, pickle_protocol=protocol)
    assert_error(path, "chunk_0.pt", found, "could run code")
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists(), "the file is a real exploit"


def save_pickle(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", content)
        archive.writestr("x/data/0", bytes(16))
        archive.writestr("x/version", b"3\n")
    return path


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
FLOAT = b"ctorch\nFloatStorage\n"
TRICKS = {
    "builtins by global": b"cbuiltins\neval\n(S'1'\ntR.",
    "builtins by stack global": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    "an instruction off the list": b"\x80\x02(i__main__\nX\n.",
    "state set on a function": b"\x80\x02" + TENSOR + b"}X\x08\x00\x00\x00__code__K\x01sb.",
    "state set on a class": b"\x80\x02" + FLOAT + b"}X\x05\x00\x00\x00dtypeX\x02\x00\x00\x00|Osb.",
    "a memo slot in the billions": b"\x80\x02}r\xff\xff\xff\x7f.",
    "the wrong persistent id": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "not a dictionary": b"\x80\x02K\x01.",
    "no end": b"\x80\x02}",
    "nothing": b"",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_malformed_pickles_are_refused(tmp_path: Path, trick: str) -> None:
    assert_error(save_pickle(tmp_path / "a.pt", TRICKS[trick]), "a.pt")


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [(0, (5,), (1,)), (4, (1,), (1,)), (0, (2, 3), (3, 1)), (-1, (1,), (1,)), (0, (2,), (2**40,)), (0, (0,), (1,))],
)
def test_tensors_outside_their_storage_are_refused(tmp_path: Path, offset: int, size: Any, stride: Any) -> None:
    storage = b"(X\x07\x00\x00\x00storage" + FLOAT + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    rest = b"".join(pickle.dumps(value, 2)[2:-1] for value in (offset, size, stride))
    tensor = TENSOR + b"(" + storage + rest + b"\x89}tR"
    path = save_pickle(tmp_path / "a.pt", b"\x80\x02}X\x01\x00\x00\x00a" + tensor + b"s.")
    with pytest.raises(ValueError, match=r"a\.pt.*expected .* found"):
        read_tensors(path)
    good = TENSOR + b"(" + storage + b"K\x00K\x04\x85K\x01\x85\x89}tR"
    path = save_pickle(tmp_path / "b.pt", b"\x80\x02}X\x01\x00\x00\x00a" + good + b"s.")
    np.testing.assert_array_equal(read_tensors(path)["a"], np.zeros(4, np.float32))


def test_tdmpc2_unknown_task_and_nan(tmp_path: Path) -> None:
    episodes = [foreign.make_episode(np.random.default_rng(i), steps=3) for i in range(2)]
    path = foreign.write_tdmpc2(tmp_path / "chunk_0.pt", episodes, [0, 1])
    assert_error(path, "Did you mean 'walker-walk'", task="walker-wlk")
    assert_error(path, "expected episodes of task 'cup-spin'", task="cup-spin")
    episodes[1].reward[0] = np.nan
    assert_error(foreign.write_tdmpc2(path, episodes, [0, 1]), "chunk_0.pt, episode 1", "'reward'", "finite")
    os.truncate(path, path.stat().st_size // 2)
    assert_error(path, "chunk_0.pt", "torch.save")


def test_missing_package_names_the_pip_command() -> None:
    with pytest.raises(ValueError, match=r"pip install 'perceiver-actor-critic\[formats\]'"):
        need("a_package_that_is_not_there", "formats")


def test_tfrecord_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = foreign.write_rlds(tmp_path, tricky(), last_step="observation")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert_error(path, "'google_crc32c'", "pip install 'perceiver-actor-critic[formats]'")


def test_tfrecord_with_wrong_checksum(tmp_path: Path) -> None:
    path = foreign.write_rlds(tmp_path, tricky(), last_step="observation")
    file = path / "1.0.0/synthetic-train.tfrecord-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    assert_error(path, file.name, "checksum", "byte 0")
