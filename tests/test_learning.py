"""A contextual bandit with mostly bad data: RL beats cloning, and alpha moves the policy between them."""

import copy

import torch
from torch import Tensor

from pac.config import ObjectiveConfig
from pac.model import PAC
from pac.model.config import model_config
from pac.objectives import loss, sample_actions
from pac.types import Batch, Observation

STEPS = 250


def best_action(context: Tensor) -> Tensor:
    return 0.6 * torch.stack([torch.sin(2 * context[:, 0]), -context[:, 1]], 1)


def reward(context: Tensor, action: Tensor) -> Tensor:
    return torch.exp(-8 * (action - best_action(context)).square().sum(-1))


def sample_data(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return contexts and actions. A quarter of the actions is near the best one, the others near its opposite."""
    context = torch.rand(count, 2, generator=generator) * 2 - 1
    good = torch.rand(count, 1, generator=generator) < 0.25
    noise = torch.randn(count, 2, generator=generator)
    action = torch.where(good, best_action(context) + 0.1 * noise, -best_action(context) + 0.2 * noise)
    return context, action.clamp(-1, 1)


def learned_reward(alpha: float, critic: str) -> float:
    """Return the mean reward of sampled actions after a short run."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    contexts, actions = sample_data(4096, generator)
    sizes = {"num_proprio": 2, "num_actions": 2, "num_cameras": 0, "num_goal_images": 0, "num_text_tokens": 0}
    shape = {"num_latents": 8, "num_blocks": 1, "num_action_bins": 41, "initial_value": 0.2}
    model = PAC(model_config("nano", **sizes, **shape, v_head=critic == "v"))
    target = copy.deepcopy(model).requires_grad_(False)
    objective = ObjectiveConfig(critic=critic, epsilon=0.5)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS, pct_start=0.1)
    real = torch.ones(128, 1, dtype=torch.bool)
    for update in range(STEPS):
        rows = torch.randint(len(contexts), (128,), generator=generator)
        context, action = contexts[rows], actions[rows]
        batch = Batch(
            observation=Observation.of(context[:, None].expand(-1, 2, -1)),
            action=action[:, None],
            action_mask=real[..., None].expand(-1, -1, 2),
            reward=reward(context, action)[:, None],
            discount=torch.zeros(128, 1),
            mask=real,
            imitation_weight=torch.full((128,), alpha),
            critic_weight=torch.full((128,), 2.0),
            gamma=torch.zeros(128),
            row=torch.arange(128),
            return_to_go=torch.zeros(128),
            return_to_go_weight=torch.zeros(128),
        )
        per_example, _ = loss(model, target, batch, objective, generator)
        optimizer.zero_grad()
        per_example.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 20 == 19:
            target.load_state_dict(model.state_dict())
    contexts, _ = sample_data(4096, generator)
    with torch.no_grad():
        logits = model.policy_logits(model.encode(Observation.of(contexts)))
        chosen = model.config.action_bins.decode(sample_actions(logits, 1, generator)[:, 0], logits)
    return reward(contexts, chosen).mean().item()


def test_alpha_moves_the_policy_from_cloning_to_rl() -> None:
    """alpha = 0 is left out: without a cloning term short runs diverge from their data."""
    cloned, between, improved = (learned_reward(alpha, "q") for alpha in (1.0, 0.6, 0.25))
    assert cloned < between < improved, (cloned, between, improved)
    assert improved > 2 * cloned, (cloned, improved)


def test_pac_v_beats_cloning_by_a_wide_margin() -> None:
    context, action = sample_data(4096, torch.Generator().manual_seed(0))
    logged = reward(context, action).mean().item()  # what perfect cloning would get
    assert learned_reward(0.0, "v") > 2 * logged
