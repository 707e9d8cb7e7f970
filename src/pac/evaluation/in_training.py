"""Evaluation during training. `pac train` hands a `TrainingEvaluator` to the trainer, which imports no simulator."""

import math
from collections.abc import Callable, Sequence

from pac.config import EvaluationConfig
from pac.envs import spec as task_spec
from pac.envs.base import load as load_simulator
from pac.envs.rendering import find_gl
from pac.envs.tasks import check_name
from pac.evaluation.plan import Actor
from pac.evaluation.runner import evaluate
from pac.rollout import PolicyProtocol
from pac.types import TaskSpec


class TrainingEvaluator:
    """Everything that a trainer needs to know of simulators: the tasks before step 0, and the evaluation itself."""

    def specs(self, config: EvaluationConfig, cameras_at: Callable[[TaskSpec], Sequence[str]]) -> list[TaskSpec]:
        """Return the recipe's evaluation tasks, with the cameras that the policy uses at each.

        Raise if their simulators are missing, or what they render images with.
        """
        families = {check_name(task) for task in config.tasks}
        for family in families:
            load_simulator(family)
        plain = {task: task_spec(task, max_steps=config.max_steps) for task in config.tasks}
        cameras = {task: tuple(cameras_at(spec)) for task, spec in plain.items()}
        if any(names for task, names in cameras.items() if not task.startswith("gym/")):
            find_gl()
        return [task_spec(task, cameras=cameras[task], max_steps=config.max_steps) for task in config.tasks]

    def __call__(
        self,
        policy: PolicyProtocol,
        config: EvaluationConfig,
        *,
        progress: Callable[[int, int], None],
        should_stop: Callable[[], bool],
    ) -> dict[str, float] | None:
        """Return the mean return and success per task and over all tasks, with the ends of their intervals.

        Return None if `should_stop` ended it.

        `progress` is given the number of finished episodes and the number of all episodes.
        """
        found = evaluate(
            [Actor(label="policy", policy=policy)],
            config.tasks,
            config.episodes,
            seed=config.seed,
            max_steps=config.max_steps,
            stop_at_success=config.stop_at_success,
            workers=config.workers,
            progress=lambda label, done, total: progress(done, total),
            should_stop=should_stop,
        )
        if not found.finished:
            return None
        metrics = {}
        for name, row in found.summaries["policy"].rows.items():
            for metric, estimate in (("return", row.returns), ("success", row.success)):
                if estimate is not None:
                    metrics[f"evaluation/{name}/{metric}"] = estimate.mean
                if estimate is not None and math.isfinite(estimate.low):
                    metrics[f"evaluation/{name}/{metric}_low"] = estimate.low
                    metrics[f"evaluation/{name}/{metric}_high"] = estimate.high
        return metrics
