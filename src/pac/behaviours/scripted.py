"""Meta-World's scripted policies: one expert a task, which reads positions from the state and moves the hand.

They succeed in about 98% of episodes at some step of 500 (results/behaviours.md), and drift after it.
"""

import warnings
from typing import Any

import numpy as np

from pac.behaviours.base import CLEAN, bounds
from pac.config import suggest

OBJECT, GOAL = slice(4, 7), slice(36, 39)  # where Meta-World's state of 39 has them
# Scripts that read both x and y of the goal; all others find their way by the object alone, or by one coordinate.
GOAL_READERS = {
    *("assembly", "box-close", "coffee-pull", "coffee-push", "hand-insert", "pick-place", "pick-place-wall", "push"),
    *("push-back", "push-wall", "reach", "reach-wall", "stick-pull", "stick-push", "sweep", "sweep-into"),
}
PREFIX = "metaworld/"


def experts() -> dict[str, Any]:
    """Task name without prefix and version -> class of its script."""
    try:
        from metaworld.policies import ENV_POLICY_MAP
    except ImportError as error:
        raise ValueError(
            "The scripted behaviour needs Meta-World, which is not installed. "
            "Do: pip install 'perceiver-actor-critic[sim]'"
        ) from error
    return {name.removesuffix("-v3"): policy for name, policy in ENV_POLICY_MAP.items()}


class Scripted:
    """Follows the task's script. A fault may set `skill` (whose script it follows) and `offset` (how far from its true
    place it sees its target: the goal where the script reads one, else the object).
    """

    def __init__(self) -> None:
        self.labels = dict(CLEAN)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        name = env.task.name
        if not name.startswith(PREFIX):
            raise ValueError(
                f"scripted: expected a task of Meta-World ('metaworld/drawer-open'), found {name!r}. Scripts exist "
                "for those only: use 'planner' for control/ tasks, or 'random'."
            )
        self.experts, self.bounds = experts(), bounds(env)
        self.task = name.removeprefix(PREFIX)
        if self.task not in self.experts:
            raise ValueError(f"scripted: there is no script for {name!r}.{suggest(self.task, self.experts)}")
        self.target = GOAL if self.task in GOAL_READERS else OBJECT
        self.offset = np.zeros(3)
        self.skill = self.task

    @property
    def skill(self) -> str:
        return self._skill

    @skill.setter
    def skill(self, name: str) -> None:
        self._skill, self.expert = name, self.experts[name]()

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        state = np.array(observation["observation.state"], np.float64)  # a copy: some scripts write into it
        state[self.target] += self.offset
        with warnings.catch_warnings():  # at every step a script wants more than the bounds allow
            warnings.simplefilter("ignore")
            action = np.nan_to_num(np.asarray(self.expert.get_action(state), np.float64))
        return np.clip(action, *self.bounds).astype(np.float32)
