"""Systematic faults, which make data poor in a way that cloning cannot average away.

A robot has one fault mode at a time. If a mode lasts a whole episode, successful episodes are clean demonstrations.
Cloning only those is hard to beat. If modes switch within an episode, no episode is a clean demonstration.
`labels["fault_mode"]` has the active fault of each step. A robot that will stop short is clean until it stops.
"""

from collections import deque
from typing import Any

import numpy as np

from pac.behaviours.base import FAULT_MODES, Behaviour, Wrapper
from pac.behaviours.scripted import Scripted

# Only a script can see a wrong goal or follow another task's script.
SCRIPT_SHARES = {"clean": 0.2, "wrong-goal": 0.4, "stop-short": 0.25, "other-skill": 0.15}
OTHER_SHARES = {"clean": 0.2, "stop-short": 0.3, "hesitate": 0.3, "slow": 0.2}
Span = tuple[int, int]
Range = tuple[float, float]


class Faults(Wrapper):
    """A wrapper that draws a fault mode for each episode, or every `switch` steps.

    Shares that are not given divide what is left, in their default proportions.
    """

    def __init__(
        self,
        inner: Behaviour,
        *,
        clean: float | None = None,
        wrong_goal: float | None = None,
        stop_short: float | None = None,
        hesitate: float | None = None,
        other_skill: float | None = None,
        slow: float | None = None,
        backwards: float | None = None,
        some_dims: float | None = None,
        delay: float | None = None,
        scaled: float | None = None,
        biased: float | None = None,
        stale: float | None = None,
        switch: Span | None = None,  # steps until the next mode; None: one mode per episode
        offset: Range = (0.1, 0.2),  # wrong-goal: metres between the wrong goal and the goal, horizontally
        after: Span | None = None,  # stop-short: steps before it stops; None: 5-45 for scripts, else 50-500
        act_for: Span = (5, 30),  # hesitate: steps it acts
        wait_for: Span = (10, 40),  # hesitate: steps it waits
        speed: Range = (0.1, 0.4),  # slow: share of the action that is taken
        delay_by: Span = (10, 30),  # delay: steps between the choice of an action and its execution
        factor: Range = (0.0, 2.0),  # scaled: what an action is multiplied by
        bias: Range = (0.5, 1.5),  # biased: size of the constant offset, in units of half the range of each dimension
        renew: Span = (10, 30),  # stale: steps for which the behaviour sees the same observation
    ) -> None:
        super().__init__(inner)
        given = {"clean": clean, "wrong-goal": wrong_goal, "stop-short": stop_short, "hesitate": hesitate}
        given |= {"other-skill": other_skill, "slow": slow, "backwards": backwards}
        given |= {"some-dims": some_dims, "delay": delay, "scaled": scaled, "biased": biased, "stale": stale}
        self.script = script_of(inner)
        self.shares = fill_shares({k: v for k, v in given.items() if v is not None}, self.script is not None)
        self.after = after or ((5, 45) if self.script else (50, 500))  # a script needs 50 to 100 steps
        self.switch, self.offset = switch, offset
        self.act_for, self.wait_for, self.speed = act_for, wait_for, speed
        self.delay_by, self.factor, self.bias, self.renew = delay_by, factor, bias, renew

    def begin(self, env: Any, random: np.random.Generator) -> None:
        super().begin(env, random)
        self.still = np.clip(np.zeros(len(self.bounds[0])), *self.bounds)
        self.past: deque[np.ndarray] = deque(maxlen=self.delay_by[1] + 1)  # actions that the behaviour chose
        self.draw_mode()

    def draw_mode(self) -> None:
        """Draw a fault mode and its parameters."""
        self.mode = str(self.random.choice(list(self.shares), p=list(self.shares.values())))
        self.age = 0  # steps in this mode
        self.remaining = draw_span(self.random, self.switch) if self.switch else -1
        self.stop_age = 0 if self.switch else draw_span(self.random, self.after)  # stop-short
        self.is_waiting = False  # hesitate
        self.change_age = draw_span(self.random, self.act_for)  # hesitate: age at the next change
        self.pace = self.random.uniform(*self.speed)
        if self.script is not None:
            self.set_script(self.script)
        self.gain, self.shift = self.draw_change()
        self.lag = draw_span(self.random, self.delay_by) if self.mode == "delay" else 0
        self.period = draw_span(self.random, self.renew) if self.mode == "stale" else 1

    def draw_change(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a factor and an offset for each action dimension. Modes that do not use them draw nothing."""
        low, high = self.bounds
        gain, shift = np.ones(len(low)), np.zeros(len(low))
        if self.mode == "some-dims":  # all but one at most, each mirrored or held at one value
            chosen = self.random.permutation(len(low))[: self.random.integers(1, max(2, len(low)))]
            mirrored, values = self.random.random(len(chosen)) < 0.5, self.random.uniform(low, high)[chosen]
            gain[chosen], shift[chosen] = np.where(mirrored, -1, 0), np.where(mirrored, (low + high)[chosen], values)
        if self.mode == "scaled":
            gain *= self.random.uniform(*self.factor)
            shift = self.still - gain * self.still
        if self.mode == "biased":
            sign = self.random.choice([-1.0, 1.0], len(low))
            shift = sign * self.random.uniform(*self.bias, len(low)) * (high - low) / 2
        return gain, shift

    def set_script(self, script: Scripted) -> None:
        """Give the script the goal and the skill of this mode."""
        angle, distance = self.random.uniform(0, 2 * np.pi), self.random.uniform(*self.offset)
        other = str(self.random.choice([name for name in sorted(script.experts) if name != script.task]))
        offset = np.array([np.cos(angle), np.sin(angle), 0.0]) * distance
        script.offset = offset if self.mode == "wrong-goal" else np.zeros(3)
        script.follow(other if self.mode == "other-skill" else script.task)

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        if self.remaining == 0:
            self.draw_mode()
        active = self.is_active()
        stopped = active and self.mode == "stop-short" and not self.switch  # for good: its plan is not needed
        action = self.still if stopped else self.inner.act(self.see(observation))
        self.past.append(action)
        self.label(FAULT_MODES.index(self.mode) if active else 0)
        self.age, self.remaining = self.age + 1, self.remaining - 1
        if active and self.mode in ("stop-short", "hesitate"):
            return self.clip(self.still)
        if self.mode == "backwards":  # mirrored in the middle of the bounds
            return self.clip(self.bounds[0] + self.bounds[1] - action)
        if self.mode == "slow":
            return self.clip(self.still + self.pace * (action - self.still))
        if self.mode == "delay":
            return self.past[max(-len(self.past), -1 - self.lag)]
        if self.mode in ("some-dims", "scaled", "biased"):
            return self.clip(self.gain * action + self.shift)
        return action

    def see(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the observation that the behaviour acts on."""
        if self.mode != "stale":
            return observation
        if self.age % self.period == 0:
            self.seen = {name: np.array(value) for name, value in observation.items()}
        return self.seen

    def is_active(self) -> bool:
        """Return whether the fault is active in this step."""
        if self.mode == "stop-short":
            return self.age >= self.stop_age
        if self.mode == "hesitate" and self.age == self.change_age:
            self.is_waiting = not self.is_waiting
            self.change_age += draw_span(self.random, self.wait_for if self.is_waiting else self.act_for)
        return self.is_waiting if self.mode == "hesitate" else self.mode != "clean"


def script_of(behaviour: Any) -> Scripted | None:
    """Return the script inside wrappers, or None."""
    while isinstance(behaviour, Wrapper):
        behaviour = behaviour.inner
    return behaviour if isinstance(behaviour, Scripted) else None


def draw_span(random: np.random.Generator, span: Span) -> int:
    return int(random.integers(span[0], span[1] + 1))


def fill_shares(given: dict[str, float], has_script: bool) -> dict[str, float]:
    """Return the share of every fault mode. They sum to 1: default shares are scaled to fill what `given` leaves."""
    for name in ("wrong-goal", "other-skill"):
        if given.get(name) and not has_script:
            raise ValueError(
                f"{name}: expected a scripted behaviour, whose goal and skill can be exchanged, found another one. "
                "Use stop-short, hesitate, slow, noise or uniform here."
            )
    defaults = SCRIPT_SHARES if has_script else OTHER_SHARES
    left, others = 1 - sum(given.values()), {name: share for name, share in defaults.items() if name not in given}
    if min(given.values(), default=0) < 0 or left < -1e-9 or (left > 1e-9 and not others):
        found = ", ".join(f"{name}={share}" for name, share in given.items())
        raise ValueError(
            f"faults: expected shares of 0 or more that sum to 1, found {found}. Leave one out to fill what is left."
        )
    scale = max(left, 0.0) / sum(others.values()) if others else 0.0
    shares = given | {name: share * scale for name, share in others.items()}
    return {name: share / sum(shares.values()) for name, share in shares.items()}
