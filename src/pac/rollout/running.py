"""One episode under way: its environment, who plays it, and what is recorded."""

from typing import Any

import numpy as np

from pac import behaviours
from pac.rollout.episodes import BEHAVIOUR_STREAM, EpisodeResult, lineage
from pac.rollout.messages import Setup, Start
from pac.types import Episode, TaskSpec


class Running:
    """One episode under way."""

    def __init__(self, env: Any, start: Start, setup: Setup) -> None:
        self.env, self.start, self.setup = env, start, setup
        self.task: TaskSpec = env.task
        self.num_actions = len(self.task.action_low)
        first, _ = env.reset(seed=start.seed)
        self.observations = {name: [np.array(value)] for name, value in first.items()}
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.labels: dict[str, list[float]] = {}
        self.first_success: int | None = None
        self.terminated = self.truncated = False
        self.behaviour = None
        if start.is_behaviour:
            self.behaviour = behaviours.make(start.actor)
            self.behaviour.begin(env, np.random.default_rng([start.seed, BEHAVIOUR_STREAM]))

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def step(self, action: np.ndarray | None) -> None:
        """Take `action`, or the behaviour's."""
        if self.behaviour is not None:
            now = {name: values[-1] for name, values in self.observations.items()}
            action = np.array(self.behaviour.act(now), np.float32)
            for name, label in getattr(self.behaviour, "labels", {}).items():
                noted = self.labels.setdefault(name, [])
                noted += [0.0] * (len(self.actions) - len(noted)) + [label]
        assert action is not None
        observation, reward, self.terminated, self.truncated, info = self.env.step(action)
        self.actions.append(action)
        self.rewards.append(reward)
        for name, value in observation.items():
            self.observations[name].append(np.array(value))
        if self.first_success is None and info.get("success"):
            self.first_success = len(self.actions) - 1
            self.terminated = self.terminated or self.setup.stop_at_success
        if not self.terminated and len(self.actions) >= self.task.max_steps:
            self.truncated = True

    def trial(self) -> EpisodeResult:
        """The finished episode."""
        job, length = self.start.job, len(self.actions)
        extra = {}
        if self.task.has_success:
            extra["success"] = np.zeros(length, np.float32)
            extra["success"][[] if self.first_success is None else self.first_success] = 1
        episode = Episode(
            observation={name: np.stack(values) for name, values in self.observations.items()},
            action=np.stack(self.actions).astype(np.float32),
            reward=np.array(self.rewards, np.float32),
            terminated=bool(self.terminated),
            truncated=bool(self.truncated and not self.terminated),
            instruction=self.task.instruction,
            success=self.first_success is not None if self.task.has_success else None,
            extra_rewards=extra,
            source=lineage(self.start.actor, job),
            seed=self.start.seed,
        )
        labels = {k: np.array(v + [0.0] * (length - len(v)), np.float32) for k, v in self.labels.items()}
        return EpisodeResult(job=job, actor=self.start.actor, spec=self.task, episode=episode, labels=labels)
