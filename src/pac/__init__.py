"""PAC: a Perceiver-Actor-Critic trained from offline data.

    data = pac.Dataset.from_arrays(observations=o, actions=a, rewards=r, terminals=t, timeouts=u)
    agent = pac.train(data, method="pac", size="nano", steps=2_000, out="runs/a")
    action = agent.act(observation)

Nothing heavy is imported before one of these names is used. docs/python.md describes them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pac.agent import Agent as Agent
    from pac.api import collect as collect
    from pac.api import compare as compare
    from pac.api import load as load
    from pac.api import train as train
    from pac.dataset import Dataset as Dataset

__version__ = "0.1.0"
__all__ = ["Agent", "Dataset", "collect", "compare", "load", "train"]

_HOMES = {"Agent": "agent", "Dataset": "dataset"} | dict.fromkeys(("collect", "compare", "load", "train"), "api")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pac' has no attribute {name!r}. It has {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"pac.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
