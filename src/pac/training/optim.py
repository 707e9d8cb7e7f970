"""Optimisation: AdamW with its state made up front, the learning rate of a step, the target network's copies."""

import math

import torch
from torch import Tensor, nn

from pac.config import OptimiserConfig
from pac.training.distributed import local_weights

# The paper's first and highest learning rate by size; small models of ours take what the studies in docs/log.md used.
RATES = {"XXS": (1e-6, 1e-4), "XS": (1e-6, 1e-4), "S": (1e-7, 5e-5), "M": (1e-7, 3e-5), "L": (1e-7, 3e-5)}
SMALL_RATES = (1e-6, 5e-4)
PAPER_WARMUP, PAPER_TARGET_PERIOD = 15_000, 100
STATE = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, for each parameter


def make_optimizer(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """AdamW; weight decay shrinks matrices, not biases, norms or single vectors.

    The learning rate is a tensor, so that a captured update follows it. State exists from the start: saving and
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
    """The optimiser's state by name: "exp_avg.<parameter>" and so on; the tensors themselves, not copies."""
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
    """Linear warm-up to the peak, then a cosine down to `final_share` of it at the end (or the peak all along)."""
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
    """Each copy to the target network is one Bellman backup: a short run must not wait as long for it as the paper's
    three million updates do (docs/log.md).
    """
    return config.target_period or min(PAPER_TARGET_PERIOD, max(10, steps // 200))


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    torch._foreach_copy_(local_weights(target), local_weights(source))
