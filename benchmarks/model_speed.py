"""Measure the model's cost. Each number stands beside a floor or a baseline of the same run.

    python benchmarks/model_speed.py                  # CPU: small sizes
    python benchmarks/model_speed.py --json FILE      # CUDA: every size, bf16, the ends of the range compiled
    python benchmarks/model_speed.py --sections update --windows 512

sizes    forward and forward + backward, all inputs in use, against the measured rate of a large matrix product
tokens   a batch padded to 2,634 tokens that holds less: padded against trimmed
actions  the value of 1, 10 and 100 actions on cached latents, against encoding anew for each
act      one action, batch 1: encode and policy, against reading the weights once (CUDA)
update   one PAC update of 128 windows of 5: loss, backward, target network, 10 samples, AdamW, against the plain
         baseline of benchmarks/plain.py (CUDA)
"""

import argparse
import contextlib
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plain
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pac.config import ObjectiveConfig
from pac.model import PAC
from pac.model.config import SIZES, ModelConfig, model_config
from pac.model.flops import Load, forward_flops, update_flops
from pac.model.pac import count_parameters
from pac.types import Batch, Observation

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
console = Console(width=150)
results: dict[str, list[dict[str, Any]]] = {}


def milliseconds(call: Callable[[], Any], repeats: int = 20, seconds: float = 2.0) -> float:
    """Return the median time of a call after warm-up, within a budget of seconds."""
    for _ in range(3):
        call()
    times: list[float] = []
    while len(times) < repeats and sum(times) < seconds * 1e3:
        if CUDA:
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if CUDA:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[len(times) // 2]


@functools.cache
def matrix_peak() -> float:
    """Return the FLOP/s of a large matrix product: bf16 on CUDA, fp32 on the CPU."""
    size, dtype = (8192, torch.bfloat16) if CUDA else (1536, torch.float32)
    a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (milliseconds(lambda: a @ b) / 1e3)


def precision() -> contextlib.AbstractContextManager[Any]:
    return plain.precision(DEVICE)


def observation(
    config: ModelConfig, batch: int, *, proprio: int, images: int, text: int, pad: bool = False
) -> Observation:
    """Return random inputs with this many real entries, padded to the model's limits if asked."""
    goals = max(0, images - config.num_cameras)
    cameras = images - goals
    sizes = {"proprio": proprio, "camera": cameras, "goal": goals, "text": text}
    limits = [config.num_proprio, config.num_cameras, config.num_goal_images, config.num_text_tokens]
    widths = dict(zip(sizes, limits, strict=True)) if pad else sizes
    shape = (config.image_height, config.image_width, 3)

    def random_images(count: int) -> Tensor:
        return torch.randint(0, 256, (batch, count, *shape), device=DEVICE, dtype=torch.uint8)

    masks = {
        f"{name}_mask": torch.arange(widths[name], device=DEVICE).expand(batch, -1) < sizes[name] for name in sizes
    }
    return Observation.of(
        torch.randn(batch, widths["proprio"], device=DEVICE),
        images=random_images(widths["camera"]),
        goal_images=random_images(widths["goal"]),
        text=torch.randint(0, config.vocabulary_size, (batch, widths["text"]), device=DEVICE),
        **masks,
    )


def full(config: ModelConfig, batch: int, images: int | None = None) -> Observation:
    count = config.num_cameras + config.num_goal_images if images is None else images
    return observation(config, batch, proprio=config.num_proprio, images=count, text=config.num_text_tokens)


def ask(model: PAC, seen: Observation, actions: Tensor, mask: Tensor) -> Tensor:
    encoded = model.encode(seen)
    return model.policy_logits(encoded).sum() + model.q_logits(encoded, actions, mask).sum()


def report(name: str, row: dict[str, Any]) -> None:
    results.setdefault(name, []).append(row)
    console.print(
        f"{name}: " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    )


def sizes_section(sizes: list[str], batch: int) -> None:
    for size in sizes:
        config = model_config(size)
        model = PAC(config).to(DEVICE)
        seen = full(config, batch)
        actions = torch.rand(batch, 1, config.num_actions, device=DEVICE) * 2 - 1
        mask = torch.ones(batch, config.num_actions, dtype=torch.bool, device=DEVICE)

        def forward(
            model: PAC = model, seen: Observation = seen, actions: Tensor = actions, mask: Tensor = mask
        ) -> None:
            with torch.no_grad(), precision():
                ask(model, seen, actions, mask)

        def both(model: PAC = model, seen: Observation = seen, actions: Tensor = actions, mask: Tensor = mask) -> None:
            with precision():
                total = ask(model, seen, actions, mask)
            total.backward()
            model.zero_grad(set_to_none=True)

        flops = sum(forward_flops(config, Load.full(config), batch).values())
        forward_ms, both_ms = milliseconds(forward), milliseconds(both)
        report(
            "sizes",
            {
                "size": size,
                "parameters": count_parameters(model),
                "batch": batch,
                "forward ms": forward_ms,
                "of matrix peak": flops / (forward_ms / 1e3) / matrix_peak(),
                "forward+backward ms": both_ms,
                "of peak, both": 3 * flops / (both_ms / 1e3) / matrix_peak(),
                "ratio": both_ms / forward_ms,
            },
        )
        del model
        if CUDA:
            torch.cuda.empty_cache()


def tokens_section(size: str, batch: int) -> None:
    """Compare padded and trimmed batches of some of the paper's domains."""
    config = model_config(size)
    model = PAC(config).to(DEVICE)
    contents = {
        "everything": (223, 8, 50),
        "pyramid (44, 8 images)": (44, 8, 12),
        "CHEF sim (129, 3 images)": (129, 3, 8),
        "dog (223)": (223, 0, 6),
        "humanoid (67)": (67, 0, 6),
        "walker (24)": (24, 0, 6),
    }
    baseline = None
    for name, (proprio, images, text) in contents.items():
        padded = observation(config, batch, proprio=proprio, images=images, text=text, pad=True)
        trimmed = observation(config, batch, proprio=proprio, images=images, text=text)

        def encode(seen: Observation) -> None:
            with torch.no_grad(), precision():
                model.encode(seen)

        slow, fast = milliseconds(lambda: encode(padded)), milliseconds(lambda: encode(trimmed))  # noqa: B023
        baseline = baseline or fast
        real = proprio * 8 + images * config.tokens_per_image + text
        load = Load(num_proprio=proprio, num_images=images, num_text_tokens=text, num_actions=38)
        everything, flops = (sum(forward_flops(config, x, batch).values()) for x in (Load.full(config), load))
        row = {"size": size, "batch": batch, "holds": name, "tokens": real, "tokens / all": real / 2634}
        row["FLOPs / all"] = flops / everything
        report("tokens", row | {"padded ms": slow, "trimmed ms": fast, "trimmed / everything": fast / baseline})


def actions_section(size: str, batch: int) -> None:
    config = model_config(size)
    model = PAC(config).to(DEVICE)
    seen = full(config, batch, images=0 if not CUDA else None)
    mask = torch.ones(batch, config.num_actions, dtype=torch.bool, device=DEVICE)
    with torch.no_grad(), precision():
        encoded = model.encode(seen)
        encode = milliseconds(lambda: model.encode(seen))
        for count in (1, 10, 100):
            actions = torch.rand(batch, count, config.num_actions, device=DEVICE) * 2 - 1
            cached = milliseconds(lambda: model.q_logits(encoded, actions, mask))  # noqa: B023

            def encode_each(actions: Tensor = actions) -> None:
                for action in actions.unbind(1):
                    model.q_logits(model.encode(seen), action[:, None], mask)

            anew = milliseconds(encode_each, repeats=5)
            row = {"size": size, "batch": batch, "actions": count, "encode ms": encode, "cached ms": cached}
            report("actions", row | {"encoding anew ms": anew, "times faster": anew / (encode + cached)})


def act_section(sizes: list[str]) -> None:
    """Measure the latency of one action. The floor is reading every weight once."""
    copied = torch.empty(2**30, dtype=torch.int8, device=DEVICE)
    bandwidth = 2 * 2**30 / (milliseconds(lambda: copied.clone()) / 1e3)
    for size in sizes:
        config = model_config(size)
        model = PAC(config).to(DEVICE, torch.bfloat16).eval()
        tables = model.inputs.text.weight.numel() + model.inputs.positions.numel()
        for images in (0, 8):
            seen = full(config, 1, images=images)

            @torch.no_grad()
            def act(model: PAC, seen: Observation) -> Tensor:
                return model.policy_logits(model.encode(seen)).argmax(-1)

            eager = milliseconds(lambda: act(model, seen), repeats=50)  # noqa: B023
            compiled = torch.compile(act, mode="reduce-overhead", fullgraph=True)
            fast = milliseconds(lambda: compiled(model, seen), repeats=200)  # noqa: B023
            floor = 2 * (count_parameters(model) - tables - count_parameters(model.q)) / bandwidth * 1e3
            row = {"size": size, "images": images, "eager ms": eager, "compiled ms": fast, "floor ms": floor}
            report("act", row | {"compiled / floor": fast / floor})


def update_batch(config: ModelConfig, windows: int) -> Batch:
    """Return windows of 5 observations with all inputs but images."""
    seen = full(config, windows * 5, images=0).map(lambda x: x.unflatten(0, (windows, 5)))
    shape = (windows, 4, config.num_actions)
    ones = torch.ones(windows, 4, device=DEVICE)
    return Batch(
        observation=seen,
        action=torch.rand(shape, device=DEVICE) * 2 - 1,
        action_mask=torch.ones(shape, dtype=torch.bool, device=DEVICE),
        reward=ones * 0.1,
        discount=ones,
        mask=ones.bool(),
        imitation_weight=ones[:, 0] * 0.75,
        critic_weight=ones[:, 0] * 38,
        gamma=0.99 * ones[:, 0],
        row=torch.arange(windows, device=DEVICE),
        return_to_go=torch.zeros(windows, device=DEVICE),
        return_to_go_weight=torch.zeros(windows, device=DEVICE),
    )


def update_section(sizes: list[str], windows: int) -> None:
    for size in sizes:
        config = model_config(size)
        batch = update_batch(config, windows)
        load = Load(num_proprio=config.num_proprio, num_images=0, num_text_tokens=50, num_actions=config.num_actions)
        flops = update_flops(config, load, batch=windows)
        kinds: dict[str, Callable[[], Callable[[], Tensor]]] = {
            "plain, compiled": lambda: plain.plain_update(config, ObjectiveConfig(), batch),  # noqa: B023
            "eager": lambda: our_update(config, batch, compiled=False),  # noqa: B023
            "compiled": lambda: our_update(config, batch, compiled=True),  # noqa: B023
        }
        baseline = None
        for kind, make in kinds.items():
            update = make()
            torch.cuda.reset_peak_memory_stats()
            spent = milliseconds(update, seconds=4.0)
            baseline = baseline or spent
            row = {"size": size, "windows": windows, "kind": kind, "ms": spent, "times faster": baseline / spent}
            row["useful FLOPs of matrix peak"] = flops / (spent / 1e3) / matrix_peak()
            report("update", row | {"peak GB": torch.cuda.max_memory_allocated() / 1e9})
            del update
            torch.cuda.empty_cache()


def our_update(config: ModelConfig, batch: Batch, *, compiled: bool) -> Callable[[], Tensor]:
    return plain.make_update(PAC(config).to(DEVICE), batch, ObjectiveConfig(), compiled=compiled)


def table(name: str) -> Table:
    rows = results[name]
    shown = Table(title=name, title_justify="left")
    for column in rows[0]:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every number there")
    parser.add_argument("--sections", nargs="+", default=["tokens", "actions", "sizes", "act", "update"])
    parser.add_argument("--windows", type=int, default=128, help="of 5 observations, in an update")
    args = parser.parse_args()
    started = time.time()
    device = torch.cuda.get_device_name() if CUDA else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"{device}, torch {torch.__version__}, matrix product {matrix_peak() / 1e12:.3g} TFLOP/s")
    parts: dict[str, Callable[[], None]] = {
        "tokens": lambda: tokens_section("XXS" if CUDA else "micro", 256 if CUDA else 8),
        "actions": lambda: actions_section("XXS" if CUDA else "micro", 256 if CUDA else 8),
        "sizes": lambda: sizes_section(list(SIZES) if CUDA else ["nano", "micro", "tiny"], 64 if CUDA else 4),
    }
    if CUDA:
        parts["act"] = lambda: act_section(["XXS", "L"])
        parts["update"] = lambda: update_section(["XXS", "L"], args.windows)
    for name in args.sections:
        if name in parts:
            parts[name]()
    for name in results:
        console.print(table(name))
    console.print(f"{time.time() - started:.0f} s in all")
    if args.json:
        environment = {"device": device, "torch": torch.__version__, "matrix_peak": matrix_peak()}
        args.json.write_text(json.dumps({"environment": environment, **results}, indent=1))


if __name__ == "__main__":
    main()
