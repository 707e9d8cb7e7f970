"""The Control Suite's rewards over many states at once; each equals the suite's own (dm_control.suite) on every state.

Domains that are not here are planned through the task's own `get_reward`, one state after another.
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
INFINITY = float("inf")


def small_control(states: States) -> Values:
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
    speed, wanted = states.sensor("torso_subtreelinvel")[:, 0], _cheetah._RUN_SPEED
    return tolerance(speed, bounds=(wanted, INFINITY), margin=wanted, value_at_margin=0, sigmoid="linear")


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
    speed, wanted = states.sensor("torso_subtreelinvel")[:, 0], _hopper._HOP_SPEED
    return standing * tolerance(
        speed, bounds=(wanted, INFINITY), margin=wanted / 2, value_at_margin=0.5, sigmoid="linear"
    )


def humanoid(states: States, task: Any) -> Values:
    height, wanted = states.position("body", "head")[:, 2], _humanoid._STAND_HEIGHT
    standing = tolerance(height, bounds=(wanted, INFINITY), margin=wanted / 4)
    upright = tolerance(
        states.upright("torso"), bounds=(0.9, INFINITY), sigmoid="linear", margin=1.9, value_at_margin=0
    )
    velocity, speed = states.sensor("torso_subtreelinvel")[:, :2], task._move_speed
    if speed == 0:
        return small_control(states) * standing * upright * tolerance(velocity, margin=2).mean(1)
    move = tolerance(distance(velocity), bounds=(speed, INFINITY), margin=speed, value_at_margin=0, sigmoid="linear")
    return small_control(states) * standing * upright * (5 * move + 1) / 6


def pendulum(states: States, task: Any) -> Values:
    return tolerance(states.upright("pole"), (_pendulum._COSINE_BOUND, 1))


def point_mass(states: States, task: Any) -> Values:
    size = states.model.geom_size[states.index("geom", "target"), 0]
    away = distance(states.position("geom", "target") - states.position("geom", "pointmass"))
    return tolerance(away, bounds=(0, size), margin=size) * small_control(states)


def quadruped(states: States, task: Any) -> Values:
    escape = type(task).__name__ == "Escape"
    deviation = np.cos(np.deg2rad(20 if escape else 0))
    upright = tolerance(
        states.upright("torso"),
        bounds=(deviation, INFINITY),
        sigmoid="linear",
        margin=1 + deviation,
        value_at_margin=0,
    )
    if escape:
        size = states.model.hfield_size[0, 0]
        far = distance(states.position("site", "workspace"))
        return upright * tolerance(far, bounds=(size, INFINITY), margin=size, value_at_margin=0, sigmoid="linear")
    speed, wanted = states.sensor("velocimeter")[:, 0], task._desired_speed
    return upright * tolerance(speed, bounds=(wanted, INFINITY), margin=wanted, value_at_margin=0.5, sigmoid="linear")


def reacher(states: States, task: Any) -> Values:
    away = distance((states.position("geom", "target") - states.position("geom", "finger"))[:, :2])
    radii = sum(states.model.geom_size[states.index("geom", name), 0] for name in ("target", "finger"))
    return tolerance(away, (0, radii))


def swimmer(states: States, task: Any) -> Values:
    turn = states.frame(states.index("body", "head"))[1]
    away = states.position("geom", "target") - states.position("geom", "nose")
    size = states.model.geom_size[states.index("geom", "target"), 0]
    local = np.einsum("ni,nij->nj", away, turn)[:, :2]
    return tolerance(distance(local), bounds=(0, size), margin=5 * size, sigmoid="long_tail")


def walker(states: States, task: Any) -> Values:
    wanted, speed = _walker._STAND_HEIGHT, task._move_speed
    height = states.position("body", "torso")[:, 2]
    standing = tolerance(height, bounds=(wanted, INFINITY), margin=wanted / 2)
    stand = (3 * standing + (1 + states.upright("torso")) / 2) / 4
    if speed == 0:
        return stand
    move = tolerance(
        states.sensor("torso_subtreelinvel")[:, 0],
        bounds=(speed, INFINITY),
        margin=speed / 2,
        value_at_margin=0.5,
        sigmoid="linear",
    )
    return stand * (5 * move + 1) / 6


REWARDS: dict[str, Callable[[States, Any], Values]] = {
    "acrobot": acrobot,
    "ball_in_cup": ball_in_cup,
    "cartpole": cartpole,
    "cheetah": cheetah,
    "finger": finger,
    "fish": fish,
    "hopper": hopper,
    "humanoid": humanoid,
    "pendulum": pendulum,
    "point_mass": point_mass,
    "quadruped": quadruped,
    "reacher": reacher,
    "swimmer": swimmer,
    "walker": walker,
}
