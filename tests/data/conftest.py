"""Episodes whose every number says where it belongs, and datasets made of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac.data.store import IMAGES, STATE, DatasetSpec
from pac.data.writer import DatasetWriter
from pac.types import Episode

MakeEpisode = Callable[..., Episode]
MakeDataset = Callable[..., Path]


def _episode(
    number: int,
    length: int,
    *,
    state_dim: int = 3,
    action_dim: int = 2,
    cameras: Sequence[str] = (),
    size: tuple[int, int] = (4, 5),
    last_known: bool = True,
    **fields: Any,
) -> Episode:
    """Episode `number`: state (number, t, ...), action t / 100 in every dimension, reward t + 1000 * number."""
    rows = length + last_known
    time = np.arange(rows, dtype=np.float32)
    state = np.tile(time[:, None], (1, state_dim))
    state[:, :1] = number
    observation = {STATE: state} if state_dim else {}
    for i, camera in enumerate(cameras):
        image = np.zeros((rows, *size, 3), np.uint8)
        image[..., 0], image[..., 1], image[..., 2] = number, time[:, None, None], i
        observation[IMAGES + camera] = image
    action = np.repeat(np.arange(length, dtype=np.float32)[:, None] / 100, action_dim, 1)
    reward = np.arange(length, dtype=np.float32) + 1000 * number
    ends: dict[str, Any] = {"terminated": False, "truncated": True} | fields
    return Episode(observation=observation, action=action, reward=reward, **ends)


@pytest.fixture(autouse=True, scope="session")
def no_sync() -> Iterator[None]:
    """Skip fsync: tests do not cut the power, and a busy disk is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def make_episode() -> MakeEpisode:
    return _episode


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    def make(name: str, episodes: Sequence[Episode], **spec: Any) -> Path:
        dims = episodes[0].action.shape[1]
        bounds = {"action_low": [-1.0] * dims, "action_high": [1.0] * dims} | spec
        with DatasetWriter(tmp_path / name, DatasetSpec.of(episodes[0], **bounds)) as writer:
            for episode in episodes:
                writer.append(episode)
        return tmp_path / name

    return make
