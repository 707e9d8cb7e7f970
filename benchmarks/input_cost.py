"""What reading the numbers costs in an update, by count: every token projected, against the tables of
`pac.model.input_attention`, and the kernels of `pac.model.kernels.scalar`, which read real tokens only.

    python benchmarks/input_cost.py                      # the paper's smallest and largest model, 512 windows of 5
    python benchmarks/input_cost.py --numbers 67 --windows 128
    python benchmarks/input_cost.py --real 0.22          # tasks of a mixture: so much is not padding

Counts the input cross-attention from scalars to what latents read, without its output projection: matrix products,
and bytes of bfloat16 arrays that grow with the batch and pass between kernels (everything else is fused or small). A
floor, since caches, launches and what is not a matrix product are left out: time cannot be less, and will be more.
"""

import argparse
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from pac.model.config import ModelConfig, model_config
from pac.model.flops import Load, update_flops

HALF, FULL = 2, 4  # bytes of a bfloat16 and of a float32


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the attention, and the number of rows."""

    tokens: int
    token_width: int
    width: int
    heads: int
    queries: int
    num_trained: int  # rows with a forward and a backward pass
    num_target: int  # rows with a forward pass only

    @classmethod
    def of(cls, config: ModelConfig, *, num_numbers: int, num_trained: int, num_target: int) -> "Shape":
        return cls(
            tokens=num_numbers * config.num_gains,
            token_width=config.token_width,
            width=config.latent_width,
            heads=config.num_heads,
            queries=config.num_latents,
            num_trained=num_trained,
            num_target=num_target,
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    flops: int
    bytes: int

    def floor(self, peak: float, bandwidth: float) -> float:
        """Return the milliseconds if products and copies overlapped perfectly."""
        return 1e3 * max(self.flops / peak, self.bytes / bandwidth)


def dense_cost(x: Shape) -> Cost:
    """Tokens are written, read by the products, keys and values written, read by an attention that writes no scores.
    Backward, keys and values are read, their gradients written and read twice, tokens read, their gradients written
    and read.
    """
    forward = 4 * x.tokens * x.token_width * x.width + 4 * x.queries * x.tokens * x.width
    tokens, keys_values = HALF * x.tokens * x.token_width, HALF * 2 * x.tokens * x.width
    once = 2 * tokens + 2 * keys_values
    back = 3 * tokens + 4 * keys_values
    return Cost(flops=forward * (3 * x.num_trained + x.num_target), bytes=_both(x, once, back))


def fast_cost(x: Shape) -> Cost:
    """Weights are written and read by one product. Backward, that product's gradient is written and read by three sums,
    and the weights are read again. Scalars and norms, float32, are read by each of these and their tables made once.
    """
    product = 2 * x.queries * x.tokens * x.width
    weights, scalars = HALF * x.heads * x.queries * x.tokens, FULL * 2 * x.tokens
    return Cost(
        flops=product * (3 * x.num_trained + x.num_target) + _tables(x),
        bytes=_both(x, 2 * weights + 2 * scalars, 5 * weights + 4 * scalars),
    )


def kernel_cost(x: Shape, real: float) -> Cost:
    """The same products, but of real tokens alone. Scalars and norms are written, and read once each way; backward,
    gradients of the norms are written by head and read by their sum.
    """
    product = 2 * x.queries * x.tokens * x.width
    scalars, gradients = FULL * 2 * x.tokens, FULL * x.heads * x.tokens
    return Cost(
        flops=int(real * product) * (3 * x.num_trained + x.num_target) + _tables(x),
        bytes=_both(x, 2 * scalars, scalars + int((1 + real) * gradients)),
    )


def _tables(x: Shape) -> int:
    once = 2 * x.tokens * x.token_width * (x.width + x.heads * x.queries)
    once += 2 * x.heads * x.queries * x.token_width * (x.width // x.heads)
    return once * ((3 if x.num_trained else 0) + (1 if x.num_target else 0))


def _both(x: Shape, once: int, back: int) -> int:
    return (x.num_trained + x.num_target) * once + x.num_trained * back


def rows(size: str, numbers: int, windows: int, real: float, peak: float, bandwidth: float) -> list[list[str]]:
    """Return the three ways side by side, and the whole update's products with each."""
    config = model_config(size)
    shape = Shape.of(config, num_numbers=numbers, num_trained=4 * windows, num_target=5 * windows)
    load = Load(num_proprio=numbers, num_images=0, num_text_tokens=0, num_actions=config.num_actions)
    useful, dense = update_flops(config, load, batch=windows), dense_cost(shape)
    ways = {"every token": dense, "tables": fast_cost(shape), "kernels": kernel_cost(shape, real)}
    return [
        [
            size,
            name,
            f"{cost.flops / 1e12:.2f}",
            f"{cost.bytes / 1e9:.1f}",
            f"{cost.floor(peak, bandwidth):.1f}",
            f"{(useful - dense.flops + cost.flops) / 1e12:.1f}",
        ]
        for name, cost in ways.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["XXS", "L"])
    parser.add_argument("--numbers", type=int, default=223, help="of the widest task in the batch")
    parser.add_argument("--windows", type=int, default=512, help="of 5 observations")
    parser.add_argument("--real", type=float, default=1.0, help="share of tokens that are not padding")
    parser.add_argument("--peak", type=float, default=773e12, help="FLOP/s of a large bf16 product")
    parser.add_argument("--bandwidth", type=float, default=4.2e12, help="bytes/s of a copy, reads and writes")
    args = parser.parse_args()
    shown = Table(title=f"{args.windows} windows of 5, {args.numbers} numbers", title_justify="left")
    for name in ("", "numbers read by", "TFLOP", "GB", "floor ms", "TFLOP of the update"):
        shown.add_column(name, justify="right")
    for size in args.sizes:
        for row in rows(size, args.numbers, args.windows, args.real, args.peak, args.bandwidth):
            shown.add_row(*row)
    Console().print(shown)


if __name__ == "__main__":
    main()
