"""Images of a batch: memory for them, gathering and resizing."""

import math
import sys
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn import functional

from pac.data.windows import WindowedDataset
from pac.files import problem


class BufferPool:
    """Memory for images. It is used again once no tensor refers to it: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape)
        # A tensor made of an array would be a fourth reference. CPython has three without one, to 3.13.
        for array in self._arrays:
            if len(array) >= size and sys.getrefcount(array) == 3:
                return array[:size].reshape(shape)
        self._arrays = [
            array for array in self._arrays if sys.getrefcount(array) > 3
        ]  # those that are free are too small
        array = np.empty(size, np.uint8)  # numpy asks for huge pages, torch would not
        self._arrays.append(array)  # the variable's reference reserves it until the result has its own
        return array.reshape(shape)


def gather_images(
    values: UInt8[Tensor, "row height width 3"],
    rows: Int64[Tensor, "batch time"],
    out: UInt8[Tensor, "batch time new_height new_width 3"],
) -> None:
    """Copy `values[rows]` into `out`, resized if sizes differ.

    numpy does it on the CPU, in this thread. torch would wait for threads of its own, which takes 50 times as long on a
    busy machine.
    """
    if values.shape[1:] != out.shape[2:]:
        height, width, _ = out.shape[2:]
        out.copy_(resize_images(values[rows], (height, width)))
    elif values.device.type == "cpu":
        np.take(values.numpy(), rows.numpy(), axis=0, mode="clip", out=out.numpy())  # "clip" needs no second buffer
    else:
        out.copy_(values[rows])


def resize_images(
    images: UInt8[Tensor, "*batch height width 3"], size: tuple[int, int]
) -> UInt8[Tensor, "*batch new_height new_width 3"]:
    """Resize bilinearly with antialiasing. Training and acting both call this."""
    flat = images.flatten(0, -4).permute(0, 3, 1, 2).float()
    resized = functional.interpolate(flat, size, mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).byte().permute(0, 2, 3, 1).reshape(*images.shape[:-3], *size, 3)


def common_size(sources: Iterable[WindowedDataset]) -> tuple[int, int]:
    """Return the size of all images that are used."""
    sizes = {
        (source.config.name, name): size
        for source in sources
        for name, size in {**source.dataset.spec.cameras, **source.dataset.spec.goal_cameras}.items()
        if name in (*source.cameras, *source.goal_cameras)
    }
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{dataset}/{camera} {h}x{w}" for (dataset, camera), (h, w) in sizes.items())
        fix = "Set image_size = [height, width] in the mixture to resize them, or leave some out with `cameras`."
        raise problem("Mixture", expected="images of one size", found=found, fix=fix)
    return next(iter(sizes.values()), (1, 1))
