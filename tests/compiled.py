"""Run by test_compile.py, without the import hook, which the compiler cannot see through."""

import re

import torch
from factories import random_batch, random_observation, small_config, small_model
from torch._inductor.utils import run_fw_bw_and_get_code

from pac.config import ObjectiveConfig
from pac.objectives import StepOverrides, loss

PARTS = ObjectiveConfig(logged_share=0.5, hidden_dims=0.5)
for critic, objective in (("q", ObjectiveConfig()), ("v", ObjectiveConfig(critic="v")), ("parts", PARTS)):
    model, target = small_model(0), small_model(1)
    if objective is PARTS:
        batch, given = (
            random_batch(small_config()),
            StepOverrides(uniform=torch.rand(3, 3, 4, objective.num_samples), hiding=torch.rand(3, 3, 2, 5)),
        )
    else:  # compiled code draws other random numbers: with alpha = 1 and no bootstrap, no sampled action counts
        batch, given = random_batch(small_config(), imitation_weight=torch.ones(3), gamma=torch.zeros(3)), None
    results = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        model.zero_grad()
        per_example, metrics = function(model, target, batch, objective, None, given)
        per_example.sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append({"loss": per_example.detach(), "critic": metrics["loss/critic"], **gradients})
    eager, compiled = results
    largest = max(expected.norm() for expected in eager.values())
    for name, expected in eager.items():  # some gradients are zero but for rounding: a key's bias shifts all scores
        error = (compiled[name] - expected).norm()
        assert error <= 1e-3 * expected.norm() + 1e-6 * largest, (critic, name, error)
    print(f"{critic}: {len(eager)} tensors agree")

# Input attention may make one array of the size (row, head, query, token) forward and one backward, both in bfloat16.
# Its speed depends on that.
model = small_model(0, num_proprio=161)
model.input_attention.by_tables = True  # as in sizes where it pays
observation = random_observation(model.config, 7)


@torch.compile(fullgraph=True)
def attend() -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model.input_attention(model.latents, model.inputs(observation)[:1], 7)


_, codes = run_fw_bw_and_get_code(attend)
num_large = 7 * model.config.num_heads * model.config.num_latents * 161 * model.config.num_gains
for code in codes:
    made = re.findall(r"empty_strided\w*\(\(([\d, ]+)\),[^)]*\), (torch\.\w+)", code)
    shapes = [(torch.Size(int(n) for n in shape.split(",") if n.strip()), dtype) for shape, dtype in made]
    large = [dtype for shape, dtype in shapes if shape.numel() >= num_large]
    assert large == ["torch.bfloat16"], (shapes, large)
print(f"arrays: one in each of {len(codes)} graphs")
