"""Batches made on a GPU while it is at work on the one before, in a stream of their own."""

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def ahead(batches: Iterator[Tensors], device: torch.device) -> Generator[Tensors]:
    """The same batches, of which the next is begun before the last is given out. Transfers and gathers of `batches` go
    to the current stream, which is another than the one that updates are computed in: neither waits for the other.
    """
    own = torch.cuda.Stream(device)

    def begin() -> tuple[Tensors, torch.cuda.Event]:
        # Memory is used again once Python gives it back, which is when the updates that read it have begun: so wait for
        # those that have. The one that is about to begin is the one that this batch is made beside.
        own.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(own):
            return next(batches), own.record_event()

    coming = begin()
    while True:
        (tensors, whole), coming = coming, begin()
        torch.cuda.current_stream(device).wait_event(whole)
        yield tensors
