"""Prefetching: the next batch is made on a GPU during the update on the one before, in a stream of its own."""

from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

Made = TypeVar("Made")  # a batch


def prefetch(batches: Iterator[Made], device: torch.device) -> Generator[Made]:
    """Yield the same batches. Each is begun before the one before it is yielded.

    Transfers and gathers run in a stream other than the one of the updates. A batch only waits for the updates that
    were launched before it was begun.
    """
    own = torch.cuda.Stream(device)

    def begin() -> tuple[Made, torch.cuda.Event]:
        # Python frees a batch's memory once the updates that read it are launched. Wait until those have run.
        own.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(own):
            return next(batches), own.record_event()

    coming = begin()
    while True:
        (batch, whole), coming = coming, begin()
        torch.cuda.current_stream(device).wait_event(whole)
        yield batch
