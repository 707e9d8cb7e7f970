"""A checkpoint acts on what it was trained on: the same inputs, and answers that depend on their query alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import config, start, write_dataset
from torch import Tensor

from pac.data.windows import locate
from pac.embodiments import Match
from pac.model import PAC
from pac.model.config import model_config
from pac.model.pretrained import load_config
from pac.policy import EmbodimentStats, Policy, PolicyMetadata, load
from pac.training.trainer import Trainer
from pac.types import Query, TaskSpec

MIX = {"image_size": [8, 9], "defaults": {"imitation_weight": 0.5}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Two embodiments: one with two cameras and asymmetric bounds, one with none; weights that are not almost flat."""
    folder = tmp_path_factory.mktemp("policy")
    write_dataset(folder / "data" / "arm", cameras=2, instruction="lift the red cube")
    write_dataset(folder / "data" / "leg", dims=5, low=(-2.0,), high=(0.5,), instruction="walk", reward=4.0, seed=1)
    made = start(config(folder / "data", mixture=MIX, length="4 steps"), folder / "run")
    sharpen(made)
    made.train()
    return made


def sharpen(run: Trainer) -> None:
    with torch.no_grad():
        for name, parameter in run.state.model.named_parameters():
            if "head.weight" in name:
                parameter.normal_()


def task(run: Trainer, index: int = 0, **changes: Any) -> TaskSpec:
    embodiment = run.metadata.embodiments[index]
    fields: dict[str, Any] = {
        "name": "lab/task",
        "instruction": embodiment.instructions[0],
        "state_dim": len(embodiment.proprio_centre),
        "action_low": embodiment.action_low,
        "action_high": embodiment.action_high,
        "max_steps": 9,
        "has_success": False,
    }
    return TaskSpec(**(fields | changes))


def queries(run: Trainer, index: int = 0, count: int = 40, **changes: Any) -> list[Query]:
    """What the dataset holds, asked again row by row."""
    data = run.sampler.sources[index].dataset
    names = [name for name in data.arrays if name.startswith("observation.")]
    total = len(data.arrays["observation.state"])
    rows = [i % total for i in range(count)]
    spec = task(run, index, **changes)
    return [
        Query(task=spec, observation={n: np.array(data.arrays[n][row]) for n in names}, seed=7 + i % 5, step=i)
        for i, row in enumerate(rows)
    ]


def watch_logits(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    seen: list[Tensor] = []
    compute = policy.model.policy_logits

    def watched(*args: Any) -> Tensor:
        seen.append(compute(*args))
        return seen[-1]

    monkeypatch.setattr(policy.model, "policy_logits", watched)
    return seen


@pytest.mark.parametrize("index", [0, 1])
def test_inputs_are_those_of_training(run: Trainer, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """The sampler's batches through the model, and the same rows of the store through the policy: the same logits."""
    policy = load(run.directory.path)
    source, seen = run.sampler.sources[index], watch_logits(policy, monkeypatch)
    compared = 0
    for step in range(3):
        draws, batch = run.sampler.draw(step), run.sampler.batch(step)
        places = np.flatnonzero(draws.dataset == index)
        if not len(places):
            continue
        with torch.no_grad():
            encoded = run.state.model.encode(batch.observation[:, 0])
            expected = run.state.model.policy_logits(encoded)
        rows = locate([(source, slice(None))], draws.window[places]).rows[:, 0]
        names = [name for name in source.dataset.arrays if name.startswith("observation.")]
        spec = task(run, index)
        asked = [
            Query(task=spec, observation={n: np.array(source.dataset.arrays[n][r]) for n in names}, seed=0, step=0)
            for r in rows
        ]
        policy.act(asked)
        actions = len(spec.action_low)
        found = seen.pop()[: len(rows)]
        torch.testing.assert_close(found, expected[torch.from_numpy(places)][:, :actions], rtol=1e-4, atol=1e-5)
        compared += len(rows)
    assert compared > 2
    assert run.sampler.image_size == (8, 9), "pictures of 12 x 10 are resized on both ways"


@pytest.mark.parametrize(
    "options", [{}, {"sampling": "mode"}, {"sampling": "mean", "values": True}, {"best_of": 5, "values": True}]
)
def test_answers_do_not_depend_on_the_other_queries(run: Trainer, options: dict[str, Any]) -> None:
    policy = load(run.directory.path, **options)
    asked = queries(run, 0) + queries(run, 1)
    together = policy.act(asked)
    order = np.random.default_rng(0).permutation(len(asked))
    shuffled = policy.act([asked[i] for i in order])
    few = [policy.act(asked[i : i + 3]) for i in range(0, len(asked), 3)]
    for place, i in enumerate(order):
        for other in (shuffled[place], few[i // 3][i % 3], policy.act([asked[i]])[0]):
            np.testing.assert_array_equal(other.action, together[i].action)
            assert other.value == together[i].value


def test_answers_do_not_depend_on_the_number_of_threads() -> None:
    """At these sizes two threads round a row's products otherwise in another place of the batch."""
    torch.manual_seed(0)
    model = PAC(model_config("nano", num_proprio=39, num_actions=4))
    torch.nn.init.normal_(model.policy.decoder.head.weight)
    numbers = {"action_low": (-1.0,) * 4, "action_high": (1.0,) * 4}
    embodiment = EmbodimentStats(
        name="arm", instructions=("x",), proprio_centre=(0.0,) * 39, proprio_scale=(1.0,) * 39, **numbers
    )
    metadata = PolicyMetadata(cameras={}, goal_cameras={}, image_size=(8, 8), discount=0.9, embodiments=(embodiment,))
    spec = TaskSpec(name="t", instruction="x", state_dim=39, max_steps=1, has_success=False, **numbers)
    states = np.random.default_rng(0).normal(size=(40, 39)).astype(np.float32)
    asked = [Query(task=spec, observation={"observation.state": s}, seed=i, step=0) for i, s in enumerate(states)]
    policy, threads = Policy(model, metadata, values=True), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = [reply.value for reply in policy.act(asked)]
        assert [policy.act([query])[0].value for query in asked] == together
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_sampled_actions_depend_on_seed_and_step_alone(run: Trainer) -> None:
    policy, (query, *_) = load(run.directory.path), queries(run)
    same = dataclasses.replace(query, task=task(run, name="lab/another"))
    np.testing.assert_array_equal(policy.act([query])[0].action, policy.act([same])[0].action)
    drawn = {
        tuple(policy.act([dataclasses.replace(query, seed=seed, step=step)])[0].action)
        for seed in (0, 1, 2**63 - 1)
        for step in range(8)
    }
    assert len(drawn) > 12
    policy = load(run.directory.path, sampling="mode")
    fixed = {tuple(policy.act([dataclasses.replace(query, seed=s)])[0].action) for s in range(5)}
    assert len(fixed) == 1


def test_sampled_actions_follow_the_policy(run: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies over many seeds against the model's probabilities, in raw actions of asymmetric bounds."""
    policy, query = load(run.directory.path), queries(run, 1)[0]
    seen = watch_logits(policy, monkeypatch)
    drawn = np.array([r.action[0] for r in policy.act([dataclasses.replace(query, seed=i) for i in range(1600)])])
    probabilities = seen[0][0, 0].softmax(-1).numpy()
    low, high = -2.0, 0.5
    edges = np.linspace(low, high, len(probabilities) + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    assert set(np.round(drawn, 4)) <= set(np.round(centres.astype(np.float32), 4))
    counts = np.histogram(drawn, edges)[0] / len(drawn)
    assert np.abs(counts - probabilities).max() < 0.05
    mode = load(run.directory.path, sampling="mode").act([query])[0].action[0]
    assert mode == pytest.approx(centres[probabilities.argmax()], abs=1e-5)
    mean = load(run.directory.path, sampling="mean").act([query])[0].action[0]
    assert mean == pytest.approx(probabilities @ centres, abs=1e-5)
    median = load(run.directory.path, sampling="median").act([query])[0].action[0]
    assert median == pytest.approx(np.interp(0.5, np.cumsum([0, *probabilities]), edges), abs=1e-5)


def test_interquartile_samples_lie_between_the_quartiles(run: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are otherwise as frequent as the policy has them; the critic chooses among such draws, too."""
    query = queries(run, 1)[0]
    many = [dataclasses.replace(query, seed=i) for i in range(1600)]
    policy = load(run.directory.path, sampling="interquartile")
    seen = watch_logits(policy, monkeypatch)
    drawn = np.array([r.action[0] for r in policy.act(many)])
    probabilities = seen[0][0, 0].softmax(-1).numpy()
    edges = np.linspace(-2.0, 0.5, len(probabilities) + 1)
    above = np.cumsum(probabilities)
    middle = (np.clip(above, 0.25, 0.75) - np.clip(above - probabilities, 0.25, 0.75)) / 0.5
    assert np.abs(np.histogram(drawn, edges)[0] / len(drawn) - middle).max() < 0.05
    lowest, highest = np.flatnonzero(middle)[[0, -1]]
    best = load(run.directory.path, sampling="interquartile", best_of=4).act(many[:64])
    for action in [*drawn, *(r.action[0] for r in best)]:
        assert edges[lowest] <= action <= edges[highest + 1]


def test_actions_are_clipped_to_the_bounds_of_the_task(run: Trainer) -> None:
    for reply in load(run.directory.path).act(queries(run, 1, action_low=(-0.5,), action_high=(0.1,))):
        assert -0.5 <= reply.action[0] <= 0.1


def test_best_of_returns_the_action_of_highest_value(run: Trainer) -> None:
    """The critic's favourite among draws, and its value in units of raw rewards."""
    asked = queries(run, 1, count=16)
    one, many = (load(run.directory.path, best_of=n, values=True).act(asked) for n in (1, 16))
    assert np.mean([r.value for r in many]) > np.mean([r.value for r in one])
    scale = run.metadata.embodiments[1].value_scale
    assert scale == pytest.approx(run.sampler.value_scales["leg"]) == pytest.approx(0.25)
    raw = Policy(run.state.model, unscaled(run.metadata), values=True).act(asked)
    assert [r.value for r in one] == pytest.approx([x.value / scale for x in raw if x.value is not None], rel=1e-5)
    assert load(run.directory.path).act(asked)[0].value is None


def unscaled(metadata: PolicyMetadata) -> PolicyMetadata:
    embodiments = tuple(dataclasses.replace(embodiment, value_scale=1.0) for embodiment in metadata.embodiments)
    return dataclasses.replace(metadata, embodiments=embodiments)


def test_queries_that_do_not_fit_are_refused(run: Trainer) -> None:
    policy, (query, *_) = load(run.directory.path), queries(run)
    with pytest.raises(ValueError, match=r"arm \(3, 2\), leg \(5, 1\)\), found \(4, 2\)"):
        policy.act([dataclasses.replace(query, task=task(run, state_dim=4))])
    blind = {k: v for k, v in query.observation.items() if not k.endswith("camera1")}
    with pytest.raises(ValueError, match=r"camera1: expected images of camera0 camera1, found none.*--cameras camera0"):
        policy.act([dataclasses.replace(query, observation=blind)])
    short = query.observation | {"observation.state": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match=r"observation.state: expected 3 numbers, shape \(3,\), found shape \(2,\)"):
        policy.act([dataclasses.replace(query, observation=short)])
    with pytest.raises(Exception, match="sampling"):  # here beartype says it
        load(run.directory.path, sampling="best")
    with pytest.raises(ValueError, match="best_of"):
        load(run.directory.path, best_of=0)


def test_the_embodiment_of_a_task(run: Trainer) -> None:
    """Its instruction decides among embodiments of one size. Another is refused, or the only one takes its place."""
    arm, leg = run.metadata.embodiments
    other = dataclasses.replace(arm, name="arm2", instructions=("push",), action_high=(2.0, 5.0))
    two = dataclasses.replace(run.metadata, embodiments=(arm, other, leg))
    assert two.embodiment(task(run, instruction="push")).name == "arm2"
    assert two.embodiment(task(run, instruction="lift the red cube")).name == "arm"
    with pytest.raises(ValueError, match=r"which has 2: 'push', 'lift the red cube', found 'sing'.*--any-instruction"):
        two.embodiment(task(run, instruction="sing"))
    assert two.match(task(run, instruction="pusher"), any_instruction=True)[:2] == (other, "pusher")
    alike = dataclasses.replace(
        run.metadata, embodiments=(arm, dataclasses.replace(arm, name="b", instructions=("push",)))
    )
    assert alike.embodiment(task(run, instruction="sing"), any_instruction=True).name == "arm"
    assert run.metadata.match(task(run, instruction="sing"))[:2] == (arm, "lift the red cube")


def test_the_discount_of_a_task_comes_from_its_dataset(tmp_path: Path) -> None:
    """From the mixture to a checkpoint's file and back; those of older checkpoints have one for all."""
    for name, size in (("arm", 3), ("leg", 5), ("tail", 2)):
        write_dataset(tmp_path / "data" / name, dims=size)
    paths = {name: str(tmp_path / "data" / name) for name in ("arm", "leg", "tail")}
    groups = [
        {"name": "quick", "weight": 1, "discount": 0.8, "datasets": [{"name": "arm", "path": paths["arm"]}]},
        {"name": "slow", "weight": 1, "datasets": [{"name": n, "path": paths[n]} for n in ("leg", "tail")]},
    ]
    groups[1]["datasets"][0]["discount"] = 0.0  # type: ignore[index]
    settings = config(tmp_path / "data", mixture={"groups": groups}, objective={"discount": 0.97}, length="2 steps")
    run = start(settings, tmp_path / "run")
    run.train()
    content = load_config(tmp_path / "run")
    found = PolicyMetadata.from_json(content, "here")
    assert found == run.metadata
    assert [found.discount_at(task(run, i)) for i in range(3)] == [0.8, 0.0, 0.97]
    older = content | {"embodiments": [{k: v for k, v in r.items() if k != "discount"} for r in content["embodiments"]]}
    assert [PolicyMetadata.from_json(older, "here").discount_at(task(run, i)) for i in range(3)] == [0.97] * 3


def test_a_policy_trained_without_instructions_sees_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "data" / "arm")
    settings = config(tmp_path / "data", mixture={"defaults": {"keep_text": 0.0}}, length="2 steps")
    run = start(settings, tmp_path / "run")
    run.train()
    policy, (query, *_) = load(tmp_path / "run"), queries(run)
    seen = watch_logits(policy, monkeypatch)
    for text in ("go there", "go away, quickly"):
        policy.act([dataclasses.replace(query, task=task(run, instruction=text))])
    assert torch.equal(seen[0], seen[1])


def test_weights_are_reloaded_in_place(run: Trainer, tmp_path: Path) -> None:
    """As if that had been loaded: weights, statistics and name; the memory of the weights stays."""
    first = run.policy(name="first")
    pretrained = run.directory.path / "checkpoints" / "last" / "pretrained_model"
    other = load(pretrained, device="cpu")
    for parameter in other.model.parameters():
        parameter.data.mul_(1.1)
    embodiments = tuple(
        dataclasses.replace(r, proprio_scale=tuple(2 * x for x in r.proprio_scale)) for r in other.metadata.embodiments
    )
    changed = dataclasses.replace(other.metadata, embodiments=embodiments)
    other.model.save_pretrained(tmp_path / "other", **changed.as_json())
    acting = load(pretrained, device="cpu")
    asked = queries(run, 1)
    before, place = acting.act(asked), next(acting.model.parameters()).data_ptr()
    assert [tuple(r.action) for r in before] == [tuple(r.action) for r in first.act(asked)]
    assert acting.reload_weights(tmp_path / "other", "other")
    assert (acting.name, next(acting.model.parameters()).data_ptr()) == ("other", place)
    found = [tuple(reply.action) for reply in acting.act(asked)]
    assert found == [tuple(reply.action) for reply in load(tmp_path / "other", device="cpu").act(asked)]
    assert found != [tuple(reply.action) for reply in before]
    wide = PAC(model_config("nano", num_latents=3))
    wide.save_pretrained(tmp_path / "wide", **changed.as_json())
    assert not acting.reload_weights(tmp_path / "wide", "wide")
    assert acting.name == "other"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replayed_graphs_give_the_same_answers(run: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replayed equals what is computed step by step, for more rows and embodiments than one capture."""
    pretrained = run.directory.path / "checkpoints" / "last" / "pretrained_model"
    captured, plain = (load(pretrained, device="cuda", values=True) for _ in range(2))

    def step_by_step(rows: list[Query], match: Match, noise: torch.Tensor) -> torch.Tensor:
        return plain._choose(plain.model.encode(plain._observe(rows, match)), noise.to(plain.device))

    monkeypatch.setattr(plain, "_replay", step_by_step)
    for _ in range(2):
        asked = queries(run, 1)
        for one, other in zip(captured.act(asked), plain.act(asked), strict=True):
            np.testing.assert_allclose(one.action, other.action, atol=1e-5)
            assert one.value == pytest.approx(other.value, rel=1e-4)
    assert len(captured._captured) == 1
    assert not plain._captured
    assert captured.reload_weights(pretrained, "again")
    assert len(captured._captured) == 1
