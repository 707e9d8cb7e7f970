"""The kernels give what `ScalarAttention` gives, whatever the mask.

They need a GPU, or Triton's interpreter, which runs them on the CPU without compiling anything; Triton need not be
installed with PyTorch, any folder will do:

    TRITON_INTERPRET=1 PYTHONPATH=FOLDER_OF_TRITON pytest tests/model/test_scalar_kernels.py
"""

import os
from collections.abc import Callable

import pytest
import torch
from factories import random_observation, small_model
from torch import Tensor

from pac.model import input_attention
from pac.model.input_attention import ScalarAttention

INTERPRETED, CUDA = os.environ.get("TRITON_INTERPRET") == "1", torch.cuda.is_available()
if not (INTERPRETED or CUDA):
    pytest.skip("Triton needs a GPU or its interpreter", allow_module_level=True)
scalar_kernels = pytest.importorskip("pac.model.kernels.scalar", reason="no Triton")
DEVICE = "cuda" if CUDA else "cpu"
NAMES = ["scale", "scalar", "direction_score", "offset_score", "direction_value", "offset_value"]
# rows, tokens, heads, queries, width: none, some or all of them multiples of the tiles
SHAPES = [(5, 37, 2, 5, 12), (4, 64, 1, 16, 16), (9, 130, 3, 32, 24), (1, 1, 1, 1, 1)]
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")  # interpreter
gpu = pytest.mark.skipif(not CUDA, reason="no GPU")


@pytest.fixture(params=["default", "small", "large"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that hold less than a row's queries and several rows; splits with nothing to do."""
    small, large = (
        scalar_kernels.BlockSizes(16, 16, 4, 1, 16, 4, 1, 1),
        scalar_kernels.BlockSizes(64, 32, 4, 2, 32, 4, 2, 3),
    )
    if request.param != "default":
        monkeypatch.setattr(scalar_kernels, "FULL", {"small": small, "large": large}[request.param])


def make_mask(kind: str, num_rows: int, num_tokens: int) -> Tensor:
    """The first row is empty in all but one kind."""
    if kind == "full":
        return torch.ones(num_rows, num_tokens, dtype=torch.bool)
    place = torch.arange(num_tokens)
    if kind == "prefix":  # sorted, as in a batch
        mask = place < torch.randint(num_tokens + 1, (num_rows, 1)).sort(0).values
    elif kind == "gaps":  # whole blocks in the middle are empty
        mask = ((place // 16) % 3 != 1) & (torch.rand(num_rows, num_tokens) < 0.7)
    elif kind == "interleaved":
        mask = (place + torch.arange(num_rows)[:, None]) % 3 == 0
    else:
        mask = torch.zeros(num_rows, num_tokens, dtype=torch.bool)
    mask[0] = False
    return mask


def make_inputs(kind: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    rows, tokens, heads, queries, width = shape
    scale = (torch.rand(rows, tokens) * 3 + 0.1) * make_mask(kind, rows, tokens)
    scalar = torch.randn(rows, tokens).tanh()
    made = [torch.randn(heads, queries), torch.randn(heads, queries, tokens)]
    made += [x.to(dtype) for x in (torch.randn(heads, width), torch.randn(heads, tokens, width))]
    return [x.to(DEVICE).requires_grad_() for x in (scale, scalar, *made)]


def results(
    attend: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor], with_scalar: bool = True
) -> dict[str, Tensor]:
    """Output, and gradients under a random objective that uses both outputs."""
    inputs = [x.detach().requires_grad_(with_scalar or i != 1) for i, x in enumerate(inputs)]
    output, log_mass = attend(*inputs)
    real = (inputs[0] > 0).any(1)
    g = torch.Generator().manual_seed(0)
    pulls = [torch.randn(x.shape, generator=g).bfloat16().to(x) for x in (output, log_mass)]
    total = (output * pulls[0]).float().sum() + (log_mass * pulls[1])[:, real].sum()
    wanted = {name: x for name, x in zip(NAMES, inputs, strict=True) if x.requires_grad}
    gradients = dict(zip(wanted, torch.autograd.grad(total, list(wanted.values())), strict=True))
    for name in ("scale", "scalar"):  # the reference leaves a gradient where a row is empty, which the mask takes away
        if name in gradients and attend == ScalarAttention.apply:
            gradients[name] = gradients[name].masked_fill(inputs[0] == 0, 0)
    return {"output": output.detach(), "log_mass": log_mass.detach()} | gradients


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["full", "prefix", "gaps", "interleaved", "empty"])
def test_float32(kind: str, shape: tuple[int, ...]) -> None:
    inputs = make_inputs(kind, shape)
    expected = results(ScalarAttention.apply, inputs)
    found = results(scalar_kernels.attend_scalars, inputs)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=1e-5 * max(1, value.abs().max()), msg=name)


def test_scores_of_any_size_and_sign() -> None:
    """A fixed bound in place of the largest score, or 0 for what is masked, would show here."""
    for shift in (-300.0, 300.0):
        inputs = make_inputs("prefix", (6, 40, 2, 5, 8))
        inputs[3] = inputs[3] + shift
        expected, found = (results(f, inputs) for f in (ScalarAttention.apply, scalar_kernels.attend_scalars))
        for name, value in expected.items():  # scores up to 900 have 3e-5 of rounding
            torch.testing.assert_close(found[name], value, rtol=3e-3, atol=3e-3 * max(1, value.abs().max()), msg=name)


def test_scalars_without_gradient() -> None:
    inputs = make_inputs("prefix", SHAPES[0])
    expected = results(scalar_kernels.attend_scalars, inputs)
    found = results(scalar_kernels.attend_scalars, inputs, with_scalar=False)
    assert "scalar" not in found
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def test_the_operator_passes_opcheck() -> None:
    inputs = make_inputs("prefix", (3, 20, 2, 5, 8))
    torch.library.opcheck(torch.ops.pac.scalar_attention.default, tuple(inputs))


def test_lists_hold_the_real_blocks_alone() -> None:
    scale = torch.zeros(5, 40)
    scale[1, 39] = scale[4, 0] = scale[4, 17] = 1
    busy = scalar_kernels.busy_blocks(scale, 2, 16)
    assert busy.tolist() == [[False, False, True], [False, False, False], [True, True, False]]
    order, count = scalar_kernels.listed(busy)
    assert [row[:n] for row, n in zip(order.tolist(), count.tolist(), strict=True)] == [[2], [], [0, 1]]


@gpu  # the interpreter multiplies the bits of bfloat16 as integers
def test_bfloat16() -> None:
    """Errors against float64 are no more than half above those of the reference."""
    errors: dict[str, list[Tensor]] = {}
    for seed in range(4):
        torch.manual_seed(seed)
        inputs = make_inputs("prefix", (7, 130, 2, 32, 48), torch.bfloat16)
        exact = results(ScalarAttention.apply, [x.double() for x in inputs])
        for attend in (ScalarAttention.apply, scalar_kernels.attend_scalars):
            found = results(attend, inputs)
            for name, value in exact.items():
                assert found[name].dtype == (torch.bfloat16 if name in ("output", *NAMES[4:]) else torch.float32)
                real = slice(None) if name != "log_mass" else value > -1e29
                errors.setdefault(name, []).append((found[name][real] - value[real]).norm().double())
    for name, found_errors in errors.items():
        reference, kernel = torch.stack(found_errors).view(4, 2).mean(0)
        assert kernel <= 1.5 * reference + 1e-5, (name, kernel, reference)


@gpu
@pytest.mark.parametrize("width", [48, 96, 160, 256])
@pytest.mark.parametrize("kind", ["full", "prefix", "gaps", "interleaved"])
def test_the_tiles_in_use(kind: str, width: int) -> None:
    """Compiled for the widths of the models' heads, against the reference in float64."""
    inputs = make_inputs(kind, (37, 333, 8, 32, width), torch.bfloat16)
    exact = results(ScalarAttention.apply, [x.double() for x in inputs])
    found = results(scalar_kernels.attend_scalars, inputs)
    for name, value in exact.items():
        real = value > -1e29
        assert torch.equal(found[name] > -1e29, real), name
        assert (found[name] - value)[real].norm() <= 0.02 * value[real].norm(), name


@gpu
def test_results_are_deterministic() -> None:
    inputs = make_inputs("prefix", (300, 200, 8, 32, 96), torch.bfloat16)
    first, second = (results(scalar_kernels.attend_scalars, inputs) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_compiled_and_captured() -> None:
    """Within torch.compile, and, on a GPU, in a graph that is replayed with other numbers and another mask."""
    shape, dtype = ((37, 130, 8, 32, 96), torch.bfloat16) if CUDA else ((5, 37, 2, 5, 12), torch.float32)
    inputs = make_inputs("prefix", shape, dtype)

    def loss(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # the operator itself: the compiler cannot see through the import hook, which checks `attend_scalars`
        output, log_mass, _ = torch.ops.pac.scalar_attention(*inputs)
        log_mass = log_mass.clamp(min=-100)
        return output, log_mass, (output.float().square().sum() + log_mass.square().sum()) / 100

    compiled = torch.compile(loss, fullgraph=True, dynamic=False)

    def both(function: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
        output, log_mass, total = function(*inputs)
        return [output.detach(), log_mass.detach(), *torch.autograd.grad(total, inputs)]

    for found, expected in zip(both(compiled), both(loss), strict=True):
        assert (found - expected).norm() <= 0.01 * expected.norm()
    if not CUDA:
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            both(compiled)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(compiled)
    with torch.no_grad():
        for old, new in zip(inputs, make_inputs("gaps", shape, dtype), strict=True):
            old.copy_(new)
    graph.replay()
    for found, expected in zip(captured, both(loss), strict=True):
        assert (found - expected).norm() <= 0.01 * expected.norm()


def test_a_model_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients of all that is learned, with text beside the numbers, and a row that has neither."""
    model = small_model(0).to(DEVICE)
    model.input_attention.by_tables = True
    observation = random_observation(model.config, 5).map(lambda x: x.to(DEVICE))
    observation.proprio_mask[0] = observation.text_mask[0] = False
    found = []
    for use in (False, True):
        monkeypatch.setattr(input_attention, "use_kernels", lambda like, use=use: use)
        model.zero_grad()
        numbers, *_, text = model.inputs(observation)
        output = model.input_attention(model.latents, [numbers, text], 5)
        output.square().sum().backward()
        found.append([output.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 10
    largest = max(x.abs().max() for x in found[0])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5 * float(largest))


@gpu
def test_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, used in {torch.bfloat16: True, torch.float32: True, torch.float64: False}.items():
        assert input_attention.use_kernels(torch.zeros(1, dtype=dtype, device="cuda")) == used
    assert not input_attention.use_kernels(torch.zeros(1))
    monkeypatch.setattr(input_attention, "KERNELS", False)
    assert not input_attention.use_kernels(torch.zeros(1, dtype=torch.bfloat16, device="cuda"))
