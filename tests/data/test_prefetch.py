"""Batches are made during updates on a GPU, and each update reads its own batch."""

from collections.abc import Iterator

import pytest
import torch

from pac.data.gpu import prefetch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_updates_that_lag_behind_read_their_own_batch() -> None:
    """Updates lag behind the host, so that freed memory is allocated again before it was read."""
    device, size = torch.device("cuda"), 1 << 20
    made: list[int] = []

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for i in range(1000):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]  # who does not wait reads too early
            made.append(i)
            host = torch.full((size,), float(i)).pin_memory()
            yield {"sent": host.to(device, non_blocking=True), "made": torch.full((size,), float(i), device=device)}

    stream, found = prefetch(batches(), device), []
    for _ in range(40):
        tensors = next(stream)
        torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call]
        found.append(torch.stack([x.double().mean() for x in tensors.values()]))
    stream.close()
    assert made == list(range(41))  # one ahead, and no more
    assert [x.tolist() for x in found] == [[i, i] for i in range(40)]


def test_a_batch_is_made_during_the_update_before() -> None:
    """The third batch is complete while the second update runs."""
    device, whole = torch.device("cuda"), list[torch.cuda.Event]()

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            tensors = {"x": torch.ones(8, device=device)}
            whole.append(torch.cuda.current_stream().record_event())
            yield tensors

    stream = prefetch(batches(), device)
    for cycles in (1_000_000, 2_000_000_000):  # an update of half a millisecond, and one of a second
        next(stream)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
    whole[2].synchronize()
    assert not torch.cuda.current_stream().query()
    stream.close()
    torch.cuda.synchronize()
