"""Rewards for demonstrations: a rule's reward and end hold everywhere, and a column is added whole or not at all."""

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pac.cli import main
from pac.data.concat import open_dataset
from pac.data.mixture import Mixture, parse_mixture
from pac.data.relabel import RULES, add_reward, episode_returns, label_episode, returns_to_go, select_episodes
from pac.data.sampler import Sampler
from pac.data.store import ACTION, IMAGES, STATE, Dataset, verify
from pac.data.writer import DatasetWriter
from pac.types import Batch, Episode

GAMMA = 0.5
ENDS = {"terminal": (True, False), "time limit": (False, True), "both": (True, True), "neither": (False, False)}
KINDS = list(itertools.product((1, 2, 6), (True, False), ENDS.values(), (None, True, False)))


@pytest.fixture
def demonstrations(make_episode: Any) -> list[Episode]:
    """Episodes of every length, end and success, with and without the last observation. Their rewards differ."""
    return [
        make_episode(i, length, last_known=known, terminated=ends[0], truncated=ends[1], success=success)
        for i, (length, known, ends, success) in enumerate(KINDS)
    ]


def mixture(*paths: Path, **settings: Any) -> Mixture:
    """Return a mixture of one dataset, in one or several folders."""
    dataset = {"name": "d", "path": str(paths[0]), "more_paths": [str(path) for path in paths[1:]]} | settings
    groups = [{"name": "all", "weight": 1, "datasets": [dataset]}]
    return parse_mixture({"groups": groups, "batch_size": 256, "window": 4})


def steps_by_hand(episode: Episode, rule: str) -> list[tuple[float, bool]]:
    """Return reward and termination of each step, step by step."""
    found = []
    for t in range(len(episode.action)):
        last, failed = t == len(episode.action) - 1, episode.success is False
        won = last and not failed
        reward = {"sparse-success": 1.0 if won else 0.0, "time-to-go": 0.0 if won else -1.0}[rule]
        found.append((reward, won or (last and episode.terminated)))
    return found


def returns_by_hand(episode: Episode, rule: str) -> list[tuple[float, float]]:
    """Return the discounted return after each observation, and the share of all later rewards that it covers."""
    steps, found = steps_by_hand(episode, rule), []
    for t in range(len(steps) + 1):
        total = sum(GAMMA**k * reward for k, (reward, _) in enumerate(steps[t:]))
        found.append((total, 1.0 if steps[-1][1] else 1 - GAMMA ** (len(steps) - t)))
    return found


def assert_equal(first: Batch, second: Batch) -> None:
    assert all(map(torch.equal, first.tensors(), second.tensors()))


@pytest.mark.parametrize("how", ["files", "gpu", "joined"])
@pytest.mark.parametrize("rule", RULES)
def test_batches_have_the_rewards_and_ends_of_a_rule(
    rule: str, how: str, demonstrations: list[Episode], make_dataset: Any
) -> None:
    """Every step is drawn with its reward and discount. The last one counts if its observation or its end is known."""
    halves = [demonstrations[:30], demonstrations[30:]] if how == "joined" else [demonstrations]
    table = mixture(*(make_dataset(f"part{i}", part) for i, part in enumerate(halves)), reward=rule)
    device = "cpu" if how == "gpu" else None
    sampler = Sampler(table, seed=0, discount=GAMMA, return_to_go=True, device=device)
    seen: dict[tuple[int, int], tuple[float, bool]] = {}
    for step in range(12):
        batch = sampler.batch(step)
        for i, t in batch.mask.nonzero().tolist():
            number, place = (int(x) for x in batch.observation.proprio[i, t, :2])
            seen[number, place] = (float(batch.reward[i, t]), not bool(batch.discount[i, t]))
        for i in range(0, len(batch.mask), 8):
            number, place = (int(x) for x in batch.observation.proprio[i, -1, :2])
            expected = returns_by_hand(demonstrations[number], rule)
            repeated = place == len(expected) - 2 and not KINDS[number][1]  # the observation after it is not known
            assert repeated or (float(batch.return_to_go[i]), float(batch.return_to_go_weight[i])) == expected[place]
    expected_steps = {}
    for number, episode in enumerate(demonstrations):
        steps, known = steps_by_hand(episode, rule), KINDS[number][1]
        expected_steps |= {(number, t): step for t, step in enumerate(steps) if known or t < len(steps) - 1 or step[1]}
    assert seen == expected_steps


@pytest.mark.parametrize("rule", RULES)
def test_returns_of_a_rule(rule: str, demonstrations: list[Episode], make_dataset: Any) -> None:
    dataset = Dataset(make_dataset("d", demonstrations))
    by_hand = [[reward for reward, _ in steps_by_hand(episode, rule)] for episode in demonstrations]
    returns = [sum(rewards) for rewards in by_hand]
    np.testing.assert_array_equal(episode_returns(dataset, rule), returns)
    kept = select_episodes(dataset, return_quantile=0.5, reward=rule)
    np.testing.assert_array_equal(kept, np.flatnonzero(returns >= np.quantile(returns, 0.5)))
    expected = np.concatenate([returns_by_hand(episode, rule) for episode in demonstrations])
    np.testing.assert_allclose(returns_to_go(dataset, rule, GAMMA), expected, atol=1e-6)
    np.testing.assert_array_equal(dataset.index["return"], [e.reward.sum() for e in demonstrations])  # untouched


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_when_read_equals_a_rule_when_written(
    rule: str, demonstrations: list[Episode], make_dataset: Any
) -> None:
    """Bit for bit in every tensor of a batch, filters and returns-to-go included."""
    plain = make_dataset("plain", demonstrations)
    written = make_dataset("written", [label_episode(episode, rule) for episode in demonstrations])
    for settings in ({}, {"return_quantile": 0.6}, {"success_only": True, "reward_scale": 2.0}):
        read, stored = (
            Sampler(mixture(path, **settings, **given), seed=1, return_to_go=True)
            for path, given in ((plain, {"reward": rule}), (written, {}))
        )
        assert read.sources[0].value_bounds() == stored.sources[0].value_bounds()
        for step in range(4):
            assert_equal(read.batch(step), stored.batch(step))


def test_value_bounds_of_rules(demonstrations: list[Episode], make_dataset: Any) -> None:
    path = make_dataset("d", demonstrations)
    bounds = {rule: Sampler(mixture(path, reward=rule), seed=0, discount=GAMMA).sources[0] for rule in RULES}
    assert bounds["sparse-success"].value_bounds() == (0.0, 1.0)  # once: no reward comes before an end
    assert bounds["time-to-go"].value_bounds() == (-2.0, 0.0)


def test_rules_that_cannot_work(make_episode: Any, make_dataset: Any) -> None:
    column = {"time-to-go": np.ones(3, np.float32)}
    path = make_dataset("d", [make_episode(0, 3, cameras=["a"], extra_rewards=column)])
    with pytest.raises(ValueError, match="'time-to-go' to be the rule alone, found a column of that name"):
        Sampler(mixture(path, reward="time-to-go"), seed=0)
    with pytest.raises(ValueError, match="'d': expected no rule for goals = 'hindsight', found 'sparse-success'"):
        mixture(path, reward="sparse-success", goals="hindsight")
    with pytest.raises(ValueError, match=r"unknown extra reward 'time-to-og'\..*Did you mean 'time-to-go'"):
        Sampler(mixture(path, reward="time-to-og"), seed=0)


# --- a column of one's own ---


def height(episode: Episode) -> np.ndarray:
    return episode.action[:, 0] * 2 + len(episode.action)


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_column_is_added_beside_the_rest(make_episode: Any, make_dataset: Any) -> None:
    """Nothing else changes, it has a checksum, and writers go on with it."""
    episodes = [make_episode(i, n, cameras=["a"], last_known=i != 1) for i, n in enumerate((3, 1, 4))]
    path = make_dataset("d", episodes)
    before = content(path)
    add_reward(path, "height", height)
    add_reward(path, "again", lambda episode: 2 * episode.extra_rewards["height"])
    after = content(path)
    new = {"next.reward.height.npy", "next.reward.again.npy"}
    assert after.keys() - before.keys() == new
    assert {name for name in before if before[name] != after[name]} == {"spec.json", "committed.json"}
    dataset = Dataset(path)
    assert dataset.spec.extra_rewards == ("again", "height")
    for episode in dataset:
        np.testing.assert_array_equal(episode.extra_rewards["height"], height(episode))
        np.testing.assert_array_equal(episode.extra_rewards["again"], 2 * height(episode))
    np.testing.assert_array_equal(np.load(path / "next.reward.height.npy"), dataset.arrays["next.reward.height"])
    assert verify(path) == []
    with pytest.raises(ValueError, match="extra_rewards"):
        DatasetWriter(path, dataclasses.replace(dataset.spec, extra_rewards=()))
    with DatasetWriter(path, dataset.spec) as writer:
        writer.append(dataset.episode(0))
    assert_same_arrays(Dataset(path).episode(3), dataset.episode(0))
    assert verify(path) == []


def assert_same_arrays(found: Episode, expected: Episode) -> None:
    for name in ("action", "reward", "observation", "extra_rewards"):
        a, b = getattr(found, name), getattr(expected, name)
        pairs = [(a[key], b[key]) for key in b] if isinstance(b, dict) else [(a, b)]
        for x, y in pairs:
            np.testing.assert_array_equal(x, y)


def test_images_are_read_only_where_the_function_looks(make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(i, 4, cameras=["a"]) for i in range(2)])

    def brightness(episode: Episode) -> np.ndarray:
        image, state = episode.observation[IMAGES + "a"], episode.observation[STATE]
        for array in (image, state, episode.action):
            assert not array.flags.owndata
            assert not array.flags.writeable
        return image[1:, 0, 0, 1]

    add_reward(path, "bright", brightness)
    np.testing.assert_array_equal(Dataset(path).episode(1).extra_rewards["bright"], [1, 2, 3, 4])


BAD_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "too few": (lambda e: np.zeros(len(e.action) - 1), r"episode 0: expected 3 numbers, found float64 of shape \(2,\)"),
    "too many": (lambda e: np.zeros((3, 1)), r"episode 0: expected 3 numbers"),
    "one number": (lambda e: 1.0, "episode 0: expected 3 numbers"),
    "text": (lambda e: ["a"] * 3, "episode 0: expected 3 numbers"),
    "later": (lambda e: np.zeros(3), "episode 1: expected 2 numbers"),
    "NaN": (lambda e: np.log(e.action[:, 0] - 0.01), "episode 0, step 0: expected a finite number"),
    "too large": (lambda e: np.full(len(e.action), 1e300), "episode 0, step 0: expected a finite number, found 1e"),
}


@pytest.mark.parametrize("kind", BAD_FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_bad_function_changes_nothing(kind: str, make_episode: Any, make_dataset: Any) -> None:
    path = make_dataset("d", [make_episode(0, 3), make_episode(1, 2)])
    before = content(path)
    function, message = BAD_FUNCTIONS[kind]
    with pytest.raises(ValueError, match=message):
        add_reward(path, "lift", function)
    assert content(path) == before


def test_names_and_places_that_are_refused(make_episode: Any, make_dataset: Any, tmp_path: Path) -> None:
    path = make_dataset("d", [make_episode(0, 3, extra_rewards={"lift": np.zeros(3, np.float32)})])
    for name, message in (
        ("lift", "without a reward of that name"),
        ("time-to-go", "no rule's"),
        ("a/b", "letters, digits"),
    ):
        with pytest.raises(ValueError, match=message):
            add_reward(path, name, height)
    with pytest.raises(ValueError, match=r"nowhere: expected a dataset"):
        add_reward(tmp_path / "nowhere", "new", height)
    assert not (tmp_path / "nowhere").exists()
    with DatasetWriter(path, Dataset(path).spec), pytest.raises(ValueError, match="only writer"):
        add_reward(path, "new", height)
    add_reward(path, "new", height)


def test_a_writer_that_opens_while_a_column_is_added_is_refused(
    make_episode: Any, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the old spec, and takes the lock when the new one is there. It would cut the column off."""
    import pac.data.writer

    path, lock = make_dataset("d", [make_episode(0, 3)]), pac.data.writer.lock_dataset
    spec = Dataset(path).spec

    def late(*args: Any) -> Any:
        monkeypatch.undo()
        add_reward(path, "new", height)
        return lock(*args)

    monkeypatch.setattr(pac.data.writer, "lock_dataset", late)
    with pytest.raises(ValueError, match="extra_rewards"):
        DatasetWriter(path, spec)
    assert verify(path) == []
    open_dataset(path)
    DatasetWriter(path, Dataset(path).spec).close()  # the lock is free


def test_a_joined_dataset_needs_the_column_in_all_parts(make_episode: Any, make_dataset: Any) -> None:
    """Folders that are open already are opened again once a column was added."""
    paths = [make_dataset(name, [make_episode(i, 3)]) for i, name in enumerate("ab")]
    open_dataset(paths[0], paths[1:])
    add_reward(paths[0], "height", height)
    with pytest.raises(ValueError, match="data of the same kind"):
        open_dataset(paths[0], paths[1:])
    add_reward(paths[1], "height", height)
    joined = open_dataset(paths[0], paths[1:])
    assert episode_returns(joined, "height") == pytest.approx([float(height(joined.episode(i)).sum()) for i in (0, 1)])


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from pac.data.relabel import add_reward
from pac.data.store import Dataset, verify
from pac.data.writer import DatasetWriter

path = Path(sys.argv[1])

def die_at(call, after):
    left, replace = [call], os.replace
    def deadly(*args):
        left[0] -= 1
        if left[0] == 0:
            if after:
                replace(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*args)
    os.replace = deadly
    add_reward(path, name, lambda episode: episode.action[:, 0])

found = []
for call in (1, 2, 3):
    for after in (False, True):
        name = f"new{call}{after}"
        child = os.fork()
        if child == 0:
            die_at(call, after)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        before = Dataset(path)
        assert verify(path) == [], verify(path)
        found.append(name in before.spec.extra_rewards)
        with DatasetWriter(path, before.spec) as writer:
            writer.append(before.episode(0))
        now = Dataset(path)
        assert len(now) == len(before) + 1 and verify(path) == [], verify(path)
        if not found[-1]:
            add_reward(path, name, lambda episode: episode.action[:, 0])
        for episode in Dataset(path):
            np.testing.assert_array_equal(episode.extra_rewards[name], episode.action[:, 0])
        assert verify(path) == [], verify(path)
print(found)
"""


def test_a_kill_leaves_the_old_or_the_new_dataset(make_episode: Any, make_dataset: Any) -> None:
    """SIGKILL before and after each of the three files is put in its place. Writers and a second try go on."""
    path = make_dataset("d", [make_episode(i, 3) for i in range(2)])
    run = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str([False] * 5 + [True])


# --- the command ---


def test_the_command_adds_numbers_per_step_or_per_row(
    make_episode: Any, make_dataset: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, file = make_dataset("d", [make_episode(i, n) for i, n in enumerate((3, 1, 4))]), tmp_path / "rewards.npy"
    dataset, steps = Dataset(path), np.arange(8.0)
    rows = np.full(dataset.num_rows, np.nan)  # rows that are no step are not read
    rows[[0, 1, 2, 4, 6, 7, 8, 9]] = steps
    for name, values in (("step", steps), ("row", rows)):
        np.save(file, values)
        assert main(["relabel", str(path), "--name", name, "--from", str(file)]) == 0
        assert f"added the reward '{name}' of 3 episodes, 8 steps" in capsys.readouterr().out
        assert [e.extra_rewards[name].tolist() for e in Dataset(path)] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    for bad, message in (
        (steps[:-1], "8 numbers (one per step) or 11 (one per row), found shape (7,)"),
        (np.array([{}]), "a .npy array of numbers"),
    ):
        np.save(file, bad, allow_pickle=True)
        assert main(["relabel", str(path), "--name", "bad", "--from", str(file)]) == 2
        assert message in capsys.readouterr().err
    np.testing.assert_array_equal(Dataset(path).arrays[ACTION], dataset.arrays[ACTION])
