"""Run by test_compile.py, without the import hook, which the compiler cannot see through."""

import torch
from factories import random_batch, small_config, small_model

from pac.config import ObjectiveConfig
from pac.objectives import loss

for critic in ("q", "v"):
    model, target = small_model(0), small_model(1)
    # Compiled code draws other random numbers: with alpha = 1 and no bootstrap, no sampled action counts.
    batch = random_batch(small_config(), imitation_weight=torch.ones(3))
    objective = ObjectiveConfig(critic=critic, discount=0.0)  # type: ignore[arg-type]
    results = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        model.zero_grad()
        per_example, metrics = function(model, target, batch, objective)
        per_example.sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append((per_example.detach(), metrics["loss/critic"], gradients))
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
    print(f"{critic}: {len(results[0][2])} gradients agree")
