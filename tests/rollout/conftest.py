"""Fixtures of the rollout tests."""

import pytest

from pac.rollout import links
from pac.rollout.episodes import EpisodeSettings


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of all workers that were started."""
    started: list[int] = []
    start = links.ProcessLink.__init__

    def record(link: links.ProcessLink, settings: EpisodeSettings) -> None:
        start(link, settings)
        started.append(link.process.pid)

    monkeypatch.setattr(links.ProcessLink, "__init__", record)
    return started
