"""docs/scale.md holds what benchmarks/scale_plan.py prints."""

from pathlib import Path

import scale_plan

from pac.cli.info import describe
from pac.model.config import model_config


def test_the_document_holds_the_plan() -> None:
    text = (Path(__file__).parents[1] / "docs" / "scale.md").read_text()
    for table in scale_plan.report("L", [8, 64, 512], scale_plan.Assumptions()).split("\n\n"):
        assert table in text, "run `python benchmarks/scale_plan.py` and paste what it prints"


def test_traffic_and_memory_add_up() -> None:
    config = model_config("L")
    parts = scale_plan.split_parameters(config)
    assert sum(parts) == describe(config)["parameters"]
    traffic = scale_plan.Traffic.of(config)
    assert traffic.gradients == 4 * sum(parts)
    assert traffic.target == 2 * parts[0] + 4 * (parts[1] + parts[2])
    assert traffic.within(1) == traffic.between(8, 1) == 0
