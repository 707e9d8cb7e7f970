"""The objectives on one page: behaviour cloning, PAC (+Q) and PAC+V are the same terms with different weights.

The functions in the first half take tensors and return one value per example. `loss` applies them to a model:

    BC, filtered BC   the imitation term alone; filtered BC trains on selected episodes
    BC+Q              adds a critic
    PAC               adds the improvement term; alpha-PAC gives each dataset its own alpha and beta. `logged_share` of
                      the term weighs the actions in the data. With `hidden_dims` the critic sees parts of actions
    PAC+V             weights the actions in the data by their advantage

The paper's appendix "Method Details - Algorithm" has the symbols. docs/paper.md has our choices where it is silent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from pac.bins import Bins, Projection
from pac.config import ObjectiveConfig
from pac.loss_checks import check_batch, check_objective
from pac.model import PAC, Encoded
from pac.types import Batch

Metrics = dict[str, Tensor]

# Shapes that the terms share.
Scalar = Float[Tensor, ""]
PerExample = Float[Tensor, " batch"]
Logits = Float[Tensor, "batch action bins"]
ActionMask = Bool[Tensor, "batch action"]
Samples = Int64[Tensor, "batch sample action"]
PerSample = Float[Tensor, "batch sample"]
PerBin = Float[Tensor, "batch bins"]


def action_log_prob(logits: Logits, index: Samples, mask: ActionMask) -> PerSample:
    """Return log pi(a|s), the sum of the log-probabilities of the real action dimensions."""
    log_probs = logits.log_softmax(-1).gather(-1, index.transpose(1, 2))
    return log_probs.masked_fill(~mask[..., None], 0).sum(1)


def sample_actions(
    logits: Logits,
    num_samples: int,
    generator: torch.Generator | None = None,
    uniform: Float[Tensor, "batch action sample"] | None = None,
) -> Samples:
    """Sample bins by inverting the cumulative distribution. Each needs a uniform number: drawn here, or overrides."""
    cumulative = logits.softmax(-1).cumsum(-1)
    if uniform is None:
        uniform = torch.rand(*logits.shape[:2], num_samples, generator=generator, device=logits.device)
    index = torch.searchsorted(cumulative, uniform.to(cumulative.dtype) * cumulative[..., -1:], right=True)
    return index.clamp(max=logits.shape[-1] - 1).transpose(1, 2)


def entropy(logits: Logits, mask: ActionMask) -> PerExample:
    """Return the mean entropy of the real action dimensions in nats. It is log(bins) for a uniform policy."""
    log_probs = logits.log_softmax(-1)
    per_dimension = -(log_probs.exp() * log_probs).sum(-1)
    return per_dimension.masked_fill(~mask, 0).sum(-1) / mask.sum(-1).clamp(min=1)


def policy_kl(logits: Logits, other: Logits, mask: ActionMask) -> PerExample:
    """Return KL[pi || other], summed over the real action dimensions."""
    log_probs = logits.log_softmax(-1)
    per_dimension = (log_probs.exp() * (log_probs - other.log_softmax(-1))).sum(-1)
    return per_dimension.masked_fill(~mask, 0).sum(-1)


def imitation_loss(logits: Logits, action: Int64[Tensor, "batch action"], mask: ActionMask) -> PerExample:
    """Return L_bc = -log pi(a|s) of the action in the data."""
    return -action_log_prob(logits, action[:, None], mask)[:, 0]


def improvement_weights(values: PerSample, temperature: Scalar) -> PerSample:
    """Return w_j = softmax_j(Q_j / eta). As eta grows they become uniform. As it vanishes, the best sample has all."""
    return (values / temperature).softmax(-1)


def improvement_loss(logits: Logits, samples: Samples, weights: PerSample, mask: ActionMask) -> PerExample:
    """Return L_pi = -sum_j w_j log pi(u_j|s). It imitates samples of the reference policy, good ones more."""
    return -(weights * action_log_prob(logits, samples, mask)).sum(-1)


def dual_temperature(values: PerSample, rows: Bool[Tensor, " batch"], epsilon: float) -> Scalar:
    """Return the eta that minimises MPO's dual, eta * epsilon + eta * mean_s log mean_j exp(Q_j / eta).

    The mean KL of its weights to uniform is `epsilon` (Abdolmaleki et al., 2018). Bisection needs no state.
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


def td_target(next_probs: PerBin, reward: PerExample, discount: PerExample, bins: Bins, kind: Projection) -> PerBin:
    """Return Gamma, the distribution of r + gamma q' on the bins. `discount` is gamma, or 0 at a termination."""
    return bins.project(next_probs, reward, discount, kind)


def backwards(
    after: Shaped[Tensor, "batch time *rest"],
    real: Bool[Tensor, "batch time"],
    num_steps: int | None,
    back_up: Callable[[int, Shaped[Tensor, "batch *rest"]], Shaped[Tensor, "batch *rest"]],
) -> Shaped[Tensor, "batch time *rest"]:
    """Return n-step targets. `back_up(t, x)` is the target of step t if x follows.

    x is the target of step t + 1 if that step is real and its target has fewer than `num_steps` rewards. Otherwise x is
    the bootstrap value `after[:, t]`. The last step of a window uses one reward, the first step the most.
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


def critic_loss(logits: PerBin, target: PerBin) -> PerExample:
    """Return L_Q (and L_V) = -sum_q Gamma(q) log p(q), the KL to the target plus the target's entropy."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def advantage_weights(advantage: PerExample, temperature: Scalar, largest: float) -> PerExample:
    """Return PAC+V's exp(A / eta), bounded. As eta grows, all weights become 1: behaviour cloning."""
    return (advantage / temperature).clamp(max=math.log(largest)).exp()


def advantage_temperature(advantage: PerExample, rows: Bool[Tensor, " batch"], scale: float) -> Scalar:
    """Return eta as `scale` standard deviations of the advantages of the real rows."""
    centred = advantage - masked_mean(advantage, rows)
    return scale * masked_mean(centred.square(), rows).sqrt().clamp(min=1e-8)


def visible_dims(
    noise: Float[Tensor, "batch time noise"], probability: float, share: float
) -> Bool[Tensor, "batch time action"]:
    """Return which action dimensions the critic sees. A `share` of the rows hides each one with `probability`.

    Noise is uniform: a number for each dimension, then one for the row.
    """
    return (noise[..., :-1] >= probability) | (noise[..., -1:] >= share)


def gap_shares(value: PerExample, changed: PerSample, rows: ActionMask) -> Float[Tensor, " action"]:
    """Return how much of the gap in Q each action dimension carries. The shares sum to 1.

    `changed` has the value after each dimension alone was replaced. A critic that reads one dimension has a share of 1.
    """
    gaps = (value[:, None] - changed).abs().masked_fill(~rows, 0).sum(0)
    return gaps / gaps.sum().clamp(min=1e-12)


def importance_ratio(log_prob: PerExample, behaviour_log_prob: PerExample, largest: float) -> PerExample:
    """Return rho = pi(a|s) / b(a|s), bounded and without gradient. It weights the value loss."""
    return (log_prob - behaviour_log_prob).clamp(max=math.log(largest)).exp().detach()


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOverrides:
    """Choices of one step that replace the objective's own."""

    uniform: Float[Tensor, "batch observation action sample"] | None = None  # noise for sampled actions
    hiding: Float[Tensor, "batch observation 2 noise"] | None = None  # of `visible_dims`: logged actions, samples
    temperature: Scalar | None = None  # eta, in place of the configured one
    gather: Callable[[Tensor], Tensor] = lambda rows: rows  # joins the rows of all processes


def loss(
    model: PAC,
    target: PAC,
    batch: Batch,
    config: ObjectiveConfig,
    generator: torch.Generator | None = None,
    overrides: StepOverrides | None = None,
) -> tuple[Float[Tensor, " transition"], Metrics]:
    """Return one value per transition, 0 where masked, and metrics. The caller averages over the real transitions.

    `target` is the target network of PAC and BC+Q. BC and PAC+V do not use it: pass the model itself.
    """
    overrides = overrides or StepOverrides()
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
        inputs = _Inputs(model, target, batch, config, overrides, generator, encoded, logits, action)
        improvement, critic, more = terms(inputs)
        total = alpha * imitation + (1 - alpha) * improvement + beta * critic
        report |= {"loss/critic": critic} | more
        if config.improve:
            report["loss/improvement"] = improvement
    if config.critic == "v" and config.behaviour == "learned":
        total = total + report["loss/behaviour"]
    report["loss/total"] = total
    metrics = {k: v.detach() if v.ndim == 0 else masked_mean(v.detach(), mask) for k, v in report.items()}
    return total.masked_fill(~mask, 0), metrics


class _Inputs(NamedTuple):
    """Arguments of `_q_terms` and `_v_terms`."""

    model: PAC
    target: PAC
    batch: Batch
    config: ObjectiveConfig
    overrides: StepOverrides
    generator: torch.Generator | None
    encoded: Encoded
    logits: Float[Tensor, "transition action bins"]
    action: Int64[Tensor, "transition action"]


_Terms = tuple[Float[Tensor, " transition"] | Scalar, Float[Tensor, " transition"], Metrics]


def _q_terms(inputs: _Inputs) -> _Terms:
    """Return improvement, critic loss and metrics of PAC (+Q).

    The target network encodes every observation of the window once. Its samples are a' of the step before and u of
    the step itself.
    """
    model, target, batch, config, overrides, generator, encoded, logits, action = inputs
    value_bins, action_bins = model.config.value_bins, model.config.action_bins
    time, mask, action_mask = batch.mask.shape[1], batch.mask.flatten(), batch.action_mask.flatten(0, 1)
    first = 0 if config.improve else 1  # u of the first observation is for the improvement only
    masks = _critic_masks(inputs)
    with torch.no_grad():
        every_mask, sample_mask = (x[:, first:].flatten(0, 1) for x in (masks.every, masks.sampled))
        seen = target.encode(batch.observation[:, first:].flatten())
        reference = target.policy_logits(seen, every_mask.shape[-1])
        uniform = None if overrides.uniform is None else overrides.uniform[:, first:].flatten(0, 1)
        samples = sample_actions(reference, config.num_samples, generator, uniform)
        decoded = action_bins.decode(samples, reference)
        sample_logits = next_logits = target.q_logits(seen, decoded, sample_mask)
        if config.hidden_dims and not config.hidden_bootstrap:
            next_logits = target.q_logits(seen, decoded, every_mask)
        next_probs = _window(next_logits.softmax(-1).mean(1), time + 1 - first)[:, 1 - first :]
        next_probs = _bootstrap_probs(next_probs, batch, config, value_bins)
        target_probs, clipped = _targets(next_probs, batch, config, value_bins)
    q_logits = model.q_logits(encoded, action_bins.decode(action, logits)[:, None], masks.logged)[:, 0]
    report: Metrics = {
        "critic/value": value_bins.mean(q_logits),
        "critic/target_value": target_probs @ value_bins.points(target_probs),
        "critic/clipped": clipped,
    }
    improvement = logits.new_zeros(())
    if config.improve:
        reference, samples = (_window(x, time + 1)[:, :-1].flatten(0, 1) for x in (reference, samples))
        values = _window(value_bins.mean(sample_logits), time + 1)[:, :-1].flatten(0, 1)
        temperature = _fixed_temperature(config, overrides, values)
        if temperature is None:
            temperature = dual_temperature(overrides.gather(values), overrides.gather(mask), config.epsilon)
        weights = improvement_weights(values, temperature)
        imitated = masks.sampled[:, :-1].flatten(0, 1)  # the weights are about these dimensions alone
        improvement = (1 - config.logged_share) * improvement_loss(logits, samples, weights, imitated)
        if masks.scale is not None:
            improvement = improvement * masks.scale
        report |= {
            "policy/kl_to_reference": policy_kl(logits.detach(), reference, action_mask),
            "weights/effective_samples": 1 / weights.square().sum(-1),  # of num_samples
            "weights/temperature": temperature,
            "critic/sample_std": values.std(-1, correction=0),
        }
        report |= _gap_metrics(inputs, samples[:, 0])
        if config.logged_share:
            logged, more = _logged_term(inputs, seen, values)
            improvement, report = improvement + config.logged_share * logged, report | more
    return improvement, critic_loss(q_logits, target_probs), report


class _CriticMasks(NamedTuple):
    """Which action dimensions the critic sees. Without hiding they are the real ones."""

    every: Bool[Tensor, "batch observation action"]  # the real dimensions
    logged: Bool[Tensor, "transition action"]  # seen of the action in the data, in the critic's loss
    sampled: Bool[Tensor, "batch observation action"]  # seen of sampled actions
    scale: Float[Tensor, " transition"] | None  # of the improvement term: 1 / probability that a dimension is in it


def _critic_masks(inputs: _Inputs) -> _CriticMasks:
    batch, config = inputs.batch, inputs.config
    every = torch.cat([batch.action_mask, batch.action_mask[:, -1:]], 1)
    if not config.hidden_dims:
        return _CriticMasks(every, batch.action_mask.flatten(0, 1), every, None)
    noise = inputs.overrides.hiding
    if noise is None:
        shape = (*every.shape[:2], 2, every.shape[-1] + 1)
        noise = torch.rand(shape, generator=inputs.generator, device=every.device)
    logged, sampled = (visible_dims(x, config.hidden_dims, config.hidden_rows) & every for x in noise.unbind(2))
    hides = noise[:, :-1, 1, -1].flatten() < config.hidden_rows
    scale = noise.new_ones(hides.shape).masked_fill(hides, 1 / (1 - config.hidden_dims))
    return _CriticMasks(every, logged[:, :-1].flatten(0, 1), sampled, scale)


def _logged_term(inputs: _Inputs, seen: Encoded, values: PerSample) -> tuple[PerExample, Metrics]:
    """Return -exp(A / eta) log pi(a|s), with A = Q(s,a) - mean_j Q(s,u_j), and its metrics.

    A sampled action may mix dimensions of several actions in the data. Their values are guesses. This term asks for
    values of actions in the data alone. `seen` has all observations of the windows, `values` has Q(s,u_j).
    """
    model, target, batch, config, overrides, _, _, logits, action = inputs
    bins, time, action_mask = model.config.value_bins, batch.mask.shape[1], batch.action_mask
    with torch.no_grad():
        asked = _window(model.config.action_bins.decode(action, logits), time)
        asked, asked_mask = (torch.cat([x, x[:, -1:]], 1).flatten(0, 1) for x in (asked, action_mask))
        logged = _window(bins.mean(target.q_logits(seen, asked[:, None], asked_mask)[:, 0]), time + 1)[:, :-1]
        advantage = logged.flatten() - values.mean(-1)
        temperature = _fixed_temperature(config, overrides, advantage)
        if temperature is None:
            everywhere, real = overrides.gather(advantage), overrides.gather(batch.mask.flatten())
            temperature = advantage_temperature(everywhere, real, config.advantage_temperature)
        weights = advantage_weights(advantage, temperature, config.max_weight)
    report = {
        "critic/advantage": advantage,
        "weights/clipped": (weights >= config.max_weight * (1 - 1e-6)).float(),
        "weights/logged_temperature": temperature,
    }
    return weights * imitation_loss(logits, action, action_mask.flatten(0, 1)), report


def _gap_metrics(inputs: _Inputs, sample: Int64[Tensor, "transition action"]) -> Metrics:
    """Return `gap_shares` between the actions in the data and sampled ones, in the first step of each window."""
    model, batch, encoded, action = inputs.model, inputs.batch, inputs.encoded, inputs.action
    time, num_actions = batch.mask.shape[1], action.shape[-1]
    with torch.no_grad():
        first = Encoded(encoded.latents[::time], tuple(group[::time] for group in encoded.tokens))
        logged, other = (model.config.action_bins.decode(x[::time], encoded.latents) for x in (action, sample))
        replaced = torch.eye(num_actions + 1, num_actions, dtype=torch.bool, device=action.device)  # none in the last
        asked = torch.where(replaced, other[:, None], logged[:, None])
        values = model.config.value_bins.mean(model.q_logits(first, asked, batch.action_mask[:, 0]))
        rows = batch.mask[:, :1] & batch.action_mask[:, 0]
        gather = inputs.overrides.gather
        shares = gap_shares(gather(values[:, -1]), gather(values[:, :-1]), gather(rows))
    return {f"critic/gap_share/{d}": share for d, share in enumerate(shares)}


def _v_terms(inputs: _Inputs) -> _Terms:
    """Return improvement, critic loss and metrics of PAC+V. The next values are the model's own, without gradient."""
    model, _, batch, config, overrides, _, encoded, logits, action = inputs
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
        everywhere, real = overrides.gather(advantage), overrides.gather(mask)
        temperature = _fixed_temperature(config, overrides, value)
        if temperature is None:
            temperature = advantage_temperature(everywhere, real, config.advantage_temperature)
        weights = advantage_weights(advantage, temperature, config.max_weight)
    imitation = imitation_loss(logits, action, action_mask)
    if config.behaviour == "learned":
        behaviour = model.behaviour_logits(encoded, action.shape[-1])
    else:
        behaviour = torch.zeros_like(logits)  # a uniform b
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


def masked_mean(values: Float[Tensor, " row"], mask: Bool[Tensor, " row"]) -> Scalar:
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


def _returns(batch: Batch) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
    """Return the reward, and gamma where the episode goes on; zeros where masked."""
    padding = ~batch.mask
    return batch.reward.masked_fill(padding, 0), batch.discount.masked_fill(padding, 0) * batch.gamma[:, None]


def _fixed_temperature(config: ObjectiveConfig, overrides: StepOverrides, like: Tensor) -> Scalar | None:
    """Return the overriding or the configured eta. None: estimate it from the batch."""
    if overrides.temperature is None and config.temperature is not None:
        return like.new_full((), config.temperature)
    return overrides.temperature


def _bootstrap_probs(
    next_probs: Float[Tensor, "batch time bins"], batch: Batch, config: ObjectiveConfig, bins: Bins
) -> Float[Tensor, "batch time bins"]:
    """Return the distribution of the value after each step.

    After the last step of a window, `monte_carlo_weight` of it comes from the return-to-go G in the data. A time limit
    hides a share u of the future, which the critic fills in: G + u q'.
    """
    if not config.monte_carlo_weight:
        return next_probs
    follows = torch.cat([batch.mask[:, 1:], torch.zeros_like(batch.mask[:, :1])], 1)
    ends = (batch.mask & ~follows)[..., None].to(next_probs.dtype)  # at most one a window
    return_to_go = batch.return_to_go.to(next_probs.dtype)
    unknown = (1 - batch.return_to_go_weight).to(next_probs.dtype)
    monte_carlo = bins.project((ends * next_probs).sum(1), return_to_go, unknown, config.projection)
    return next_probs + config.monte_carlo_weight * ends * (monte_carlo[:, None] - next_probs)


def _targets(
    next_probs: Float[Tensor, "batch time bins"], batch: Batch, config: ObjectiveConfig, bins: Bins
) -> tuple[Float[Tensor, "transition bins"], Float[Tensor, " transition"]]:
    """Return the critic's targets, and the probability mass that one step moves past the ends of the value range.

    Much clipped mass means that the range is too small.
    """
    reward, discount = _returns(batch)

    def back_up(t: int, probs: PerBin) -> PerBin:
        return td_target(probs, reward[:, t], discount[:, t], bins, config.projection)

    target_probs = backwards(next_probs, batch.mask, config.num_steps, back_up).flatten(0, 1)
    moved = reward[..., None] + discount[..., None] * bins.points(next_probs)
    slack = 1e-4 * bins.step
    outside = (moved < bins.low - slack) | (moved > bins.high + slack)
    return target_probs, (next_probs * outside).sum(-1).flatten()


def _window(rows: Shaped[Tensor, "row *rest"], time: int) -> Shaped[Tensor, "batch time *rest"]:
    return rows.unflatten(0, (-1, time))
