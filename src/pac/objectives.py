"""The objectives, on one page: cloning, PAC (+Q) and PAC+V are a few terms with different weights.

The functions in the first half take tensors and return one value per example. `loss` wires them to a model: filtered
BC and BC are the imitation term alone, BC+Q adds a critic, PAC adds the improvement term, alpha-PAC gives each dataset
its own alpha and beta, PAC+V weighs logged actions by their advantage. The paper's
appendix "Method Details - Algorithm" has the symbols, docs/paper.md what we decided where it is silent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from pac.bins import Bins, Projection
from pac.config import LARGEST_DISCOUNT, ObjectiveConfig
from pac.model import PAC, Encoded
from pac.types import Batch

Metrics = dict[str, Tensor]


# ---------------------------------------------------------------------------------------------------------- policies


def action_log_prob(
    logits: Float[Tensor, "batch action bins"],
    index: Int64[Tensor, "batch sample action"],
    mask: Bool[Tensor, "batch action"],
) -> Float[Tensor, "batch sample"]:
    """log pi(a|s): the sum of the real dimensions' categorical log-probabilities."""
    log_probs = logits.log_softmax(-1).gather(-1, index.transpose(1, 2))
    return log_probs.masked_fill(~mask[..., None], 0).sum(1)


def sample_actions(
    logits: Float[Tensor, "batch action bins"],
    num_samples: int,
    generator: torch.Generator | None = None,
    uniform: Float[Tensor, "batch action sample"] | None = None,
) -> Int64[Tensor, "batch sample action"]:
    """Draw bins by inverting the cumulative distribution: one uniform number an action dimension, drawn or given."""
    cumulative = logits.softmax(-1).cumsum(-1)
    if uniform is None:
        uniform = torch.rand(*logits.shape[:2], num_samples, generator=generator, device=logits.device)
    index = torch.searchsorted(cumulative, uniform.to(cumulative.dtype) * cumulative[..., -1:], right=True)
    return index.clamp(max=logits.shape[-1] - 1).transpose(1, 2)


def entropy(logits: Float[Tensor, "batch action bins"], mask: Bool[Tensor, "batch action"]) -> Float[Tensor, " batch"]:
    """Mean entropy of the real action dimensions, in nats; log(bins) when uniform."""
    log_probs = logits.log_softmax(-1)
    per_dimension = -(log_probs.exp() * log_probs).sum(-1)
    return per_dimension.masked_fill(~mask, 0).sum(-1) / mask.sum(-1).clamp(min=1)


def policy_kl(
    logits: Float[Tensor, "batch action bins"],
    other: Float[Tensor, "batch action bins"],
    mask: Bool[Tensor, "batch action"],
) -> Float[Tensor, " batch"]:
    """KL[pi || other], summed over the real action dimensions."""
    log_probs = logits.log_softmax(-1)
    per_dimension = (log_probs.exp() * (log_probs - other.log_softmax(-1))).sum(-1)
    return per_dimension.masked_fill(~mask, 0).sum(-1)


# ------------------------------------------------------------------------------------------------------------- terms


def imitation_loss(
    logits: Float[Tensor, "batch action bins"],
    action: Int64[Tensor, "batch action"],
    mask: Bool[Tensor, "batch action"],
) -> Float[Tensor, " batch"]:
    """L_bc = -log pi(a|s) of the logged action."""
    return -action_log_prob(logits, action[:, None], mask)[:, 0]


def improvement_weights(
    values: Float[Tensor, "batch sample"], temperature: Float[Tensor, ""]
) -> Float[Tensor, "batch sample"]:
    """w_j = softmax_j(Q_j / eta): uniform as eta grows, all on the best sample as it vanishes."""
    return (values / temperature).softmax(-1)


def improvement_loss(
    logits: Float[Tensor, "batch action bins"],
    samples: Int64[Tensor, "batch sample action"],
    weights: Float[Tensor, "batch sample"],
    mask: Bool[Tensor, "batch action"],
) -> Float[Tensor, " batch"]:
    """L_pi = -sum_j w_j log pi(u_j|s): imitate the reference policy's samples, the better ones more."""
    return -(weights * action_log_prob(logits, samples, mask)).sum(-1)


def dual_temperature(
    values: Float[Tensor, "batch sample"], rows: Bool[Tensor, " batch"], epsilon: float
) -> Float[Tensor, ""]:
    """The eta that minimises MPO's dual, eta * epsilon + eta * mean_s log mean_j exp(Q_j / eta) (Abdolmaleki et al.,
    2018): the one whose weights have a mean KL to uniform of `epsilon`. Found by bisection, so there is no state.
    """
    spread = (values.amax(-1) - values.amin(-1)).masked_fill(~rows, 0).amax().clamp(min=1e-12)
    low, high = torch.zeros_like(spread) + math.log(1e-6), torch.zeros_like(spread) + math.log(1e4)  # of eta / spread
    num_rows, num_samples = rows.sum().clamp(min=1), values.shape[-1]
    for _ in range(24):
        middle = (low + high) / 2
        log_weights = (values / (spread * middle.exp())).log_softmax(-1)
        kl = (log_weights.exp() * (log_weights + math.log(num_samples))).sum(-1)
        too_sharp = kl.masked_fill(~rows, 0).sum() / num_rows > epsilon
        low, high = torch.where(too_sharp, middle, low), torch.where(too_sharp, high, middle)
    return spread * ((low + high) / 2).exp()


def td_target(
    next_probs: Float[Tensor, "batch bins"],
    reward: Float[Tensor, " batch"],
    discount: Float[Tensor, " batch"],
    bins: Bins,
    kind: Projection,
) -> Float[Tensor, "batch bins"]:
    """Gamma: the distribution of r + gamma q' on the bins. `discount` is gamma, or 0 where the episode terminated."""
    return bins.project(next_probs, reward, discount, kind)


def backwards(
    after: Shaped[Tensor, "batch time *rest"],
    real: Bool[Tensor, "batch time"],
    num_steps: int | None,
    back_up: Callable[[int, Shaped[Tensor, "batch *rest"]], Shaped[Tensor, "batch *rest"]],
) -> Shaped[Tensor, "batch time *rest"]:
    """Targets of several steps: `back_up(t, x)` puts the reward of step t before x, what comes after it. That is the
    target of step t + 1 where the window has a real one and fewer than `num_steps` rewards are in it yet; else the
    critic's own word, `after[:, t]`. So the last step of a window bootstraps at once and the first reaches furthest.
    """
    time = real.shape[1]
    targets = [back_up(time - 1, after[:, -1])]
    steps = torch.ones_like(real[:, 0], dtype=torch.int64)  # rewards in the newest target
    for t in reversed(range(time - 1)):
        longer = real[:, t + 1] & (steps < (num_steps or time))
        steps = torch.where(longer, steps + 1, 1)
        shape = (-1, *[1] * (after.ndim - 2))
        targets.insert(0, back_up(t, torch.where(longer.view(shape), targets[0], after[:, t])))
    return torch.stack(targets, 1)


def critic_loss(logits: Float[Tensor, "batch bins"], target: Float[Tensor, "batch bins"]) -> Float[Tensor, " batch"]:
    """L_Q (and L_V) = -sum_q Gamma(q) log p(q): the KL to the target, up to the target's entropy."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def advantage_weights(
    advantage: Float[Tensor, " batch"], temperature: Float[Tensor, ""], largest: float
) -> Float[Tensor, " batch"]:
    """PAC+V's exp(A / eta), bounded; 1 everywhere, that is cloning, as eta grows."""
    return (advantage / temperature).clamp(max=math.log(largest)).exp()


def importance_ratio(
    log_prob: Float[Tensor, " batch"], behaviour_log_prob: Float[Tensor, " batch"], largest: float
) -> Float[Tensor, " batch"]:
    """rho = pi(a|s) / b(a|s), bounded; it weighs the value loss and gets no gradient."""
    return (log_prob - behaviour_log_prob).clamp(max=math.log(largest)).exp().detach()


# --------------------------------------------------------------------------------------------------- model -> loss


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOverrides:
    """What a run decides for a step and the objective would otherwise decide for itself."""

    uniform: Float[Tensor, "batch observation action sample"] | None = None  # what sampled actions are drawn from
    temperature: Float[Tensor, ""] | None = None  # eta, in place of the configured one
    gather: Callable[[Tensor], Tensor] = lambda rows: rows  # joins the rows of all processes, where there are several


def loss(
    model: PAC,
    target: PAC,
    batch: Batch,
    config: ObjectiveConfig,
    generator: torch.Generator | None = None,
    given: StepOverrides | None = None,
) -> tuple[Float[Tensor, " transition"], Metrics]:
    """One value per transition (0 where masked), to be summed and divided by the number of real ones; and metrics.

    `target` is the target network of PAC and BC+Q; cloning and PAC+V do not look at it (pass the model itself).
    """
    given = given or StepOverrides()
    check_objective(model, config)
    check_batch(batch)
    mask, action_mask = batch.mask.flatten(), batch.action_mask.flatten(0, 1)
    action = model.config.action_bins.encode(batch.action.flatten(0, 1).masked_fill(~action_mask, 0))
    alpha, beta = (x.repeat_interleave(batch.mask.shape[1]) for x in (batch.imitation_weight, batch.critic_weight))

    encoded = model.encode(batch.observation[:, :-1].flatten())
    logits = model.policy_logits(encoded, action.shape[-1])
    imitation = imitation_loss(logits, action, action_mask)
    report: Metrics = {"loss/imitation": imitation, "policy/entropy": entropy(logits.detach(), action_mask)}
    if config.critic == "none":
        total = alpha * imitation
    else:
        terms = _q_terms if config.critic == "q" else _v_terms
        improvement, critic, more = terms(model, target, batch, config, encoded, logits, action, generator, given)
        total = alpha * imitation + (1 - alpha) * improvement + beta * critic
        report |= {"loss/critic": critic} | more
        if config.improve:
            report["loss/improvement"] = improvement
    if config.critic == "v" and config.behaviour == "learned":
        total = total + report["loss/behaviour"]
    report["loss/total"] = total
    metrics = {k: v.detach() if v.ndim == 0 else masked_mean(v.detach(), mask) for k, v in report.items()}
    return total.masked_fill(~mask, 0), metrics


Terms = tuple[Float[Tensor, " transition"] | Float[Tensor, ""], Float[Tensor, " transition"], Metrics]


def _q_terms(
    model: PAC,
    target: PAC,
    batch: Batch,
    config: ObjectiveConfig,
    encoded: Encoded,
    logits: Float[Tensor, "transition action bins"],
    action: Int64[Tensor, "transition action"],
    generator: torch.Generator | None,
    given: StepOverrides,
) -> Terms:
    """PAC (+Q). The target network looks at every observation of the window once: its samples serve as
    a' of the step before and as u of the step itself.
    """
    value_bins, action_bins = model.config.value_bins, model.config.action_bins
    time, mask, action_mask = batch.mask.shape[1], batch.mask.flatten(), batch.action_mask.flatten(0, 1)
    first = 0 if config.improve else 1  # without improvement nobody needs u of the first observation
    with torch.no_grad():
        every_mask = torch.cat([batch.action_mask, batch.action_mask[:, -1:]], 1)[:, first:].flatten(0, 1)
        seen = target.encode(batch.observation[:, first:].flatten())
        reference = target.policy_logits(seen, every_mask.shape[-1])
        uniform = None if given.uniform is None else given.uniform[:, first:].flatten(0, 1)
        samples = sample_actions(reference, config.num_samples, generator, uniform)
        sample_logits = target.q_logits(seen, action_bins.decode(samples, reference), every_mask)
        next_probs = _window(sample_logits.softmax(-1).mean(1), time + 1 - first)[:, 1 - first :]
        next_probs = _bootstrap_probs(next_probs, batch, config, value_bins)
        target_probs, clipped = _targets(next_probs, batch, config, value_bins)
    q_logits = model.q_logits(encoded, action_bins.decode(action, logits)[:, None], action_mask)[:, 0]
    report: Metrics = {
        "critic/value": value_bins.mean(q_logits),
        "critic/target_value": target_probs @ value_bins.points(target_probs),
        "critic/clipped": clipped,
    }
    improvement = logits.new_zeros(())
    if config.improve:
        reference, samples = (_window(x, time + 1)[:, :-1].flatten(0, 1) for x in (reference, samples))
        values = _window(value_bins.mean(sample_logits), time + 1)[:, :-1].flatten(0, 1)
        if given.temperature is not None:
            temperature = given.temperature
        elif config.temperature is None:
            temperature = dual_temperature(given.gather(values), given.gather(mask), config.epsilon)
        else:
            temperature = values.new_full((), config.temperature)
        weights = improvement_weights(values, temperature)
        improvement = improvement_loss(logits, samples, weights, action_mask)
        report |= {
            "policy/kl_to_reference": policy_kl(logits.detach(), reference, action_mask),
            "weights/effective_samples": 1 / weights.square().sum(-1),  # of num_samples
            "weights/temperature": temperature,
            "critic/sample_std": values.std(-1, correction=0),
        }
    return improvement, critic_loss(q_logits, target_probs), report


def _v_terms(
    model: PAC,
    target: PAC,
    batch: Batch,
    config: ObjectiveConfig,
    encoded: Encoded,
    logits: Float[Tensor, "transition action bins"],
    action: Int64[Tensor, "transition action"],
    generator: torch.Generator | None,
    given: StepOverrides,
) -> Terms:
    """PAC+V. No target network: next values come from the model itself, without gradient."""
    bins, time = model.config.value_bins, batch.mask.shape[1]
    mask, action_mask = batch.mask.flatten(), batch.action_mask.flatten(0, 1)
    v_logits = model.v_logits(encoded)
    with torch.no_grad():
        last = model.v_logits(model.encode(batch.observation[:, -1]))[:, None]
        next_probs = torch.cat([_window(v_logits, time)[:, 1:], last], 1).softmax(-1)
        next_probs = _bootstrap_probs(next_probs, batch, config, bins)
        value = bins.mean(v_logits)
        target_probs, clipped = _targets(next_probs, batch, config, bins)
        reward, discount = _returns(batch)
        next_value = next_probs @ bins.points(next_probs)
        bootstrapped = backwards(
            next_value, batch.mask, config.num_steps, lambda t, x: reward[:, t] + discount[:, t] * x
        )
        advantage = bootstrapped.flatten() - value
        everywhere, real = given.gather(advantage), given.gather(mask)
        if given.temperature is not None:
            temperature = given.temperature
        elif config.temperature is None:
            centred = everywhere - masked_mean(everywhere, real)
            temperature = 0.5 * masked_mean(centred.square(), real).sqrt().clamp(min=1e-8)
        else:
            temperature = value.new_full((), config.temperature)
        weights = advantage_weights(advantage, temperature, config.max_weight)
    imitation = imitation_loss(logits, action, action_mask)
    if config.behaviour == "learned":
        behaviour = model.behaviour_logits(encoded, action.shape[-1])
    else:
        behaviour = torch.zeros_like(logits)  # b constant: every bin as likely as any other
    behaviour_loss = imitation_loss(behaviour, action, action_mask)
    ratio = importance_ratio(-imitation, -behaviour_loss, config.max_ratio)
    kept = advantage_weights(everywhere, temperature, config.max_weight).masked_fill(~real, 0)
    report = {
        "loss/behaviour": behaviour_loss,
        "policy/kl_to_reference": policy_kl(logits.detach(), behaviour.detach(), action_mask),
        "weights/effective_samples": kept.sum().square() / kept.square().sum().clamp(min=1e-12),  # of the batch
        "weights/temperature": temperature,
        "weights/clipped": (weights >= config.max_weight * (1 - 1e-6)).float(),
        "ratio/mean": ratio,
        "ratio/clipped": (ratio >= config.max_ratio * (1 - 1e-6)).float(),
        "critic/value": value,
        "critic/target_value": target_probs @ bins.points(target_probs),
        "critic/advantage": advantage,
        "critic/clipped": clipped,
    }
    improvement = weights * imitation if config.improve else logits.new_zeros(())
    return improvement, ratio * critic_loss(v_logits, target_probs), report


def check_objective(model: PAC, config: ObjectiveConfig) -> None:
    """Raise if the model lacks a head that the objective trains."""
    needed = {"q": ["q_head"], "v": ["v_head"], "none": []}[config.critic]
    if config.critic == "v" and config.behaviour == "learned":
        needed = [*needed, "behaviour_head"]
    for head in needed:
        if not getattr(model.config, head):
            raise ValueError(
                f"Objective with critic={config.critic!r} and behaviour={config.behaviour!r}: expected a model with "
                f"{head}=true, found {head}=false. Set it in the model's configuration."
            )


def check_batch(batch: Batch) -> None:
    """Raise on numbers that would be clipped or spread in silence; on the CPU only, since it looks at values."""
    if batch.action.device.type != "cpu" or torch.compiler.is_compiling():
        return
    every = torch.ones_like(batch.imitation_weight, dtype=torch.bool)
    limits = {
        "action": (batch.action_mask, -1.0 - 1e-4, 1.0 + 1e-4, "Normalise actions by their bounds."),
        "reward": (batch.mask, -math.inf, math.inf, "Remove or repair the episode."),
        "discount": (batch.mask, 0.0, 1.0, "It is 0 at a termination and 1 elsewhere; gamma is apart."),
        "imitation_weight": (every, 0.0, 1.0, "It is alpha: 1 for cloning, 0 for RL."),
        "critic_weight": (every, 0.0, math.inf, "It is beta, the weight of the critic's loss."),
        "gamma": (every, 0.0, LARGEST_DISCOUNT, "It is the discount factor of the dataset."),
        "return_to_go": (every, -math.inf, math.inf, "Remove or repair the episode."),
        "return_to_go_weight": (every, 0.0, 1.0, "It is the share of what came after that the log holds."),
    }
    for name, (mask, low, high, fix) in limits.items():
        values = getattr(batch, name)
        wrong = mask & ~((values >= low) & (values <= high) & values.isfinite())
        if wrong.any():
            where = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"Batch.{name}: expected finite values from {low:.4g} to {high:.4g}, found {values[where].item():.6g} "
                f"at index {where}. {fix}"
            )


def masked_mean(values: Float[Tensor, " row"], mask: Bool[Tensor, " row"]) -> Float[Tensor, ""]:
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


def _returns(batch: Batch) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
    """Return the reward, and gamma where the episode goes on; zeros where masked."""
    padding = ~batch.mask
    return batch.reward.masked_fill(padding, 0), batch.discount.masked_fill(padding, 0) * batch.gamma[:, None]


def _bootstrap_probs(
    next_probs: Float[Tensor, "batch time bins"], batch: Batch, config: ObjectiveConfig, bins: Bins
) -> Float[Tensor, "batch time bins"]:
    """The critic's word of what comes after each step; after the last of a window, for a share, what the log earned
    there. Where a time limit cut the log off, the critic has the word on the rest: later + (1 - known) q'.
    """
    if not config.monte_carlo_weight:
        return next_probs
    follows = torch.cat([batch.mask[:, 1:], torch.zeros_like(batch.mask[:, :1])], 1)
    ends = (batch.mask & ~follows)[..., None].to(next_probs.dtype)  # at most one a window
    return_to_go = batch.return_to_go.to(next_probs.dtype)
    unknown = (1 - batch.return_to_go_weight).to(next_probs.dtype)
    earned = bins.project((ends * next_probs).sum(1), return_to_go, unknown, config.projection)
    return next_probs + config.monte_carlo_weight * ends * (earned[:, None] - next_probs)


def _targets(
    next_probs: Float[Tensor, "batch time bins"], batch: Batch, config: ObjectiveConfig, bins: Bins
) -> tuple[Float[Tensor, "transition bins"], Float[Tensor, " transition"]]:
    """The critic's targets, and how much of each was lost to the ends of the range in its own step."""
    reward, discount = _returns(batch)

    def back_up(t: int, probs: Float[Tensor, "batch bins"]) -> Float[Tensor, "batch bins"]:
        return td_target(probs, reward[:, t], discount[:, t], bins, config.projection)

    target_probs = backwards(next_probs, batch.mask, config.num_steps, back_up).flatten(0, 1)
    return target_probs, _clipped(next_probs.flatten(0, 1), reward.flatten(), discount.flatten(), bins)


def _window(rows: Shaped[Tensor, "row *rest"], time: int) -> Shaped[Tensor, "batch time *rest"]:
    return rows.unflatten(0, (-1, time))


def _clipped(
    probs: Float[Tensor, "row bins"], reward: Float[Tensor, " row"], discount: Float[Tensor, " row"], bins: Bins
) -> Float[Tensor, " row"]:
    """Probability mass that the TD target lost to the ends of the value range: much of it means a range too small."""
    moved = reward[:, None] + discount[:, None] * bins.points(probs)
    slack = 1e-4 * bins.step
    return (probs * ((moved < bins.low - slack) | (moved > bins.high + slack))).sum(-1)
