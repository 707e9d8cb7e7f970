"""Many states of one MuJoCo model at once: positions of bodies, sites and geoms, without a loop over states.

Sensors come from the simulator. Positions and orientations are computed here as `mj_kinematics` does, only for the
bodies that a caller asks for and their ancestors.
"""

from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np
from jaxtyping import Float64

Vectors = Float64[np.ndarray, "state 3"]
Matrices = Float64[np.ndarray, "state 3 3"]


@dataclass(eq=False)
class States:
    """States of a model. `control` was applied in the step that led to each of them."""

    model: Any  # mujoco.MjModel
    qpos: Float64[np.ndarray, "state positions"]
    qvel: Float64[np.ndarray, "state velocities"]
    sensors: Float64[np.ndarray, "state readings"]
    control: Float64[np.ndarray, "state actuators"]
    _frames: dict[int, tuple[Vectors, Matrices]] = field(default_factory=dict)

    def index(self, kind: str, name: str) -> int:
        """Return the index of a "body", "geom", "site" or "sensor"."""
        index = mujoco.mj_name2id(self.model, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), name)
        assert index >= 0, f"no {kind} called {name!r}"
        return int(index)

    def sensor(self, name: str) -> Float64[np.ndarray, "state reading"]:
        i = self.index("sensor", name)
        start = self.model.sensor_adr[i]
        return self.sensors[:, start : start + self.model.sensor_dim[i]]

    def position(self, kind: str, name: str) -> Vectors:
        """Return the position of a body's frame, a geom or a site."""
        i = self.index(kind, name)
        if kind == "body":
            return self.frame(i)[0]
        attached = {"geom": self.model.geom_bodyid, "site": self.model.site_bodyid}[kind][i]
        local = {"geom": self.model.geom_pos, "site": self.model.site_pos}[kind][i]
        position, rotation = self.frame(int(attached))
        return position + rotation @ local

    def centre(self, name: str) -> Vectors:
        """Return a body's centre of mass."""
        i = self.index("body", name)
        position, rotation = self.frame(i)
        return position + rotation @ self.model.body_ipos[i]

    def upright(self, body: str | int) -> Float64[np.ndarray, " state"]:
        """Return the cosine between the body's z axis and up: 1 for upright, -1 for upside down."""
        return self.frame(self.index("body", body) if isinstance(body, str) else body)[1][:, 2, 2]

    def frame(self, body: int) -> tuple[Vectors, Matrices]:
        """Return position and rotation of a body. They are computed once."""
        if body not in self._frames:
            self._frames[body] = self._compute_frame(body)
        return self._frames[body]

    def _compute_frame(self, body: int) -> tuple[Vectors, Matrices]:
        model, num = self.model, len(self.qpos)
        if body == 0:
            return np.zeros((num, 3)), np.broadcast_to(np.eye(3), (num, 3, 3))
        start = model.body_jntadr[body]
        joints = range(start, start + model.body_jntnum[body])
        if len(joints) and model.jnt_type[start] == mujoco.mjtJoint.mjJNT_FREE:
            first = model.jnt_qposadr[start]
            return self.qpos[:, first : first + 3], matrices(self.qpos[:, first + 3 : first + 7])
        position, rotation = self.frame(int(model.body_parentid[body]))
        position = position + rotation @ model.body_pos[body]
        rotation = rotation @ matrices(model.body_quat[body][None])[0]
        for joint in joints:
            position, rotation = self._move(joint, position, rotation)
        return position, rotation

    def _move(self, joint: int, position: Vectors, rotation: Matrices) -> tuple[Vectors, Matrices]:
        """Apply one joint to the frame of its body."""
        model, first = self.model, int(self.model.jnt_qposadr[joint])
        axis, offset = model.jnt_axis[joint], model.jnt_pos[joint]
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
            return position + (rotation @ axis) * (self.qpos[:, first, None] - model.qpos0[first]), rotation
        anchor = position + rotation @ offset
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE:
            half = (self.qpos[:, first, None] - model.qpos0[first]) / 2
            rotation = rotation @ matrices(np.concatenate([np.cos(half), np.sin(half) * axis], axis=1))
        else:
            rotation = rotation @ matrices(self.qpos[:, first : first + 4])
        return anchor - rotation @ offset, rotation


def matrices(quaternions: Float64[np.ndarray, "state 4"]) -> Matrices:
    """Return the rotation matrices of quaternions (w, x, y, z) of any length."""
    w, x, y, z = (quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)
