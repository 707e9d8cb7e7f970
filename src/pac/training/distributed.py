"""Ranks: the only file that knows there may be several processes, and sharded weights (PyTorch's FSDP2).

Under `torchrun` each process takes every W-th window of a batch. Weights, gradients, optimiser and target network are
sharded over the processes of a machine. A checkpoint's training state is written by all of them at once, as
safetensors shards, and is read back on any number of processes.
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

from pac.model import PAC
from pac.model.attention import LatentBlock
from pac.model.pac import ActionInput
from pac.model.pretrained import read_weights
from pac.old_names import rename_weight

T = TypeVar("T")

STATE_FILE = "state.safetensors"  # of a single process; several write shards
PATIENCE = timedelta(days=7)  # of processes that wait for the main one: it may be evaluating, or writing to a slow disk
LISTEN_SECONDS = 3.0  # torchrun ends the others well within this after one of them has failed


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes of a run: which of how many this one is, and where it computes."""

    device: torch.device
    rank: int = 0
    size: int = 1
    # Two groups beside the one that tensors travel in, both on the CPU and patient: for words between processes, and
    # for checkpoints, whose threads must not get between the words.
    control_group: dist.ProcessGroup | None = None
    checkpoint_group: dist.ProcessGroup | None = None
    mesh: DeviceMesh | None = None  # how weights are split

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
        """Wait for all, however long it takes."""
        if self.size > 1:
            dist.barrier(group=self.control_group)

    def broadcast(self, value: T) -> T:
        """The main process's value, on all."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control_group)
        return values[0]

    def collect(self, value: T) -> list[T]:
        """Everybody's value, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control_group)
        return values

    def on_main(self, work: Callable[[], T]) -> T:
        """What the main process's work gives, on all. An error of it is raised on all: as it is on the main one, as a
        mistake of the user's on the others, which tell it only if nobody else does (`report_errors_once`).
        """
        if self.size == 1:
            return work()
        value, error = None, None
        if self.is_main:
            try:
                value = work()
            except Exception as found:
                error = found
        problem = None if error is None else "".join(traceback.format_exception_only(error)).strip()
        value, problem = self.broadcast((value, str(error) if isinstance(error, ValueError) else problem))
        if error is not None:
            raise error
        if problem is not None:
            raise ValueError(problem)
        return value  # type: ignore[return-value]


def _same_rows(rows: Tensor) -> Tensor:
    return rows


def _gather_rows(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


class Signals:
    """The largest number that any process has raised, known to all at the same step.

    Asking returns the answer to the question before, so that nobody waits for it: processes that were told to stop at
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
        """Everybody's answer now, after which nothing is under way."""
        if self.processes.size == 1:
            return raised
        before, self._asked = self._asked, None
        heard = 0 if before is None else _answer(*before)
        return max(heard, _answer(*self._ask(raised)))

    def _ask(self, raised: int) -> tuple[dist.Work | None, Tensor]:
        value = torch.tensor(raised)
        return dist.all_reduce(value, dist.ReduceOp.MAX, group=self.processes.control_group, async_op=True), value


def _answer(work: dist.Work | None, value: Tensor) -> int:
    if work is not None:
        work.wait()
    return int(value)


@contextmanager
def processes(device: torch.device) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this one alone.

    After an error the groups are left as they are: taking them down would wait for processes that wait for this one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ProcessGroup(device=device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"torchrun: expected at most a process for each of the {torch.cuda.device_count()} GPUs here, found "
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
    """Weights are split within a machine, whose links are fast, and each machine holds them all: what passes between
    machines is a part's gradients, a tenth of what splitting over all of them would send (docs/scale.md).
    """
    if size == local or local == 1 or size % local:
        return init_device_mesh(device.type, (size,))
    return init_device_mesh(device.type, (size // local, local), mesh_dim_names=("machine", "part"))


@contextmanager
def report_errors_once() -> Iterator[None]:
    """A mistake of the user's that all processes find is told once, by the main one. The others wait until torchrun
    ends them for that, and speak up only if it does not: then the mistake was theirs alone.
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
    """Split a model's weights over the processes of a machine; the same model if there is one process.

    The products of the blocks hold almost all weights. They are put together a block at a time, in `dtype` where it is
    given: autocast would round the same weights before using them. All else stays in float32, as it does on one GPU,
    where some of it is used unrounded. Heads are put together when they are called. What else there is, little, is
    put together once an update: tokens of numbers hold views of weights, which must live as long as they do.
    """
    if processes.size == 1:
        return model
    # FSDP warns of outputs that are views, since changing one in place would drop its hook. Nothing here does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    mesh = processes.mesh
    # Inputs are left as they are: autocast decides what is computed in which precision.
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
    """After a forward pass that no backward pass follows: part what is still together, as a backward pass would."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
            # FSDP notes each pass in lists that it empties in a backward pass: in three million updates they would
            # grow to gigabytes. It has no public way to empty them that torch 2.11 knows.
            group = module._get_fsdp_state()._fsdp_param_group
            if group is not None and group._post_forward_indices:
                group._post_forward_indices.clear()
                group.comm_ctx.post_forward_order.clear()


def whole_model(model: PAC, processes: ProcessGroup) -> PAC:
    """The model put together on the main process, for it to use alone; every process must ask."""
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
    """What this process holds of each parameter."""
    return [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]


def whole_tensor(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, on every process; an ordinary one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def snapshot(tensors: dict[str, Tensor], processes: ProcessGroup) -> dict[str, Tensor]:
    """Copies in memory of whole, unsharded tensors; every process must ask, the main one gets them."""
    copies = {}
    for name, tensor in tensors.items():
        whole = whole_tensor(tensor).detach()
        if processes.is_main:
            copies[name] = whole.to("cpu", copy=True).contiguous()
    return copies


def start_saving(tensors: dict[str, Tensor], folder: Path, processes: ProcessGroup) -> Callable[[], None]:
    """Copy the training state to memory, and return what finishes writing it to `folder`, in any thread.

    It returns when every process has written its part, and raises an OSError if one of them could not.
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
    """Training state into these tensors, in place; whatever number of processes wrote it."""
    alone = processes.size == 1
    reader = HuggingFaceStorageReader(str(folder))
    stored_names = _check_state(tensors, reader, folder)
    found = {stored_names[name]: torch.empty_like(x, device="cpu") if alone else x for name, x in tensors.items()}
    with warnings.catch_warnings():  # torch notes that there is but one process
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
        raise ValueError(
            f"{folder}: expected the training state of this model, found none for {missing[:3]}. Resume with the "
            "recipe and overrides the run was started with."
        )
    for name, tensor in tensors.items():
        content = stored[stored_names[name]]
        assert isinstance(content, TensorStorageMetadata)
        _check_shape(folder, name, tensor.shape, content.size)
    return stored_names


def load_weights(model: nn.Module, file: Path, processes: ProcessGroup) -> None:
    """Whole weights into a model that may be sharded."""
    found = read_weights(file)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name not in found:
                raise ValueError(f"{file}: expected weights {name!r}, found none. The checkpoint is of another model.")
            _check_shape(file, name, tensor.shape, found[name].shape)
            if isinstance(tensor, DTensor):
                whole = found[name].to(processes.device)  # everybody has read it: nothing need be sent
                tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None))
            else:
                tensor.copy_(found[name])


def _check_shape(where: Path, name: str, wanted: torch.Size, found: torch.Size) -> None:
    if wanted != found:
        raise ValueError(
            f"{where}: expected {name!r} of shape {tuple(wanted)}, found {tuple(found)}. The checkpoint is of another "
            "model."
        )
