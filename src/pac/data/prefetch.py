"""Batches made on a GPU while it is at work on the one before, in a stream of their own."""

from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

Made = TypeVar("Made")  # a batch


def prefetch(batches: Iterator[Made], device: torch.device) -> Generator[Made]:
    """The same batches, each begun before the one before it is given out. Transfers and gathers of `batches` go to the
    current stream, which here is another than the one that updates are computed in. So a batch waits for no update but
    those that were launched before it was begun, and is made beside the next.
    """
    own = torch.cuda.Stream(device)

    def begin() -> tuple[Made, torch.cuda.Event]:
        # Memory is used again once Python gives it back, which is when the updates that read it were launched: so wait
        # for those that were.
        own.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(own):
            return next(batches), own.record_event()

    coming = begin()
    while True:
        (batch, whole), coming = coming, begin()
        torch.cuda.current_stream(device).wait_event(whole)
        yield batch
