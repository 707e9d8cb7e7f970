"""Data on a GPU. Launches cost time there, not bytes: a batch takes a handful, however many datasets there are.

`prefetch` makes the next batch during the update on the one before, in a stream of its own.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float32, Int64, Shaped, UInt8
from torch import Tensor

from pac.data.windows import WindowedDataset

Made = TypeVar("Made")  # a batch
COLUMNS = ("state", "action", "reward", "terminated", "return_to_go")


class GpuDataset:
    """The steps of all datasets in one array, each step as wide as its robot needs.

    A step has its columns side by side and then a zero. The zero fills columns that only wider robots have. `constants`
    are what all windows of a dataset share. They lie in one table per dtype.
    """

    def __init__(
        self,
        sources: Sequence[WindowedDataset],
        constants: dict[str, Shaped[Tensor, "dataset *width"]],
        device: torch.device,
    ) -> None:
        arrays = [[_flat(getattr(source, name), len(source.action)) for name in COLUMNS] for source in sources]
        widths = np.array([[array.shape[1] for array in found] for found in arrays])
        self.width = widths.sum(1) + 1
        ends = np.cumsum(self.width * [len(source.action) for source in sources])
        self.start = np.array([0, *ends[:-1]])
        self.widest = np.maximum(widths.max(0), [0, 1, 1, 1, 2]).tolist()
        self.values = torch.zeros(int(ends[-1]), device=device)
        column = np.repeat(self.width[:, None] - 1, sum(self.widest), 1)  # the zero's by default
        for i, found in enumerate(arrays):
            steps = self.values[self.start[i] : ends[i]].view(-1, int(self.width[i]))
            first, last = np.cumsum([0, *self.widest[:-1]]), np.cumsum(widths[i])
            for array, to, end in zip(found, first, last, strict=True):
                begin = end - array.shape[1]
                steps[:, begin:end].copy_(array)
                column[i, to : to + end - begin] = range(begin, end)
        self._tables = []  # for each dtype: the shapes of its constants, and their values side by side
        for dtype in dict.fromkeys(x.dtype for x in constants.values()):
            same = {name: x for name, x in constants.items() if x.dtype == dtype}
            values = torch.cat([_flat(x, len(x)) for x in same.values()], 1).to(device)
            self._tables.append(({name: x.shape[1:] for name, x in same.items()}, values))
        self._column = torch.from_numpy(column).to(device)

    def place(
        self, dataset: Int64[np.ndarray, " batch"], rows: Int64[np.ndarray, "batch time"]
    ) -> Int64[np.ndarray, "batch time"]:
        """Return where the numbers of these rows begin."""
        return self.start[dataset][:, None] + rows * self.width[dataset][:, None]

    def take(
        self, source: Int64[Tensor, " batch"], place: Int64[Tensor, "batch time"]
    ) -> dict[str, Float32[Tensor, "batch time width"]]:
        """Return the columns of these places, as wide as the widest dataset has them."""
        found = self.values[place[..., None] + self._column[source][:, None]]
        return dict(zip(COLUMNS, found.split(self.widest, -1), strict=True))

    def share(self, source: Int64[Tensor, " batch"]) -> dict[str, Shaped[Tensor, "batch *width"]]:
        """Return the constants of each window's dataset."""
        shared: dict[str, Tensor] = {}
        for shapes, values in self._tables:
            parts = values[source].split([shape.numel() for shape in shapes.values()], 1)
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                shared[name] = part if shape else part[:, 0]
        return shared


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return arrays as tensors on a device, in one transfer.

    Pinned memory keeps the host from waiting: it gathers the next batch while the device computes an update.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed = pack(arrays)
    return unpack(packed.pin_memory().to(device, non_blocking=True) if len(packed) else packed.to(device), arrays)


def pack(arrays: Sequence[np.ndarray]) -> UInt8[Tensor, " byte"]:
    """Return the bytes of arrays, one after another."""
    places = _places(arrays)
    packed = np.zeros(places[-1].stop, np.uint8)
    for array, place in zip(arrays, places, strict=True):
        packed[place] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(packed)


def unpack(packed: UInt8[Tensor, " byte"], arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Return views of packed bytes, with the types and shapes of these arrays."""
    return [
        packed[place].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, place in zip(arrays, _places(arrays), strict=True)
    ]


def _places(arrays: Sequence[np.ndarray]) -> list[slice]:
    """Return where the arrays lie. Each begins at a multiple of eight bytes, where a number of any type may begin."""
    ends = np.cumsum([0, *(-(-array.nbytes // 8) * 8 for array in arrays)]).tolist()
    return [slice(begin, begin + array.nbytes) for array, begin in zip(arrays, ends[:-1], strict=True)]


def _flat(array: Tensor | None, rows: int) -> Shaped[Tensor, "row width"]:
    """Return one row per step or dataset, without columns if there is no array."""
    if array is None:
        return torch.zeros(rows, 0)
    return array.flatten(1) if array.ndim > 1 else array[:, None]


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
