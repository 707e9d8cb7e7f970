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
        results.append({"loss": per_example.detach(), "critic": metrics["loss/critic"], **gradients})
    eager, compiled = results
    largest = max(expected.norm() for expected in eager.values())
    for name, expected in eager.items():  # some gradients are zero but for rounding: a key's bias shifts all scores
        error = (compiled[name] - expected).norm()
        assert error <= 1e-3 * expected.norm() + 1e-6 * largest, (critic, name, error)
    print(f"{critic}: {len(eager)} tensors agree")
