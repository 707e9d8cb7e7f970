"""FLOPs of a model: every matrix product and convolution of the architecture, with two FLOPs per multiply-add.

These are useful FLOPs, which do not depend on the implementation. The input attention runs fewer, because it does not
project tokens of numbers (`pac.model.input_attention`). benchmarks/input_cost.py counts those that run. Utilisation and
scaling laws use useful FLOPs.

The counts differ from the published table for known reasons:

- A table look-up costs nothing. The paper counts the text embedding as a product with a one-hot vector, 0.82 GFLOP.
- Attention projections are counted once. The paper's table implies about 11 products of width D_Z per block, not 4.
- An update counts five observations per window, the target network, and the sampled actions.
"""

import dataclasses
from dataclasses import dataclass

from pac.model.config import ModelConfig

# Of the paper's updates.
BATCH_SIZE = 512  # windows
WINDOW = 5  # transitions per window
NUM_SAMPLES = 10  # sampled actions per observation


@dataclass(frozen=True, kw_only=True)
class Load:
    """Numbers of inputs and outputs of one observation."""

    num_proprio: int
    num_images: int  # observation and goal images
    num_text_tokens: int
    num_actions: int
    num_samples: int = 1  # actions to evaluate

    @classmethod
    def full(cls, config: ModelConfig, num_samples: int = 1) -> "Load":
        """Return the load with every input of the model in use, as the paper counts."""
        return cls(
            num_proprio=config.num_proprio,
            num_images=config.num_cameras + config.num_goal_images,
            num_text_tokens=config.num_text_tokens,
            num_actions=config.num_actions,
            num_samples=num_samples,
        )

    def input_tokens(self, config: ModelConfig) -> dict[str, int]:
        return {
            "proprioception": self.num_proprio * config.num_gains,
            "image": self.num_images * config.tokens_per_image,
            "text": self.num_text_tokens,
        }

    def action_tokens(self, config: ModelConfig) -> int:
        return self.num_actions * config.num_gains


def forward_flops(config: ModelConfig, load: Load, batch: int = 1) -> dict[str, int]:
    """Return the FLOPs by component for `batch` observations, each with one policy and `num_samples` Q values.

    The action is a query, as in the paper.
    """
    width, latents, queries = config.latent_width, config.num_latents, config.query_width
    tokens = sum(load.input_tokens(config).values())
    samples, actions = load.num_samples, load.num_actions
    mlp = 4 * config.widening * latents * width**2
    decoder_source = 4 * latents * width**2  # keys and values of the latents

    def decoder(num_queries: int, bins: int) -> int:
        return decoder_source + num_queries * (4 * latents * width + 2 * width**2 + 2 * width * bins)

    # Learned queries are projected once per batch, not once per row.
    shared = {"input attention": 2 * latents * width**2, "policy decoder": 2 * actions * queries * width}
    action_encoder = (samples + 1) * 2 * load.action_tokens(config) * queries + samples * 2 * queries**2
    rows = {
        "image encoder": load.num_images * _image_flops(config),
        "input attention": 4 * tokens * config.token_width * width
        + 4 * latents * tokens * width
        + 2 * latents * width**2
        + mlp,
        "self-attention": config.num_blocks * (8 * latents * width**2 + 4 * latents**2 * width + mlp),
        "policy decoder": decoder(actions, config.num_action_bins),
        "q decoder": decoder(samples, config.num_value_bins) + action_encoder + samples * 2 * queries * width,
    }
    return {name: batch * cost + shared.get(name, 0) for name, cost in rows.items()}


def _image_flops(config: ModelConfig) -> int:
    height, width, inner, total = config.image_height, config.image_width, 3, 0
    for outer in config.image_channels:
        total += 18 * inner * outer * height * width
        height, width = (height + 1) // 2, (width + 1) // 2
        total += config.image_blocks * 2 * 18 * outer**2 * height * width
        inner = outer
    return total + 2 * height * width * inner * config.token_width


def update_flops(
    config: ModelConfig,
    load: Load,
    batch: int = BATCH_SIZE,
    window: int = WINDOW,
    num_samples: int = NUM_SAMPLES,
) -> int:
    """Return the FLOPs of one PAC update, without the optimiser's own (under 0.1%).

    The model goes forward and backward on the window's transitions. The target network encodes all its observations
    and evaluates the sampled actions.
    """
    sampled = dataclasses.replace(load, num_samples=num_samples)
    trained = sum(forward_flops(config, load, batch * (window - 1)).values())
    target = sum(forward_flops(config, sampled, batch * window).values())
    return 3 * trained + target
