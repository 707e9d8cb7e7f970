"""Rollouts: anything that acts, in any world, gives Episodes. Collection, evaluation and improvement all use them.

Worker processes step environments; one policy in this process answers all of them in batches; behaviours act beside
their environment. `trials` says what goes in and comes out, `pool` hands out the jobs, `links` and `ray` reach the
workers, `worker` steps and `running` records; `crew` keeps workers from one rollout to
the next.
"""

from pac.rollout.episodes import ActorLike, ActorMix, EpisodeResult, Job, PolicyProtocol, make_jobs
from pac.rollout.persistent import PersistentWorkers
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
