"""`pac info`: what each model size holds and costs, beside what the paper says."""

import argparse
import json
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pac.config import parse_overrides
from pac.model import PAC
from pac.model.config import SIZES, ModelConfig, model_config
from pac.model.flops import Load, forward_flops, update_flops
from pac.scaling import published as paper

# Parameter names -> components, in the order of the data; the first match counts.
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
    """Parameters by component; they add up to all of the model's."""
    counts = dict.fromkeys(COMPONENTS, 0)
    for name, parameter in model.named_parameters():
        counts[next(component for component, prefix in COMPONENTS.items() if name.startswith(prefix))] += (
            parameter.numel()
        )
    return {component: count for component, count in counts.items() if count}


def describe(config: ModelConfig) -> dict[str, Any]:
    """Parameters, tokens, FLOPs and bytes of a configuration, without allocating the model."""
    with torch.device("meta"):
        parts = components(PAC(config))
    parameters, load = sum(parts.values()), Load.full(config)
    forward = sum(forward_flops(config, load).values())
    return {
        "parameters": parameters,
        "components": parts,
        "tokens": {**load.input_tokens(config), "action": load.action_tokens(config)},
        "flops": {"forward": forward, "backward": 2 * forward, "update": update_flops(config, load)},
        # Weights alone, and with gradients, AdamW's two moments and the target network; activations come on top.
        # In bf16 training the weights and moments stay in fp32, beside a bf16 copy, gradients and target.
        "bytes": {
            "inference": {"fp32": 4 * parameters, "bf16": 2 * parameters},
            "training": {"fp32": (4 + 4 + 8 + 4) * parameters, "bf16": (4 + 8 + 2 + 2 + 2) * parameters},
        },
    }


def report(sizes: list[str], overrides: dict[str, Any]) -> dict[str, Any]:
    """What `pac info --json` prints."""
    rows = {}
    for size in sizes:
        rows[size] = describe(model_config(size, **overrides))
        if size in paper.PARAMETERS:
            rows[size]["paper"] = {"parameters": paper.PARAMETERS[size], "flops": paper.FLOPS[size]}
    return {"sizes": rows}


def render(data: dict[str, Any], console: Console) -> None:
    sizes = data["sizes"]
    console.print(_table("Parameters", sizes, _parameter_rows(sizes)))
    console.print(_table("Tokens of one time step, all inputs in use", sizes, _token_rows(sizes)))
    console.print(_table("FLOPs, all inputs in use", sizes, _flop_rows(sizes)))
    console.print(
        "FLOPs are the products and convolutions that run, at two a multiply-add. The paper's table is higher for a "
        "forward pass: it counts the text look-up as a product with a one-hot vector, and its numbers imply about 11 "
        "products of width D_Z in a self-attention block where there are 4. Its update is lower: it counts 512 single "
        "time steps, without the 5 steps of a window, the 10 sampled actions or the target network.",
        style="dim",
    )
    console.print(_table("Memory for weights and optimiser, without activations (GB)", sizes, _byte_rows(sizes)))


Rows = dict[str, list[str]]


def _parameter_rows(sizes: dict[str, Any]) -> Rows:
    names = [name for name in COMPONENTS if any(name in row["components"] for row in sizes.values())]
    rows = {name: [f"{row['components'].get(name, 0):,}" for row in sizes.values()] for name in names}
    rows["total"] = [f"{row['parameters']:,}" for row in sizes.values()]
    rows["paper"] = [f"{row['paper']['parameters'] / 1e6:.0f}M" if "paper" in row else "" for row in sizes.values()]
    rows["difference"] = [
        f"{row['parameters'] / row['paper']['parameters'] - 1:+.2%}" if "paper" in row else "" for row in sizes.values()
    ]
    return rows


def _token_rows(sizes: dict[str, Any]) -> Rows:
    names = next(iter(sizes.values()))["tokens"]
    return {name: [f"{row['tokens'][name]:,}" for row in sizes.values()] for name in names}


def _flop_rows(sizes: dict[str, Any]) -> Rows:
    rows: Rows = {}
    for kind in ("forward", "backward", "update"):
        rows[kind] = [f"{row['flops'][kind]:.3e}" for row in sizes.values()]
        rows[f"{kind}, paper"] = [
            f"{row['paper']['flops'][kind]:.3e}" if "paper" in row else "" for row in sizes.values()
        ]
    return rows


def _byte_rows(sizes: dict[str, Any]) -> Rows:
    uses = [(use, dtype) for use in ("inference", "training") for dtype in ("fp32", "bf16")]
    return {
        f"{use}, {dtype}": [f"{row['bytes'][use][dtype] / 1e9:.3f}" for row in sizes.values()] for use, dtype in uses
    }


def _table(title: str, sizes: dict[str, Any], rows: Rows) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for size in sizes:
        table.add_column(size, justify="right")
    for name, cells in rows.items():
        table.add_row(name, *cells, style="bold" if name == "total" else None)
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
