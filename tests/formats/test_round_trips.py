"""Episodes written in a foreign format are read back equal, except for what the format cannot hold."""

import dataclasses
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import foreign
import numpy as np
import pytest
from foreign import IMAGES, STATE, assert_same, change, episode_sets, tricky, without_last
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pac.formats import detect_format, open_source
from pac.formats.options import ImportOptions
from pac.types import Episode

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def back(path: Path, format: str, **options: object) -> list[Episode]:
    assert detect_format(path) == format
    return list(open_source(path, options=ImportOptions(**options)).episodes)


def in_folder(check: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@given(episodes=episode_sets(), success=st.sampled_from([None, True, False]), seed=st.none() | st.integers(0, 99))
@settings(few, max_examples=8)
def test_minari(data_format: str, episodes: list[Episode], success: bool | None, seed: int | None) -> None:
    episodes = change(episodes, success=success, seed=seed)

    def check(folder: Path) -> None:
        path = foreign.write_minari(folder, episodes, data_format)
        # Minari's dictionary spaces sort their keys, and a lone state needs no dictionary.
        assert_same(back(path, "minari"), episodes, source=str(path))

    in_folder(check)


def test_minari_bounds_and_jpeg(tmp_path: Path) -> None:
    episodes = tricky(("wrist",), size=(32, 40))
    for episode in episodes:  # smooth images, which JPEG keeps well
        episode.observation[IMAGES + "wrist"][:] = np.linspace(0, 255, 40, dtype=np.uint8)[:, None]
    for data_format in ("hdf5", "arrow"):
        path = foreign.write_minari(tmp_path / data_format, episodes, data_format, jpeg_encoding=True)
        source = open_source(path)
        np.testing.assert_array_equal(source.action_low, [-1, -1])
        np.testing.assert_array_equal(source.action_high, [1, 1])
        assert any("JPEG" in note for note in source.notes)
        for found, expected in zip(source.episodes, episodes, strict=True):
            np.testing.assert_array_equal(found.observation[STATE], expected.observation[STATE])
            difference = found.observation[IMAGES + "wrist"].astype(int) - expected.observation[IMAGES + "wrist"]
            assert np.abs(difference).max() < 20


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_minari_nested_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_format: str) -> None:
    """Dictionaries and tuples become keys. Discrete actions become numbers with bounds. A text gives the task."""
    import gymnasium as gym
    import minari
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    space, box = gym.spaces, gym.spaces.Box(-np.inf, np.inf, (2, 2), np.float32)
    observation_space = space.Dict({"arm": space.Dict({"pose": box}), "pair": space.Tuple((box, space.Discrete(5)))})
    observation_space = space.Dict({**observation_space.spaces, "mission": space.Text(20)})
    action_space = space.Dict({"move": space.Box(-2, 2, (2,), np.float32), "grip": space.Discrete(3, start=1)})
    pose, first = (rng.normal(size=(4, 2, 2)).astype(np.float32) for _ in range(2))
    second, grip = rng.integers(0, 5, 4), rng.integers(1, 4, 3)
    move = rng.uniform(-2, 2, (3, 2)).astype(np.float32)
    buffer = EpisodeBuffer(
        observations={"arm": {"pose": pose}, "pair": (first, second), "mission": ["go home"] * 4},
        actions={"move": move, "grip": grip},
        rewards=[0.5, 1.5, -1.0],
        terminations=[False] * 3,
        truncations=[False] * 3,
    )
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "nested-v0",
            [buffer],
            observation_space=observation_space,
            action_space=action_space,
            data_format=data_format,
        )
    source = open_source(tmp_path / "nested-v0", options=ImportOptions(keys={"instruction": ("mission",)}))
    (found,) = source.episodes
    assert source.keys == {STATE: ("arm/pose", "pair/_index_0", "pair/_index_1")}
    parts = [pose.reshape(4, 4), first.reshape(4, 4), second[:, None].astype(np.float32)]
    np.testing.assert_array_equal(found.observation[STATE], np.concatenate(parts, axis=1))
    np.testing.assert_array_equal(found.action, np.column_stack([grip, move]))
    np.testing.assert_array_equal(source.action_low, [1, -2, -2])
    np.testing.assert_array_equal(source.action_high, [3, 2, 2])
    assert found.instruction == "go home"
    assert (found.terminated, found.truncated) == (False, True)
    assert any("neither" in note for note in source.notes)


@given(episodes=episode_sets(cameras=False), timeouts=st.booleans())
@few
def test_d4rl_with_next_observations(episodes: list[Episode], timeouts: bool) -> None:
    expected = change(episodes, instruction="x", success=None)
    if not timeouts:  # without the flags, an end that is both counts as terminal only
        expected = [dataclasses.replace(e, truncated=not e.terminated) for e in expected]

    def check(folder: Path) -> None:
        path = foreign.write_d4rl(folder / "set.hdf5", episodes, timeouts=timeouts)
        assert_same(back(path, "d4rl", instruction="x"), expected, source=str(path))

    in_folder(check)


@given(episodes=episode_sets(cameras=False))
@few
def test_d4rl_without_next_observations(episodes: list[Episode]) -> None:
    def check(folder: Path) -> None:
        path = foreign.write_d4rl(folder / "set.hdf5", episodes, next_observations=False)
        assert_same(back(path, "d4rl"), change(without_last(episodes), instruction="", success=None))

    in_folder(check)


@given(episodes=episode_sets(cameras=False, ends=("limit",), equal=True))
@few
def test_d4rl_with_max_episode_steps(episodes: list[Episode]) -> None:
    def check(folder: Path) -> None:
        path = foreign.write_d4rl(folder / "set.hdf5", episodes, timeouts=False, next_observations=False)
        limit = len(episodes[0].action)
        found = back(path, "d4rl", max_episode_steps=limit)
        assert_same(found, change(without_last(episodes), instruction="", success=None))

    in_folder(check)


@given(episodes=episode_sets(ends=("terminal", "limit"), sparse=True), next_obs=st.booleans())
@few
def test_robomimic_ends_are_terminal_at_success_only(episodes: list[Episode], next_obs: bool) -> None:
    expected = change(episodes if next_obs else without_last(episodes), instruction=episodes[0].instruction)

    def check(folder: Path) -> None:
        path = foreign.write_robomimic(folder / "demo.hdf5", episodes, next_obs=next_obs)
        assert_same(back(path, "robomimic"), expected, source=str(path))

    in_folder(check)


def test_robomimic_filter_control_rate_and_keys(tmp_path: Path) -> None:
    episodes = [e for e in tricky(("left", "right"), sparse=True, success=True) if not e.truncated]
    path = foreign.write_robomimic(tmp_path / "demo.hdf5", episodes)
    keys = {STATE: (STATE,), IMAGES + "front": ("right",)}
    source = open_source(path, options=ImportOptions(split="even", keys=keys, instruction="go"))
    assert source.fps == 20
    np.testing.assert_array_equal(source.action_high, [1, 1])  # robomimic asks for actions in [-1, 1]
    assert any("time limit" in note for note in source.notes)
    expected = [
        dataclasses.replace(
            e,
            instruction="go",
            observation={STATE: e.observation[STATE], IMAGES + "front": e.observation[IMAGES + "right"]},
        )
        for e in episodes[::2]
    ]
    assert_same(list(source.episodes), expected)


def test_libero_instruction(tmp_path: Path) -> None:
    episodes = [e for e in tricky(("agentview_rgb",), sparse=True, success=True) if not e.truncated]
    path = foreign.write_robomimic(tmp_path / "demo.hdf5", episodes, next_obs=False, libero="open the drawer")
    assert_same(back(path, "robomimic"), change(without_last(episodes), instruction="open the drawer"))


@given(episodes=episode_sets(cameras=False, ends=("terminal", "limit")), masks=st.booleans(), rewards=st.booleans())
@few
def test_ogbench(episodes: list[Episode], masks: bool, rewards: bool) -> None:
    expected = change(episodes, instruction="", success=None)
    if not masks:  # ends of episodes are then not terminals
        expected = change(expected, terminated=False, truncated=True)
    if not rewards:
        expected = [dataclasses.replace(e, reward=np.zeros_like(e.reward)) for e in expected]

    def check(folder: Path) -> None:
        path = foreign.write_ogbench(folder / "maze.npz", episodes, masks=masks, rewards=rewards)
        assert_same(back(path, "ogbench"), expected)

    in_folder(check)


def test_ogbench_images_and_keys(tmp_path: Path) -> None:
    episodes = tricky(("observations",))
    images = [dataclasses.replace(e, observation={IMAGES + "observations": e.observation[IMAGES + "observations"]})
                for e in episodes]  # fmt: skip
    path = foreign.write_ogbench(tmp_path / "visual.npz", images)
    expected = [dataclasses.replace(e, reward=np.zeros_like(e.reward)) for e in images]
    assert_same(back(path, "ogbench"), change(expected, instruction="", terminated=False, truncated=True))
    path = foreign.write_ogbench(tmp_path / "state.npz", episodes)
    (first, *_) = back(path, "ogbench", keys={STATE: ("observations", "qpos")})
    state = episodes[0].observation[STATE]
    np.testing.assert_array_equal(first.observation[STATE], np.concatenate([state, state], axis=1))


@pytest.mark.parametrize("last_step", ["observation", "transition"])
@given(episodes=episode_sets(ends=("terminal", "limit")), shards=st.sampled_from([1, 2]))
@settings(few, max_examples=8)
def test_rlds(last_step: str, episodes: list[Episode], shards: int) -> None:
    expected = episodes if last_step == "observation" else without_last(episodes)

    # The reader lists cameras by name, after the state.
    def check(folder: Path) -> None:
        path = foreign.write_rlds(folder, episodes, last_step=last_step, shards=min(shards, len(episodes)))
        source = open_source(path)
        assert_same(list(source.episodes), change(expected, success=None))
        assert any("--last-step" in note for note in source.notes)
        assert_same(back(path, "rlds", last_step=last_step), change(expected, success=None))

    in_folder(check)


def test_rlds_without_ends_has_time_limits_only(tmp_path: Path) -> None:
    path = foreign.write_rlds(tmp_path, tricky(), last_step="observation", terminal=False)
    source = open_source(path)
    assert not any(episode.terminated for episode in source.episodes)


@given(episodes=episode_sets(cameras=False, ends=("limit",), equal=True), reduced=st.booleans(), data=st.data())
@few
def test_tdmpc2(episodes: list[Episode], reduced: bool, data: st.DataObject) -> None:
    tasks = [data.draw(st.sampled_from([1, 45])) for _ in episodes]
    names = {1: "walker-walk", 45: "mw-faucet-open"}
    named = [dataclasses.replace(e, instruction=names[t], success=None) for e, t in zip(episodes, tasks, strict=True)]

    def check(folder: Path) -> None:
        path = foreign.write_tdmpc2(folder / "chunk_0.pt", episodes, tasks, reduced=reduced)
        padded = [
            dataclasses.replace(
                e,
                observation={STATE: np.pad(e.observation[STATE], ((0, 0), (0, 2)))},
                action=np.pad(e.action, ((0, 0), (0, 2))),
            )
            for e in named
        ]
        assert_same(back(path, "tdmpc2"), padded)
        chosen = names[tasks[0]]
        found = list(open_source(folder, options=ImportOptions(task=chosen)).episodes)
        assert_same(found, [e for e in named if e.instruction == chosen])

    in_folder(check)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@given(episodes=episode_sets())
@settings(few, max_examples=10)
def test_lerobot(version: str, episodes: list[Episode]) -> None:
    def check(folder: Path) -> None:
        path = foreign.write_lerobot(folder / "set", episodes, version=version)
        assert_same(back(path, "lerobot"), change(without_last(episodes), success=None), source=str(path))

    in_folder(check)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot_ends(tmp_path: Path, version: str) -> None:
    """Each set of flags gives its own ends. A time limit is never a terminal."""
    episodes = tricky(success=True)
    cases: dict[tuple[str, ...], Callable[[Episode], tuple[bool, bool]]] = {
        ("next.done", "next.truncated"): lambda e: (not e.truncated, e.truncated),
        ("next.done", "next.success"): lambda e: (True, False),
        ("next.done",): lambda e: (False, True),
        (): lambda e: (False, True),
    }
    for number, (flags, rule) in enumerate(cases.items()):
        path = foreign.write_lerobot(tmp_path / str(number), episodes, version=version, flags=flags)
        source = open_source(path)
        found = list(source.episodes)
        assert [(e.terminated, e.truncated) for e in found] == [rule(e) for e in episodes], flags
        assert any("time limit" in n or "next.success" in n for n in source.notes) == ("next.truncated" not in flags)
    first = list(open_source(path, options=ImportOptions(split="first")).episodes)
    assert len(first) == 1


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot_videos(tmp_path: Path, version: str) -> None:
    pytest.importorskip("av")
    rng = np.random.default_rng(0)
    episodes = [foreign.make_episode(rng, steps=n, cameras=("top",), size=(32, 48)) for n in (7, 5, 9)]
    level = 0
    for episode in episodes:  # flat images, each a little brighter than the one before
        images = episode.observation[IMAGES + "top"]
        images[:] = (10 * np.arange(level, level + len(images)))[:, None, None, None]
        level += len(episode.action)
    path = foreign.write_lerobot(tmp_path / "set", episodes, version=version, images="video")
    foreign.write_videos(path, episodes, version)
    key = IMAGES + "top"
    frames = [episode.observation[key][: len(episode.action)] for episode in episodes]
    for found, expected in zip(back(path, "lerobot"), frames, strict=True):
        difference = found.observation[key].astype(int) - expected
        assert np.abs(difference).max() <= 4, "another frame would differ by 10"
