"""Does the critic use the action? A bandit with returns of 0 and 1 and mostly random variance.

    python benchmarks/critic.py --steps 800 --seeds 0 1        # one core: about 40 s a row and seed

States are normal, actions uniform; a return is 1 with probability 0.8 sigmoid(2 s_0) exp(-|a - tanh(W s)|^2 / 2).
The state alone explains most of what can be known, so a critic learns that first; what a policy needs is the rest. Rows
give, at four moments, the correlation of predicted and true values over the actions of a state (means over states
taken out), and the slope: 1 is calibrated, 0 is blind to the action.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from mlp import small_net
from torch import Tensor, nn

from pac.bins import Bins
from pac.model import PAC
from pac.model.config import model_config
from pac.objectives import critic_loss
from pac.types import Observation

NUM_STATES, NUM_ACTIONS, BATCH = 8, 4, 128
Critic = Callable[[Tensor, Tensor], Tensor]
WHERE = torch.randn(NUM_STATES, NUM_ACTIONS, generator=torch.Generator().manual_seed(7)) / 2
PAPER_GAINS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


def true_value(state: Tensor, action: Tensor) -> Tensor:
    distance = (action - torch.tanh(state @ WHERE)[:, None]).square().sum(-1)
    return 0.8 * torch.sigmoid(2 * state[:, :1]) * torch.exp(-distance / 2)


def perceiver(change: Callable[[PAC], None] = lambda model: None, **settings: Any) -> tuple[Critic, list[Any], Bins]:
    sizes = {"num_proprio": NUM_STATES, "num_actions": NUM_ACTIONS}
    absent = {"num_cameras": 0, "num_goal_images": 0, "num_text_tokens": 0}
    model = PAC(model_config("nano", **(sizes | absent | {"initial_value": 0.0} | settings)))
    with torch.no_grad():
        change(model)

    def critic(state: Tensor, actions: Tensor) -> Tensor:
        return model.q_logits(model.encode(Observation.of(state)), actions, torch.ones_like(actions[:, 0]).bool())

    return critic, list(model.parameters()), model.config.value_bins


def mlp() -> tuple[Critic, list[Any], Bins]:
    """Return a network with two hidden layers of 256 on state and action."""
    bins = model_config("nano").value_bins
    net = small_net(NUM_STATES + NUM_ACTIONS, bins.count)
    with torch.no_grad():
        net[-1].bias.copy_(bins.logits_near(0.0))  # type: ignore[operator]
    both = lambda s, a: net(torch.cat([s[:, None].expand(-1, a.shape[1], -1), a], -1))  # noqa: E731
    return both, list(net.parameters()), bins


def shared_bias(model: PAC) -> None:
    """Use the earlier initialisation: the bias that all tokens share is as large as their differences."""
    nn.init.normal_(model.q.action.numbers.linear.bias)  # type: ignore[union-attr, arg-type]


def query_gain(model: PAC) -> None:
    model.q.decoder.attention.query.weight.mul_(3)  # type: ignore[union-attr, operator]


ROWS: dict[str, Callable[[], tuple[Critic, list[Any], Bins]]] = {
    "MLP": mlp,
    "nano": perceiver,
    "nano, shared bias": lambda: perceiver(shared_bias),
    "nano, queries x 3": lambda: perceiver(query_gain),
    "nano, paper's gains": lambda: perceiver(gains=PAPER_GAINS),
    "nano, action as input": lambda: perceiver(action_as="input"),
}


def learn(make: Callable[[], tuple[Critic, list[Any], Bins]], steps: int, rate: float, seed: int) -> list[str]:
    torch.manual_seed(seed)
    critic, parameters, bins = make()
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95))
    state, actions = torch.randn(64, NUM_STATES), torch.rand(64, 32, NUM_ACTIONS) * 2 - 1
    truth, found = true_value(state, actions), []
    for step in range(1, steps + 1):
        seen, taken = torch.randn(BATCH, NUM_STATES), torch.rand(BATCH, 1, NUM_ACTIONS) * 2 - 1
        won = (torch.rand(BATCH) < true_value(seen, taken)[:, 0]).long() * (bins.count - 1)
        target = nn.functional.one_hot(won, bins.count).float()
        optimizer.zero_grad()
        critic_loss(critic(seen, taken)[:, 0], target).mean().backward()
        optimizer.step()
        if step % (steps // 4) == 0:
            with torch.no_grad():
                values = bins.mean(critic(state, actions))
            ours, theirs = (x - x.mean(1, keepdim=True) for x in (values, truth))
            product = (ours * theirs).sum()
            found.append(f"{product / (ours.norm() * theirs.norm()):5.2f} ({product / theirs.square().sum():.2f})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="*", default=list(ROWS), help="rows by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("correlation (slope) after each quarter of the updates")
    for name in args.only:
        for seed in args.seeds:
            print(f"{name:24s} seed {seed}  {'  '.join(learn(ROWS[name], args.steps, args.rate, seed))}", flush=True)


if __name__ == "__main__":
    main()
