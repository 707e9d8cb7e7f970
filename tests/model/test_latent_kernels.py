"""The kernels give what PyTorch's attention gives, for numbers of tokens and widths that no tile divides.

They need a GPU, or Triton's interpreter, which runs them on the CPU without compiling anything; Triton need not be
installed with PyTorch, any folder will do:

    TRITON_INTERPRET=1 PYTHONPATH=FOLDER_OF_TRITON pytest tests/model/test_latent_kernels.py
"""

import os
from collections.abc import Callable

import pytest
import torch
from factories import random_observation, small_model
from torch import Tensor

from pac.model import attention as perceiver
from pac.model.attention import Attention

INTERPRETED, CUDA = os.environ.get("TRITON_INTERPRET") == "1", torch.cuda.is_available()
if not (INTERPRETED or CUDA):
    pytest.skip("Triton needs a GPU or its interpreter", allow_module_level=True)
latent_kernels = pytest.importorskip("pac.model.kernels.latent", reason="no Triton")
Tiles = latent_kernels.Tiles
DEVICE = "cuda" if CUDA else "cpu"
# The interpreter multiplies the bits of bfloat16 as integers.
HALF, ROUNDING = (torch.bfloat16, 4e-3) if CUDA else (torch.float16, 5e-4)
NAMES = ["query", "key", "value"]
# rows, heads, queries, tokens, width of a head
SHAPES = [(3, 4, 32, 32, 96), (2, 6, 5, 5, 12), (5, 1, 38, 32, 48), (2, 3, 10, 64, 40), (1, 1, 1, 1, 1)]
# queries, tokens, width: those of the models, and of their decoders' queries
IN_USE = [(32, 32, width) for width in (16, 48, 64, 96, 128, 160, 192, 256)]
IN_USE += [(*sizes, width) for sizes in [(16, 16), (38, 32), (10, 32), (64, 64), (7, 50)] for width in (48, 96, 256)]
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")  # interpreter
gpu = pytest.mark.skipif(not CUDA, reason="no GPU")


def make_inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    rows, heads, queries, tokens, width = shape
    sizes = [(rows, x, heads * width) for x in (queries, tokens, tokens)]
    return [(torch.randn(size) * 1.5).to(DEVICE, dtype).requires_grad_() for size in sizes]


def reference(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    heads = [x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (query, key, value)]
    return perceiver.attend(heads[0], heads[1], heads[2], None).transpose(1, 2).flatten(2)


def results(attend: Callable[..., Tensor], inputs: list[Tensor], num_heads: int) -> dict[str, Tensor]:
    """Output, and gradients under a random objective."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = attend(*inputs, num_heads)
    pull = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).bfloat16().to(output)
    return {"output": output.detach()} | dict(zip(NAMES, torch.autograd.grad(output, inputs, pull), strict=True))


@pytest.mark.parametrize("tiles", [None, Tiles(16, 2, 4, 1), Tiles(64, 8, 4, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32(shape: tuple[int, ...], tiles: Tiles | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts narrower and wider than a head; programs with one head, some and all."""
    if tiles is not None:
        monkeypatch.setattr(latent_kernels, "FULL", (tiles, tiles))
    inputs = make_inputs(shape)
    expected = results(reference, [x.double() for x in inputs], shape[1])
    for name, value in results(latent_kernels.attend_latents, inputs, shape[1]).items():
        atol = 1e-5 * max(1, float(expected[name].abs().max()))
        torch.testing.assert_close(value.double(), expected[name], rtol=2e-5, atol=atol, msg=name)


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_scores_of_any_size_and_sign(shift: float) -> None:
    """A fixed bound in place of the largest score, or 0 for what is padding, would show here."""
    inputs = make_inputs((3, 2, 5, 7, 16))
    with torch.no_grad():
        inputs[0][..., ::16], inputs[1][..., ::16] = shift, 12.0
    expected = results(reference, [x.double() for x in inputs], 2)
    for name, value in results(latent_kernels.attend_latents, inputs, 2).items():  # scores of 900 have 6e-5 of rounding
        atol = 3e-3 * max(1, float(expected[name].abs().max()))
        torch.testing.assert_close(value.double(), expected[name], rtol=3e-3, atol=atol, msg=name)


def test_arrays_with_unusual_strides() -> None:
    """Slices of one wide projection, and the gradient of a sum, which has no strides."""
    wide = torch.randn(3, 9, 3 * 32, device=DEVICE, requires_grad=True)
    found = []
    for attend in (reference, latent_kernels.attend_latents):
        total = attend(*wide.chunk(3, -1), 2).sum()
        found.append(torch.autograd.grad(total, wide)[0])
    torch.testing.assert_close(found[1], found[0])


def test_queries_that_all_rows_share() -> None:
    """As if each row had its own copy; their gradients are added."""
    rows, width = 5, 48
    query, key, value = (x.requires_grad_() for x in (torch.randn(n, 7, width, device=DEVICE) for n in (1, rows, rows)))
    pull = torch.randn(rows, 7, width, device=DEVICE)
    found = []
    for attend in (reference, latent_kernels.attend_latents):
        shared = query.expand(rows, -1, -1) if attend is reference else query
        output = attend(shared, key, value, 4)
        found.append([output, *torch.autograd.grad(output, (query, key, value), pull)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def together(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    return latent_kernels.attend_together(torch.cat([query, key, value], -1), num_heads)


@pytest.mark.parametrize("shape", [(3, 4, 32, 32, 96), (2, 6, 5, 5, 12), (2, 1, 33, 33, 40), (1, 1, 1, 1, 1)])
def test_queries_keys_and_values_in_one_array(shape: tuple[int, ...]) -> None:
    """As from arrays of their own, to the bit."""
    inputs = make_inputs(shape)
    expected, found = (results(attend, inputs, shape[1]) for attend in (latent_kernels.attend_latents, together))
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_the_operators_pass_opcheck() -> None:
    inputs = make_inputs((3, 2, 5, 7, 8))
    torch.library.opcheck(torch.ops.pac.latent_attention.default, (*inputs, 2))
    packed = torch.randn(3, 7, 3 * 16, device=DEVICE, requires_grad=True)
    torch.library.opcheck(torch.ops.pac.latent_self_attention.default, (packed, 2))


def test_compiled() -> None:
    inputs = make_inputs((5, 2, 32, 32, 96), torch.bfloat16 if CUDA else torch.float32)

    def attend(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
        # the operator itself: the compiler cannot see through the import hook, which checks `attend_latents`
        return torch.ops.pac.latent_attention(query * 2, key, value, num_heads) + query

    compiled = torch.compile(attend, fullgraph=True, dynamic=False)
    expected = results(attend, inputs, 2)
    for name, value in results(compiled, inputs, 2).items():
        assert (value - expected[name]).norm() <= 0.01 * expected[name].norm(), name


def test_a_model_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients of all that is learned."""
    model = small_model(0).to(DEVICE)
    observation = random_observation(model.config, 5).map(lambda x: x.to(DEVICE))
    found, used = [], []
    for use in (False, True):
        calls: list[bool] = []

        def choose(query: Tensor, key: Tensor, num_heads: int, use: bool = use, calls: list[bool] = calls) -> bool:
            calls.append(use and latent_kernels.fits(query, key, num_heads))
            return calls[-1]

        monkeypatch.setattr(perceiver, "use_kernels", choose)
        monkeypatch.setattr(perceiver, "on_gpu", lambda x, use=use: use)
        model.zero_grad()
        output = model.policy_logits(model.encode(observation))
        output.square().sum().backward()
        found.append([output.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
        used.append(sum(calls))
    assert used == [0, model.config.num_blocks + 1]  # and the policy's queries
    assert len(found[0]) > 10
    largest = max(x.abs().max() for x in found[0])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5 * float(largest))


def test_what_fits() -> None:
    def fits(rows: int, queries: int, tokens: int, width: int, dtype: torch.dtype, source_rows: int = 4) -> bool:
        query, key = torch.empty(rows, queries, 2 * width, dtype=dtype), torch.empty(source_rows, tokens, 2 * width)
        return latent_kernels.fits(query, key.to(dtype), 2)

    assert fits(4, 32, 32, 96, torch.bfloat16)
    assert fits(4, 64, 64, 256, torch.bfloat16)
    assert fits(4, 32, 32, 256, torch.float32)
    assert not fits(4, 64, 64, 256, torch.float32)  # 256 kB
    assert not fits(4, 65, 32, 96, torch.bfloat16)
    assert not fits(4, 32, 65, 96, torch.bfloat16)
    assert not fits(4, 0, 32, 96, torch.bfloat16)
    assert not fits(4, 32, 32, 264, torch.bfloat16)
    assert fits(1, 38, 32, 96, torch.bfloat16)  # queries that all rows share
    assert not fits(2, 38, 32, 96, torch.bfloat16)
    assert not fits(4, 32, 32, 96, torch.float64)


@pytest.mark.parametrize(("queries", "tokens", "width"), IN_USE)
def test_the_tiles_in_use(queries: int, tokens: int, width: int) -> None:
    """In half precision errors against float64 are no more than half above those of PyTorch."""
    rows, heads = (37, 8) if CUDA else (1, 2)
    inputs = make_inputs((rows, heads, queries, tokens, width), HALF)
    assert latent_kernels.fits(inputs[0].bfloat16(), inputs[1], heads)
    exact = results(reference, [x.double() for x in inputs], heads)
    theirs, ours = (results(attend, inputs, heads) for attend in (reference, latent_kernels.attend_latents))
    for name, value in exact.items():
        assert ours[name].dtype == HALF
        error, usual = ((x[name] - value).norm() / value.norm() for x in (ours, theirs))
        assert error <= max(1.5 * usual, ROUNDING), (name, error, usual)


@gpu
def test_results_are_deterministic() -> None:
    inputs = make_inputs((300, 8, 32, 32, 96), torch.bfloat16)
    first, second = (results(latent_kernels.attend_latents, inputs, 8) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@gpu
def test_captured_in_a_graph() -> None:
    inputs = make_inputs((37, 8, 32, 32, 96), torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def call() -> list[Tensor]:
        output = latent_kernels.attend_latents(*inputs, 8)
        return [output.detach(), *torch.autograd.grad(output, inputs, inputs[0].detach())]

    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    graph.replay()
    for found, expected in zip(captured, call(), strict=True):
        assert torch.equal(found, expected)


@gpu
def test_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perceiver, "KERNELS", True)
    few = torch.zeros(2, 32, 64, device="cuda")
    for dtype, used in {torch.bfloat16: True, torch.float32: False, torch.float64: False}.items():
        assert perceiver.use_kernels(few.to(dtype), few.to(dtype), 4) == used
    few = few.bfloat16()
    assert not perceiver.use_kernels(few.cpu(), few.cpu(), 4)
    attention, mask = Attention(64, 64, 64, 4).cuda().bfloat16(), torch.ones(2, 32, dtype=torch.bool, device="cuda")
    few = torch.randn_like(few)
    torch.testing.assert_close(attention(few, few), attention(few, few, mask), rtol=0.05, atol=0.01)
    monkeypatch.setattr(perceiver, "KERNELS", False)
    assert not perceiver.use_kernels(few, few, 4)
