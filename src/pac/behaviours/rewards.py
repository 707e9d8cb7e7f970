"""Rewards of the Control Suite for many states at once. Each equals the reward of dm_control.suite on every state.

For other domains the planner calls the task's own `get_reward`, one state after another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from dm_control.suite import cheetah as _cheetah
from dm_control.suite import finger as _finger
from dm_control.suite import hopper as _hopper
from dm_control.suite import humanoid as _humanoid
from dm_control.suite import pendulum as _pendulum
from dm_control.suite import walker as _walker
from dm_control.utils.rewards import tolerance
from jaxtyping import Float64

from pac.behaviours.states import States

Values = Float64[np.ndarray, " state"]


def above(values: Values, least: Any, margin: Any, value_at_margin: float = 0.0) -> Values:
    """Return 1 from `least` on, and below it a line to `value_at_margin` at `margin`."""
    bounds = (least, float("inf"))
    return tolerance(values, bounds=bounds, margin=margin, value_at_margin=value_at_margin, sigmoid="linear")


def small_control(states: States) -> Values:
    """Return the suite's factor for small controls: from 0.8 to 1."""
    each = tolerance(states.control, margin=1, value_at_margin=0, sigmoid="quadratic")
    return (4 + each.mean(1)) / 5


def distance(difference: Float64[np.ndarray, "state axis"]) -> Values:
    return np.linalg.norm(difference, axis=1)


def acrobot(states: States, task: Any) -> Values:
    away = distance(states.position("site", "target") - states.position("site", "tip"))
    radius = states.model.site_size[states.index("site", "target"), 0]
    return tolerance(away, bounds=(0, radius), margin=0 if task._sparse else 1)


def ball_in_cup(states: States, task: Any) -> Values:
    away = np.abs(states.position("site", "target") - states.position("body", "ball"))[:, [0, 2]]
    cup = states.model.site_size[states.index("site", "target"), [0, 2]]
    ball = states.model.geom_size[states.index("geom", "ball"), 0]
    return (away < cup - ball).all(1).astype(np.float64)


def cartpole(states: States, task: Any) -> Values:
    cosines = np.stack([states.upright(body) for body in range(2, states.model.nbody)], axis=1)
    cart = states.qpos[:, 0]
    if task._sparse:
        return tolerance(cart, task._CART_RANGE) * tolerance(cosines, task._ANGLE_COSINE_RANGE).prod(1)
    centred = (1 + tolerance(cart, margin=2)) / 2
    slow = (1 + tolerance(states.qvel[:, 1:], margin=5).min(1)) / 2
    return ((cosines + 1) / 2).mean(1) * small_control(states) * slow * centred


def cheetah(states: States, task: Any) -> Values:
    return above(states.sensor("torso_subtreelinvel")[:, 0], _cheetah._RUN_SPEED, margin=_cheetah._RUN_SPEED)


def finger(states: States, task: Any) -> Values:
    if isinstance(task, _finger.Spin):
        return (states.sensor("hinge_velocity")[:, 0] <= -_finger._SPIN_VELOCITY).astype(np.float64)
    away = distance((states.sensor("target") - states.sensor("tip"))[:, [0, 2]])
    return (away <= states.model.site_size[states.index("site", "target"), 0]).astype(np.float64)


def fish(states: States, task: Any) -> Values:
    upright = states.upright("torso")
    if type(task).__name__ == "Upright":
        return tolerance(upright, bounds=(1, 1), margin=1)
    away = distance(states.position("geom", "target") - states.position("geom", "mouth"))
    radii = sum(states.model.geom_size[states.index("geom", name), 0] for name in ("mouth", "target"))
    return (7 * tolerance(away, bounds=(0, radii), margin=2 * radii) + 0.5 * (upright + 1)) / 8


def hopper(states: States, task: Any) -> Values:
    height = (states.centre("torso") - states.centre("foot"))[:, 2]
    standing = tolerance(height, (_hopper._STAND_HEIGHT, 2))
    if not task._hopping:
        return standing * small_control(states)
    speed, least = states.sensor("torso_subtreelinvel")[:, 0], _hopper._HOP_SPEED
    return standing * above(speed, least, margin=least / 2, value_at_margin=0.5)


def humanoid(states: States, task: Any) -> Values:
    height, least = states.position("body", "head")[:, 2], _humanoid._STAND_HEIGHT
    standing = tolerance(height, bounds=(least, np.inf), margin=least / 4)
    upright = above(states.upright("torso"), 0.9, margin=1.9)
    velocity, speed = states.sensor("torso_subtreelinvel")[:, :2], task._move_speed
    if speed == 0:
        return small_control(states) * standing * upright * tolerance(velocity, margin=2).mean(1)
    move = above(distance(velocity), speed, margin=speed)
    return small_control(states) * standing * upright * (5 * move + 1) / 6


def pendulum(states: States, task: Any) -> Values:
    return tolerance(states.upright("pole"), (_pendulum._COSINE_BOUND, 1))


def point_mass(states: States, task: Any) -> Values:
    size = states.model.geom_size[states.index("geom", "target"), 0]
    away = distance(states.position("geom", "target") - states.position("geom", "pointmass"))
    return tolerance(away, bounds=(0, size), margin=size) * small_control(states)


def quadruped(states: States, task: Any) -> Values:
    escape = type(task).__name__ == "Escape"
    least = np.cos(np.deg2rad(20 if escape else 0))
    upright = above(states.upright("torso"), least, margin=1 + least)
    if escape:
        size = states.model.hfield_size[0, 0]
        return upright * above(distance(states.position("site", "workspace")), size, margin=size)
    speed = task._desired_speed
    return upright * above(states.sensor("velocimeter")[:, 0], speed, margin=speed, value_at_margin=0.5)


def reacher(states: States, task: Any) -> Values:
    away = distance((states.position("geom", "target") - states.position("geom", "finger"))[:, :2])
    radii = sum(states.model.geom_size[states.index("geom", name), 0] for name in ("target", "finger"))
    return tolerance(away, (0, radii))


def swimmer(states: States, task: Any) -> Values:
    rotation = states.frame(states.index("body", "head"))[1]
    away = states.position("geom", "target") - states.position("geom", "nose")
    size = states.model.geom_size[states.index("geom", "target"), 0]
    local = np.einsum("ni,nij->nj", away, rotation)[:, :2]
    return tolerance(distance(local), bounds=(0, size), margin=5 * size, sigmoid="long_tail")


def walker(states: States, task: Any) -> Values:
    least, speed = _walker._STAND_HEIGHT, task._move_speed
    height = states.position("body", "torso")[:, 2]
    standing = tolerance(height, bounds=(least, np.inf), margin=least / 2)
    stand = (3 * standing + (1 + states.upright("torso")) / 2) / 4
    if speed == 0:
        return stand
    move = above(states.sensor("torso_subtreelinvel")[:, 0], speed, margin=speed / 2, value_at_margin=0.5)
    return stand * (5 * move + 1) / 6


DOMAINS = (acrobot, ball_in_cup, cartpole, cheetah, finger, fish, hopper, humanoid, pendulum, point_mass, quadruped)
REWARDS: dict[str, Callable[[States, Any], Values]] = {
    reward.__name__: reward for reward in (*DOMAINS, reacher, swimmer, walker)
}
