"""Meta-World's scripted policies: one expert per task. It reads positions from the state and moves the hand.

They succeed at some step in about 98% of episodes of 500 steps (results/behaviours.md). Many drift off later.
"""

import warnings
from typing import Any

import numpy as np

from pac.behaviours.base import CLEAN, bounds
from pac.config import suggest

OBJECT, GOAL = slice(4, 7), slice(36, 39)  # of Meta-World's 39 state dimensions
# Scripts that read both x and y of the goal. All others read the object alone, or one coordinate of the goal.
GOAL_READERS = {
    *("assembly", "box-close", "coffee-pull", "coffee-push", "hand-insert", "pick-place", "pick-place-wall", "push"),
    *("push-back", "push-wall", "reach", "reach-wall", "stick-pull", "stick-push", "sweep", "sweep-into"),
}
PREFIX = "metaworld/"


def experts() -> dict[str, Any]:
    """Return the class of each task's script, by the task's name without prefix and version."""
    try:
        from metaworld.policies import ENV_POLICY_MAP
    except ImportError as error:
        raise ValueError(
            f"scripted: expected the package metaworld, found none ({error}). Do: "
            "pip install 'perceiver-actor-critic[sim]'"
        ) from error
    return {name.removesuffix("-v3"): policy for name, policy in ENV_POLICY_MAP.items()}


class Scripted:
    """A behaviour that follows the task's script.

    A fault may call `follow` with another task, and set `offset`. The script sees its target moved by `offset`. The
    target is the goal if the script reads one, else the object.
    """

    labels = CLEAN

    def begin(self, env: Any, random: np.random.Generator) -> None:
        name = env.task.name
        if not name.startswith(PREFIX):
            raise ValueError(
                f"scripted: expected a task of Meta-World ('metaworld/drawer-open'), found {name!r}. For control/ "
                "tasks use 'planner', for others 'random'."
            )
        self.experts, self.bounds = experts(), bounds(env)
        self.task = name.removeprefix(PREFIX)
        if self.task not in self.experts:
            raise ValueError(
                f"scripted: expected a task with a script, found {name!r}.{suggest(self.task, self.experts)}"
            )
        self.target = GOAL if self.task in GOAL_READERS else OBJECT
        self.offset = np.zeros(3)
        self.follow(self.task)

    def follow(self, skill: str) -> None:
        """Follow the script of a task from now on."""
        self.skill, self.expert = skill, self.experts[skill]()

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        state = np.array(observation["observation.state"], np.float64)  # some scripts write into it
        state[self.target] += self.offset
        with warnings.catch_warnings():  # a script warns whenever its action exceeds the bounds
            warnings.simplefilter("ignore")
            action = np.nan_to_num(np.asarray(self.expert.get_action(state), np.float64))
        return np.clip(action, *self.bounds).astype(np.float32)
