"""CUDA graphs: a computation on a GPU is captured once and replayed with one launch.

A small model is bound by the launches of its kernels, thousands an update. Training and acting both capture.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.utils import _pytree as pytree

from pac.types import without_repeats

Inputs = TypeVar("Inputs")
T = TypeVar("T")


class CapturedGraph(Generic[Inputs, T]):
    """One computation, captured with inputs of fixed shapes. It reads its inputs from memory of its own.

    Inputs are a dict of tensors or a `Batch`. What repeats along an axis (stride 0) is stored and copied once.

    Libraries do things at their first call that must not be captured: `warm_up` calls run before. A `pool` lets graphs
    share memory if one runs at a time and leaves nothing there that another reads.
    """

    def __init__(
        self,
        compute: Callable[[Inputs], T],
        inputs: Inputs,
        device: torch.device,
        *,
        warm_up: int = 0,
        pool: Any = None,
    ) -> None:
        tensors, structure = pytree.tree_flatten(inputs)
        once = [without_repeats(x) for x in tensors]
        self._memory = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in once]
        repeated = [memory.expand_as(x) for memory, x in zip(self._memory, tensors, strict=True)]
        own_inputs = pytree.tree_unflatten(repeated, structure)
        self._fill(inputs)
        for _ in range(warm_up):
            compute(own_inputs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.result = compute(own_inputs)

    def __call__(self, inputs: Inputs) -> T:
        """Return what the computation gives for these inputs. The next call overwrites it."""
        self._fill(inputs)
        self.graph.replay()
        return self.result

    def _fill(self, inputs: Inputs) -> None:
        """Copy the inputs into the memory that the graph reads, with one launch per dtype."""
        pairs = list(zip(self._memory, map(without_repeats, pytree.tree_leaves(inputs)), strict=True))
        for dtype in {memory.dtype for memory in self._memory}:
            targets, sources = zip(*(pair for pair in pairs if pair[0].dtype == dtype), strict=True)
            torch._foreach_copy_(targets, sources, non_blocking=True)
