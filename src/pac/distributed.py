"""Ranks: the only file that knows there may be several processes, and sharded weights (PyTorch's FSDP2).

Under `torchrun` each process takes every W-th window of a batch. Weights, gradients, optimiser and target network are
sharded over processes. A checkpoint's training state is written by all of them at once, as safetensors shards, and is
read back on any number of processes.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor, distribute_tensor

from pac.model import PAC

STATE_FILE = "state.safetensors"  # of a single process; several write shards


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run: which of how many this one is, and where it computes."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def gather(self) -> Callable[[Tensor], Tensor]:
        """Rows of this process -> rows of all, in order of rank; no gradient."""
        return _gather_rows if self.size > 1 else _same_rows

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value)
        return value

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def agree(self, value: Any) -> Any:
        """The main process's value, on all."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def _same_rows(rows: Tensor) -> Tensor:
    return rows


def _gather_rows(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


@contextmanager
def world(device: torch.device) -> Iterator[World]:
    """The processes that torchrun started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device=device, rank=rank, size=size)
    finally:
        dist.destroy_process_group()


def shard(model: PAC, world: World) -> PAC:
    """Split a model's weights over the processes, a block at a time; the same model if there is one process."""
    if world.size == 1:
        return model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    dtype = torch.bfloat16 if world.device.type == "cuda" else None
    # Inputs are left as they are: autocast decides what is computed in which precision.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    heads = [module for name, module in model.named_children() if name in ("policy", "q", "v", "behaviour")]
    for module in [model.inputs, model.read, *model.blocks, *heads]:
        fully_shard(module, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    register_fsdp_forward_method(model, "encode")
    return model


def whole_tensor(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, on every process; an ordinary one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def snapshot(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Copies in memory of whole, unsharded tensors; every process must ask, the main one gets them."""
    copies = {}
    for name, tensor in tensors.items():
        whole = whole_tensor(tensor).detach()
        if world.is_main:
            copies[name] = whole.to("cpu", copy=True).contiguous()
    return copies


def start_saving(tensors: dict[str, Tensor], folder: Path, world: World) -> Callable[[], None]:
    """Copy the training state to memory, and return what finishes writing it to `folder`, in any thread."""
    if world.size == 1:
        copies = snapshot(tensors, world)
        return lambda: save_file(copies, folder / STATE_FILE, metadata={"format": "pt"})
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    future = async_save(dict(tensors), storage_writer=writer)
    return lambda: void(future.result())  # type: ignore[union-attr]


def void(_: object) -> None:
    """For its effects."""


def load_state(tensors: dict[str, Tensor], folder: Path, world: World) -> None:
    """Training state into these tensors, in place; whatever number of processes wrote it."""
    if world.size == 1 and (folder / STATE_FILE).is_file():
        found = load_file(folder / STATE_FILE)
    else:
        alone = world.size == 1
        found = {k: torch.empty_like(x, device="cpu") for k, x in tensors.items()} if alone else dict(tensors)
        with warnings.catch_warnings():  # torch notes that there is but one process
            warnings.simplefilter("ignore", UserWarning)
            load(found, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
    missing = sorted(tensors.keys() - found.keys())
    if missing:
        raise ValueError(
            f"{folder}: expected the training state of this model, found none for {missing[:3]}. Resume with the "
            "recipe and overrides the run was started with."
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor is not found[name]:
                _check_shape(folder, name, tensor, found[name])
                tensor.copy_(found[name])


def load_weights(model: nn.Module, file: Path, world: World) -> None:
    """Whole weights into a model that may be sharded."""
    found = load_file(file)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in found:
                raise ValueError(f"{file}: expected weights {name!r}, found none. The checkpoint is of another model.")
            _check_shape(file, name, tensor, found[name])
            if isinstance(tensor, DTensor):
                whole = found[name].to(world.device)
                tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))
            else:
                tensor.copy_(found[name])


def _check_shape(where: Path, name: str, wanted: Tensor, found: Tensor) -> None:
    if wanted.shape != found.shape:
        raise ValueError(
            f"{where}: expected {name!r} of shape {tuple(wanted.shape)}, found {tuple(found.shape)}. The checkpoint is "
            "of another model."
        )
