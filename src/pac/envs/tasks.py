"""Facts of all tasks, known before a simulator is loaded. The tests compare each with the environments."""

import difflib
import re
from collections.abc import Sequence

from pac.types import TaskSpec

# domain -> action dimensions, control rate in Hz, cameras, and the state dimensions of each task.
# The paper's table has 21 state dimensions for fish.swim. The suite gives 24.
_CONTROL: dict[str, tuple[int, float, tuple[str, ...], dict[str, int]]] = {
    "acrobot": (1, 100, ("fixed", "lookat"), {"swingup": 6}),
    "ball_in_cup": (2, 50, ("cam0", "cam1"), {"catch": 8}),
    "cartpole": (1, 100, ("fixed", "lookatcart"), {"balance": 5, "swingup": 5, "three_poles": 11, "two_poles": 8}),
    "cheetah": (6, 100, ("side", "back"), {"run": 17}),
    "dog": (38, 200 / 3, ("y-axis", "x-axis"), {"run": 223, "stand": 223, "trot": 223, "walk": 223}),
    "finger": (2, 50, ("cam0", "cam1"), {"spin": 9, "turn_easy": 12, "turn_hard": 12}),
    "fish": (5, 25, ("tracking_top", "tracking_x", "tracking_y", "fixed_top", "eye"), {"swim": 24, "upright": 21}),
    "hopper": (4, 50, ("cam0", "back"), {"hop": 15, "stand": 15}),
    "humanoid": (21, 40, ("back", "side", "egocentric"), {"run": 67, "stand": 67, "walk": 67}),
    "pendulum": (1, 50, ("fixed", "lookat"), {"swingup": 3}),
    "point_mass": (2, 50, ("fixed", "cam0"), {"easy": 4}),
    "quadruped": (12, 50, ("global", "x", "y", "egocentric"), {"escape": 101, "run": 78, "walk": 78}),
    "reacher": (2, 50, ("fixed", "hand"), {"easy": 6}),
    "swimmer": (14, 100 / 3, ("tracking1", "tracking2", "eyes"), {"swimmer15": 61, "swimmer6": 25}),
    "walker": (6, 40, ("side", "back"), {"run": 24, "stand": 24, "walk": 24}),
}
_QUADRUPED_BOUNDS = ((-1.0, -1.0, -0.8) * 4, (1.0, 1.1, 0.8) * 4)  # yaw, lift and extend of each leg; all others: 1
_METAWORLD_NAMES = (
    "assembly basketball bin-picking box-close button-press button-press-topdown button-press-topdown-wall "
    "button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-open "
    "door-unlock drawer-close drawer-open faucet-close faucet-open hammer hand-insert handle-press handle-press-side "
    "handle-pull handle-pull-side lever-pull peg-insert-side peg-unplug-side pick-out-of-hole pick-place "
    "pick-place-wall plate-slide plate-slide-back plate-slide-back-side plate-slide-side push push-back push-wall "
    "reach reach-wall shelf-place soccer stick-pull stick-push sweep sweep-into window-close window-open"
)
_METAWORLD_CAMERAS = ("corner2", "topview", "corner", "corner3", "corner4", "behindGripper", "gripperPOV")

FAMILIES = ("control", "metaworld", "gym")
TASKS = (
    *(f"control/{domain}.{name}" for domain, (*_, sizes) in _CONTROL.items() for name in sizes),
    *(f"metaworld/{name}" for name in _METAWORLD_NAMES.split()),
)


def check_name(task: str) -> str:
    """Return the family of a task: "control", "metaworld" or "gym"."""
    family, _, name = task.rpartition("/") if not task.startswith("gym/") else task.partition("/")
    if task in TASKS or (family == "gym" and name):
        return family
    short = {known.partition("/")[2]: known for known in TASKS if known.startswith(family) or family not in FAMILIES}
    close = [short[one] for one in difflib.get_close_matches(name, short, n=1, cutoff=0.5)]
    if family not in FAMILIES and (":" in task or re.search(r"-v\d+$", task)):  # as Gymnasium writes its ids
        close = [f"gym/{task}"]
    raise ValueError(
        f"Unknown task {task!r}. Expected control/<domain>.<task>, metaworld/<name> or gym/<Gymnasium id>. "
        f"`pac tasks` lists them.{f' Did you mean {close[0]!r}?' if close else ''}"
    )


def known_cameras(task: str) -> tuple[str, ...]:
    """Return the cameras of a task. A Gymnasium id has what it renders, and images among its observations."""
    family, _, name = task.partition("/")
    if family == "control":
        return _CONTROL[name.split(".")[0]][2]
    return _METAWORLD_CAMERAS if family == "metaworld" else ("render",)


def check_cameras(task: str, cameras: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the cameras as a tuple. Raise if one is not among the `known` ones of the task."""
    if isinstance(cameras, str) or len(set(cameras)) != len(cameras):
        raise ValueError(f"Cameras of {task}: expected a list of different names, found {cameras!r}. Name each once.")
    for camera in cameras:
        if camera not in known:
            raise ValueError(f"Unknown camera {camera!r}. {task} has {', '.join(known)}. Choose among these.")
    return tuple(cameras)


def static_spec(task: str, cameras: tuple[str, ...], max_steps: int | None) -> TaskSpec:
    """Return the spec of a Control Suite or Meta-World task without loading it."""
    family, _, name = task.partition("/")
    if family == "metaworld":
        size, num_actions, rate, limit = 39, 4, 80.0, 500
    else:
        domain, _, part = name.partition(".")
        num_actions, rate, _, sizes = _CONTROL[domain]
        num_actions = 5 if name == "swimmer.swimmer6" else num_actions
        size, limit = sizes[part], 1000
    low, high = (-1.0,) * num_actions, (1.0,) * num_actions
    if name.startswith("quadruped"):
        low, high = _QUADRUPED_BOUNDS
    return TaskSpec(
        name=task,
        instruction=instruction(task),
        state_dim=size,
        action_low=low,
        action_high=high,
        max_steps=limit if max_steps is None else max_steps,
        has_success=family == "metaworld",
        cameras=cameras,
        control_rate=float(rate),
    )


def instruction(task: str) -> str:
    """Return the words of the task's name: "walker walk", "drawer open", "Pendulum"."""
    name = task.partition("/")[2].rpartition("/")[2]
    stem, _, version = name.rpartition("-v")
    name = stem if stem and version.isdigit() else name
    return " ".join(name.replace(".", " ").replace("_", " ").replace("-", " ").split())
