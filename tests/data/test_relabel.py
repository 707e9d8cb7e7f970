"""Rewards, goals and filters: one set of episodes, several tasks."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from pac.data.relabel import episode_returns, returns_to_go, select_episodes, success_frames
from pac.data.store import Dataset


def test_returns_by_stored_and_extra_reward(make_episode: Any, make_dataset: Any) -> None:
    episodes = [make_episode(i, n, extra_rewards={"arrive": np.ones(n, np.float32)}) for i, n in enumerate((3, 1, 4))]
    dataset = Dataset(make_dataset("d", episodes))
    np.testing.assert_array_equal(episode_returns(dataset, "arrive"), [3, 1, 4])
    np.testing.assert_array_equal(episode_returns(dataset), [e.reward.sum() for e in dataset])


def test_returns_to_go_by_hand(make_episode: Any, make_dataset: Any) -> None:
    """Rewards after a time limit are unknown: none is covered at the limit, and most far before it."""
    reward = np.array([1, 2, 4], np.float32)
    whole = dataclasses.replace(make_episode(0, 3, terminated=True), reward=reward)
    cut = dataclasses.replace(make_episode(1, 2, truncated=True), reward=reward[:2])
    short = dataclasses.replace(make_episode(2, 1, terminated=True), reward=reward[:1])
    found = returns_to_go(Dataset(make_dataset("d", [cut, whole, short])), None, 0.5)
    np.testing.assert_array_equal(found[:3], [[2, 0.75], [2, 0.5], [0, 0]])
    np.testing.assert_array_equal(found[3:7], [[3, 1], [4, 1], [4, 1], [0, 1]])
    np.testing.assert_array_equal(found[7:], [[1, 1], [0, 1]])


def test_filters(make_episode: Any, make_dataset: Any) -> None:
    episodes = [
        make_episode(i, 2, success=[True, False, None][i % 3], instruction="big" if i < 6 else "small")
        for i in range(12)
    ]
    for i, episode in enumerate(episodes):
        episode.reward[:] = i * (100 if i < 6 else 1)
    dataset = Dataset(make_dataset("d", episodes))
    assert select_episodes(dataset) is None
    np.testing.assert_array_equal(select_episodes(dataset, success_only=True), [0, 3, 6, 9])
    # The better half of each task, although the returns of one are far above the other's.
    np.testing.assert_array_equal(select_episodes(dataset, return_quantile=0.5), [3, 4, 5, 9, 10, 11])
    np.testing.assert_array_equal(select_episodes(dataset, return_quantile=0.5, success_only=True), [3, 9])
    frames = success_frames(dataset)
    assert {dataset.instructions[task]: rows.tolist() for task, rows in frames.items()} == {
        "big": [2, 11],
        "small": [20, 29],
    }


def test_filters_that_cannot_work(make_episode: Any, make_dataset: Any) -> None:
    unknown = Dataset(make_dataset("unknown", [make_episode(0, 2)]))
    with pytest.raises(ValueError, match="say whether they succeeded"):
        select_episodes(unknown, success_only=True)
    failed = Dataset(make_dataset("failed", [make_episode(0, 2, success=False)]))
    with pytest.raises(ValueError, match="that pass the filters, found none"):
        select_episodes(failed, success_only=True)
    with pytest.raises(ValueError, match="unknown extra reward 'lift'"):
        select_episodes(failed, return_quantile=0.5, reward="lift")
