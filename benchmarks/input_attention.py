"""Compare the kernels of `pac.model.kernels.scalar` with the compiled PyTorch of `ScalarAttention`, on a GPU.

    python benchmarks/input_attention.py                       # CUDA; all of it takes about a minute
    python benchmarks/input_attention.py --sections scalars    # or check, tiles, latents

check    relative errors of both against float64, on every eighth row
scalars  forward, and forward + backward, of both
tiles    the same of the kernels with other sizes of tiles: which constants to choose
latents  self-attention of the latents by each of PyTorch's backends, written out and compiled, and by the kernels of
         `pac.model.kernels.latent`; their errors; and their times with other tiles

Shapes: a Control mixture of 512 windows of 5 observations for XXS, whose tasks have 4 to 26 numbers, 67 to 78, or 223,
each row padded to 223; and 512 full rows for L. Times are medians of a replayed CUDA graph: no launches in them.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from pac.model.input_attention import ScalarAttention
from pac.model.kernels import latent as latent_kernels
from pac.model.kernels import scalar as scalar_kernels

GAINS, NUMBERS, HEADS, QUERIES = 8, 223, 8, 32
WIDTHS = {"XXS": 96, "L": 256}
NAMES = ["output", "log mass", "scale", "direction score", "offset score", "direction value", "offset value"]
# lines, tokens, warps, stages; tokens, warps, stages, splits
FORWARD = {
    "XXS": [(128, 64, 8, 2), (128, 64, 8, 1), (128, 64, 16, 2), (128, 32, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)],
    "L": [(128, 32, 8, 2), (128, 32, 8, 1), (64, 32, 4, 2), (128, 64, 16, 2)],
}
BACKWARD = {
    "XXS": [(64, 4, 2, 16), (64, 4, 1, 16), (64, 4, 2, 8), (64, 4, 2, 32), (64, 8, 2, 16), (128, 8, 2, 16)],
    "L": [(64, 8, 2, 16), (64, 8, 1, 16), (64, 8, 2, 8), (64, 4, 1, 16)],
}
# part, heads, warps, stages
LATENTS_FORWARD = {
    "XXS": [(32, 1, 1, 1), (32, 1, 2, 1), (128, 1, 4, 1), (32, 8, 1, 2), (32, 8, 2, 2)],
    "L": [(64, 1, 1, 1), (64, 1, 2, 1), (64, 1, 4, 1), (64, 8, 4, 2)],
}
LATENTS_BACKWARD = {
    "XXS": [(32, 1, 1, 1), (32, 1, 2, 1), (128, 1, 2, 1), (128, 1, 4, 1), (128, 8, 4, 2)],
    "L": [(64, 1, 2, 1), (64, 1, 4, 1), (64, 1, 8, 1), (256, 1, 4, 1)],
}
LATENT_ROWS = {"XXS": 2560, "L": 512}
BANDWIDTH = 4.2e12  # bytes a second, as in docs/performance.md
Call = Callable[[], Any]
console = Console(width=150)


def numbers_of_rows(size: str) -> Tensor:
    """Return the number of inputs of each row. Rows of a task stand together."""
    if size == "L":
        return torch.full((512,), NUMBERS)
    small, middle = torch.linspace(4, 26, 23).long(), torch.linspace(67, 78, 5).long()
    tasks = torch.cat([small, middle, torch.full((4,), NUMBERS)])
    order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(0))
    return tasks[order].repeat_interleave(512 * 5 // len(tasks))


def make_inputs(size: str, dtype: torch.dtype) -> list[Tensor]:
    """Return inputs as `InputAttention` makes them. The numbers need no gradient, as in training."""
    torch.manual_seed(0)
    numbers, width, tokens = numbers_of_rows(size).cuda(), WIDTHS[size], NUMBERS * GAINS
    real = torch.arange(tokens, device="cuda") < numbers[:, None] * GAINS
    scale = (torch.rand(real.shape, device="cuda") + 0.5) * real
    scalar = torch.randn(real.shape, device="cuda").tanh() * real
    shapes = [(HEADS, QUERIES), (HEADS, QUERIES, tokens), (HEADS, width), (HEADS, tokens, width)]
    tables = [torch.randn(shape, device="cuda") for shape in shapes]
    made = [scale, scalar, *tables[:2], *(table.to(dtype) for table in tables[2:])]
    return [x.requires_grad_(i != 1) for i, x in enumerate(made)]


def gradients(attend: Callable[..., tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return outputs and gradients."""
    outputs = attend(*inputs)
    generator = torch.Generator("cuda").manual_seed(1)
    shape = (*outputs[0].shape[1:3], outputs[0].shape[0], outputs[0].shape[3])  # what was read is used by row
    pull = torch.randn(shape, device="cuda", generator=generator).bfloat16().to(outputs[0].dtype).permute(2, 0, 1, 3)
    differentiable = [x for x in inputs if x.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, differentiable, [pull, torch.ones_like(outputs[1])])]


def milliseconds(call: Call, repeats: int = 15) -> float:
    """Return the median time of a call, captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeats + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    del graph
    torch.cuda.empty_cache()
    return sorted(times[2:])[repeats // 2]


def both_times(attend: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> tuple[float, float]:
    """Return the time of forward without gradients, and of forward and backward."""
    with torch.no_grad():
        outputs = attend(*inputs)
        pulls = [torch.ones_like(x) for x in outputs]
        forward = milliseconds(lambda: attend(*inputs))
    differentiable = [x for x in inputs if x.requires_grad]
    return forward, milliseconds(lambda: torch.autograd.grad(attend(*inputs), differentiable, pulls))


def reference(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    output, log_mass = ScalarAttention.apply(*inputs)  # type: ignore[no-untyped-call]
    return output, log_mass


def kernel(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    return scalar_kernels.attend_scalars(*inputs)


def check(size: str, dtype: torch.dtype) -> Iterator[list[str]]:
    inputs = make_inputs(size, dtype)
    inputs[:2] = [x[::8].detach().requires_grad_(x.requires_grad) for x in inputs[:2]]
    exact = gradients(reference, [x.detach().double().requires_grad_(x.requires_grad) for x in inputs])
    real = inputs[0] > 0
    for name, attend in {"PyTorch": reference, "kernel": kernel}.items():
        found = gradients(attend, inputs)
        found[2], exact[2] = found[2] * real, exact[2] * real
        yield [
            f"{size} {dtype}".replace("torch.", ""),
            name,
            *(f"{((x - y).norm() / y.norm()).item():.1e}" for x, y in zip(found, exact, strict=True)),
        ]


def scalars(size: str, dtype: torch.dtype) -> Iterator[list[str]]:
    inputs, rounds = make_inputs(size, dtype), []
    compiled = torch.compile(reference, fullgraph=True, dynamic=False)
    for name, attend in {"PyTorch, compiled": compiled, "kernel": kernel}.items():
        torch.cuda.reset_peak_memory_stats()
        forward, both = both_times(attend, inputs)
        rounds.append(both)
        memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f}"
        yield [f"{size} {dtype}".replace("torch.", ""), name, f"{forward:.2f}", f"{both:.2f}", memory]
    yield ["", "times faster", "", f"{rounds[0] / rounds[1]:.1f}", ""]


def tiles(size: str) -> Iterator[list[str]]:
    """Vary the sizes of the forward kernel, then of the backward kernel with the first of the forward sizes."""
    inputs, width = make_inputs(size, torch.bfloat16), {"XXS": 128, "L": 256}[size]
    usual = scalar_kernels.BLOCKS[width]
    with torch.no_grad():
        for lines, tokens, warps, stages in FORWARD[size]:
            tiles = dataclasses.replace(usual, lines=lines, tokens=tokens, warps=warps, stages=stages)
            found = _with(scalar_kernels.BLOCKS, width, tiles, lambda: [_time(lambda: kernel(*inputs))])
            yield [size, "forward", str((lines, tokens, warps, stages)), *found]
    differentiable = [x for x in inputs if x.requires_grad]
    outputs = kernel(*inputs)
    pulls = [torch.ones_like(x) for x in outputs]
    del outputs
    for tokens, warps, stages, splits in BACKWARD[size]:
        tiles = dataclasses.replace(usual, back_tokens=tokens, back_warps=warps, back_stages=stages, splits=splits)
        call = lambda: torch.autograd.grad(kernel(*inputs), differentiable, pulls)  # noqa: E731
        found = _with(scalar_kernels.BLOCKS, width, tiles, lambda: [_time(call)])  # noqa: B023
        yield [size, "both", str((tokens, warps, stages, splits)), *found]


def _time(call: Call) -> str:
    return f"{milliseconds(call):.3f}"


def _with(table: dict[int, Any], width: int, tiles: Any, call: Callable[[], list[str]]) -> list[str]:
    usual = table[width]
    table[width] = tiles
    try:
        return call()
    except Exception as error:  # such as tiles for which the chip has no room: the others are still worth knowing
        return [f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"]
    finally:
        table[width] = usual


def latent_inputs(size: str, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Return queries, keys and values of (2560, 8, 32, 96) or (512, 8, 32, 256) before heads are split."""
    torch.manual_seed(0)
    shape = LATENT_ROWS[size], QUERIES, HEADS * WIDTHS[size]
    return [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for _ in "qkv"]


def split(*inputs: Tensor) -> list[Tensor]:
    """Split heads as `Attention` does."""
    return [x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in inputs]


def by_backend(*inputs: Tensor) -> tuple[Tensor]:
    query, key, value = split(*inputs)
    return (F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2),)


def written_out(*inputs: Tensor) -> tuple[Tensor]:
    query, key, value = split(*inputs)
    weight = (query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1)
    return ((weight @ value).transpose(1, 2).flatten(2),)


def latent_kernel(*inputs: Tensor) -> tuple[Tensor]:
    query, key, value = inputs
    return (latent_kernels.attend_latents(query, key, value, HEADS),)


def latents(size: str) -> Iterator[list[str]]:
    inputs = latent_inputs(size)
    for backend in (
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ):
        with sdpa_kernel(backend):
            yield _latents_row(backend.name, by_backend, inputs)
    yield _latents_row("PyTorch's choice", by_backend, inputs)
    yield _latents_row("written out, compiled", torch.compile(written_out, dynamic=False), inputs)
    yield _latents_row("kernel", latent_kernel, inputs)
    # forward reads q, k, v and writes one; backward reads those and a gradient, and writes three
    floors = [num_arrays * inputs[0].nbytes / BANDWIDTH * 1e3 for num_arrays in (4, 11)]
    yield [f"floor: 4 and 11 arrays of {inputs[0].nbytes / 1e6:.0f} MB", *(f"{floor:.3f}" for floor in floors)]


def latent_errors(attend: Callable[..., tuple[Tensor]], inputs: Sequence[Tensor]) -> list[float]:
    """Return relative errors against float64 of the output and the gradients, on every eighth row."""
    found = []
    for function, dtype in ((attend, inputs[0].dtype), (by_backend, torch.float64)):
        few = [x[::8].detach().to(dtype).requires_grad_() for x in inputs]
        (output,) = function(*few)
        pull = torch.randn(output.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).bfloat16()
        found.append([output, *torch.autograd.grad(output, few, pull.to(dtype))])
    return [((x - exact).norm() / exact.norm()).item() for x, exact in zip(*found, strict=True)]


def latent_check(size: str) -> Iterator[list[str]]:
    for dtype in (torch.bfloat16, torch.float32):
        inputs = latent_inputs(size, dtype)
        for name, attend in {"PyTorch": by_backend, "kernel": latent_kernel}.items():
            errors = latent_errors(attend, inputs)
            yield [f"{size} {dtype}".replace("torch.", ""), name, *(f"{error:.1e}" for error in errors)]


def latent_tiles(size: str) -> Iterator[list[str]]:
    """Vary the sizes of the forward kernel, then of the backward kernel. Show the largest error of each."""
    inputs, width, table = latent_inputs(size), WIDTHS[size], latent_kernels.TILES
    pull = torch.ones_like(inputs[0])

    def forward() -> list[str]:
        with torch.no_grad():
            taken = _time(lambda: latent_kernel(*inputs))
        return [taken, f"{latent_errors(latent_kernel, inputs)[0]:.1e}"]

    def both() -> list[str]:
        taken = _time(lambda: torch.autograd.grad(latent_kernel(*inputs), inputs, [pull]))
        return [taken, f"{max(latent_errors(latent_kernel, inputs)):.1e}"]

    usual = table[width]
    for sizes in LATENTS_FORWARD[size]:
        yield [size, "forward", str(sizes), *_with(table, width, (latent_kernels.Tiles(*sizes), usual[1]), forward)]
    for sizes in LATENTS_BACKWARD[size]:
        yield [size, "both", str(sizes), *_with(table, width, (usual[0], latent_kernels.Tiles(*sizes)), both)]


def _latents_row(name: str, attend: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> list[str]:
    try:
        forward, both = both_times(attend, inputs)
    except RuntimeError as error:  # a backend that does not take these shapes
        return [name, str(error).splitlines()[0][:80], ""]
    return [name, f"{forward:.3f}", f"{both:.3f}"]


def show(title: str, columns: Sequence[str], rows: Iterator[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", default=["check", "scalars", "tiles", "latents"])
    parser.add_argument("--sizes", nargs="+", default=["XXS", "L"], choices=list(WIDTHS))
    parser.add_argument("--float32", action="store_true", help="scalars in float32 too, where products are slow")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/input_attention.py: expected a CUDA device, found none.")
    started = time.time()
    share = numbers_of_rows("XXS").float().mean() / NUMBERS
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; XXS: {share:.0%} of tokens are real")
    dtypes = [torch.bfloat16, *([torch.float32] if args.float32 else [])]
    for name in args.sections:
        for size in args.sizes:
            if name == "check":
                for dtype in (torch.bfloat16, torch.float32):
                    show("relative error against float64", ["", "", *NAMES], check(size, dtype))
            if name == "scalars":
                for dtype in dtypes:
                    show("ms", ["", "", "forward", "forward + backward", "peak GB"], scalars(size, dtype))
            if name == "tiles":
                show("ms of the kernels by tiles", ["", "", "sizes", "ms"], tiles(size))
            if name == "latents":
                show(f"{size}: ms of the latents' self-attention", ["", "forward", "forward + backward"], latents(size))
                show("relative error against float64", ["", "", "output", "query", "key", "value"], latent_check(size))
                show("ms of its kernels by tiles", ["", "", "sizes", "ms", "error"], latent_tiles(size))
    console.print(f"{time.time() - started:.0f} s in all")


if __name__ == "__main__":
    main()
