"""The store gives back what it was given, whatever happens to the writer or to the files."""

import dataclasses
import errno
import itertools
import json
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pac.data.statistics import SCALE_FLOOR, normalise_action
from pac.data.store import (
    ACTION,
    IMAGES,
    INDEX,
    STATE,
    Dataset,
    DatasetSpec,
    npy_header,
    seal,
    verify,
)
from pac.data.writer import DatasetWriter
from pac.types import Episode


def assert_same(found: Episode, expected: Episode) -> None:
    for field in dataclasses.fields(Episode):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(b, dict):
            assert a.keys() == b.keys(), field.name
            assert all(np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in b), field.name
        elif isinstance(b, np.ndarray):
            np.testing.assert_array_equal(a, b, strict=True)
        else:
            assert a == b, field.name


@st.composite
def datasets(draw: st.DrawFn) -> list[Episode]:
    """Episodes of one kind, with every sort of end."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    state_dim, action_dim = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    cameras = draw(st.lists(st.sampled_from(["front", "wrist.left", "top-2"]), unique=True, min_size=state_dim == 0))
    goals = draw(st.lists(st.sampled_from(["front", "other"]), unique=True))
    extras = draw(st.lists(st.sampled_from(["lift", "stack"]), unique=True))

    def image(*shape: int) -> np.ndarray:
        return random.integers(0, 256, (*shape, 2, 3, 3), dtype=np.uint8)

    def numbers(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    def episode() -> Episode:
        steps = draw(st.integers(1, 5))
        rows = steps + draw(st.booleans())
        observation = {STATE: numbers(rows, state_dim)} if state_dim else {}
        return Episode(
            observation=observation | {IMAGES + name: image(rows) for name in cameras},
            action=numbers(steps, action_dim),
            reward=numbers(steps),
            terminated=draw(st.booleans()),
            truncated=draw(st.booleans()),
            instruction=draw(st.text(max_size=4)),
            success=draw(st.sampled_from([None, True, False])),
            goal_images={name: image() for name in goals},
            extra_rewards={name: numbers(steps) for name in sorted(extras)},
            source=draw(st.sampled_from(["", "file.hdf5", "line\nbreak"])),
            seed=draw(st.sampled_from([None, 0, -1, 2**40])),
        )

    return [episode() for _ in range(draw(st.integers(1, 4)))]


@given(datasets())
@settings(max_examples=25, deadline=None)
def test_written_episodes_are_read_back(tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode]) -> None:
    path = tmp_path_factory.mktemp("store") / "data"
    for episode in episodes:  # one writer each: appending to what is there
        with DatasetWriter(path, DatasetSpec.of(episodes[0])) as writer:
            writer.append(episode)
    dataset = Dataset(path)
    assert len(dataset) == len(episodes)
    assert dataset.num_steps == sum(len(episode.action) for episode in episodes)
    for found, expected in zip(dataset, episodes, strict=True):
        assert_same(found, expected)
    assert verify(path) == []
    for name, array in dataset.arrays.items():  # a person with numpy sees the same
        np.testing.assert_array_equal(np.load(path / f"{name}.npy", mmap_mode="r"), array, strict=True)
    np.testing.assert_array_equal(np.load(path / "episodes.npy", mmap_mode="r"), dataset.index)


def test_an_episode_larger_than_what_is_synced_at_once(
    make_episode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pac.data.writer.SYNC_BYTES", 100)
    with DatasetWriter(tmp_path / "d", DatasetSpec.of(make_episode(0, 9))) as writer:
        for i in range(3):
            writer.append(make_episode(i, 9))
    assert len(Dataset(tmp_path / "d")) == 3


def test_some_episodes_may_have_no_goal(make_episode: Any, tmp_path: Path) -> None:
    goal = {"front": np.full((4, 5, 3), 7, np.uint8)}
    episodes = [make_episode(0, 2, goal_images=goal), make_episode(1, 2), make_episode(2, 2, goal_images=goal)]
    with DatasetWriter(tmp_path / "d", DatasetSpec.of(episodes[0])) as writer:
        for episode in episodes:
            writer.append(episode)
    for found, expected in zip(Dataset(tmp_path / "d"), episodes, strict=True):
        assert_same(found, expected)


# --- statistics and bounds ---


def test_statistics_are_those_of_all_steps(make_dataset: Any) -> None:
    random = np.random.default_rng(0)
    episodes = [
        Episode(
            observation={STATE: random.normal(3, 2, size=(n + 1, 4)).astype(np.float32)},
            action=random.uniform(-1, 1, (n, 2)).astype(np.float32),
            reward=np.zeros(n, np.float32),
            terminated=False,
            truncated=True,
        )
        for n in (3, 50, 1, 20)
    ]
    dataset = Dataset(make_dataset("d", episodes, action_low=None, action_high=None))
    states = np.concatenate([episode.observation[STATE] for episode in episodes]).astype(np.float64)
    actions = np.concatenate([episode.action for episode in episodes])
    np.testing.assert_allclose(dataset.proprio_centre, states.mean(0), rtol=1e-5)
    np.testing.assert_allclose(dataset.proprio_scale, states.std(0), rtol=1e-5)
    assert dataset.bounds_are_measured
    np.testing.assert_array_equal(dataset.action_low, actions.min(0))
    np.testing.assert_array_equal(dataset.action_high, actions.max(0))


def test_a_dimension_that_hardly_moves_has_a_floor(make_episode: Any, make_dataset: Any) -> None:
    episode = make_episode(0, 10, state_dim=3)
    state = episode.observation[STATE]
    state[:, 0], state[:, 1], state[:, 2] = 5.0, 0.2 + 1e-6 * np.arange(11), np.arange(11)
    dataset = Dataset(make_dataset("d", [episode]))
    np.testing.assert_allclose(dataset.proprio_scale[:2], [5 * SCALE_FLOOR, SCALE_FLOOR], rtol=1e-5)
    assert dataset.proprio_scale[2] == pytest.approx(np.arange(11).std())
    assert np.isfinite((state - dataset.proprio_centre) / dataset.proprio_scale).all()


def test_actions_are_normalised_by_their_bounds() -> None:
    low, high = np.array([-2, 0, 3], np.float32), np.array([2, 1, 3], np.float32)
    raw = np.array([[-2, 0, 3], [2, 1, 3], [0, 0.25, 3], [9, -9, 3]], np.float32)
    normalised = normalise_action(raw, low, high)
    np.testing.assert_array_equal(normalised, [[-1, -1, 0], [1, 1, 0], [0, -0.5, 0], [1, -1, 0]])


# --- bad episodes ---


def with_state(episode: Episode, place: Any, value: float) -> Episode:
    state = episode.observation[STATE].copy()
    state[place] = value
    return dataclasses.replace(episode, observation=episode.observation | {STATE: state})


BAD: dict[str, tuple[Callable[[Episode], Episode], str]] = {
    "NaN": (lambda e: with_state(e, (2, 1), np.nan), "'observation.state', step 2, dimension 1: expected a finite"),
    "infinite": (lambda e: dataclasses.replace(e, reward=e.reward + np.inf), "'next.reward', step 0"),
    "out of bounds": (lambda e: dataclasses.replace(e, action=e.action + 2), r"'action', step 0.*\[-1, 1\]"),
    "ragged": (lambda e: dataclasses.replace(e, reward=e.reward[:-1]), "'next.reward': expected shape"),
    "too few": (lambda e: with_rows(e, 2), "observations for 4 actions"),
    "too many": (lambda e: with_rows(e, 6), "observations for 4 actions"),
    "ragged cameras": (lambda e: with_rows(e, 4, STATE), "expected shape"),
    "no steps": (lambda e: dataclasses.replace(e, action=e.action[:0], reward=e.reward[:0]), "at least one step"),
    "wrong dtype": (lambda e: with_image(e, e.observation[IMAGES + "front"].astype(np.float32)), "uint8 values"),
    "text": (lambda e: dataclasses.replace(e, action=e.action.astype(str)), "float32 values"),
    "other size": (lambda e: with_image(e, e.observation[IMAGES + "front"][:, :2]), "expected shape"),
    "no camera": (lambda e: dataclasses.replace(e, observation={STATE: e.observation[STATE]}), "missing.*front"),
    "other camera": (
        lambda e: dataclasses.replace(e, observation=e.observation | {IMAGES + "x": e.observation[IMAGES + "front"]}),
        "not in the dataset.*images.x",
    ),
    "new reward": (lambda e: dataclasses.replace(e, extra_rewards={"lift": e.reward}), "not in the dataset.*lift"),
    "new goal": (lambda e: dataclasses.replace(e, goal_images={"a": np.zeros((4, 5, 3), np.uint8)}), "goal.images.a"),
}


def with_rows(episode: Episode, rows: int, only: str = "") -> Episode:
    cut = {k: np.resize(v, (rows, *v.shape[1:])) if only in k else v for k, v in episode.observation.items()}
    return dataclasses.replace(episode, observation=cut)


def with_image(episode: Episode, image: np.ndarray) -> Episode:
    return dataclasses.replace(episode, observation=episode.observation | {IMAGES + "front": image})


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_episode_is_refused_and_changes_nothing(kind: str, make_episode: Any, tmp_path: Path) -> None:
    change, message = BAD[kind]
    good = make_episode(1, 4, cameras=["front"], source="run.h5")
    spec = DatasetSpec.of(good, action_low=[-1.0] * 2, action_high=[1.0] * 2)
    with DatasetWriter(tmp_path / "d", spec) as writer:
        writer.append(good)
        with pytest.raises(ValueError, match=message) as caught:
            writer.append(change(good))
        assert "episode 1 (from run.h5)" in str(caught.value)
        writer.append(good)
    dataset = Dataset(tmp_path / "d")
    assert len(dataset) == 2
    assert_same(dataset.episode(1), good)
    assert verify(tmp_path / "d") == []


def test_rounding_outside_the_bounds_is_no_error(make_episode: Any, make_dataset: Any) -> None:
    episode = make_episode(0, 2)
    episode.action[0, 0] = np.nextafter(np.float32(1), np.float32(2))
    assert Dataset(make_dataset("d", [episode])).episode(0).action[0, 0] > 1  # stored raw


@pytest.mark.parametrize(
    "change",
    [
        {"action_low": (0.0,), "action_high": (1.0,)},
        {"action_low": (2.0, 0.0), "action_high": (1.0, 1.0)},
        {"action_low": (-np.inf, 0.0), "action_high": (1.0, 1.0)},
        {"action_low": None, "action_high": (1.0, 1.0)},
        {"action_dim": 0},
        {"state_dim": 0},
        {"cameras": {"../../etc": (2, 2)}},
        {"extra_rewards": ("a/b",)},
    ],
)
def test_wrong_specs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="DatasetSpec: expected"):
        DatasetSpec(**({"state_dim": 3, "action_dim": 2} | change))


def test_other_episodes_need_another_folder(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(0, 2)])
    with pytest.raises(ValueError, match="state_dim 9 where it has 3"):
        DatasetWriter(path, dataclasses.replace(Dataset(path).spec, state_dim=9))
    (path.parent / "other").mkdir()
    (path.parent / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match=r"other: expected a dataset .*found a folder without one"):
        DatasetWriter(path.parent / "other", Dataset(path).spec)
    with pytest.raises(ValueError, match=r"thesis\.tex: expected a folder"):
        DatasetWriter(path.parent / "other" / "thesis.tex", Dataset(path).spec)
    assert (path.parent / "other" / "thesis.tex").read_text() == "precious"


def test_one_writer_at_a_time(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(0, 2)])
    with DatasetWriter(path, Dataset(path).spec), pytest.raises(ValueError, match="only writer"):
        DatasetWriter(path, Dataset(path).spec)
    DatasetWriter(path, Dataset(path).spec).close()


def test_the_next_writer_removes_temporary_files(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(0, 2)])
    before = sorted(path.iterdir())
    (path / ".committed.json.0123.writing").write_bytes(b"{")
    DatasetWriter(path, Dataset(path).spec).close()
    assert sorted(path.iterdir()) == before


def test_an_error_in_an_atomic_writer_leaves_the_dataset_unchanged(make_episode: Any, tmp_path: Path) -> None:
    spec = DatasetSpec.of(make_episode(0, 2))

    def fail() -> None:
        with DatasetWriter(tmp_path / "d", spec, atomic=True) as writer:
            writer.append(make_episode(1, 3, instruction="new"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not (tmp_path / "d").exists()
    with DatasetWriter(tmp_path / "d", spec, atomic=True) as writer:
        writer.append(make_episode(0, 2))
    with pytest.raises(KeyboardInterrupt):
        fail()
    dataset = Dataset(tmp_path / "d")
    assert len(dataset) == 1
    assert dataset.instructions == [""]
    assert verify(tmp_path / "d") == []
    with DatasetWriter(tmp_path / "d", spec, atomic=True) as writer:
        writer.append(make_episode(1, 3, instruction="new"))
        with pytest.raises(ValueError, match="at least one step"):  # caught inside: only that one is left out
            writer.append(dataclasses.replace(make_episode(2, 3), action=np.zeros((0, 2), np.float32)))
        writer.append(make_episode(3, 3))
        assert len(Dataset(tmp_path / "d")) == 1
    assert_same(Dataset(tmp_path / "d").episode(2), make_episode(3, 3))
    assert len(np.load(tmp_path / "d" / "action.npy")) == Dataset(tmp_path / "d").num_rows
    assert verify(tmp_path / "d") == []


def test_a_full_disk_at_the_end_leaves_the_dataset_unchanged(
    make_episode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DatasetSpec.of(make_episode(0, 2))

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write() -> None:
        with DatasetWriter(tmp_path / "d", spec, atomic=True) as writer:
            writer.append(make_episode(1, 3))
            monkeypatch.setattr(os, "replace", full)

    with pytest.raises(ValueError, match=r"finish writing.*No space"):
        write()
    assert not (tmp_path / "d").exists()
    monkeypatch.undo()
    with DatasetWriter(tmp_path / "d", spec) as writer:
        writer.append(make_episode(0, 2))
    with pytest.raises(ValueError, match=r"finish writing.*No space"):
        write()
    assert len(Dataset(tmp_path / "d")) == 1
    assert verify(tmp_path / "d") == []


def test_an_interrupt_after_the_commit_keeps_the_episode(
    make_episode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come between any two lines. committed.json must stay true."""
    writer = DatasetWriter(tmp_path / "d", DatasetSpec.of(make_episode(0, 2)))
    writer.append(make_episode(0, 2))
    replace = os.replace

    def interrupted(*args: Any) -> None:
        replace(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(make_episode(1, 4))
    monkeypatch.setattr(os, "replace", replace)
    writer.append(make_episode(2, 3))
    writer.close()
    assert [len(episode.action) for episode in Dataset(tmp_path / "d")] == [2, 4, 3]
    assert verify(tmp_path / "d") == []


# --- damage ---


def test_damage_is_named(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(i, 5, cameras=["front"], instruction="go") for i in range(3)])
    for file in sorted(path.iterdir()):
        if file.name == "spec.json":
            continue
        whole = file.read_bytes()
        for damaged in (whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], whole[: len(whole) // 2], b""):
            file.write_bytes(damaged)
            assert any(file.name in problem for problem in verify(path)), (file, len(damaged))
        file.write_bytes(whole)
    assert verify(path) == []


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("action.npy", b"\x89PNG" + bytes(4000), r"action\.npy: expected a \.npy array"),
        ("action.npy", npy_header(np.dtype("<f8"), (2,), 6) + bytes(4000), r"action\.npy: .* found float64"),
        ("action.npy", npy_header(np.dtype("<f4"), (2,), 6), r"action\.npy: .* cut short"),
        ("action.npy", None, r"action\.npy: expected a file"),
        ("spec.json", b"{}", r"spec\.json"),
        ("spec.json", b"\xff\xfe", r"spec\.json"),
        ("spec.json", b'{"format": "pac-episodes", "version": 9}', "version 9"),
        ("spec.json", None, r"spec\.json"),
        ("committed.json", b'{"crc32": 0, "committed": {"episodes": 10}}', "checksum"),
        ("committed.json", b"[]", r"committed\.json"),
    ],
)
def test_damaged_files_do_not_open(
    file: str, content: bytes | None, message: str, make_episode: Any, make_dataset: Any
) -> None:
    path = make_dataset("d", [make_episode(0, 5)])
    (path / file).unlink() if content is None else (path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Dataset(path)
    assert len(verify(path)) == 1


def test_any_damaged_byte_gives_a_clear_error(make_episode: Any, make_dataset: Any) -> None:
    goal = {"a": np.zeros((4, 5, 3), np.uint8)}
    path = make_dataset("d", [make_episode(i, 3, cameras=["a"], goal_images=goal, instruction="go") for i in range(2)])
    random = np.random.default_rng(0)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for _ in range(60):
            damaged = bytearray(whole[: random.integers(1, len(whole))] if random.random() < 0.2 else whole)
            for place in random.integers(0, min(len(damaged), 400), random.integers(1, 6)):
                damaged[place] = random.integers(256)
            file.write_bytes(damaged)
            try:
                list(Dataset(path))
            except ValueError as error:
                assert file.name in str(error)  # noqa: PT017
        file.write_bytes(whole)
    assert verify(path) == []


# --- killed writers and full disks ---

KILLED = """
import os, random, signal, sys
from pathlib import Path
import numpy as np
from pac.data.store import Dataset, DatasetSpec, verify, STATE, IMAGES
from pac.data.writer import DatasetWriter
from pac.types import Episode

path = Path(sys.argv[1])

def episode(i):
    random = np.random.default_rng(i)
    n = int(random.integers(1, 6))
    return Episode(
        observation={STATE: random.normal(size=(n + 1, 3)).astype("f4"),
                     IMAGES + "a": random.integers(0, 256, (n + 1, 8, 8, 3), dtype=np.uint8)},
        action=random.normal(size=(n, 2)).astype("f4"), reward=np.arange(n, dtype="f4"),
        terminated=True, truncated=False, instruction=f"task {i % 3}", source=f"episode {i}", seed=i)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def write_and_die_at(call, kind):
    '''Append episodes; be killed at the n-th call that touches the disk, before, in the middle of, or after it.'''
    left = [call]
    def deadly(function):
        def wrapped(*args):
            left[0] -= 1
            if left[0] == 0:
                if kind == "middle" and function is pwrite:
                    pwrite(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                if kind == "after":
                    function(*args)
                die()
            return function(*args)
        return wrapped
    pwrite = os.pwrite
    os.pwrite, os.replace, os.ftruncate = deadly(os.pwrite), deadly(os.replace), deadly(os.ftruncate)
    with DatasetWriter(path, DatasetSpec.of(episode(0))) as writer:
        while True:
            writer.append(episode(writer.num_episodes))

def check(at_least):
    dataset = Dataset(path)
    assert len(dataset) >= at_least, (len(dataset), at_least)
    assert verify(path) == [], verify(path)
    for i in range(max(0, len(dataset) - 5), len(dataset)):
        found, expected = dataset.episode(i), episode(i)
        assert (found.instruction, found.source, found.seed) == (expected.instruction, expected.source, i)
        for name in (STATE, IMAGES + "a"):
            np.testing.assert_array_equal(found.observation[name], expected.observation[name])
        np.testing.assert_array_equal(found.action, expected.action)
    return len(dataset)

count = 0
calls = list(range(1, 71))
for kind in ("before", "middle", "after"):
    for call in calls:
        child = os.fork()
        if child == 0:
            write_and_die_at(call, kind)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if (path / "spec.json").exists():
            count = check(count)
print(count)
"""


def test_a_killed_writer_leaves_whole_episodes_only(tmp_path: Path) -> None:
    """SIGKILL before, within and after each of the first 70 calls that touch the disk, always on the same dataset."""
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "d")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 100  # it went on growing between the kills


@pytest.mark.parametrize("function", ["pwrite", "replace"])
def test_a_full_disk_removes_the_unfinished_episode(
    function: str, make_episode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DatasetSpec.of(make_episode(0, 2))
    real = getattr(os, function)
    with DatasetWriter(tmp_path / "d", spec) as writer:
        writer.append(make_episode(0, 2))
        for call in range(1, 8 if function == "pwrite" else 2):
            left = call

            def full(*args: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(*args)

            monkeypatch.setattr(os, function, full)
            with pytest.raises(ValueError, match="No space left"):
                writer.append(make_episode(1, 30, instruction="new"))
            monkeypatch.setattr(os, function, real)
            assert len(Dataset(tmp_path / "d")) == 1
            assert verify(tmp_path / "d") == []
        writer.append(make_episode(1, 30, instruction="new"))
    assert_same(Dataset(tmp_path / "d").episode(1), make_episode(1, 30, instruction="new"))


def test_a_really_full_disk(make_episode: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root to mount a small disk")
    try:
        writer = DatasetWriter(disk / "d", DatasetSpec.of(make_episode(0, 2, cameras=["a"])))

        def write_without_end() -> None:
            for i in itertools.count():
                writer.append(make_episode(i % 256, 20, cameras=["a"]))

        with pytest.raises(ValueError, match=r"episode \d+: expected to write .*No space left.*Free some space"):
            write_without_end()
        writer.close()
        dataset = Dataset(disk / "d")
        assert len(dataset) > 10
        assert_same(dataset.episode(-1), make_episode(len(dataset) - 1, 20, cameras=["a"]))
        assert verify(disk / "d") == []
        del dataset
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


# --- size ---


def make_sparse(path: Path, episodes: int, length: int) -> None:
    """Write a dataset of any size as a sparse file with a real index."""
    spec = DatasetSpec(state_dim=24, action_dim=6, action_low=(-1.0,) * 6, action_high=(1.0,) * 6)
    rows = episodes * (length + 1)
    path.mkdir()
    (path / "spec.json").write_text(json.dumps(spec.to_json()))
    for name, (dtype, shape) in spec.step_features.items():
        with (path / f"{name}.npy").open("wb") as stream:
            stream.write(npy_header(dtype, shape, rows))
            stream.truncate(stream.tell() + rows * dtype.itemsize * int(np.prod(shape)))
    index = np.zeros(episodes, INDEX)
    index["row"], index["length"], index["last_known"] = np.arange(episodes) * (length + 1), length, True
    index["goal"] = -1
    (path / "episodes.npy").write_bytes(npy_header(INDEX, (), episodes) + index.tobytes())
    statistics = {
        name: {"count": rows} | {key: [0.0] * dims for key in ("mean", "variance", "min", "max")}
        for name, dims in ((STATE, 24), (ACTION, 6))
    }
    text = {"instructions.jsonl": b'""\n', "sources.jsonl": b'""\n'}
    for name, line in text.items():
        (path / name).write_bytes(line)
    files = {name: {"offset": 0, "bytes": len(line), "crc32": zlib.crc32(line)} for name, line in text.items()}
    committed = {"episodes": episodes, "rows": rows, "goals": 0, "files": files, "statistics": statistics}
    (path / "committed.json").write_bytes(seal(committed))


def test_a_hundred_million_steps_open_at_once(tmp_path: Path) -> None:
    make_sparse(tmp_path / "d", episodes=100_000, length=1000)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    dataset = Dataset(tmp_path / "d")
    assert dataset.num_steps == 100_000_000
    assert len(dataset.episode(99_999).action) == 1000
    assert time.perf_counter() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB
