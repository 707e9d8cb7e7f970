"""The data of a refused update, whose loss or gradient was not finite."""

import torch
from jaxtyping import Bool
from torch import Tensor

from pac.config import ObjectiveConfig
from pac.data.sampler import Sampler
from pac.data.windows import locate
from pac.objectives import StepOverrides, loss
from pac.training.distributed import ProcessGroup
from pac.training.step import TrainState

MOST_NAMED = 5


class NonFiniteError(ValueError):
    """The loss or the gradient of an update was not finite."""


def describe_nonfinite(
    sampler: Sampler, state: TrainState, objective: ObjectiveConfig, step: int, processes: ProcessGroup
) -> str:
    """Return an error text that names dataset and episode of the windows at fault."""
    draws, wrong = sampler.draw(step), nonfinite_rows(sampler, state, objective, step, processes)
    lines = []
    for i in wrong.nonzero()[:MOST_NAMED, 0].tolist():
        source = sampler.sources[draws.dataset[i]]
        episode = locate([(source, slice(None))], draws.window[i : i + 1]).episode[0]
        lines.append(f"{source.config.name}: episode {episode}, window {draws.window[i]}")
    found = processes.collect((int(wrong.sum()), len(wrong), lines))
    num_wrong, num_windows = sum(part[0] for part in found), sum(part[1] for part in found)
    lines = [line for _, _, some in found for line in some][:MOST_NAMED]
    where = "; ".join(lines) if lines else "no single sample: the sum or the gradient overflowed"
    return (
        f"Step {step}: expected a finite loss and gradient, found otherwise ({num_wrong} of {num_windows} "
        f"windows): {where}. The update was refused and the state saved. Continue with --resume "
        "machine.on_nonfinite=skip; or, without these episodes or with a lower learning rate, in another folder with "
        "--start."
    )


def nonfinite_rows(
    sampler: Sampler, state: TrainState, objective: ObjectiveConfig, step: int, processes: ProcessGroup
) -> Bool[Tensor, " batch"]:
    """Return which windows have a non-finite action, reward or loss.

    A loss needs all processes. So losses are computed only if the data of every process is finite.
    """
    device = next(state.model.parameters()).device
    batch = sampler.batch(step).to(device)
    finite = (batch.action.isfinite() | ~batch.action_mask).all(-1) & batch.reward.isfinite()
    wrong = (~finite & batch.mask).any(1)
    if not any(processes.collect(bool(wrong.any()))):
        # A temperature that is computed from the batch would make all rows non-finite.
        given = StepOverrides(temperature=torch.ones((), device=device))
        with torch.no_grad():
            values = loss(state.model, state.target, batch, objective, None, given)[0]
        wrong = ~values.view(len(wrong), -1).isfinite().all(1)
    return wrong.cpu()
