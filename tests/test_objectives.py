"""The objectives: closed forms in float64, limits, and gradients that reach what they should and nothing else."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from factories import random_batch, random_mask, small_config, small_model
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from pac import objectives
from pac.bins import Bins
from pac.config import ObjectiveConfig
from pac.model import PAC
from pac.objectives import loss
from pac.types import Batch

seeds = st.integers(0, 10_000)


def doubles(*shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    values = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


def indices(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------ the terms by hand


@given(seed=seeds)
def test_log_prob_entropy_and_kl_match_torch_distributions(seed: int) -> None:
    logits, other, action = doubles(4, 3, 5, seed=seed), doubles(4, 3, 5, seed=seed + 1), indices(5, 4, 2, 3, seed=seed)
    mask = random_mask(4, 3, generator=torch.Generator().manual_seed(seed))
    policy = Categorical(logits=logits[:, None])
    expected = (policy.log_prob(action) * mask[:, None]).sum(-1)
    torch.testing.assert_close(objectives.action_log_prob(logits, action, mask), expected)
    count = mask.sum(-1).clamp(min=1)
    entropy = (Categorical(logits=logits).entropy() * mask).sum(-1) / count
    torch.testing.assert_close(objectives.entropy(logits, mask), entropy)
    kl = (kl_divergence(Categorical(logits=logits), Categorical(logits=other)) * mask).sum(-1)
    torch.testing.assert_close(objectives.policy_kl(logits, other, mask), kl)


def test_samples_follow_the_policy() -> None:
    logits = torch.tensor([[[0.0, 1.0, -1.0, -torch.inf, 2.0]]])
    index = objectives.sample_actions(logits, 100_000, torch.Generator().manual_seed(0))
    assert index.shape == (1, 100_000, 1)
    frequency = torch.bincount(index.flatten(), minlength=5) / 100_000
    torch.testing.assert_close(frequency, logits[0, 0].softmax(-1), rtol=0, atol=0.006)
    assert frequency[3] == 0


def test_improvement_weights_and_their_limits() -> None:
    values = doubles(6, 10)
    by_hand = (values / 0.3).exp() / (values / 0.3).exp().sum(-1, keepdim=True)
    torch.testing.assert_close(objectives.improvement_weights(values, values.new_tensor(0.3)), by_hand)
    far = objectives.improvement_weights(values, values.new_tensor(1e12))
    torch.testing.assert_close(far, torch.full_like(values, 0.1))  # imitates the reference
    near = objectives.improvement_weights(values, values.new_tensor(1e-9))
    torch.testing.assert_close(near, torch.nn.functional.one_hot(values.argmax(-1), 10).double())  # the best sample
    huge = objectives.improvement_weights(values * 1e6, values.new_tensor(1e-4))
    assert torch.isfinite(huge).all()


def test_improvement_loss_is_a_weighted_cross_entropy() -> None:
    logits, samples, weights = doubles(4, 3, 5), indices(5, 4, 7, 3), doubles(4, 7).softmax(-1)
    mask = torch.ones(4, 3, dtype=torch.bool)
    expected = torch.zeros(4, dtype=torch.float64)
    for row in range(4):
        for j in range(7):
            for k in range(3):
                expected[row] -= weights[row, j] * logits[row, k].log_softmax(-1)[samples[row, j, k]]
    torch.testing.assert_close(objectives.improvement_loss(logits, samples, weights, mask), expected)


@given(seed=seeds, epsilon=st.floats(0.01, 1.5), scale=st.floats(1e-4, 100.0))
def test_the_dual_temperature_minimises_the_dual(seed: int, epsilon: float, scale: float) -> None:
    """MPO's dual, by brute force on a fine grid around the answer; its stationary point has mean KL = epsilon."""
    values, rows = doubles(20, 10, seed=seed) * scale, torch.ones(20, dtype=torch.bool)
    rows[15:] = False
    eta = objectives.dual_temperature(values, rows, epsilon)

    def dual(eta: Tensor) -> Tensor:
        return eta * epsilon + (eta * (torch.logsumexp(values[:15] / eta, -1) - math.log(10))).mean()

    weights = objectives.improvement_weights(values[:15], eta)
    kl = (weights * (weights * 10).log()).nan_to_num().sum(-1).mean()
    assert kl.item() == pytest.approx(epsilon, rel=1e-3)
    assert all(dual(eta) <= dual(eta * factor) + 1e-9 * scale for factor in (0.8, 0.97, 1.03, 1.25))


def test_the_dual_temperature_of_equal_values() -> None:
    same = torch.zeros(5, 10)
    eta = objectives.dual_temperature(same, torch.ones(5, dtype=torch.bool), 0.1)
    torch.testing.assert_close(objectives.improvement_weights(same, eta), torch.full((5, 10), 0.1))


@pytest.mark.parametrize("num_steps", [1, 2, 3, None])
def test_n_step_targets_are_discounted_sums(num_steps: int | None) -> None:
    """Row 0 is whole, row 1 ends in a success at its second step, row 2 is cut by a time limit after its second."""
    reward = torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]])
    discount = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.5, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    real = torch.tensor([[True] * 4, [True, True, False, False], [True, True, False, False]])
    after = torch.tensor([[10.0, 20.0, 30.0, 40.0], [50.0, 60.0, 70.0, 80.0], [50.0, 60.0, 70.0, 80.0]])

    def back_up(t: int, x: torch.Tensor) -> torch.Tensor:
        return reward[:, t] + discount[:, t] * x

    found = objectives.backwards(after, real, num_steps, back_up)
    for row, length in ((0, 4), (1, 2), (2, 2)):
        longest, steps = num_steps or length, 0
        for t in reversed(range(length)):
            steps = 1 if t == length - 1 or steps == longest else steps + 1
            wanted, scale = 0.0, 1.0
            for i in range(t, t + steps):
                wanted += scale * float(reward[row, i])
                scale *= float(discount[row, i])
            assert float(found[row, t]) == pytest.approx(wanted + scale * float(after[row, t + steps - 1]))


def test_a_window_of_two_steps_by_hand() -> None:
    """Targets and advantages of PAC+V, whose next values are the model's own: r0 + g r1 + g^2 v2 and r1 + g v2."""
    model, _, batch = pair()
    batch = dataclasses.replace(batch, gamma=torch.full((3,), 0.9))
    _, metrics = run(model, model, batch, V, num_steps=None, temperature=1.0)
    assert batch.mask.all()
    assert (batch.discount == 1).all()
    with torch.no_grad():
        values = model.config.value_bins.mean(model.v_logits(model.encode(batch.observation.flatten()))).view(3, 3)
    second = batch.reward[:, 1] + 0.9 * values[:, 2]
    wanted = torch.stack([batch.reward[:, 0] + 0.9 * second, second], 1)
    torch.testing.assert_close(metrics["critic/target_value"], wanted.mean())
    torch.testing.assert_close(metrics["critic/advantage"], (wanted - values[:, :2]).mean())


@pytest.mark.parametrize("critic", ["q", "v"])
def test_the_return_to_go_follows_the_last_step_of_a_window(critic: str) -> None:
    """Row 0 is whole; row 1 has one real step, and its later return belongs after that; of row 2 the log knows nothing,
    so that it is as without; half of the log's word is half way.
    """
    model, target, batch = pair()
    mask, return_to_go = torch.tensor([[True, True], [True, False], [True, True]]), torch.tensor([0.4, 0.2, 0.0])
    known, gamma = torch.tensor([1.0, 1.0, 0.0]), torch.full((3,), 0.9)
    batch = dataclasses.replace(batch, mask=mask, return_to_go=return_to_go, return_to_go_weight=known, gamma=gamma)
    config = dataclasses.replace(V if critic == "v" else Q, num_steps=None)

    def wanted(row: int, share: float) -> torch.Tensor:
        one = batch[row : row + 1]
        given = objectives.StepOverrides(uniform=torch.full((1, 3, batch.action.shape[-1], config.num_samples), 0.4))
        some = dataclasses.replace(config, monte_carlo_weight=share)
        return objectives.loss(model, target, one, some, None, given)[1]["critic/target_value"]

    reward = batch.reward
    second = reward[0, 1] + 0.9 * 0.4
    torch.testing.assert_close(wanted(0, 1.0), (reward[0, 0] + 0.9 * second + second) / 2)
    torch.testing.assert_close(wanted(1, 1.0), reward[1, 0] + 0.9 * 0.2)
    torch.testing.assert_close(wanted(2, 1.0), wanted(2, 0.0))
    for row in (0, 1):
        torch.testing.assert_close(wanted(row, 0.5), (wanted(row, 0.0) + wanted(row, 1.0)) / 2)
        assert abs(wanted(row, 0.0) - wanted(row, 1.0)) > 1e-3


@pytest.mark.parametrize("known", [0.0, 0.3, 1.0])
def test_the_critic_fills_in_for_returns_cut_off_by_a_time_limit(known: float) -> None:
    """A world that pays 1 a step for ever, and a critic that knows it: a time limit, however near, changes nothing.
    (The log's part must not be taken for all of it: values would fall towards every limit.)
    """
    bins, config = Bins(0.0, 1.0, 101), dataclasses.replace(V, monte_carlo_weight=1.0)
    _, _, batch = pair()
    batch = dataclasses.replace(
        batch,
        return_to_go=torch.full((3,), known),
        return_to_go_weight=torch.full((3,), known),
    )
    right = bins.project(torch.full((3, 2, 101), 1 / 101), torch.ones(3, 2), torch.zeros(3, 2))
    torch.testing.assert_close(objectives._bootstrap_probs(right, batch, config, bins), right)


def test_td_target_and_critic_loss() -> None:
    bins = Bins(0.0, 1.0, 11)
    probs, reward, discount = (
        doubles(3, 11).softmax(-1),
        doubles(3).abs() * 0.01,
        torch.tensor([0.9, 0.9, 0.0]).double(),
    )
    target = objectives.td_target(probs, reward, discount, bins, "two-hot")
    points = bins.points(probs)
    torch.testing.assert_close(target @ points, reward + discount * (probs @ points))
    logits = doubles(3, 11, seed=5)
    cross_entropy = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(objectives.critic_loss(logits, target), cross_entropy)


def test_advantage_weights_and_ratio_are_bounded() -> None:
    advantage = torch.tensor([-1.0, 0.0, 0.001, 5.0], dtype=torch.float64)
    weights = objectives.advantage_weights(advantage, advantage.new_tensor(1e-3), 20.0)
    assert weights.tolist() == pytest.approx([0.0, 1.0, math.e, 20.0])
    assert objectives.advantage_weights(advantage, advantage.new_tensor(1e12), 20.0).tolist() == pytest.approx([1] * 4)
    log_prob = torch.log(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).requires_grad_()
    ratio = objectives.importance_ratio(log_prob, torch.log(torch.tensor([0.2, 0.5, 0.1])).double(), 2.0)
    assert ratio.tolist() == pytest.approx([0.5, 1.0, 2.0])
    assert not ratio.requires_grad


def test_the_advantage_temperature_counts_real_rows() -> None:
    advantage, rows = doubles(8), torch.arange(8) < 6
    found = objectives.advantage_temperature(advantage, rows, 0.5)
    torch.testing.assert_close(found, 0.5 * advantage[:6].std(correction=0))


def test_visible_dims_are_hidden_with_their_probability() -> None:
    noise = torch.rand(20_000, 2, 5, generator=torch.Generator().manual_seed(0))
    visible = objectives.visible_dims(noise, 0.3, 0.6).flatten(0, 1)
    assert visible.float().mean(0).tolist() == pytest.approx([1 - 0.3 * 0.6] * 4, abs=0.01)
    assert visible.all(1).float().mean().item() == pytest.approx(0.4 + 0.6 * 0.7**4, abs=0.01)
    assert objectives.visible_dims(noise, 0.0, 1.0).all()
    assert objectives.visible_dims(noise, 0.9, 0.0).all()


def test_gap_shares_by_hand() -> None:
    value, changed = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([[0.5, 1.0], [1.0, 1.5], [9.0, 9.0]])
    rows = torch.tensor([[True, True], [True, True], [False, False]])
    assert objectives.gap_shares(value, changed, rows).tolist() == [0.5, 0.5]
    assert objectives.gap_shares(value[:1], changed[:1], rows[:1]).tolist() == [1.0, 0.0]
    assert objectives.gap_shares(value, value[:, None].expand(3, 2), rows).tolist() == [0.0, 0.0]


def test_gradients_of_the_terms() -> None:
    logits, samples, weights = doubles(2, 3, 5, grad=True), indices(5, 2, 4, 3), doubles(2, 4).softmax(-1)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    action, values, target = indices(5, 2, 3), doubles(2, 5, seed=3, grad=True), doubles(2, 5).softmax(-1)
    assert torch.autograd.gradcheck(lambda x: objectives.imitation_loss(x, action, mask), (logits,))
    assert torch.autograd.gradcheck(lambda x: objectives.improvement_loss(x, samples, weights, mask), (logits,))
    assert torch.autograd.gradcheck(lambda x: objectives.critic_loss(x, target), (values,))
    (gradient,) = torch.autograd.grad(objectives.imitation_loss(logits, action, mask).sum(), logits)
    assert (gradient[~mask] == 0).all()


# ------------------------------------------------------------------------------------------------------ whole losses

Q, V = ObjectiveConfig(num_steps=1), ObjectiveConfig(critic="v", num_steps=1)
CLONE = ObjectiveConfig(critic="none", improve=False)
BC_Q = ObjectiveConfig(improve=False, num_steps=1)
PARTS = dataclasses.replace(Q, logged_share=0.5, hidden_dims=0.5)


def run(
    model: PAC, target: PAC, batch: Batch, config: ObjectiveConfig, **change: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    return loss(model, target, batch, dataclasses.replace(config, **change), torch.Generator().manual_seed(0))


def weighted(batch: Batch, alpha: float, beta: float) -> Batch:
    count = len(batch.action)
    return dataclasses.replace(
        batch, imitation_weight=torch.full((count,), alpha), critic_weight=torch.full((count,), beta)
    )


def pair(**overrides: Any) -> tuple[PAC, PAC, Batch]:
    return small_model(0, **overrides), small_model(1, **overrides), random_batch(small_config(**overrides))


def by_hand(model: PAC, batch: Batch) -> Tensor:
    """-log pi of the logged actions."""
    encoded = model.encode(batch.observation[:, :-1].flatten())
    bins = model.config.action_bins.encode(batch.action.flatten(0, 1))
    return -Categorical(logits=model.policy_logits(encoded)).log_prob(bins).sum(-1)


@pytest.mark.parametrize("config", [Q, V], ids=["q", "v"])
def test_alpha_one_is_behaviour_cloning(config: ObjectiveConfig) -> None:
    model, target, batch = pair()
    cloning, _ = run(model, target, weighted(batch, 1.0, 0.0), CLONE)
    torch.testing.assert_close(cloning, by_hand(model, batch))
    full, _ = run(model, target, weighted(batch, 1.0, 0.0), config)
    torch.testing.assert_close(full, cloning)


def test_bc_q_is_pac_at_alpha_one() -> None:
    """Without the improvement term the target network looks at fewer observations; the loss has the same meaning."""
    model, target, batch = pair()
    terminal = dataclasses.replace(batch, discount=torch.zeros_like(batch.discount))  # no sampled action matters
    torch.testing.assert_close(
        run(model, target, weighted(terminal, 1.0, 2.0), BC_Q)[0],
        run(model, target, weighted(terminal, 1.0, 2.0), Q)[0],
    )


def test_pac_loss_by_hand() -> None:
    """The paper's loss, written out with loops for one seed of samples."""
    model, target, batch = pair()
    batch = dataclasses.replace(batch, reward=10 * batch.reward, gamma=torch.full((3,), 0.9))
    config = dataclasses.replace(Q, temperature=0.05, num_samples=3)
    per_example, metrics = run(model, target, batch, config)
    value_bins, action_bins = model.config.value_bins, model.config.action_bins
    points = value_bins.points(torch.zeros(1))
    generator = torch.Generator().manual_seed(0)
    seen = target.encode(batch.observation.flatten())
    reference = target.policy_logits(seen)
    samples = objectives.sample_actions(reference, 3, generator).view(3, 3, 3, 4)  # batch, time + 1, sample, action
    mask = torch.ones(9, 4, dtype=torch.bool)
    probs = target.q_logits(seen, action_bins.decode(samples.flatten(0, 1), points), mask).softmax(-1).view(3, 3, 3, 21)
    online = model.encode(batch.observation[:, :-1].flatten())
    log_pi = model.policy_logits(online).log_softmax(-1).view(3, 2, 4, 11)
    action = action_bins.encode(batch.action)
    q_logits = model.q_logits(online, action_bins.decode(action, points).view(6, 1, 4), mask[:6]).view(3, 2, 21)
    for b in range(3):
        for t in range(2):
            wanted = torch.zeros(21)
            for j in range(3):
                shift, scale = batch.reward[b, t], torch.tensor(0.9)
                wanted += value_bins.project(probs[b, t + 1, j], shift, scale) / 3
            critic = -(wanted * q_logits[b, t].log_softmax(-1)).sum()
            weights = ((probs[b, t] @ points) / 0.05).softmax(-1)
            improvement, imitation = torch.zeros(()), torch.zeros(())
            for k in range(4):
                imitation -= log_pi[b, t, k, action[b, t, k]]
                for j in range(3):
                    improvement -= weights[j] * log_pi[b, t, k, samples[b, t, j, k]]
            expected = 0.5 * improvement + 0.5 * imitation + 2.0 * critic
            torch.testing.assert_close(per_example.view(3, 2)[b, t], expected, rtol=1e-4, atol=1e-4)
    assert metrics["loss/total"].item() == pytest.approx(per_example.mean().item(), rel=1e-5)


# ------------------------------------------------------------------------------ logged actions, and parts of actions


def noise(batch: Batch, num_samples: int, seed: int = 0) -> objectives.StepOverrides:
    g, (rows, time, dims) = torch.Generator().manual_seed(seed), batch.action.shape
    uniform = torch.rand(rows, time + 1, dims, num_samples, generator=g)
    return objectives.StepOverrides(uniform=uniform, hiding=torch.rand(rows, time + 1, 2, dims + 1, generator=g))


@pytest.mark.parametrize("config", [PARTS, dataclasses.replace(PARTS, hidden_bootstrap=False, hidden_rows=0.5)])
def test_logged_actions_and_hidden_dimensions_by_hand(config: ObjectiveConfig) -> None:
    """All terms with loops. One set of noise says what is hidden of logged actions, another what of sampled ones."""
    model, target, batch = pair()
    batch = dataclasses.replace(batch, reward=10 * batch.reward, gamma=torch.full((3,), 0.9))
    config = dataclasses.replace(config, num_samples=3)
    given = noise(batch, 3)
    per_example, metrics = loss(model, target, batch, config, None, given)
    value_bins, action_bins = model.config.value_bins, model.config.action_bins
    points = value_bins.points(torch.zeros(1))
    assert given.hiding is not None
    assert given.uniform is not None
    hides = given.hiding[..., -1] < config.hidden_rows
    visible = ~((given.hiding[..., :-1] < 0.5) & hides[..., None])
    seen, online = (x.encode(batch.observation.flatten()) for x in (target, model))
    samples = objectives.sample_actions(target.policy_logits(seen), 3, None, given.uniform.flatten(0, 1))
    actions, whole = action_bins.decode(samples, points), torch.ones(9, 4, dtype=torch.bool)
    probs = target.q_logits(seen, actions, visible[:, :, 1].flatten(0, 1)).softmax(-1).view(3, 3, 3, 21)
    every = target.q_logits(seen, actions, whole).softmax(-1).view(3, 3, 3, 21)
    after = probs if config.hidden_bootstrap else every
    action = action_bins.encode(torch.cat([batch.action, batch.action[:, -1:]], 1))
    asked = action_bins.decode(action, points).view(9, 1, 4)
    logged_value = (target.q_logits(seen, asked, whole).softmax(-1) @ points).view(3, 3)
    q_logits = model.q_logits(online, asked, visible[:, :, 0].flatten(0, 1)).view(3, 3, 21)
    log_pi = model.policy_logits(online).log_softmax(-1).view(3, 3, 4, 11)
    values, samples = (probs @ points)[:, :-1], samples.view(3, 3, 3, 4)
    eta = objectives.dual_temperature(values.flatten(0, 1), torch.ones(6, dtype=torch.bool), config.epsilon)
    advantage = logged_value[:, :-1] - values.mean(-1)
    logged_eta = 0.5 * advantage.std(correction=0)
    for b in range(3):
        for t in range(2):
            wanted = torch.zeros(21)
            for j in range(3):
                wanted += value_bins.project(after[b, t + 1, j], batch.reward[b, t], torch.tensor(0.9)) / 3
            critic = -(wanted * q_logits[b, t].log_softmax(-1)).sum()
            imitation = -sum(log_pi[b, t, k, action[b, t, k]] for k in range(4))
            sampled, weights = torch.zeros(()), (values[b, t] / eta).softmax(-1)
            for j in range(3):
                for k in range(4):
                    if visible[b, t, 1, k]:
                        sampled -= weights[j] * log_pi[b, t, k, samples[b, t, j, k]] * (2 if hides[b, t, 1] else 1)
            logged = (advantage[b, t] / logged_eta).exp().clamp(max=20) * imitation
            expected = 0.5 * (0.5 * sampled + 0.5 * logged) + 0.5 * imitation + 2.0 * critic
            torch.testing.assert_close(per_example.view(3, 2)[b, t], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(metrics["weights/logged_temperature"], logged_eta)
    torch.testing.assert_close(metrics["critic/advantage"], advantage.mean(), rtol=1e-4, atol=1e-6)


def test_nothing_hidden_is_the_whole_critic() -> None:
    model, target, batch = pair()
    given = noise(batch, Q.num_samples)
    expected = loss(model, target, batch, Q, None, given)
    for change in ({"hidden_dims": 0.5, "hidden_rows": 0.0}, {"hidden_dims": 1e-9}):
        found = loss(model, target, batch, dataclasses.replace(Q, **change), None, given)
        assert torch.equal(found[0], expected[0])
        assert all(torch.equal(found[1][name], value) for name, value in expected[1].items())


def test_the_logged_share_mixes_two_terms() -> None:
    model, target, batch = pair()
    given, plain = noise(batch, Q.num_samples), weighted(batch, 0.0, 0.0)
    none, some, every = (
        loss(model, target, plain, dataclasses.replace(Q, logged_share=share), None, given)[0]
        for share in (0.0, 0.25, 1.0)
    )
    torch.testing.assert_close(some, 0.75 * none + 0.25 * every)
    assert not torch.allclose(none, every, rtol=0.01)


def test_logged_actions_with_infinite_temperature_are_cloned() -> None:
    model, target, batch = pair()
    plain = weighted(batch, 0.0, 0.0)
    cloned, _ = run(model, target, plain, Q, logged_share=1.0, temperature=1e9)
    torch.testing.assert_close(cloned, by_hand(model, batch), rtol=1e-4, atol=1e-4)
    cloned, _ = run(model, target, plain, Q, logged_share=1.0, advantage_temperature=1e9)
    torch.testing.assert_close(cloned, by_hand(model, batch), rtol=1e-4, atol=1e-4)
    sharp, metrics = run(model, target, plain, Q, logged_share=1.0, temperature=1e-9)
    assert torch.isfinite(sharp).all()
    assert metrics["weights/clipped"] > 0


def test_a_critic_of_parts_knows_their_value_under_the_datas_behaviour() -> None:
    """Closed form: for visible dimensions m the value is E[r | a in m], with the rest as the data chose it.

    One state, two dimensions of two bins, a table as critic. The data has (+,+) with reward 0.8 twice, (-,-) with 0.1
    and (+,-) with 0.3. Nobody took (-,+): only its parts have a value.
    """
    data = [(1, 1, 0.8), (1, 1, 0.8), (0, 0, 0.1), (1, 0, 0.3)]
    model, target, _ = pair(num_actions=2, num_action_bins=2)
    table = torch.zeros(3, 3, 21, requires_grad=True)  # 2: hidden

    def look_up(encoded: Any, actions: Tensor, mask: Tensor) -> Tensor:
        first, second = torch.where(mask[:, None], (actions > 0).long(), 2).unbind(-1)
        return table[first, second]

    model.q_logits = look_up  # type: ignore[assignment]
    rows = [(row, shown) for row in data for shown in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0))]
    batch = weighted(random_batch(model.config, len(rows), 1), 1.0, 1.0)
    batch = dataclasses.replace(
        batch,
        action=torch.tensor([[[x - 0.5, y - 0.5]] for (x, y, _), _ in rows]),
        reward=torch.tensor([[r] for (_, _, r), _ in rows]),
        discount=torch.zeros(len(rows), 1),
    )
    shown = torch.tensor([[*shown, 0.0] for _, shown in rows])[:, None, None].expand(-1, 2, 2, -1)
    given = dataclasses.replace(noise(batch, 10), hiding=shown)
    optimizer = torch.optim.Adam([table], lr=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        loss(model, target, batch, dataclasses.replace(BC_Q, hidden_dims=0.5), None, given)[0].mean().backward()
        optimizer.step()
    found = model.config.value_bins.mean(table.detach())
    for first in range(3):
        for second in range(3):
            fits = [r for x, y, r in data if first in (x, 2) and second in (y, 2)]
            expected = sum(fits) / len(fits) if fits else 0.5  # where there is no data it stays as it began
            assert found[first, second].item() == pytest.approx(expected, abs=2e-3), (first, second)


def test_a_critic_that_reads_one_dimension_has_its_gap_there() -> None:
    model, target, batch = pair()
    bins = model.config.value_bins
    _, metrics = run(model, target, batch, Q)
    shares = torch.stack([metrics[f"critic/gap_share/{d}"] for d in range(4)])
    assert (shares > 0.01).all()
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0))
    model.q_logits = lambda encoded, actions, mask: bins.logits_near(0.5) * actions[..., 2:3]  # type: ignore[assignment]
    _, metrics = run(model, target, batch, Q)
    assert [round(float(metrics[f"critic/gap_share/{d}"]), 3) for d in range(4)] == [0, 0, 1, 0]


@pytest.mark.parametrize("critic", ["q", "v"])
def test_each_dataset_has_its_own_discount(critic: str) -> None:
    """A row learns what it would in a batch that has its discount in all rows."""
    model, target, batch = pair()
    ended = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    batch = dataclasses.replace(batch, discount=ended)
    base = {"q": Q, "v": V}[critic]
    config = dataclasses.replace(base, num_steps=None, temperature=0.5)

    def under(*gamma: float) -> Tensor:
        return run(model, target, dataclasses.replace(batch, gamma=torch.tensor(gamma)), config)[0]

    mixed = under(0.5, 0.97, 0.9)
    for row, discount in enumerate((0.5, 0.97, 0.9)):
        alone, others = under(*[discount] * 3), under(*[0.2] * 3)
        torch.testing.assert_close(mixed.view(3, 2)[row], alone.view(3, 2)[row], rtol=1e-6, atol=1e-6)
        assert not torch.allclose(mixed.view(3, 2)[row], others.view(3, 2)[row], rtol=1e-4)


def test_a_discount_of_zero_is_a_discount() -> None:
    model, target, batch = pair()
    own = dataclasses.replace(batch, gamma=torch.zeros(3))
    ended = dataclasses.replace(batch, discount=torch.zeros(3, 2))
    for config in (Q, V):
        first, second = (run(model, target, some, config, temperature=0.5)[0] for some in (own, ended))
        assert torch.equal(first, second)


def test_infinite_temperature_imitates_the_reference_policy() -> None:
    """With eta to infinity and many samples, the improvement term is the cross-entropy to the target policy."""
    model, target, batch = pair()
    per_example, metrics = run(model, target, weighted(batch, 0.0, 0.0), Q, temperature=1e9, num_samples=20_000)
    observation = batch.observation[:, :-1].flatten()
    reference = target.policy_logits(target.encode(observation)).softmax(-1)
    policy = model.policy_logits(model.encode(observation)).log_softmax(-1)
    torch.testing.assert_close(per_example, -(reference * policy).sum((-1, -2)), rtol=0.02, atol=0.02)
    assert metrics["weights/effective_samples"].item() == pytest.approx(20_000, rel=1e-3)


def test_vanishing_temperature_imitates_the_best_sample() -> None:
    model, target, batch = pair()
    per_example, _ = run(model, target, weighted(batch, 0.0, 0.0), Q, temperature=1e-9)
    seen, points = target.encode(batch.observation.flatten()), model.config.value_bins.points(torch.zeros(1))
    samples = objectives.sample_actions(target.policy_logits(seen), 10, torch.Generator().manual_seed(0))
    actions = model.config.action_bins.decode(samples, points)
    values = target.q_logits(seen, actions, torch.ones(9, 4, dtype=torch.bool)).softmax(-1) @ points
    best = samples[torch.arange(9), values.argmax(-1)].view(3, 3, 4)[:, :-1].flatten(0, 1)
    policy = Categorical(logits=model.policy_logits(model.encode(batch.observation[:, :-1].flatten())))
    torch.testing.assert_close(per_example, -policy.log_prob(best).sum(-1))


def test_pac_v_with_infinite_temperature_is_behaviour_cloning() -> None:
    model, _, batch = pair()
    plain = weighted(batch, 0.0, 0.0)
    cloned, _ = run(model, model, plain, V, temperature=1e9)
    torch.testing.assert_close(cloned, by_hand(model, batch), rtol=1e-4, atol=1e-4)
    sharp, metrics = run(model, model, plain, V, temperature=1e-4)
    assert torch.isfinite(sharp).all()
    assert metrics["weights/clipped"] > 0


def test_pac_v_by_hand() -> None:
    """The paper's PAC+V with b learned: exp(A / eta) on the policy, pi / b on the value loss."""
    model, _, batch = pair()
    batch = dataclasses.replace(batch, reward=100 * batch.reward, gamma=torch.full((3,), 0.9))
    config = dataclasses.replace(V, temperature=0.5, behaviour="learned", max_ratio=2.0)
    per_example, metrics = run(model, model, weighted(batch, 0.0, 3.0), config)
    bins, everything = model.config.value_bins, model.encode(batch.observation.flatten())
    v_probs = model.v_logits(everything).softmax(-1).view(3, 3, 21)
    value = v_probs @ bins.points(v_probs)
    online = model.encode(batch.observation[:, :-1].flatten())
    action = model.config.action_bins.encode(batch.action.flatten(0, 1))
    log_pi = Categorical(logits=model.policy_logits(online)).log_prob(action).sum(-1)
    log_b = Categorical(logits=model.behaviour_logits(online)).log_prob(action).sum(-1)
    advantage = (batch.reward + 0.9 * value[:, 1:] - value[:, :-1]).flatten()
    weights = (advantage / 0.5).exp().clamp(max=20)
    ratio = (log_pi - log_b).exp().clamp(max=2.0)
    wanted = bins.project(v_probs[:, 1:].flatten(0, 1), batch.reward.flatten(), torch.full((6,), 0.9))
    critic = -(wanted * model.v_logits(online).log_softmax(-1)).sum(-1)
    torch.testing.assert_close(per_example, -weights * log_pi + 3.0 * ratio * critic - log_b, rtol=1e-4, atol=1e-4)
    assert metrics["ratio/mean"].item() == pytest.approx(ratio.mean().item(), rel=1e-4)


def test_constant_behaviour_is_uniform_over_bins() -> None:
    model, _, batch = pair()
    _, metrics = run(model, model, batch, V, max_ratio=1e9)
    log_ratio = -by_hand(model, batch) + 4 * math.log(11)
    assert metrics["ratio/mean"].item() == pytest.approx(log_ratio.exp().mean().item(), rel=1e-3)


def test_each_row_has_its_own_alpha_and_beta() -> None:
    """alpha-PAC: a batch of two datasets is each dataset's batch with its own weights."""
    model, target, batch = pair()
    alpha, beta = torch.tensor([0.75, 0.0, 1.0]), torch.tensor([19.0, 1900.0, 0.0])
    mixed, _ = run(
        model, target, dataclasses.replace(batch, imitation_weight=alpha, critic_weight=beta), Q, temperature=0.1
    )
    for row in range(3):
        alone, _ = run(model, target, weighted(batch, float(alpha[row]), float(beta[row])), Q, temperature=0.1)
        torch.testing.assert_close(mixed.view(3, 2)[row], alone.view(3, 2)[row])


@pytest.mark.parametrize("config", [Q, V], ids=["q", "v"])
def test_termination_stops_the_bootstrap_and_a_time_limit_does_not(config: ObjectiveConfig) -> None:
    model, target, batch = pair()
    batch = weighted(batch, 1.0, 1.0)
    other = random_batch(model.config, seed=7).observation
    changed = batch.observation.map(torch.clone)
    for name in ("proprio", "images", "goal_images", "text"):
        getattr(changed, name)[:, -1] = getattr(other, name)[:, -1]
    ended = torch.ones_like(batch.discount)
    ended[:, -1] = 0
    for discount, differs in ((ended, False), (torch.ones_like(ended), True)):
        before = run(model, target, dataclasses.replace(batch, discount=discount), config)
        after = run(model, target, dataclasses.replace(batch, discount=discount, observation=changed), config)
        moved = (before[1]["critic/target_value"] - after[1]["critic/target_value"]).abs()
        assert (moved > 1e-4) == differs
        if not differs:
            torch.testing.assert_close(before[0], after[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("config", [Q, PARTS, V, BC_Q, CLONE], ids=["q", "parts", "v", "bc+q", "clone"])
def test_padding_changes_nothing(config: ObjectiveConfig) -> None:
    model, target, batch = pair()
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    action_mask = batch.action_mask.clone()
    action_mask[..., 3] = False
    batch = dataclasses.replace(batch, mask=mask, action_mask=action_mask)
    nan = float("nan")
    garbage = dataclasses.replace(
        batch,
        reward=batch.reward.masked_fill(~mask, nan),
        discount=batch.discount.masked_fill(~mask, nan),
        action=batch.action.masked_fill(~action_mask, nan),
    )
    for case in (batch, garbage):
        model.zero_grad()
        per_example, metrics = run(model, target, case, config)
        per_example.sum().backward()
        assert (per_example.view(3, 2)[~mask] == 0).all()
        assert all(torch.isfinite(value) for value in metrics.values())
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        if case is batch:
            expected, expected_metrics = per_example.detach(), metrics
    torch.testing.assert_close(per_example.detach(), expected)
    torch.testing.assert_close(metrics, expected_metrics)


# --------------------------------------------------------------------------------------------------------- gradients


def reached(model: PAC) -> set[str]:
    """The parts of the model that got a gradient."""
    names = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    return {name.split(".")[0] for name in names}


TORSO = {"inputs", "latents", "input_attention", "blocks"}


@pytest.mark.parametrize(
    ("config", "alpha", "beta", "parts"),
    [
        (CLONE, 1.0, 0.0, TORSO | {"policy"}),
        (BC_Q, 0.0, 1.0, TORSO | {"q"}),
        (BC_Q, 1.0, 1.0, TORSO | {"policy", "q"}),
        (Q, 0.0, 0.0, TORSO | {"policy"}),
        (Q, 0.5, 1.0, TORSO | {"policy", "q"}),
        (PARTS, 0.0, 0.0, TORSO | {"policy"}),
        (PARTS, 0.5, 1.0, TORSO | {"policy", "q"}),
        (V, 0.0, 0.0, TORSO | {"policy"}),
        (V, 0.0, 1.0, TORSO | {"policy", "v"}),
        (dataclasses.replace(V, behaviour="learned"), 0.0, 1.0, TORSO | {"policy", "v", "behaviour"}),
    ],
)
def test_gradients_reach_trained_parts_only(
    config: ObjectiveConfig, alpha: float, beta: float, parts: set[str]
) -> None:
    model, target, batch = pair()
    per_example, metrics = run(model, target, weighted(batch, alpha, beta), config)
    per_example.sum().backward()
    assert reached(model) == parts
    assert reached(target) == set()
    assert not any(value.requires_grad for value in metrics.values())


def test_ratio_weights_and_next_value_of_pac_v_get_no_gradient() -> None:
    """Gradient of the whole loss = gradient with weights, ratios and targets frozen to their numbers."""
    model, _, batch = pair()
    config = dataclasses.replace(V, temperature=0.5, max_ratio=5.0)
    per_example, _ = run(model, model, weighted(batch, 0.0, 2.0), config)
    per_example.sum().backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    frozen = copy.deepcopy(model)
    model.zero_grad()
    bins, reward = model.config.value_bins, batch.reward.flatten()
    with torch.no_grad():
        probs = frozen.v_logits(frozen.encode(batch.observation.flatten())).softmax(-1).view(3, 3, 21)
        value = probs @ bins.points(probs)
        advantage = reward + 0.99 * value[:, 1:].flatten() - value[:, :-1].flatten()
        weights = objectives.advantage_weights(advantage, torch.tensor(0.5), 20.0)
        wanted = bins.project(probs[:, 1:].flatten(0, 1), reward, torch.full((6,), 0.99))
        ratio = (-by_hand(frozen, batch) + 4 * math.log(11)).clamp(max=math.log(5.0)).exp()
    encoded = model.encode(batch.observation[:, :-1].flatten())
    critic = -(wanted * model.v_logits(encoded).log_softmax(-1)).sum(-1)
    (weights * by_hand(model, batch) + 2.0 * ratio * critic).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(got[name], parameter.grad, rtol=1e-2, atol=1e-4)


# ----------------------------------------------------------------------------------------------------------- reports


def test_every_objective_reports_its_diagnostics() -> None:
    model, target, batch = pair()
    common = {"loss/total", "loss/imitation", "policy/entropy"}
    critic = common | {"loss/critic", "critic/value", "critic/target_value", "critic/clipped"}
    improving = critic | {
        "loss/improvement",
        "policy/kl_to_reference",
        "weights/effective_samples",
        "weights/temperature",
    }
    assert set(run(model, target, batch, CLONE)[1]) == common
    assert set(run(model, target, batch, BC_Q)[1]) == critic
    of_q = improving | {"critic/sample_std", *(f"critic/gap_share/{d}" for d in range(4))}
    assert set(run(model, target, batch, Q)[1]) == of_q
    logged = {"critic/advantage", "weights/clipped", "weights/logged_temperature"}
    assert set(run(model, target, batch, PARTS)[1]) == of_q | logged
    clipped = {"weights/clipped", "ratio/mean", "ratio/clipped", "critic/advantage", "loss/behaviour"}
    assert set(run(model, target, batch, V)[1]) == improving | clipped


def test_clipped_targets_are_counted() -> None:
    model, target, batch = pair()
    _, metrics = run(model, target, dataclasses.replace(batch, reward=10_000 * batch.reward), Q)
    assert metrics["critic/clipped"].item() == pytest.approx(1.0)
    _, metrics = run(model, target, dataclasses.replace(batch, reward=torch.zeros_like(batch.reward)), Q)
    assert metrics["critic/clipped"].item() == 0


def test_kl_to_the_reference_is_zero_at_the_reference() -> None:
    model, _, batch = pair()
    assert run(model, model, batch, Q)[1]["policy/kl_to_reference"].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("head", "config"), [("q_head", Q), ("v_head", V)])
def test_an_objective_without_its_head_is_refused(head: str, config: ObjectiveConfig) -> None:
    model, _, batch = pair(**{head: False})
    with pytest.raises(ValueError, match=f"expected a model with {head}=true, found {head}=false"):
        run(model, model, batch, config)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "action",
            1.5,
            r"Batch.action: expected finite values from -1 to 1, found 1.5 at index \(1, 0, 0\). Normalise",
        ),
        ("reward", math.nan, "Batch.reward: expected finite values .*, found nan at index"),
        ("discount", 0.0 - 1, "Batch.discount: expected finite values from 0 to 1, found -1"),
        ("imitation_weight", 2.0, "Batch.imitation_weight: expected finite values from 0 to 1, found 2"),
        ("critic_weight", -3.0, "Batch.critic_weight: expected finite values from 0 to inf, found -3"),
        ("gamma", 1.5, "Batch.gamma: expected finite values from 0 to 1, found 1.5"),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, value: float, message: str) -> None:
    model, target, batch = pair()
    values = getattr(batch, name).clone()
    values[1, ...] = value
    with pytest.raises(ValueError, match=message):
        run(model, target, dataclasses.replace(batch, **{name: values}), Q)
