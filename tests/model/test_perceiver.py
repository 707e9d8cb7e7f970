"""Which cards our kernels are for: elsewhere they might not fit, and a run would end with its first update."""

import pytest
import torch
from torch import Tensor

from pac.model.perceiver import roomy


@pytest.mark.parametrize(
    ("card", "fits"),
    [((7, 5), False), ((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False)],
)
def test_kernels_are_for_cards_with_room_for_their_tiles(
    card: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (asked.append(index), card)[1])
    assert roomy(3) is fits
    assert asked == [3]


@pytest.mark.parametrize("fits", [False, True])
def test_the_question_is_a_constant_to_the_compiler(fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fullgraph` raises where it is not: a graph that is broken in every layer loses what compiling gains."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9 if fits else 8, 0))

    def chosen(x: Tensor) -> Tensor:
        return 2 * x if roomy(0) else 3 * x

    torch.compiler.reset()
    compiled = torch.compile(chosen, fullgraph=True, dynamic=False, backend="eager")
    assert compiled(torch.ones(2)).tolist() == ([2, 2] if fits else [3, 3])
    torch.compiler.reset()
