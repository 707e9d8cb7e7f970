"""FLOPs of a model, counted by hand: every product and convolution of the architecture, at two a multiply-add.

These are useful FLOPs: what the model is worth, whoever runs it and however. The input attention runs fewer, since it
projects no number's token (`pac.model.input_attention`; benchmarks/input_cost.py counts what it does run); shares of a
peak and scaling laws are in useful ones all the same.

Beside the published table ours differs for known reasons: a table look-up costs nothing (the paper counts the
text embedding as a product with a one-hot vector, 0.82 GFLOP); attention projections are counted once (the paper's
table implies about 11 products of width D_Z a block where there are 4); and an update counts what an update does: five
observations a window, the target network, and the sampled actions.
"""

from dataclasses import dataclass

from pac.model.config import ModelConfig

# Of the paper's updates.
BATCH_SIZE = 512  # windows
WINDOW = 5  # transitions per window
NUM_SAMPLES = 10  # sampled actions per observation


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much one observation holds, and what is asked of it."""

    num_proprio: int
    num_images: int  # observation and goal images
    num_text_tokens: int
    num_actions: int
    num_samples: int = 1  # actions whose value is asked

    @classmethod
    def full(cls, config: ModelConfig, num_samples: int = 1) -> "Load":
        """Every input of the model in use: what the paper counts."""
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
    """FLOPs by component of encoding `batch` observations, one policy and `num_samples` Q values each.

    Counts the model of the paper: multi-scale or other number tokens, the action as query.
    """
    width, latents, queries = config.latent_width, config.num_latents, config.query_width
    tokens = sum(load.input_tokens(config).values())
    samples, actions = load.num_samples, load.num_actions
    mlp = 4 * config.widening * latents * width**2
    decoder_source = 4 * latents * width**2  # keys and values of the latents

    def decoder(num_queries: int, bins: int) -> int:
        return decoder_source + num_queries * (4 * latents * width + 2 * width**2 + 2 * width * bins)

    # Queries that are parameters are projected once a batch, not once a row.
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
    """FLOPs of one PAC update: forward and backward on the window's transitions, and the target network on all its
    observations with the sampled actions. The optimiser's work on the weights is left out (under 0.1%).
    """
    asked = Load(**{**load.__dict__, "num_samples": num_samples})
    trained = sum(forward_flops(config, load, batch * (window - 1)).values())
    target = sum(forward_flops(config, asked, batch * window).values())
    return 3 * trained + target
