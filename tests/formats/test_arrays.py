"""Arrays become the episodes that they hold, in memory and from a file. What does not fit is refused in one error."""

import dataclasses
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import foreign
import numpy as np
import pytest
import torch
from foreign import IMAGES, STATE, assert_same, change, make_episode, tricky, without_last

from pac.data import missing_ends
from pac.data.arrays import write_arrays, write_episodes
from pac.data.store import Dataset, verify
from pac.formats import detect_format, open_source
from pac.formats.options import ImportOptions
from pac.formats.transfer import import_dataset
from pac.types import Episode


def example(num_episodes: int = 4, steps: int = 5, **given: Any) -> dict[str, Any]:
    """Return arrays of states. Even episodes end in a termination, the others at a time limit."""
    rng = np.random.default_rng(0)
    ends = ["terminal", "limit"]
    episodes = [make_episode(rng, steps=steps, end=ends[i % 2]) for i in range(num_episodes)]
    arrays = foreign.flat_arrays(episodes, following=False)
    return arrays | {"observations": arrays["observations"][STATE]} | given


@pytest.mark.parametrize("cameras", [(), ("wrist", "front")])
@pytest.mark.parametrize("following", [True, False])
def test_arrays_and_a_file_of_them_give_the_episodes(tmp_path: Path, cameras: tuple[str, ...], following: bool) -> None:
    episodes = tricky(cameras)
    expected = change(episodes if following else without_last(episodes), instruction="go", success=None)
    arrays = foreign.flat_arrays(episodes, following=following)
    write_arrays(tmp_path / "store", **arrays, instruction="go")
    assert_same(list(Dataset(tmp_path / "store")), expected)
    assert verify(tmp_path / "store") == []
    path = foreign.save_arrays(tmp_path / "file.npz", arrays, instruction="go")
    assert detect_format(path) == "arrays"
    found = list(open_source(path).episodes)
    names = list(found[0].observation)
    assert names[0] == STATE
    assert set(names) == set(expected[0].observation)
    ordered = [dataclasses.replace(e, observation={name: e.observation[name] for name in names}) for e in expected]
    assert_same(found, ordered, source=str(path))


def test_an_array_file_is_no_longer_read_as_ogbench(tmp_path: Path) -> None:
    """200 episodes that end at time limits were one episode, and 100 of both kinds were 77."""
    rng = np.random.default_rng(0)
    for limits, total in ((100, 100), (23, 100)):
        kinds = ["limit"] * limits + ["terminal"] * (total - limits)
        arrays = foreign.flat_arrays([make_episode(rng, steps=3, end=end) for end in kinds], following=False)
        arrays["observations"] = arrays["observations"][STATE]
        path = foreign.save_arrays(tmp_path / f"{total}.npz", arrays)
        (summary,) = import_dataset([path], tmp_path / str(total))
        counts = (summary.format, summary.episodes, summary.steps, summary.terminated)
        assert counts == ("arrays", total, 3 * total, total - limits)
        with pytest.raises(ValueError, match=r"keys of OGBench, found key 'timeouts'.*--format arrays"):
            open_source(path, "ogbench")


@pytest.mark.parametrize("rewards", [True, False])
def test_a_file_that_fits_two_formats_is_refused(tmp_path: Path, rewards: bool) -> None:
    arrays = example(4, 5)
    arrays["terminals"] |= arrays.pop("timeouts")
    if not rewards:
        del arrays["rewards"]
    path = foreign.save_arrays(tmp_path / "a.npz", arrays)
    expected = r"ogbench would read 4 episodes with 16 steps; arrays would read 4 episodes with 20 steps"
    with pytest.raises(ValueError, match=rf"{expected}.*--format ogbench or --format arrays"):
        open_source(path)
    with pytest.raises(ValueError, match="A key 'timeouts' in the file would decide for arrays"):
        open_source(path)
    assert all(episode.terminated for episode in open_source(path, "arrays").episodes)
    assert not any(episode.terminated for episode in open_source(path, "ogbench").episodes)
    more = foreign.save_arrays(tmp_path / "b.npz", arrays, qpos=np.zeros((20, 2)))
    assert detect_format(more) == "ogbench"
    assert "Not read: qpos" in " ".join(open_source(more).notes)


def test_fields_that_would_be_lost_are_refused_or_named(tmp_path: Path) -> None:
    arrays = example()
    ends = arrays.pop("terminals")
    with pytest.raises(ValueError, match=r"found key 'dones'\. Rename it: terminals, or timeouts"):
        open_source(foreign.save_arrays(tmp_path / "a.npz", arrays, dones=ends), "arrays")
    with pytest.raises(ValueError, match=r"next observations of an observation, found next_observations/front"):
        open_source(
            foreign.save_arrays(tmp_path / "d.npz", example(), **{"next_observations/front": np.zeros((STEPS, 3))})
        )
    notes = open_source(foreign.save_arrays(tmp_path / "b.npz", example(), infos=np.zeros(3))).notes
    assert notes == ["Not read: infos."]
    path = foreign.write_d4rl(tmp_path / "c.hdf5", tricky())
    assert any("Not read: infos" in note for note in open_source(path).notes)


def test_other_keys_of_a_file_are_named(tmp_path: Path) -> None:
    arrays = example()
    renamed = {"obs": arrays["observations"], "action": arrays["actions"], "reward": arrays["rewards"]}
    path = foreign.save_arrays(tmp_path / "a.npz", renamed, timeouts=arrays["timeouts"] | arrays["terminals"])
    words = r"keys 'actions' and 'observations' .*found keys timeouts, obs, action, reward\. Name them: --format arrays"
    with pytest.raises(ValueError, match=rf"{words} --keys observation.state=obs action=action reward=reward$"):
        open_source(path)
    keys = {STATE: ("obs",), "action": ("action",), "reward": ("reward",)}
    assert open_source(path, "arrays", ImportOptions(keys=keys)).num_episodes == 4


def test_keys_and_facts_of_an_array_file(tmp_path: Path) -> None:
    arrays = example()
    front = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 6), dtype=np.uint8)  # channels first
    facts = {"action_low": np.full(2, -2), "action_high": np.full(2, 2), "control_rate": np.array(50)}
    facts |= {"action_names": np.array(["dx", "dy"]), "instructions": np.array(list("abcd"))}
    facts |= {"success": np.array([1, 0, 1, 0]), "images.front": front}
    source = open_source(foreign.save_arrays(tmp_path / "a.npz", arrays, **facts))
    assert source.keys == {STATE: ("observations",), IMAGES + "front": ("images.front",)}
    assert (source.fps, source.action_names) == (50, ("dx", "dy"))
    np.testing.assert_array_equal(source.action_high, [2, 2])
    episodes = list(source.episodes)
    assert [(e.instruction, e.success) for e in episodes] == [("a", True), ("b", False), ("c", True), ("d", False)]
    found = np.concatenate([e.observation[IMAGES + "front"] for e in episodes])
    np.testing.assert_array_equal(found, front.transpose(0, 2, 3, 1))
    (alone,) = open_source(tmp_path / "a.npz", options=ImportOptions(cameras=(), episodes="2")).episodes
    assert list(alone.observation) == [STATE]
    assert_same([alone], [dataclasses.replace(episodes[2], observation={STATE: episodes[2].observation[STATE]})])


def test_state_of_several_arrays_has_names(tmp_path: Path) -> None:
    arrays = example(
        observations={"gripper": np.zeros(20), "state": np.zeros((20, 2)), "wrist": np.zeros((20, 4, 4, 1), np.uint8)}
    )
    spec = Dataset(write_arrays(tmp_path / "a", **arrays, action_low=-1, action_high=[1, 1])).spec
    assert spec.state_names == ("state_0", "state_1", "gripper")
    assert spec.cameras == {"wrist": (4, 4)}
    assert (spec.action_low, spec.action_high) == ((-1, -1), (1, 1))
    assert open_source(foreign.save_arrays(tmp_path / "a.npz", arrays)).state_names == spec.state_names


def test_both_flags_and_absent_rewards_are_noted(tmp_path: Path) -> None:
    arrays = example(rewards=None)
    arrays["timeouts"] |= arrays["terminals"]
    notes: list[str] = []
    data = Dataset(write_arrays(tmp_path / "a", **arrays, success=[True, False, False, False], notes=notes))
    assert notes == [
        "No rewards: they are 0. For demonstrations choose the reward sparse-success or time-to-go.",
        "2 episodes end with terminals and timeouts: they count as terminal.",
    ]
    assert data.index["terminated"].tolist() == [True, False, True, False]
    assert data.index["success"].tolist() == [1, 0, 0, 0]


def moving(num_episodes: int, steps: int, dims: int = 3) -> np.ndarray:
    """Return smooth motions that begin at random states, one after another."""
    rng, time = np.random.default_rng(0), np.arange(steps)[:, None]
    parts = []
    for _ in range(num_episodes):
        start, phase = rng.normal(size=(2, dims))
        parts.append(start + 0.3 * np.sin(0.1 * time + phase))
    return np.concatenate(parts)


@pytest.mark.parametrize("steps", [25, 400])
def test_episodes_that_are_glued_together_are_noted(tmp_path: Path, steps: int) -> None:
    """30 episodes without their timeouts became 16, and nobody was told."""
    states = moving(30, steps)
    ends = np.arange(1, len(states) + 1) % steps == 0
    terminals = ends & (np.arange(len(states)) // steps % 2 == 1)
    arrays = {"observations": states, "actions": np.zeros((len(states), 1), np.float32), "terminals": terminals}
    arrays["rewards"] = np.zeros(len(states))
    notes: list[str] = []
    data = Dataset(write_arrays(tmp_path / "a", **arrays, notes=notes))
    assert len(data) == 15
    jump = f"15 steps jump far more than others (first at row {steps - 1}): is an end of an episode missing? "
    assert notes == ["No timeouts: 15 episodes end at terminals only.", f"{jump}Give timeouts."]
    assert open_source(foreign.save_arrays(tmp_path / "a.npz", arrays), "arrays").notes == notes
    notes.clear()
    assert len(Dataset(write_arrays(tmp_path / "b", **arrays, timeouts=ends & ~terminals, notes=notes))) == 30
    assert notes == []


def test_a_sample_of_large_data_finds_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_ends, "MOST_VALUES", 64 * 100 * 3)
    states = moving(400, 50)
    (note,) = missing_ends.note_jumps([states[:, :2], states[:, 2]], np.array([len(states)]))
    assert note.startswith("In a sample of 6,400 rows, 1")
    first = int(note.partition("at row ")[2].partition(")")[0])
    assert first % 50 == 49
    assert missing_ends.note_jumps([states], np.arange(50, len(states) + 1, 50)) == []


@pytest.mark.parametrize("kind", ["wall", "push", "noise", "still", "short", "nan"])
def test_motion_is_no_missing_end(kind: str) -> None:
    """A wall stops one dimension at once, a push takes several steps, and a resting object hardly moves."""
    states = moving(1, 500, 4)
    if kind == "wall":  # a velocity that drops to zero, as in MountainCar
        states[:, 0] = np.arange(500) % 100 * 0.01
    elif kind == "push":
        states += 5 / (1 + np.exp(-(np.arange(500)[:, None] - 250)))
    elif kind == "noise":
        states = np.random.default_rng(0).normal(size=states.shape)
    elif kind == "still":
        states = np.zeros((500, 2))
    elif kind == "short":
        states = states[:2]
    else:
        states[100] = np.nan
    assert missing_ends.note_jumps([states], np.array([len(states)])) == []


def changed(name: str, at: Any, value: Any) -> dict[str, Any]:
    arrays = example()
    arrays[name] = arrays[name].copy()
    arrays[name][at] = value
    return arrays


def shifted() -> dict[str, Any]:
    arrays = example()
    return arrays | {"next_observations": np.roll(arrays["observations"], 3, axis=0)}


STEPS = 20
IMAGE = np.zeros((STEPS, 8, 8, 3))
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "fewer rewards": (example(rewards=np.zeros(19)), "key 'rewards'.*20 rows.*found 19.*Row t is the observation"),
    "one observation more": (example(observations=np.zeros((21, 3))), "key 'observations'.*20 rows.*found 21"),
    "fewer terminals": (example(terminals=np.zeros(4)), "key 'terminals'.*20 rows.*found 4"),
    "no ends": (example(terminals=None, timeouts=None), "found 0 ends, and 20 rows.*Missing ends: set timeouts"),
    "rows after the last end": (changed("timeouts", 19, False), "found 3 ends, and 5 rows.*Missing ends"),
    "NaN in the state": (
        changed("observations", (7, 1), np.nan) | {"state_names": ("x", "y", "z")},
        r"key 'observations', row 7 \(episode 1, step 2\), dimension 1 \(y\): expected a finite number",
    ),
    "infinite action": (changed("actions", (3, 0), np.inf), "key 'actions', row 3.*dimension 0.*found inf"),
    "NaN reward": (changed("rewards", 11, np.nan), "key 'rewards', row 11.*found nan"),
    "beyond float32": (example(observations=np.full((STEPS, 1), 1e300)), "key 'observations', row 0.*found 1e\\+300"),
    "discrete actions": (example(actions=np.arange(STEPS)), "continuous actions.*int64.*Discrete actions are not"),
    "discrete actions in a column": (example(actions=np.zeros((STEPS, 1), np.int32)), "continuous.*int32"),
    "objects": (example(observations=np.array([{}] * STEPS, object)), "expected numbers, found dtype object"),
    "text": (example(actions=np.array(["left"] * STEPS)), "key 'actions': expected numbers, found dtype <U4"),
    "complex numbers": (example(actions=np.zeros((STEPS, 2), complex)), "expected numbers, found dtype complex128"),
    "a ragged list": (example(observations=[[0.0], [0.0, 1.0]]), "key 'observations': expected an array of numbers"),
    "a single number": (example(actions=np.float32(3)), "key 'actions': expected one row per step, found a single"),
    "masked values": (
        example(observations=np.ma.masked_less(np.arange(STEPS, dtype=float), 3)),
        "expected no masked values",
    ),
    "float images": (example(observations={"front": IMAGE}), r"'front'.*uint8 images.*float64.*astype\(np\.uint8\)"),
    "images without channels": (
        example(observations={"front": np.zeros((STEPS, 8, 8), np.uint8)}),
        "'front'.*uint8 images.*Add the axis of channels",
    ),
    "stacked frames": (example(observations=np.zeros((STEPS, 8, 8, 12), np.uint8)), "uint8 images.*one frame per row"),
    "episodes as an axis": (example(observations=np.zeros((STEPS, 5, 3))), "numbers of shape.*Join the episodes"),
    "numbers as a camera": (example(observations={"images.front": np.zeros((STEPS, 3))}), "uint8 images"),
    "one camera twice": (
        example(observations={"front": IMAGE.astype(np.uint8), "images.front": IMAGE.astype(np.uint8)}),
        "one array per camera.*'front' and 'images.front'",
    ),
    "no arrays": (example(observations={}), "at least one array, found none"),
    "no rows": (example(actions=np.zeros((0, 2)), observations=np.zeros((0, 2))), "at least one row"),
    "counts as flags": (
        example(terminals=np.arange(STEPS)),
        "key 'terminals': expected flags 0 or 1, found 2 in row 2",
    ),
    "rewards per dimension": (example(rewards=np.zeros((STEPS, 2))), "key 'rewards': expected one number per row"),
    "other next observations": (
        example(next_observations={"front": IMAGE}),
        "'observations' of float32.*one step later",
    ),
    "shuffled transitions": (shifted(), r"row 1 \(episode 0\): expected the observation that next_observations holds"),
    "texts": (example(instruction=["a", "b"]), "key 'instruction': expected 4 texts, found 2 values such as 'a'"),
    "success": (example(success=[True]), "key 'success': expected 4 flags, one per episode, or 20.*found 1"),
    "names": (example(state_names=("x",)), r"state_names: expected 3 names, found \('x',\)"),
    "one bound": (example(action_low=-1), "action_low and action_high.*found -1 and None"),
    "bounds of another size": (example(action_low=[-1] * 3, action_high=[1] * 3), "2 finite numbers each"),
    "actions outside": (
        example(action_low=-0.1, action_high=0.1),
        r"/out, episode 0, key 'action', step 0, dimension 0: expected a value in",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_are_refused_in_one_error(tmp_path: Path, name: str) -> None:
    arrays, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as caught:
        write_arrays(tmp_path / "out", **arrays)
    assert all(part in str(caught.value) for part in (": expected ", ", found "))
    assert str(caught.value).rstrip().endswith(".")
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_a_folder_with_files_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="a new folder, found other files"):
        write_arrays(tmp_path, **example())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_arrays_larger_than_memory(tmp_path: Path) -> None:
    """Images of 48 MB are memory-mapped. The copy needs the memory of a few episodes of 0.5 MB."""
    shape = (3200, 50, 100, 3)
    images = np.memmap(tmp_path / "images", np.uint8, "w+", shape=shape)
    images[::100, 0, 0, 0] = np.arange(32)
    ends = np.arange(shape[0]) % 32 == 31
    seen: list[tuple[int, int | None]] = []
    tracemalloc.start()
    write_arrays(
        tmp_path / "out",
        observations={"front": images},
        actions=np.zeros((shape[0], 2), np.float32),
        timeouts=ends,
        progress=lambda *counts: seen.append(counts),
        notes=[],
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20, f"{peak / 2**20:.1f} MB"
    assert seen[-1] == (100, 100)
    found = Dataset(tmp_path / "out")
    assert found.episode(3).observation[IMAGES + "front"][4, 0, 0, 0] == 1  # row 100
    assert len(found) == 100


def test_lists_and_tensors_are_arrays(tmp_path: Path) -> None:
    arrays = example()
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    lists = {name: values.tolist() for name, values in arrays.items()}
    found = [list(Dataset(write_arrays(tmp_path / str(i), **x))) for i, x in enumerate((arrays, tensors, lists))]
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


# --- Episodes of d3rlpy and Minari


def d3rlpy_stand_in(episodes: list[Episode]) -> Any:
    """Return a dataset as `d3rlpy.dataset.MDPDataset` has it: T observations, rewards (T, 1), one flag."""
    rows = [
        SimpleNamespace(
            observations=e.observation[STATE][: len(e.action)],
            actions=e.action,
            rewards=e.reward[:, None],
            terminated=e.terminated,
        )
        for e in episodes
    ]
    return SimpleNamespace(episodes=rows)


def test_d3rlpy_dataset(tmp_path: Path) -> None:
    episodes = [e for e in tricky() if not (e.terminated and e.truncated)]
    out = write_episodes(tmp_path / "a", d3rlpy_stand_in(episodes), instruction="go", state_names=("x", "y", "z"))
    assert_same(list(Dataset(out)), change(without_last(episodes), instruction="go", success=None))
    assert Dataset(out).spec.state_names == ("x", "y", "z")
    discrete = d3rlpy_stand_in(episodes)
    discrete.episodes[1].actions = np.zeros((4, 1), np.int64)
    with pytest.raises(ValueError, match=r"episode 1, actions: expected continuous actions.*int64"):
        write_episodes(tmp_path / "b", discrete)
    assert not (tmp_path / "b").exists()


REAL = """
import sys
import numpy as np
from d3rlpy.dataset import MDPDataset
from pac.data import missing_ends
from pac.data.arrays import write_arrays, write_episodes
rng = np.random.default_rng(0)
ends = np.arange(60) % 10 == 9
arrays = {"observations": rng.normal(size=(60, 3)).astype(np.float32), "rewards": rng.normal(size=60)}
arrays |= {"actions": rng.normal(size=(60, 2)).astype(np.float32)}
flags = {"terminals": ends & (np.arange(60) < 30), "timeouts": ends & (np.arange(60) >= 30)}
write_arrays(sys.argv[1], **arrays, **flags)
write_episodes(sys.argv[2], MDPDataset(**arrays, **{name: values.astype(float) for name, values in flags.items()}))
"""


@pytest.mark.slow  # 24 s, most of it d3rlpy's import
def test_real_d3rlpy(tmp_path: Path) -> None:
    """PAC_TEST_D3RLPY names a folder of site-packages that has d3rlpy, if this environment has not."""
    place = os.environ.get("PAC_TEST_D3RLPY", "")
    path = os.pathsep.join(filter(None, [*sys.path, place]))
    run = [sys.executable, "-W", "ignore", "-c"]
    if subprocess.run([*run, "import d3rlpy"], env=os.environ | {"PYTHONPATH": path}, capture_output=True).returncode:
        pytest.skip("no d3rlpy here: name a folder that has it with PAC_TEST_D3RLPY")
    one, two = tmp_path / "arrays", tmp_path / "d3rlpy"
    subprocess.run([*run, REAL, one, two], env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True)
    assert_same(list(Dataset(two)), list(Dataset(one)))
    assert Dataset(two).index["terminated"].sum() == 3


@pytest.mark.parametrize("cameras", [(), ("wrist",)])
def test_minari_dataset_is_read_as_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cameras: tuple[str, ...]
) -> None:
    import minari

    episodes = change(tricky(cameras), success=True)
    foreign.write_minari(tmp_path, episodes, "hdf5")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    opened = minari.load_dataset("synthetic-v0")
    data = Dataset(write_episodes(tmp_path / "a", opened))
    assert_same(list(data), change(episodes, instruction="", success=True))
    np.testing.assert_array_equal(data.action_low, [-1, -1])
    assert not data.bounds_are_measured
    some = list(opened.iterate_episodes())[2:4]
    write_episodes(tmp_path / "b", some, instruction=["x", "y"])
    assert_same(list(Dataset(tmp_path / "b")), [
        dataclasses.replace(e, instruction=text) for e, text in zip(episodes[2:4], "xy", strict=True)
    ])  # fmt: skip


def test_wrong_episodes_are_refused_in_one_error(tmp_path: Path) -> None:
    def one(**fields: Any) -> list[Any]:
        good = {"observations": np.zeros((4, 2)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3)}
        good |= {"terminations": np.zeros(3), "truncations": np.array([0, 0, 1])}
        return [SimpleNamespace(**{k: v for k, v in (good | fields).items() if v is not None})]

    wrong: list[tuple[Any, str]] = [
        ([], "at least one episode, found none"),
        (7, "a d3rlpy dataset, a Minari dataset or a list of episodes, found int"),
        ({"observations": np.zeros(3)}, "Flat arrays go to write_arrays"),
        ([np.zeros(3)], "an episode of d3rlpy or Minari"),
        (one(observations=np.zeros((2, 2))), "4 observations for 3 actions, or 3, found 2"),
        (one(truncations=None), "terminated, or terminations and truncations"),
        (one(terminations=np.array([1, 0, 0])), "an end at the last step only, found ends at steps"),
        (one(rewards=np.zeros(2)), "rewards: expected 3 rows, as many as actions, found 2"),
        (one(observations=np.full((4, 2), np.nan)), "episode 0, key 'observations', step 0, dimension 0"),
    ]
    for number, (episodes, message) in enumerate(wrong):
        with pytest.raises(ValueError, match=message):
            write_episodes(tmp_path / str(number), episodes)
        assert not (tmp_path / str(number)).exists()
