"""Systematic faults: what makes data poor in a way that cloning cannot average away.

A robot has one mood at a time, for an episode or for a stretch of it. Where one mood lasts a whole episode, the
successful episodes are clean demonstrations and cloning them is hard to beat; where moods switch within an episode,
no episode is worth cloning whole. `labels["mood"]` says for each step which fault was at work, 0 where none was: a
robot that will stop short is still clean before it stops.
"""

from typing import Any

import numpy as np

from pac.behaviours.base import FAULT_MODES, Behaviour, Wrapper
from pac.behaviours.scripted import Scripted

# Faults that a script can have; others cannot see a wrong goal or follow another task's script.
SCRIPT_SHARES = {"clean": 0.2, "wrong-goal": 0.4, "stop-short": 0.25, "other-skill": 0.15}
OTHER_SHARES = {"clean": 0.2, "stop-short": 0.3, "hesitate": 0.3, "slow": 0.2}
Span = tuple[int, int]
Range = tuple[float, float]


class Faults(Wrapper):
    """Draws a mood for each episode, or every `switch` steps, with the given shares; what the given ones leave is
    divided among the others in their usual proportion.
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
        switch: Span | None = None,  # a new mood every so many steps; None: one an episode
        offset: Range = (0.1, 0.2),  # metres, horizontally: how far off a wrong goal lies
        after: Span | None = None,  # steps before it stops short: 5-45 for scripts (they need 50-100), else 50-500
        act_for: Span = (5, 30),  # hesitation: steps it acts, then
        wait_for: Span = (10, 40),  # steps it waits
        speed: Range = (0.1, 0.4),  # slow: share of the action that is taken
    ) -> None:
        super().__init__(inner)
        given = {
            "clean": clean,
            "wrong-goal": wrong_goal,
            "stop-short": stop_short,
            "hesitate": hesitate,
            "other-skill": other_skill,
            "slow": slow,
            "backwards": backwards,
        }
        self.script = script_of(inner)
        self.shares = fill_shares({k: v for k, v in given.items() if v is not None}, self.script is not None)
        self.after = after or ((5, 45) if self.script else (50, 500))
        self.switch, self.offset = switch, offset
        self.act_for, self.wait_for, self.speed = act_for, wait_for, speed

    def begin(self, env: Any, random: np.random.Generator) -> None:
        super().begin(env, random)
        self.still = np.clip(np.zeros(len(self.bounds[0])), *self.bounds)
        self.draw()

    def draw(self) -> None:
        """A new mood, and all that it needs to know."""
        self.mode = str(self.random.choice(list(self.shares), p=list(self.shares.values())))
        self.age = 0  # steps in this mood
        self.remaining = draw_span(self.random, self.switch) if self.switch else -1
        self.acting = 0 if self.switch else draw_span(self.random, self.after)  # stop-short: until this age
        self.pause = False
        self.turn = draw_span(self.random, self.act_for)  # hesitation: the age of the next change
        self.pace = self.random.uniform(*self.speed)
        if self.script is not None:
            self.draw_script(self.script)

    def draw_script(self, script: Scripted) -> None:
        angle, distance = self.random.uniform(0, 2 * np.pi), self.random.uniform(*self.offset)
        other = str(self.random.choice([name for name in sorted(script.experts) if name != script.task]))
        astray = np.array([np.cos(angle), np.sin(angle), 0.0]) * distance
        script.offset = astray if self.mode == "wrong-goal" else np.zeros(3)
        script.skill = other if self.mode == "other-skill" else script.task

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        if self.remaining == 0:
            self.draw()
        active = self.active()
        stopped = active and self.mode == "stop-short" and not self.switch  # for good: what it would do is of no use
        action = self.still if stopped else self.inner.act(observation)
        self.label(FAULT_MODES.index(self.mode) if active else 0)
        self.age, self.remaining = self.age + 1, self.remaining - 1
        if active and self.mode in ("stop-short", "hesitate"):
            return self.limit(self.still)
        if self.mode == "backwards":  # a stick held the wrong way round: from the middle of the bounds, mirrored
            return self.limit(self.bounds[0] + self.bounds[1] - action)
        if self.mode == "slow":
            return self.limit(self.still + self.pace * (action - self.still))
        return action

    def active(self) -> bool:
        """Is the mood's fault at work in this step?"""
        if self.mode == "stop-short":
            return self.age >= self.acting
        if self.mode == "hesitate" and self.age == self.turn:
            self.pause = not self.pause
            self.turn += draw_span(self.random, self.wait_for if self.pause else self.act_for)
        return self.pause if self.mode == "hesitate" else self.mode != "clean"


def script_of(behaviour: Any) -> Scripted | None:
    """The script inside wrappers, if there is one."""
    while isinstance(behaviour, Wrapper):
        behaviour = behaviour.inner
    return behaviour if isinstance(behaviour, Scripted) else None


def draw_span(random: np.random.Generator, span: Span) -> int:
    return int(random.integers(span[0], span[1] + 1))


def fill_shares(given: dict[str, float], has_script: bool) -> dict[str, float]:
    """Shares of all moods, which sum to 1: those given, and the usual ones scaled to fill what is left."""
    needs_script = [name for name in ("wrong-goal", "other-skill") if given.get(name) and not has_script]
    if needs_script:
        raise ValueError(
            f"{needs_script[0]}: expected a scripted behaviour, whose target or skill can be exchanged, found another "
            "one. Use stop-short, hesitate, slow, noise or uniform here."
        )
    usual = SCRIPT_SHARES if has_script else OTHER_SHARES
    left, rest = 1 - sum(given.values()), {name: share for name, share in usual.items() if name not in given}
    if min(given.values(), default=0) < 0 or left < -1e-9 or (left > 1e-9 and not rest):
        found = ", ".join(f"{name}={share}" for name, share in given.items())
        raise ValueError(
            f"faults: expected shares of 0 or more that sum to 1, or to less and leave some open; found {found}."
        )
    scale = max(left, 0.0) / sum(rest.values()) if rest else 0.0
    shares = given | {name: share * scale for name, share in rest.items()}
    return {name: share / sum(shares.values()) for name, share in shares.items()}
