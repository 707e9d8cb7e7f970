"""Goals by text and by images: in fine-tuning, in the model and in evaluation."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from torch import Tensor

from pac.cli import main
from pac.data.mixture import load_mixture
from pac.data.relabel import MOST_GOALS, find_goal_images
from pac.data.sampler import Sampler
from pac.data.store import Dataset
from pac.model import PAC
from pac.model.config import SIZES
from pac.objectives import loss
from pac.policy import Policy, load, read_goals
from pac.recipe import load_recipe
from pac.resources import RECIPES
from pac.training.run_dir import read_metrics
from pac.types import Observation, Query, TaskSpec

TASK = TaskSpec(
    name="some/task",
    instruction="go there",
    state_dim=3,
    action_low=(-1.0, -2.0),
    action_high=(1.0, 3.0),
    max_steps=9,
    has_success=True,
)


def test_the_papers_fine_tuning() -> None:
    """The printed numbers. The data is that of the scaling mixture with other weights."""
    config = load_recipe("paper/goals")
    assert (config.length, config.method, config.start) == ("200k steps", "pac", "runs/medium")
    assert config.schedules.learning_rate == ((0.0, 3e-6),)
    assert SIZES[config.size] == SIZES["M"]
    assert {(d.keep_goal, d.keep_text, d.imitation_weight) for d in config.mixture.datasets} == {(0.99, 0.9, 0.75)}
    assert [group.weight for group in config.mixture.groups] == [6, 2, 2, 6, 6, 2]
    scaling = load_mixture(RECIPES / "paper" / "scaling.toml")
    same = {"keep_goal": 1.0, "keep_text": 1.0}
    assert tuple(dataclasses.replace(d, **same) for d in config.mixture.datasets) == scaling.datasets  # type: ignore[arg-type]
    seen = [d.name for d in config.mixture.datasets if d.counts is not None and d.counts.images == 8]
    shares = config.mixture.probabilities
    assert sum(shares[name] for name in seen) == Fraction(1, 2)  # of the samples have goal images: Tower and Pyramid
    assert load_recipe("paper/goals", ['start="elsewhere"']).start == "elsewhere"


def shown(sampler: Sampler, steps: int) -> tuple[float, float]:
    """Return the shares of windows that show their goal and their text."""
    goals, texts = list[Tensor](), list[Tensor]()
    for step in range(steps):
        observation = sampler.batch(step).observation
        for mask, found in ((observation.goal_mask, goals), (observation.text_mask, texts)):
            language_conditioned = mask.any(-1) if mask.shape[-1] else torch.zeros(mask.shape[:-1], dtype=torch.bool)
            assert (language_conditioned == language_conditioned[:, :1]).all()  # one draw a window
            found.append(language_conditioned[:, 0])
    goal, text = torch.cat(goals).float(), torch.cat(texts).float()
    if 0 < goal.mean() < 1 and 0 < text.mean() < 1:  # two draws, not one
        assert abs(float(torch.corrcoef(torch.stack([goal, text]))[0, 1])) < 0.1
    return float(goal.mean()), float(text.mean())


@pytest.mark.parametrize(("goal", "text"), [(0.99, 0.9), (0.5, 0.3), (0.0, 1.0), (1.0, 0.0)])
def test_goals_and_text_are_shown_with_their_probabilities(tmp_path: Path, goal: float, text: float) -> None:
    data = runs.write_dataset(tmp_path / "a", cameras=1)
    table = {"name": "a", "path": str(data), "goals": "success", "keep_goal": goal, "keep_text": text}
    groups = [{"name": "all", "weight": 1, "datasets": [table]}]
    config = runs.config(tmp_path, mixture={"batch_size": 64, "groups": groups})
    found = shown(Sampler(config.mixture, seed=0), 40)  # 2,560 draws: a standard error of at most 0.01
    assert found == pytest.approx((goal, text), abs=0.04)
    for share, asked in zip(found, (goal, text), strict=True):
        assert asked not in (0.0, 1.0) or share == asked


@pytest.mark.parametrize("name", ["goal", "text"])
def test_masked_goals_change_no_loss_and_shown_ones_do(tmp_path: Path, name: str) -> None:
    """Half the windows of a batch mask it. Other values there leave their losses alone and change the others."""
    data = runs.write_dataset(tmp_path / "a", cameras=1)
    table = {"name": "a", "path": str(data), "goals": "success", f"keep_{name}": 0.5}
    mixture = {"batch_size": 8, "groups": [{"name": "all", "weight": 1, "datasets": [table]}]}
    # A given temperature: one that follows the batch would carry a change from one window to all.
    settings = runs.config(tmp_path, mixture=mixture, objective={"temperature": 0.1})
    run = runs.start(settings, tmp_path / "run")
    batch = run.sampler.batch(0)
    seen = batch.observation
    mask = (seen.goal_mask if name == "goal" else seen.text_mask).any(-1)[:, 0]
    assert mask.any()
    assert not mask.all()

    def losses(observation: Observation) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        changed = dataclasses.replace(batch, observation=observation)
        found, _ = loss(run.state.model, run.state.target, changed, run.objective, generator)
        return found.detach().reshape(len(mask), -1)

    if name == "goal":
        other = dataclasses.replace(seen, goal_images=255 - seen.goal_images)
    else:
        other = dataclasses.replace(seen, text=(seen.text + 7) % run.model_config.vocabulary_size)
    before, after = losses(seen), losses(other)
    torch.testing.assert_close(after[~mask], before[~mask])
    assert ((after - before)[mask & (before != 0).any(1)].abs().amax(1) > 1e-6).all()


def test_goals_for_evaluation(tmp_path: Path) -> None:
    """Goals are last frames of successes by instruction, as in training, or stored goals."""
    data = Dataset(runs.write_dataset(tmp_path / "a", cameras=2, episodes=2 * MOST_GOALS + 4))
    (images,) = find_goal_images(data, stored=False).values()
    assert images["camera1"].shape == (MOST_GOALS, 12, 10, 3)
    np.testing.assert_array_equal(images["camera1"][1], data.episode(3).observation["observation.images.camera1"][-1])
    assert list(find_goal_images(data, stored=False, instruction="other")) == ["other"]
    stored = Dataset(runs.write_dataset(tmp_path / "b", cameras=1, goals=True))
    found = read_goals([stored.path])["go there"]["camera0"]
    np.testing.assert_array_equal(found[2], stored.episode(2).goal_images["camera0"])
    blind = runs.write_dataset(tmp_path / "c")
    with pytest.raises(ValueError, match="expected goal images, or images of successes, found neither"):
        read_goals([blind])


def test_a_policy_is_shown_goals_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model gets the same goal image in its slot, one per episode, and none if it was trained without."""
    data = runs.write_dataset(tmp_path / "data" / "a", cameras=2)
    goals = {"goals": "success", "cameras": [], "goal_cameras": ["camera1"], "keep_text": 0}
    run = runs.start(runs.config(tmp_path / "data", mixture={"defaults": goals}), tmp_path / "run")
    run.train()
    assert run.sampler.batch(0).observation.images.shape[2] == 0
    assert run.sampler.batch(0).observation.goal_images.shape[2] == 1
    seen: list[Observation] = []
    encode = PAC.encode
    monkeypatch.setattr(
        PAC, "encode", lambda self, observation: (seen.append(observation), encode(self, observation))[1]
    )
    asked = [
        Query(task=TASK, observation={"observation.state": np.zeros(3, np.float32)}, seed=s, step=0) for s in (5, 9)
    ]

    def shown_by(policy: Policy) -> Observation:
        seen.clear()
        policy.act(asked)
        return seen[0]

    images = read_goals([data])["go there"]["camera1"]
    for policy in (run.policy(), load(tmp_path / "run", goals=read_goals([data]))):
        observation = shown_by(policy)
        for row, query in enumerate(asked):
            expected = torch.from_numpy(images[query.seed % len(images)])
            assert torch.equal(observation.goal_images[row, 0], expected)
        assert observation.goal_slots[0].tolist() == [run.metadata.goal_cameras["camera1"]]
        assert not observation.text_mask.any()
    assert not torch.equal(observation.goal_images[0], observation.goal_images[1])
    assert shown_by(load(tmp_path / "run", goals={})).goal_images.shape[1] == 0
    with pytest.raises(ValueError, match="was trained without instructions"):
        load(tmp_path / "run").act(asked)
    with pytest.raises(ValueError, match="by the cameras camera1, found none"):
        load(tmp_path / "run", goals={"another task": {}}).act(asked)

    tuned = runs.config(tmp_path / "data", mixture={"defaults": goals | {"keep_goal": 0, "keep_text": 1}}, model={})
    control_group = runs.start(dataclasses.replace(tuned, model={}, start=str(tmp_path / "run")), tmp_path / "words")
    assert shown_by(control_group.policy()).goal_images.shape[1] == 0
    assert seen[0].text_mask.all()
    assert not shown_by(control_group.policy(text=False)).text_mask.any()


SHORT = ["collect.episodes=3", "checkpoint.every=6 steps", "machine.log_every=1", "evaluation.episodes=1"]
SHORT += ["evaluation.max_steps=20", "mixture.batch_size=8"]


@pytest.mark.slow
@pytest.mark.usefixtures("gl")
def test_fine_tuning_to_either_modality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shortened recipes: pre-train, fine-tune to goal images and to text, and evaluate as in the paper's tables."""
    first = tmp_path / "goals"
    assert main(["train", "goals/pretrain", "--out", str(first), *SHORT, "length=6 steps"]) == 0
    data = sorted((first / "collected").iterdir())
    assert len(data) == 2
    for hidden, kept in (("keep_text", "keep_goal"), ("keep_goal", "keep_text")):
        out = tmp_path / hidden
        command = ["train", "goals/tune", "--start", str(first), "--out", str(out), *SHORT, "length=6 steps"]
        assert main([*command, f"mixture.defaults.{hidden}=0"]) == 0
        rates = [row["optim/learning_rate"] for row in read_metrics(out) if "optim/learning_rate" in row]
        assert rates == [1e-3] * 6
        for file in ("config.json", "summary.json", "checkpoints/last/pretrained_model/train_config.json"):
            assert json.loads((out / file).read_text())["start"] == str(first)
        resolved: dict[str, Any] = json.loads((out / "config.json").read_text())["config"]["mixture"]["groups"][0]
        assert {(d[hidden], d[kept]) for d in resolved["datasets"]} == {(0.0, 1.0)}
    capsys.readouterr()
    command = ["evaluate", f"image={tmp_path / 'keep_text'}", "--tasks", "metaworld/faucet-open", "--episodes", "1"]
    command += ["--max-steps", "20", "--workers", "0"]
    file = tmp_path / "table.json"
    assert main([*command, "--goals", *map(str, data), "--show", "goal", "none", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert {record["actor"] for record in document["episodes"]} == {"image (goal)", "image (none)"}
    assert list(document["settings"]["actors"]["image (goal)"]["goals"]) == [str(path) for path in data]
    assert "--show goal none" in document["command"]
    assert main(command) == 2
    assert "Evaluate with --goals DATASET" in capsys.readouterr().err
    assert main([*command, "--show", "goal"]) == 2
    assert "expected --goals with a dataset" in capsys.readouterr().err
    command[1] = f"both={first}"
    assert main(command) == 0
    assert "both saw goal images in training and sees none here" in capsys.readouterr().out
