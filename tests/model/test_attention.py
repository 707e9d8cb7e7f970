"""Which cards our kernels are for: elsewhere they might not fit, and a run would end with its first update. And what
the blocks add to under autocast: about as exact as what autocast makes of it.
"""

import pytest
import torch
from factories import random_observation, small_model
from torch import Tensor

from pac.model import PAC
from pac.model.attention import has_large_smem

CUDA = torch.cuda.is_available()


@pytest.mark.parametrize(
    ("card", "fits"),
    [((7, 5), False), ((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)],
)
def test_kernels_need_large_shared_memory(card: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (asked.append(index), card)[1])
    assert has_large_smem(3) is fits
    assert asked == [3]


@pytest.mark.parametrize("fits", [False, True])
def test_has_large_smem_is_a_constant_to_the_compiler(fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fullgraph` raises where it is not: a graph that is broken in every layer loses what compiling gains."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9 if fits else 8, 0))

    def chosen(x: Tensor) -> Tensor:
        return 2 * x if has_large_smem(0) else 3 * x

    torch.compiler.reset()
    compiled = torch.compile(chosen, fullgraph=True, dynamic=False, backend="eager")
    assert compiled(torch.ones(2)).tolist() == ([2, 2] if fits else [3, 3])
    torch.compiler.reset()


def trained_a_little(device: str) -> PAC:
    """Gradients of a model whose heads are flat are next to nothing."""
    model = small_model(num_blocks=4).to(device)
    observation = random_observation(model.config, 16).map(lambda x: x.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(10):
        optimizer.zero_grad()
        (-model.policy_logits(model.encode(observation)).log_softmax(-1)[..., 0].mean()).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no GPU"))])
def test_the_residual_stream_under_autocast(device: str) -> None:
    """In bfloat16, and gradients are about as far from exact ones as with autocast's own choice, float32."""
    model = trained_a_little(device)
    observation = random_observation(model.config, 16, seed=1).map(lambda x: x.to(device))
    kinds = {"exact": torch.float32, "theirs": torch.float32, "ours": torch.bfloat16}
    found: dict[str, Tensor] = {}
    for name, dtype in kinds.items():
        model.input_attention.fast = name == "ours"
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=name != "exact"):
            encoded = model.encode(observation)
            logits = model.policy_logits(encoded)
        assert encoded.latents.dtype == dtype
        logits.log_softmax(-1)[..., 1].mean().backward()
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    error = {name: float((found[name] - found["exact"]).norm() / found["exact"].norm()) for name in ("ours", "theirs")}
    assert 0 < error["theirs"] < 0.05
    assert error["ours"] < 1.5 * error["theirs"] + 1e-3
