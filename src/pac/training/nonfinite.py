"""Which data an update was refused for: the loss or the gradient of its batch was not finite."""

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
    """What to tell the user about a step's batch: dataset and episode of the samples that are to blame."""
    draws, wrong = sampler.draw(step), wrong_rows(sampler, state, objective, step, processes)
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


def wrong_rows(
    sampler: Sampler, state: TrainState, objective: ObjectiveConfig, step: int, processes: ProcessGroup
) -> Bool[Tensor, " batch"]:
    """True for windows with an action, reward or loss that is not finite. Losses take all processes, so they are asked
    for only where the data of every one is sound.
    """
    device = next(state.model.parameters()).device
    batch = sampler.batch(step).to(device)
    sound = (batch.action.isfinite() | ~batch.action_mask).all(-1) & batch.reward.isfinite()
    wrong = (~sound & batch.mask).any(1)
    if not any(processes.collect(bool(wrong.any()))):
        given = StepOverrides(
            temperature=torch.ones((), device=device)
        )  # one that follows the batch would spoil all rows
        with torch.no_grad():
            values = loss(state.model, state.target, batch, objective, None, given)[0]
        wrong = ~values.view(len(wrong), -1).isfinite().all(1)
    return wrong.cpu()
