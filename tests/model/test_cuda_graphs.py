"""A captured computation reads its inputs from memory of its own. A fake graph takes the place of the GPU's."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from pac.model.cuda_graphs import CapturedGraph


class FakeGraph:
    """A graph that replays by calling the computation again."""

    def replay(self) -> None:
        self.captured.result.copy_(self.compute(self.inputs))


def test_inputs_are_copied_before_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    options, calls = list[dict[str, Any]](), list[dict[str, Tensor]]()

    def fake_capture(graph: FakeGraph, **given: Any) -> Any:
        options.append(given)
        return nullcontext()

    def compute(inputs: dict[str, Tensor]) -> Tensor:
        calls.append(inputs)
        return inputs["state"] * inputs["scale"]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", fake_capture)
    state = torch.arange(6.0).reshape(2, 3).T  # strides are kept
    inputs = {"state": state, "scale": torch.tensor(2, dtype=torch.int64)}
    captured = CapturedGraph(compute, inputs, torch.device("cpu"), warm_up=3, pool="pool")
    assert len(calls) == 4
    assert options == [{"pool": "pool", "capture_error_mode": "thread_local"}]
    assert calls[-1]["state"].stride() == state.stride()
    assert calls[-1]["state"] is not state
    captured.graph.captured, captured.graph.compute, captured.graph.inputs = captured, compute, calls[-1]
    assert torch.equal(captured({"state": state + 1, "scale": torch.tensor(3)}), (state + 1) * 3)
