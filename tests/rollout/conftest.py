"""Fixtures of the rollout tests."""

import pytest

from pac.rollout import links


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of all workers that were started."""
    started: list[int] = []
    start = links.ProcessBackend.start

    def noting(self: links.ProcessBackend, setup: links.Setup) -> links.ProcessLink:
        link = start(self, setup)
        started.append(link.process.pid)
        return link

    monkeypatch.setattr(links.ProcessBackend, "start", noting)
    return started
