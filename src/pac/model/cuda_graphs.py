"""CUDA graphs: a computation on a GPU is captured once and replayed with one launch.

A small model is bound by the launches of its kernels, thousands an update. Training and acting both capture.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class CapturedGraph(Generic[T]):
    """One computation, captured with inputs of fixed shapes. It reads its inputs from memory of its own.

    Libraries do things at their first call that must not be captured: `warm_up` calls run before. A `pool` lets graphs
    share memory if one runs at a time and leaves nothing there that another reads.
    """

    def __init__(
        self,
        compute: Callable[[dict[str, Tensor]], T],
        inputs: Mapping[str, Tensor],
        device: torch.device,
        *,
        warm_up: int = 0,
        pool: Any = None,
    ) -> None:
        self.inputs = {
            name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for name, x in inputs.items()
        }
        self._fill(inputs)
        for _ in range(warm_up):
            compute(self.inputs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.result = compute(self.inputs)

    def __call__(self, inputs: Mapping[str, Tensor]) -> T:
        """Return what the computation gives for these inputs. The next call overwrites it."""
        self._fill(inputs)
        self.graph.replay()
        return self.result

    def _fill(self, inputs: Mapping[str, Tensor]) -> None:
        """Copy the inputs into the memory that the graph reads, with one launch per dtype."""
        for dtype in {x.dtype for x in inputs.values()}:
            names = [name for name, x in inputs.items() if x.dtype == dtype]
            torch._foreach_copy_([self.inputs[name] for name in names], [inputs[name] for name in names])
