"""A plan of the paper's full training on many GPUs, from what was measured on one (docs/scale.md holds its output).

    python benchmarks/scale_plan.py                          # size L, 3M updates, 8, 64 and 512 GPUs
    python benchmarks/scale_plan.py --gpus 16 --price 3.5

Measured: the time and memory of a compiled update without images (results/train_speed_h200.json), the overhead of a
small batch and the time of an image (results/model_speed_h200.json). Assumed: the speed of links and the price.
Counted: bytes and FLOPs.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pac.data.mixture import MixturePlan, load_mixture, plan
from pac.model import PAC
from pac.model.config import ModelConfig, model_config
from pac.model.flops import Load, forward_flops, update_flops

ROOT = Path(__file__).parents[1]
HALF, FULL = 2, 4  # bytes of a bfloat16 and of a float32
GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What was not measured."""

    node: int = 8  # GPUs that share fast links
    node_link: float = 300e9  # bytes/s a GPU receives within a node; NVLink's nominal 450e9, two thirds of it
    network_link: float = 33e9  # bytes/s a GPU receives between nodes; 400 Gbit/s a GPU is 50e9, two thirds of it
    price: float = 2.5  # dollars a GPU hour
    updates: int = 3_000_000


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One H200, in seconds and bytes."""

    rate: float  # useful FLOP/s of a compiled update of L without images
    overhead: float  # of a forward and a backward pass of L, eager, beyond its FLOPs at that rate
    image: float  # encoding one, forward
    window_bytes: float  # activations of L, without images, and whatever else does not shrink with sharding

    @classmethod
    def read(cls, folder: Path) -> "Measured":
        found: dict[str, Any] = json.loads((folder / "model_speed_h200.json").read_text())
        trained: dict[str, Any] = json.loads((folder / "train_speed_h200.json").read_text())
        config, parameters = model_config("L"), sum(split_parameters(model_config("L")))
        update = next(r for r in trained["large"] if r["kind"] == "compiled")  # graphs are for one process
        windows = update["windows"]
        rate = update_flops(config, load_of(config, 0), windows) / (update["ms"] / 1e3)
        pass_ = next(r for r in found["sizes"] if r["size"] == "L")
        flops = 3 * sum(forward_flops(config, Load.full(config), pass_["batch"]).values())
        seen = {r["holds"]: r for r in found["tokens"]}
        with_images, without = seen["everything"], seen["dog (223)"]
        images = with_images["batch"] * (config.num_cameras + config.num_goal_images)
        return cls(
            rate=rate,
            overhead=pass_["forward+backward ms"] / 1e3 - flops / rate,
            image=(with_images["trimmed ms"] - without["trimmed ms"]) / 1e3 / images,
            window_bytes=(update["peak GB"] * GB - 5 * FULL * parameters) / windows,
        )


def load_of(config: ModelConfig, images: int) -> Load:
    return Load(
        num_proprio=config.num_proprio,
        num_images=images,
        num_text_tokens=config.num_text_tokens,
        num_actions=config.num_actions,
    )


def split_parameters(config: ModelConfig) -> tuple[int, int, int]:
    """Parameters by how `pac.training.distributed.shard` treats them: products of blocks, heads, and the rest."""
    with torch.device("meta"):
        named = dict(PAC(config).named_parameters())
    blocks = sum(p.numel() for n, p in named.items() if n.startswith("blocks.") and "_norm" not in n)
    heads = sum(p.numel() for n, p in named.items() if n.startswith(("policy.", "q.", "v.", "behaviour.")))
    return blocks, heads, sum(p.numel() for p in named.values()) - blocks - heads


def image_bytes(config: ModelConfig) -> int:
    """What the image encoder keeps of one image for its backward pass: inputs and outputs of convolutions, where the
    maximum was (8 bytes), and the two rectified maps of each residual block.
    """
    height, width, inner, total = config.image_height, config.image_width, 3, 0
    for outer in config.image_channels:
        total += HALF * (inner + outer) * height * width
        height, width = (height + 1) // 2, (width + 1) // 2
        total += outer * height * width * (8 + config.image_blocks * 2 * HALF)
        inner = outer
    return total


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of what is put together or added up in an update; a GPU receives all of it but its own part."""

    model: int  # forward, and again backward for what was parted in between
    target: int
    gradients: int

    @classmethod
    def of(cls, config: ModelConfig) -> "Traffic":
        blocks, heads, rest = split_parameters(config)
        once = HALF * blocks + FULL * (heads + rest)
        return cls(model=once + HALF * blocks + FULL * heads, target=once, gradients=FULL * (blocks + heads + rest))

    def within(self, parts: int) -> float:
        """What a GPU receives from the others that hold parts of the same copy of the weights."""
        return (self.model + self.target + self.gradients) * (parts - 1) / parts

    def between(self, parts: int, machines: int) -> float:
        """What it receives from other machines: its part's gradients, added up and handed round."""
        return 2 * self.gradients / parts * (machines - 1) / machines


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What an update computes: images of every window, real or padding, and real ones on average."""

    windows: int
    window: int
    images: int
    real_images: float

    @classmethod
    def of(cls, planned: MixturePlan) -> "Batch":
        mean = sum(float(row.p_eff) * row.counts.images for row in planned.datasets)
        most = max(row.counts.images for row in planned.datasets if row.p_eff)
        return cls(windows=planned.mixture.batch_size, window=planned.mixture.window, images=most, real_images=mean)


def memory(config: ModelConfig, batch: Batch, measured: Measured, given: Assumptions, gpus: int) -> dict[str, float]:
    """Bytes a GPU."""
    parts = min(gpus, given.node)
    blocks, heads, rest = split_parameters(config)
    parameters, windows = blocks + heads + rest, batch.windows / gpus
    per_block = blocks / config.num_blocks
    return {
        "weights, float32": FULL * parameters / parts,
        "gradients, float32": FULL * parameters / parts,
        "optimiser, float32": 2 * FULL * parameters / parts,
        "target, float32": FULL * parameters / parts,
        # Two blocks of weights (one in use, one on its way), one of gradients, heads and rest of model and target.
        "put together": per_block * (2 * HALF + HALF + FULL) + 3 * FULL * (heads + rest),
        "activations": windows * measured.window_bytes,
        "activations of images": windows * (batch.window - 1) * batch.images * image_bytes(config),
    }


def times(config: ModelConfig, batch: Batch, measured: Measured, given: Assumptions, gpus: int) -> dict[str, float]:
    """Seconds an update, with computing and sending one after the other and at once."""
    asked = update_flops(config, load_of(config, 0), batch.windows, batch.window)
    passes = batch.windows * (3 * (batch.window - 1) + batch.window)
    work = asked / measured.rate + passes * batch.images * measured.image
    parts, traffic = min(gpus, given.node), Traffic.of(config)
    sending = traffic.within(parts) / given.node_link
    sending += traffic.between(parts, gpus // parts) / given.network_link
    split = traffic.within(gpus) / (given.node_link if gpus <= given.node else given.network_link)
    computing = work / gpus + measured.overhead
    both = {"at once": max(computing, sending), "sum": computing + sending}
    return {"computing": computing, "sending": sending, "sending, split over all": split} | both


def column(config: ModelConfig, batch: Batch, measured: Measured, given: Assumptions, gpus: int) -> dict[str, str]:
    """The plan for one number of GPUs, row by row."""
    spent, held = times(config, batch, measured, given, gpus), memory(config, batch, measured, given, gpus)
    parts, traffic = min(gpus, given.node), Traffic.of(config)
    frames = config.image_height * config.image_width * 3 * batch.window * batch.windows
    days = {k: spent[k] * given.updates / 86400 for k in ("at once", "sum")}
    hours = {k: 24 * gpus * value for k, value in days.items()}
    rows = {"windows a GPU": f"{batch.windows / gpus:g}"}
    rows |= {f"memory: {name}": f"{size / GB:.2f} GB" for name, size in held.items()}
    return rows | {
        "**memory in all**": f"**{sum(held.values()) / GB:.1f} GB**",
        "received within a machine": f"{traffic.within(parts) / GB:.2f} GB",
        "received between machines": f"{traffic.between(parts, gpus // parts) / GB:.2f} GB",
        "computing": f"{1e3 * spent['computing']:.0f} ms",
        "sending": f"{1e3 * spent['sending']:.0f} ms",
        "sending, were weights split over all GPUs": f"{1e3 * spent['sending, split over all']:.0f} ms",
        "**an update**": f"**{1e3 * spent['at once']:.0f} to {1e3 * spent['sum']:.0f} ms**",
        "images read, all GPUs": f"{batch.real_images * frames / spent['at once'] / GB:.2f} GB/s",
        "images to each GPU, padded": f"{1e3 * batch.images * frames / gpus / spent['at once'] / GB:.0f} MB/s",
        "**days**": f"**{days['at once']:.1f} to {days['sum']:.1f}**",
        "GPU hours": f"{hours['at once']:,.0f} to {hours['sum']:,.0f}",
        "cost": f"${given.price * hours['at once']:,.0f} to ${given.price * hours['sum']:,.0f}",
    }


def markdown(columns: dict[str, dict[str, str]]) -> str:
    names = next(iter(columns.values()))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    lines += [f"| {name} | " + " | ".join(rows[name] for rows in columns.values()) + " |" for name in names]
    return "\n".join(lines)


def report(size: str, gpus: list[int], given: Assumptions) -> str:
    config, measured = model_config(size), Measured.read(ROOT / "results")
    batch = Batch.of(plan(load_mixture(ROOT / "recipes" / "paper" / "scaling.toml")))
    blocks, heads, rest = split_parameters(config)
    facts = {
        "parameters: blocks' products, heads, rest": f"{blocks / 1e6:.1f}M, {heads / 1e6:.1f}M, {rest / 1e6:.1f}M",
        "a compiled update without images": f"{measured.rate / 1e12:.0f} TFLOP/s",
        "overhead of a forward and a backward pass": f"{1e3 * measured.overhead:.1f} ms",
        "encoding an image": f"{1e6 * measured.image:.1f} us",
        "activations of a window, images apart": f"{measured.window_bytes / 1e6:.0f} MB",
        "activations of an image (counted)": f"{image_bytes(config) / 1e6:.1f} MB",
        "images an observation: padded, real": f"{batch.images}, {batch.real_images:.2f}",
    }
    found = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    columns = {f"{n} GPUs": column(config, batch, measured, given, n) for n in gpus}
    return f"| | |\n|---|---|\n{found}\n\n{markdown(columns)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="L", help="memory and overhead were measured for L")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    for name, kind in Assumptions.__annotations__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(Assumptions, name))
    args = vars(parser.parse_args())
    size, gpus = args.pop("size"), args.pop("gpus")
    print(report(size, gpus, Assumptions(**args)))


if __name__ == "__main__":
    main()
