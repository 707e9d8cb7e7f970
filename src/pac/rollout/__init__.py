"""Rollouts: play episodes of any task with any actor. Collection, evaluation and improvement all use them.

Worker processes step environments. One policy in this process answers all of them in batches. Behaviours act in the
worker, beside their environment. `episodes` holds jobs and results, `pool` hands out the jobs, `links` and `ray`
start workers and talk to them, `worker` steps the environments.
"""

from pac.rollout.episodes import ActorLike, ActorMix, EpisodeResult, Job, PolicyProtocol, make_jobs
from pac.rollout.links import PersistentWorkers
from pac.rollout.pool import RolloutError, rollout

__all__ = [
    "ActorLike",
    "ActorMix",
    "EpisodeResult",
    "Job",
    "PersistentWorkers",
    "PolicyProtocol",
    "RolloutError",
    "make_jobs",
    "rollout",
]
