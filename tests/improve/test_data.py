"""What a round trains on, as far as it is decided without playing."""

from pathlib import Path
from typing import Any

import pytest
from rollout.environments import POINT
from runs import TINY, write_dataset

from pac.config import ObjectiveConfig
from pac.data.mixture import parse_mixture
from pac.improve.data import choose_reward_scale, share_discounts
from pac.improve.settings import parse


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """The recipe's own arm, and collected data of an arm at the same task, at another, and of a leg."""
    for name, about in {
        "own": {},
        "same": {},
        "other": {"instruction": "elsewhere"},
        "leg": {"dims": 5},
    }.items():
        write_dataset(tmp_path / name, **dict[str, Any](about))
    own = [{"name": "own", "path": str(tmp_path / "own")}]
    collected = [{"name": name, "path": str(tmp_path / name)} for name in ("same", "other", "leg")]
    return {
        "groups": [
            {"name": "mine", "weight": 1, "discount": 0.8, "datasets": own},
            {"name": "collected", "weight": 1, "datasets": collected},
        ]
    }


def test_collected_data_takes_the_discount_of_its_task(table: dict[str, Any]) -> None:
    for defaults, expected in (({}, None), ({"discount": 0.99}, 0.99)):
        found = share_discounts(parse_mixture(table | {"defaults": defaults}))
        assert [d.discount for d in found.datasets] == [0.8, 0.8, expected, expected]
    del table["groups"][0]["discount"]
    plain = parse_mixture(table)
    assert share_discounts(plain) == plain


def test_the_one_scale_of_rewards_has_room_for_the_largest_discount(table: dict[str, Any], tmp_path: Path) -> None:
    settings = {"model": dict(TINY), "mixture": table, "improve": {"tasks": [POINT]}}
    recipe = parse(settings, tmp_path, tmp_path)
    for discount, expected in ((0.5, 0.2), (0.95, 0.05)):
        config = recipe.config(objective=ObjectiveConfig(discount=discount))
        assert choose_reward_scale(config, recipe, 1.0) == pytest.approx(expected)
