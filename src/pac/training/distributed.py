"""Several processes and sharded weights (PyTorch's FSDP2). The other files need not know about them.

Under `torchrun` each process takes every W-th window of a batch. Weights, gradients, optimiser and target network are
sharded over the processes of a machine. All processes write a checkpoint's training state at once, as safetensors
shards. Any number of processes can read it.
"""

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from pac.files import problem
from pac.model import PAC
from pac.model.attention import LatentBlock
from pac.model.pac import ActionInput
from pac.old_names import rename_weight

T = TypeVar("T")

STATE_FILE = "state.safetensors"  # written by a single process; several write shards
PATIENCE = timedelta(days=7)  # the main process may be evaluating, or writing to a slow disk
LISTEN_SECONDS = 3.0  # torchrun ends the other processes sooner than this after one has failed


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes of a run: the rank of this one, their number, and its device."""

    device: torch.device
    rank: int = 0
    size: int = 1
    # Two groups on the CPU with long timeouts: one for messages between processes, and one for the threads that write
    # checkpoints, which must not mix with the messages.
    control_group: dist.ProcessGroup | None = None
    checkpoint_group: dist.ProcessGroup | None = None
    mesh: DeviceMesh | None = None  # how weights are split

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def gather(self) -> Callable[[Tensor], Tensor]:
        """Return the function that gathers the rows of all processes, in order of rank, without gradient."""
        return _gather_rows if self.size > 1 else _same_rows

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over processes."""
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value)
        return value

    def barrier(self) -> None:
        """Wait for all processes, however long it takes."""
        if self.size > 1:
            dist.barrier(group=self.control_group)

    def broadcast(self, value: T) -> T:
        """Return the main process's value on all."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control_group)
        return values[0]

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control_group)
        return values

    def on_main(self, work: Callable[[], T]) -> T:
        """Do work on the main process and return its result on all. An error is raised on all.

        On the other processes the error is a ValueError, so that only one of them prints it (`report_errors_once`).
        """
        if self.size == 1:
            return work()
        value, error = None, None
        if self.is_main:
            try:
                value = work()
            except Exception as found:
                error = found
        message = None if error is None else "".join(traceback.format_exception_only(error)).strip()
        value, message = self.broadcast((value, str(error) if isinstance(error, ValueError) else message))
        if error is not None:
            raise error
        if message is not None:
            raise ValueError(message)
        return value  # type: ignore[return-value]


def _same_rows(rows: Tensor) -> Tensor:
    return rows


def _gather_rows(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


class Signals:
    """The largest signal number that any process has received, known to all at the same step.

    `ask` returns the answer to the question before, so that no process waits. Processes that receive a signal at
    different moments stop after the same update, one later than a single process would.
    """

    def __init__(self, processes: ProcessGroup) -> None:
        self.processes = processes
        self._asked: tuple[dist.Work | None, Tensor] | None = None

    def ask(self, raised: int) -> int:
        if self.processes.size == 1:
            return raised
        before, self._asked = self._asked, self._ask(raised)
        return 0 if before is None else _answer(*before)

    def settle(self, raised: int) -> int:
        """Return the largest number of all processes now. No question is open afterwards."""
        if self.processes.size == 1:
            return raised
        before, self._asked = self._asked, None
        earlier = 0 if before is None else _answer(*before)
        return max(earlier, _answer(*self._ask(raised)))

    def _ask(self, raised: int) -> tuple[dist.Work | None, Tensor]:
        value = torch.tensor(raised)
        return dist.all_reduce(value, dist.ReduceOp.MAX, group=self.processes.control_group, async_op=True), value


def _answer(work: dist.Work | None, value: Tensor) -> int:
    if work is not None:
        work.wait()
    return int(value)


@contextmanager
def processes(device: torch.device) -> Iterator[ProcessGroup]:
    """Yield the processes that torchrun started, or this one alone.

    After an error the groups are not destroyed: that would wait for processes that wait for this one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ProcessGroup(device=device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"torchrun: expected at most one process per GPU, {torch.cuda.device_count()} here, found "
                f"{os.environ['LOCAL_WORLD_SIZE']}. Lower --nproc-per-node."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    control_group, checkpoint_group = (dist.new_group(backend="gloo", timeout=PATIENCE) for _ in range(2))
    mesh = _make_mesh(device, size, int(os.environ["LOCAL_WORLD_SIZE"]))
    yield ProcessGroup(
        device=device, rank=rank, size=size, control_group=control_group, checkpoint_group=checkpoint_group, mesh=mesh
    )
    dist.destroy_process_group()


def _make_mesh(device: torch.device, size: int, local: int) -> DeviceMesh:
    """Return the mesh that splits weights within a machine. Each machine holds all weights.

    Links within a machine are fast. Between machines only gradients of a part travel, a tenth of what splitting over
    all machines would send (docs/scale.md).
    """
    if size == local or local == 1 or size % local:
        return init_device_mesh(device.type, (size,))
    return init_device_mesh(device.type, (size // local, local), mesh_dim_names=("machine", "part"))


@contextmanager
def report_errors_once() -> Iterator[None]:
    """Let the main process alone print a user error that all processes find.

    The others wait until torchrun ends them. If it does not, the error was theirs alone, and they raise it.
    """
    try:
        yield
    except ValueError as error:
        rank = int(os.environ.get("RANK", "0"))
        if rank == 0:
            raise
        time.sleep(LISTEN_SECONDS)
        raise ValueError(f"process {rank}: {error}") from error


def shard(model: PAC, processes: ProcessGroup, dtype: torch.dtype | None = None) -> PAC:
    """Split a model's weights over the processes of a machine. One process gets the model unchanged.

    The blocks hold almost all weights. They are gathered one block at a time, in `dtype` if given: autocast would round
    the same weights before using them. All others stay in float32, as on one GPU, where some are used unrounded. Heads
    are gathered when they are called. The few others are gathered once per update, because tokens of numbers hold
    views of weights, which must live as long as the tokens.
    """
    if processes.size == 1:
        return model
    # FSDP warns of outputs that are views: changing one in place would drop its hook. Nothing here does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    mesh = processes.mesh
    # Inputs are not cast: autocast decides the precision of each operation.
    whole = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    thin = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        assert isinstance(block, LatentBlock)
        fully_shard([block.attention, block.mlp], mesh=mesh, mp_policy=thin)
    for name, module in model.named_children():
        if name in ("policy", "q", "v", "behaviour") and not isinstance(module, ActionInput):
            fully_shard(module, mesh=mesh, mp_policy=whole)
    fully_shard(model, mesh=mesh, mp_policy=whole)
    register_fsdp_forward_method(model, "encode")
    return model


def reshard(model: nn.Module) -> None:
    """Split gathered weights again after a forward pass that no backward pass follows."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
            # FSDP notes each pass in lists that only a backward pass empties. In three million updates they would grow
            # to gigabytes. torch 2.11 has no public way to empty them.
            group = module._get_fsdp_state()._fsdp_param_group
            if group is not None and group._post_forward_indices:
                group._post_forward_indices.clear()
                group.comm_ctx.post_forward_order.clear()


def whole_model(model: PAC, processes: ProcessGroup) -> PAC:
    """Return the whole model on the main process. Every process must call this."""
    if processes.size == 1:
        return model
    weights = snapshot(dict(model.state_dict()), processes)
    if not processes.is_main:
        return model
    with processes.device:
        alone = PAC(model.config)
    alone.load_state_dict(weights)
    return alone.requires_grad_(False)


def local_weights(model: nn.Module) -> list[Tensor]:
    """Return the part of each parameter that this process holds."""
    return [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a sharded tensor as a whole one, on every process. Others are returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def snapshot(tensors: dict[str, Tensor], processes: ProcessGroup) -> dict[str, Tensor]:
    """Return copies of whole tensors in the main process's memory. Every process must call this."""
    copies = {}
    for name, tensor in tensors.items():
        whole = whole_tensor(tensor).detach()
        if processes.is_main:
            copies[name] = whole.to("cpu", copy=True).contiguous()
    return copies


def start_saving(tensors: dict[str, Tensor], folder: Path, processes: ProcessGroup) -> Callable[[], None]:
    """Copy the training state to memory. Return the function that finishes writing it to `folder`, in any thread.

    The function returns when every process has written its part. It raises an OSError if one could not.
    """
    if processes.size == 1:
        copies = snapshot(tensors, processes)
        return lambda: save_file(copies, folder / STATE_FILE, metadata={"format": "pt"})
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    future: Any = async_save(dict(tensors), storage_writer=writer, process_group=processes.checkpoint_group)

    def finish() -> None:
        try:
            future.result()
        except CheckpointException as error:
            causes = [f"process {rank}: {cause}" for rank, (cause, *_) in error.failures.items()]
            raise OSError("; ".join(causes)) from error

    return finish


def load_state(tensors: dict[str, Tensor], folder: Path, processes: ProcessGroup) -> None:
    """Load training state into these tensors, in place. Any number of processes may have written it."""
    alone = processes.size == 1
    reader = HuggingFaceStorageReader(str(folder))
    stored_names = _check_state(tensors, reader, folder)
    found = {stored_names[name]: torch.empty_like(x, device="cpu") if alone else x for name, x in tensors.items()}
    with warnings.catch_warnings():  # torch warns that there is only one process
        warnings.simplefilter("ignore", UserWarning)
        load(found, storage_reader=reader, process_group=processes.control_group, no_dist=alone)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor is not found[stored_names[name]]:
                tensor.copy_(found[stored_names[name]])


def _check_state(tensors: dict[str, Tensor], reader: HuggingFaceStorageReader, folder: Path) -> dict[str, str]:
    """Return the stored name of each tensor. Raise if one is missing or has another shape."""
    stored = reader.read_metadata().state_dict_metadata
    stored_names = {rename_weight(name): name for name in stored}
    missing = sorted(tensors.keys() - stored_names.keys())
    if missing:
        fix = "Resume with the recipe and overrides that the run began with."
        found = f"none for {missing[:3]}"
        raise problem(folder, expected="the training state of this model", found=found, fix=fix)
    for name, tensor in tensors.items():
        content = stored[stored_names[name]]
        assert isinstance(content, TensorStorageMetadata)
        if tensor.shape != content.size:
            text, fix = f"{name!r} of shape {tuple(tensor.shape)}", "The checkpoint is of another model."
            raise problem(folder, expected=text, found=tuple(content.size), fix=fix)
    return stored_names


def copy_whole(tensor: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    if isinstance(tensor, DTensor):  # every process has read the file: nothing need be sent
        whole = whole.to(tensor.device)
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(whole)
