"""How an improvement stops when it is told to."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class StoppedError(Exception):
    """A signal came; what is done so far is on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise `StoppedError` wherever we are, but for training, which ends its update first."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(number)

    before: dict[int, Callable[..., Any] | int | None] = {}
    with suppress(ValueError):  # not the main thread: whoever started us decides
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
