"""The DeepMind Control Suite: `control/<domain>.<task>`."""

import numpy as np

from pac.envs.rendering import MujocoCameras, no_gl

with no_gl():
    from dm_control import suite

from pac.envs.base import Environment, StepResult
from pac.envs.tasks import static_spec
from pac.types import TaskSpec


class ControlEnvironment(MujocoCameras, Environment):
    """A task of the suite. Its observations are flattened in the suite's own order.

    The time limit truncates. An episode that the suite ends with discount 0 is terminated.
    """

    def _build(self, task: str, cameras: tuple[str, ...], max_steps: int | None) -> tuple[TaskSpec, tuple[str, ...]]:
        domain, _, name = task.removeprefix("control/").partition(".")
        self.simulator = suite.load(domain, name, task_kwargs={"time_limit": float("inf")})
        physics = self.simulator.physics
        # quadruped.escape uses the physics' own GL contexts at every reset. We render without them.
        physics.__class__ = type("Physics", (type(physics),), {"contexts": None})
        self._model, self._data = physics.model.ptr, physics.data.ptr
        names = [
            f"{part}.{i}" if size > 1 else part
            for part, spec in self.simulator.observation_spec().items()
            for size in [int(np.prod(spec.shape))]
            for i in range(size)
        ]
        return static_spec(task, cameras, max_steps), tuple(names)

    def _start(self, seed: int) -> np.ndarray:
        self.simulator.task._random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
        state = _flat(self.simulator.reset().observation)
        self._scene_changed()
        return state

    def _advance(self, action: np.ndarray) -> StepResult:
        step = self.simulator.step(action)
        over = step.last()
        terminated, truncated = over and step.discount == 0, over and step.discount != 0
        return StepResult(_flat(step.observation), step.reward, terminated, truncated)


def _flat(observation: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in observation.values()], dtype=np.float32)
