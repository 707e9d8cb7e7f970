"""Optimisation: AdamW, the learning rate of each step, and copies to the target network."""

import math

import torch
from torch import Tensor, nn

from pac.config import OptimiserConfig
from pac.training.distributed import local_weights

# First and highest learning rate of the paper's sizes, and of our smaller sizes (docs/log).
RATES = {"XXS": (1e-6, 1e-4), "XS": (1e-6, 1e-4), "S": (1e-7, 5e-5), "M": (1e-7, 3e-5), "L": (1e-7, 3e-5)}
SMALL_RATES = (1e-6, 5e-4)
PAPER_WARMUP, PAPER_TARGET_PERIOD = 15_000, 100
STATE = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, per parameter


def make_optimizer(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only, not on biases, norms or single vectors.

    On a GPU the learning rate is a tensor that captured updates read. The state exists from the start: saving and
    loading are the same before and after the first step, sharded or not.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    on_gpu = parameters[0].device.type == "cuda"
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=torch.zeros((), device=parameters[0].device) if on_gpu else 0.0,
        betas=(config.beta1, config.beta2),
        fused=on_gpu,
        capturable=on_gpu,
    )
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device if on_gpu else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return the optimiser's state by name, such as "exp_avg.<parameter>". The tensors are no copies."""
    named = ((name, p) for name, p in model.named_parameters() if p in optimizer.state)
    return {f"{kind}.{name}": optimizer.state[p][kind] for name, p in named for kind in STATE}


def set_learning_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def warmup_steps(steps: int) -> int:
    return max(1, min(PAPER_WARMUP, steps // 20))


def learning_rate(config: OptimiserConfig, size: str, *, step: int, steps: int, warmup: int) -> float:
    """Return the rate of a step: a linear warm-up, then a cosine down to `final_share` of the peak, or the peak."""
    initial, peak = RATES.get(size, SMALL_RATES)
    peak = config.peak_rate or peak
    initial = min(initial if config.initial_rate is None else config.initial_rate, peak)
    if step < warmup:
        return initial + (peak - initial) * (step + 1) / warmup
    if config.decay == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (config.final_share + (1 - config.final_share) * (1 + math.cos(math.pi * progress)) / 2)


def target_period(config: OptimiserConfig, steps: int) -> int:
    """Return the updates between copies to the target network.

    Each copy is one Bellman backup. A short run needs it more often than the paper's three million updates (docs/log).
    """
    return config.target_period or min(PAPER_TARGET_PERIOD, max(10, steps // 200))


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    torch._foreach_copy_(local_weights(target), local_weights(source))
