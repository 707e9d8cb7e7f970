"""Small environments with faults, which workers load by name: gym/rollout.environments:Point-v0.

The first number of the state is constant in an episode. It determines the length of the episode and its fault.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

POINT, SULKY, DEADLY, SLEEPY, BROKEN, SEEN = (
    f"gym/rollout.environments:{name}-v0" for name in ("Point", "Sulky", "Deadly", "Sleepy", "Broken", "Seen")
)

FAULTY = 0.4  # episodes with a key below show the fault of their environment


class Point(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point that adds up actions. It succeeds far from its start and terminates after 3 to 22 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 3.0], np.float32))
    fault = ""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.key, self.place, self.steps = self.np_random.random(), self.np_random.normal(size=2), 0
        return np.array([self.key, *self.place]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.fault and self.steps == 3:
            self.misbehave()
        self.place = self.place + action
        success = bool(abs(self.place[0]) > 2)
        over = self.steps >= 3 + int(20 * self.key)
        return np.array([self.key, *self.place]), float(self.place[1]), over, False, {"success": success}

    def misbehave(self) -> None:
        """Show the fault: once per episode, or always."""
        if self.fault == "break":
            raise LookupError("the gripper fell off")
        always, bad = self.fault == "die", self.key < FAULTY
        note = Path(os.environ.get("FAULT_NOTES", "/nowhere")) / f"{self.key:.6f}"
        if bad and (always or not note.exists()):
            if not always:
                note.touch()
            if self.fault == "sleep":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)


class Seen(Point):
    """A point with another state, which renders itself."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return np.r_[observation, 1.0], info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, *others = super().step(action)
        return np.r_[observation, 1.0], *others  # type: ignore[return-value]

    def render(self) -> Any:
        return np.full((20, 24, 3), int(100 * self.key), np.uint8)


gymnasium.register("Seen-v0", entry_point=Seen, max_episode_steps=12, disable_env_checker=True)

for name, fault in {"Point": "", "Sulky": "sulk", "Deadly": "die", "Sleepy": "sleep", "Broken": "break"}.items():
    env = type(name, (Point,), {"fault": fault})
    gymnasium.register(f"{name}-v0", entry_point=env, max_episode_steps=12, disable_env_checker=True)
