"""Small policies for the tests."""

from collections.abc import Sequence

import numpy as np

from pac.rollout import EpisodeResult
from pac.types import Query, Reply


class Swaying:
    """A policy that samples around a function of the state, one query at a time."""

    name = "swaying"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def act(self, queries: Sequence[Query]) -> list[Reply]:
        self.batches.append(len(queries))
        return [self.reply(query) for query in queries]

    def reply(self, query: Query) -> Reply:
        low, high = np.array(query.task.action_low), np.array(query.task.action_high)
        mean = np.tanh(query.observation["observation.state"].astype(np.float64).sum())
        drawn = np.random.default_rng([query.seed, query.step]).uniform(-1, 1, len(low))
        action = (low + high) / 2 + (0.5 * mean + 0.5 * drawn) * (high - low) / 2
        return Reply(action=action.astype(np.float32), value=float(mean))


def assert_same(found: Sequence[EpisodeResult], expected: Sequence[EpisodeResult]) -> None:
    """Compare everything bit for bit, except the number of restarts."""
    assert [result.job for result in found] == [result.job for result in expected]
    for a, b in zip(found, expected, strict=True):
        assert (a.actor, a.spec) == (b.actor, b.spec)
        assert vars(a.episode).keys() == vars(b.episode).keys()
        for name in ("terminated", "truncated", "success", "seed", "source", "instruction"):
            assert getattr(a.episode, name) == getattr(b.episode, name), (a.job, name)
        arrays = [(t.episode.observation, t.episode.extra_rewards, t.labels) for t in (a, b)]
        for table_a, table_b in zip(*arrays, strict=True):
            assert table_a.keys() == table_b.keys()
            for name in table_a:
                np.testing.assert_array_equal(table_a[name], table_b[name], strict=True)
        np.testing.assert_array_equal(a.episode.action, b.episode.action, strict=True)
        np.testing.assert_array_equal(a.episode.reward, b.episode.reward, strict=True)
        np.testing.assert_array_equal(a.values, b.values)
