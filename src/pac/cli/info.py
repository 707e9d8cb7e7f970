"""`pac info`: parameters, tokens, FLOPs and memory of each model size, beside the paper's numbers."""

import argparse
import json
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from pac.cli.next_step import print_next
from pac.config import parse_overrides
from pac.model import PAC
from pac.model.config import SIZES, ModelConfig, model_config
from pac.model.flops import Load, forward_flops, update_flops
from pac.scaling import published as paper

# Components and how their parameters' names begin, in the order of the data. The first match counts.
COMPONENTS = {
    "language table": "inputs.text.",
    "position embedding": "inputs.positions",
    "number encoder": "inputs.proprio.",
    "image encoder": "inputs.image.",
    "latents": "latents",
    "input attention": "input_attention.",
    "self-attention": "blocks.",
    "policy queries": "policy.queries",
    "policy head": "policy.decoder.head.",
    "policy attention": "policy.decoder.",
    "action encoder": "q.action.",
    "q head": "q.decoder.head.",
    "q attention": "q.decoder.",
    "q (action as input)": "q.",
    "v decoder": "v.",
    "behaviour decoder": "behaviour.",
}


def components(model: PAC) -> dict[str, int]:
    """Return the number of parameters of each component."""
    counts = dict.fromkeys(COMPONENTS, 0)
    for name, parameter in model.named_parameters():
        counts[next(component for component, prefix in COMPONENTS.items() if name.startswith(prefix))] += (
            parameter.numel()
        )
    return {component: count for component, count in counts.items() if count}


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return parameters, tokens, FLOPs and bytes of a configuration, without allocating the model."""
    with torch.device("meta"):
        parts = components(PAC(config))
    parameters, load = sum(parts.values()), Load.full(config)
    forward = sum(forward_flops(config, load).values())
    return {
        "parameters": parameters,
        "components": parts,
        "tokens": {**load.input_tokens(config), "action": load.action_tokens(config)},
        "flops": {"forward": forward, "backward": 2 * forward, "update": update_flops(config, load)},
        # Weights for inference. Training adds gradients, AdamW's two moments and the target network.
        # In bf16 training weights and moments stay in fp32, beside a bf16 copy, gradients and target.
        "bytes": {
            "inference": {"fp32": 4 * parameters, "bf16": 2 * parameters},
            "training": {"fp32": (4 + 4 + 8 + 4) * parameters, "bf16": (4 + 8 + 2 + 2 + 2) * parameters},
        },
    }


def report(sizes: list[str], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `pac info --json`."""
    rows = {}
    for size in sizes:
        rows[size] = describe(model_config(size, **overrides))
        if size in paper.PARAMETERS:
            rows[size]["paper"] = {"parameters": paper.PARAMETERS[size], "flops": paper.FLOPS[size]}
    return {"sizes": rows}


def render(data: dict[str, Any], console: Console) -> None:
    """Print the tables. Each is at most 80 columns wide."""
    sizes, kinds = data["sizes"], ("forward", "backward", "update")
    parameters, flops = {}, {}
    for size, row in sizes.items():
        ours, published = row["parameters"], row.get("paper")
        difference = [f"{ours / published['parameters'] - 1:+.2%}"] if published else [""]
        parameters[size] = [f"{ours:,}", short(published["parameters"]) if published else "", *difference]
        flops[size] = [f"{x['flops'][kind]:.3e}" if x else "" for kind in kinds for x in (row, published)]
    names = [name for name in COMPONENTS if any(name in row["components"] for row in sizes.values())]
    parts = {name: [short(row["components"].get(name, 0)) for row in sizes.values()] for name in names}
    tokens = {size: [f"{number:,}" for number in row["tokens"].values()] for size, row in sizes.items()}
    uses = [(use, dtype) for use in ("inference", "training") for dtype in ("fp32", "bf16")]
    memory = {size: [f"{row['bytes'][use][dtype] / 1e9:.3f}" for use, dtype in uses] for size, row in sizes.items()}
    console.print(_table("Parameters", ["size", "parameters", "paper", "difference"], parameters))
    console.print(_table("Parameters by component", ["component", *sizes], parts))
    heading = ["size", *next(iter(sizes.values()))["tokens"]]
    console.print(_table("Tokens per time step, with all inputs", heading, tokens))
    heading = ["size", *(name for kind in kinds for name in (kind, "paper"))]
    console.print(_table("FLOPs, with all inputs", heading, flops))
    console.print(
        "FLOPs are the products and convolutions that run, two per multiply-add. The paper's forward pass is higher: "
        "it counts the text look-up as a product with a one-hot vector, and its numbers imply about 11 products of "
        "width D_Z in a self-attention block where there are 4. Its update is lower: it counts 512 single time steps, "
        "without the 5 steps of a window, the 10 sampled actions or the target network.",
        style="dim",
    )
    heading = ["size", *(f"{use} {dtype}" for use, dtype in uses)]
    console.print(_table("Memory in GB for weights and optimiser, without activations", heading, memory))


def short(value: float) -> str:
    """Return three significant digits with a unit, such as 8.19M."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.0f}"


def _table(title: str, headings: list[str], rows: dict[str, list[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=f"any of {', '.join(SIZES)} (default: all)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field of ModelConfig"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    data = report(args.sizes or list(SIZES), parse_overrides(args.set))
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        render(data, Console())
        print_next(Console(), "", ("", ["pac", "train", "smoke", "--out", "runs/smoke"]))
