"""A sampling planner for the Control Suite: model predictive path integral control (Williams et al., 2017).

It uses the task's own simulator and reward and needs no training. It copies the simulator's state and plans in copies,
so the episode does not change.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from pac.behaviours.base import CLEAN, bounds
from pac.config import suggest


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """Settings of the planner. Times are in control steps."""

    samples: int = 64  # action sequences per replanning; the current plan is one of them
    horizon: int = 32  # length of a sequence
    replan: int = 2  # steps between two plannings
    sigma: float = 0.8  # noise on the plan, a share of half the action range
    temperature: float = 0.05  # of the weights, with returns scaled to [0, 1] over the samples
    hold: int = 1  # noise is drawn every so many steps and is linear between


# Settings of a task or a domain. Others use the defaults.
TABLE: dict[str, PlannerSettings] = {
    "acrobot": PlannerSettings(samples=128, horizon=150, replan=5, hold=10),
    "ball_in_cup": PlannerSettings(samples=64, horizon=40, replan=4, sigma=1.0, hold=8),
    "cartpole": PlannerSettings(samples=64, horizon=100, replan=4, hold=10),
    "cheetah": PlannerSettings(samples=128, horizon=40, replan=1, hold=3),
    "finger": PlannerSettings(samples=64, horizon=40, hold=4),
    "finger.spin": PlannerSettings(samples=64, horizon=30, replan=1, temperature=0.02),
    "fish": PlannerSettings(samples=32, horizon=25, replan=3, hold=4),
    "hopper": PlannerSettings(samples=64, horizon=50, replan=3, sigma=1.0, hold=6),
    "humanoid": PlannerSettings(samples=128, horizon=25, replan=1, hold=3),
    "pendulum": PlannerSettings(samples=256, horizon=200, replan=10, sigma=2.0, temperature=0.01, hold=35),
    "point_mass": PlannerSettings(samples=64, horizon=50, hold=5),
    "quadruped": PlannerSettings(samples=32, horizon=30, replan=3, hold=4),
    "reacher": PlannerSettings(samples=64, horizon=40, hold=5),
    "swimmer": PlannerSettings(samples=32, horizon=30, replan=5, hold=5),
    "walker": PlannerSettings(samples=64, horizon=32, hold=3),
}
QUALITIES = {"good": (1, 1), "medium": (4, 2), "poor": (16, 4)}  # samples divided by, replan multiplied by


class Planner:
    """A behaviour that plans by sampling. `quality` scales the task's settings in the table. Numbers replace them."""

    def __init__(
        self,
        *,
        quality: str = "good",
        samples: int | None = None,
        horizon: int | None = None,
        replan: int | None = None,
        sigma: float | None = None,
        temperature: float | None = None,
        hold: int | None = None,
        threads: int = 1,  # of the simulator; they do not change the actions
    ) -> None:
        if quality not in QUALITIES:
            raise ValueError(f"planner: found quality {quality!r}.{suggest(quality, QUALITIES)}")
        numbers: dict[str, float | None] = {"samples": samples, "horizon": horizon, "replan": replan}
        numbers |= {"sigma": sigma, "temperature": temperature, "hold": hold}
        self.given = {name: value for name, value in numbers.items() if value is not None}
        for name, value in {**self.given, "threads": threads}.items():
            if value <= 0:
                raise ValueError(f"planner: expected {name} above 0, found {value}.")
        self.quality, self.threads = quality, threads
        self.labels = dict(CLEAN)

    def begin(self, env: Any, random: np.random.Generator) -> None:
        name = env.task.name
        if not name.startswith("control/"):
            raise ValueError(
                f"planner: expected a task of the Control Suite ('control/walker.walk'), found {name!r}. For "
                "metaworld/ tasks use 'scripted', for others 'random'."
            )
        from pac.behaviours.simulation import Simulation

        self.settings = settings_for(name.removeprefix("control/"), self.quality, self.given)
        self.bounds, self.random, self.step = bounds(env), random, 0
        self.simulation = Simulation(env, self.threads)
        middle = np.clip(np.zeros(len(self.bounds[0])), *self.bounds)
        self.plan = np.tile(middle, (self.settings.horizon, 1))

    def act(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        elapsed = self.step % min(self.settings.replan, self.settings.horizon)
        if elapsed == 0:
            self.improve()
        self.step += 1
        action = self.plan[0].astype(np.float32)
        self.plan = np.concatenate([self.plan[1:], self.plan[-1:]])
        return action

    def improve(self) -> None:
        """Replace the plan by the mean of random variations, weighted by their returns."""
        low, high = self.bounds
        noise = smooth_noise(self.random, self.settings, len(low)) * self.settings.sigma * (high - low) / 2
        noise[0] = 0
        actions = np.clip(self.plan + noise, low, high)
        returns = self.simulation.rewards(actions).sum(1)
        self.plan = np.tensordot(weights(returns, self.settings.temperature), actions, 1)


def settings_for(task: str, quality: str, given: dict[str, Any]) -> PlannerSettings:
    """Return the settings of a task such as "walker.walk"."""
    default = TABLE.get(task, TABLE.get(task.partition(".")[0], PlannerSettings()))
    divisor, factor = QUALITIES[quality]
    scaled = dataclasses.replace(default, samples=max(4, default.samples // divisor), replan=default.replan * factor)
    return dataclasses.replace(scaled, **given)


def smooth_noise(random: np.random.Generator, settings: PlannerSettings, num_actions: int) -> np.ndarray:
    """Return noise (samples, horizon, actions). It is standard normal at every `hold`-th step and linear between."""
    knots = -(-(settings.horizon - 1) // settings.hold) + 1
    drawn = random.standard_normal((settings.samples, knots, num_actions))
    if settings.hold == 1:
        return drawn
    times = np.arange(settings.horizon) / settings.hold
    left = np.minimum(times.astype(int), knots - 2)
    share = (times - left)[:, None]
    return drawn[:, left] * (1 - share) + drawn[:, left + 1] * share


def weights(returns: np.ndarray, temperature: float) -> np.ndarray:
    """Return the weight of each sample: a softmax of returns scaled to [0, 1].

    If all returns are equal, keep the plan, which is sample 0. If they are 0, follow another sample: the mean would
    hardly move and seldom find a sparse reward.
    """
    span = returns.max() - returns.min()
    if span == 0:
        return np.eye(len(returns))[0 if returns.max() > 0 else -1]
    shares = np.exp((returns - returns.max()) / span / temperature)
    return shares / shares.sum()
