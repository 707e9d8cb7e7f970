"""The training loop: refused updates, schedules, target copies, fine-tuning."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import assert_same, config, dump, recipe, start, tensors, write_dataset
from torch import Tensor

from pac.cli import main
from pac.data.sampler import Sampler
from pac.data.windows import locate
from pac.model import PAC
from pac.recipe import parse_recipe
from pac.training import step as update
from pac.training.nonfinite import NonFiniteError
from pac.training.run_dir import read_metrics
from pac.training.trainer import Trainer
from pac.types import Batch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data" / "arm")
    return tmp_path / "data"


# ------------------------------------------------------------------------------------------------------------ refused


def put_bad_number(monkeypatch: pytest.MonkeyPatch, name: str, value: float, step: int, row: int = 2) -> None:
    """Put a number into one window of one step."""
    make_batch = Sampler.batch

    def with_bad_number(self: Sampler, at: int) -> Batch:
        batch = make_batch(self, at)
        if at == step:
            batch.mask[row, 0] = True
            values = batch.observation.proprio if name == "proprio" else getattr(batch, name)
            values[row, 0] = value
        return batch

    monkeypatch.setattr(Sampler, "batch", with_bad_number)


@pytest.mark.parametrize("name", ["reward", "action", "proprio"])
def test_a_loss_that_is_not_finite_stops_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put_bad_number(monkeypatch, name, float("nan"), step=5)
    run = start(config(data), tmp_path / "run")
    with pytest.raises(NonFiniteError) as caught:
        run.train()
    draws = run.sampler.draw(5)
    episode = locate([(run.sampler.sources[0], slice(None))], draws.window[2:3]).episode[0]
    assert "Step 5: expected a finite loss and gradient" in str(caught.value)
    assert f"arm: episode {episode}, window {draws.window[2]}" in str(caught.value)
    assert "1 of 4 windows" in str(caught.value)
    assert run.state.step == 6
    assert int(run.state.optimizer.state[run.update.parameters[0]]["step"]) == 5
    assert all(torch.isfinite(x).all() for x in tensors(run).values())
    again = start(config(data), tmp_path / "run", resume=True)
    assert again.state.step == 6
    assert_same(tensors(again), tensors(run))
    again.train()  # the next batches are sound, and what was refused before does not stop it again
    assert again.state.step == 12
    assert read_metrics(tmp_path / "run")[-1]["optim/refused"] == 1


def test_a_refused_update_changes_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_bad_number(monkeypatch, "reward", float("inf"), step=2)
    run = start(config(data, machine={"on_nonfinite": "skip"}), tmp_path / "run")
    batches = run.batches()
    for _ in range(2):
        run.update(next(batches), run.schedule_values(run.state.step))
    before = tensors(run)
    run.update(next(batches), run.schedule_values(2))
    assert_same(tensors(run), before)
    assert (int(run.update.refused), int(run.update.first_refused), run.state.step) == (1, 2, 3)


def test_skipped_updates_are_counted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_bad_number(monkeypatch, "proprio", float("nan"), step=4)
    file = dump(recipe(data), tmp_path / "recipe.toml")
    command = ["train", str(file), "--out", str(tmp_path / "run")]
    assert main(command) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("pac train: Step 4: expected a finite loss")
    assert "machine.on_nonfinite=skip" in shown
    assert main([*command, "--overwrite", "machine.on_nonfinite=skip"]) == 0
    rows = read_metrics(tmp_path / "run")
    assert [row["optim/refused"] for row in rows] == [0, 1, 1, 1]
    assert all(value is not None for row in rows for value in row.values()), "a refused update is not in the means"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["refused"] == 1


# ---------------------------------------------------------------------------------------------------------- schedules


def watch_loss(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list that gets the arguments and results of the loss at each update."""
    seen: list[dict[str, Any]] = []
    loss = update.loss

    def watched(*args: Any) -> Any:
        batch, given = args[2], args[5]
        values, metrics = loss(*args)
        seen.append(
            {
                "imitation_weight": sorted(set(batch.imitation_weight.tolist())),
                "critic_weight": sorted(set(batch.critic_weight.tolist())),
                "temperature": None if given.temperature is None else float(given.temperature),
                "total": float(metrics["loss/total"]),
                "parts": {name: float(metrics[f"loss/{name}"]) for name in ("imitation", "improvement", "critic")},
            }
        )
        return values, metrics

    monkeypatch.setattr(update, "loss", watched)
    return seen


def test_schedules_reach_the_loss(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alpha is 1 until step 4, then falls to 0 at step 8."""
    seen = watch_loss(monkeypatch)
    schedules = {
        "imitation_weight": [[0, 1], [4, 1], [8, 0]],
        "critic_weight": [[0, 2], [12, 5]],
        "temperature": [[0, 0.5], [12, 0.1]],
        "learning_rate": [[0, 1e-3], [6, 1e-3], [7, 0]],
    }
    run = start(config(data, schedules=schedules), tmp_path / "run")
    weights = []
    copy_target = run.update.copy_target
    run.target_period = 1
    run.update.copy_target = lambda: (weights.append(tensors(run)), copy_target())[1]  # type: ignore[method-assign]
    run.train()
    for step, row in enumerate(seen):
        alpha = min(1.0, max(0.0, 1 - (step - 4) / 4))
        beta, eta = 2 + 3 * step / 12, 0.5 - 0.4 * step / 12
        assert row["imitation_weight"] == pytest.approx([alpha])
        assert row["critic_weight"] == pytest.approx([beta])
        assert row["temperature"] == pytest.approx(eta)
        parts = row["parts"]
        total = alpha * parts["imitation"] + (1 - alpha) * parts["improvement"] + beta * parts["critic"]
        assert row["total"] == pytest.approx(total, rel=1e-5)
    for step in range(11):
        same = torch.equal(weights[step]["model.latents"], weights[step + 1]["model.latents"])
        assert same == (step >= 7), f"a learning rate of 0 from step 7 on, found otherwise at {step}"
    assert read_metrics(tmp_path / "run")[-1]["optim/learning_rate"] == 0


def test_without_schedules_the_datasets_decide_the_weights(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch_loss(monkeypatch)
    start(config(data, length="2 steps"), tmp_path / "run").train()
    row = {name: seen[0][name] for name in ("imitation_weight", "critic_weight", "temperature")}
    assert row == {"imitation_weight": [0.75], "critic_weight": [2.0], "temperature": None}


def test_the_target_is_copied_each_period(data: Path, tmp_path: Path) -> None:
    run = start(config(data, length="11 steps"), tmp_path / "run")
    batches, moved = run.batches(), []
    copies = []
    copy_target = run.update.copy_target
    run.update.copy_target = lambda: (copies.append(run.state.step), copy_target())[1]  # type: ignore[method-assign]
    target = run.state.target.latents.detach().clone()
    schedule_values = run.schedule_values

    def watch(step: int) -> Any:
        nonlocal target
        if not torch.equal(target, run.state.target.latents):
            moved.append(step)
            target = run.state.target.latents.detach().clone()
        return schedule_values(step)

    run.schedule_values = watch  # type: ignore[method-assign]
    run.train()
    batches.close()
    assert copies == [0, 5, 10]
    assert moved == [5, 10], "at step 0 they are equal already"


# ------------------------------------------------------------------------------------------------------------ machine


def trained(data: Path, out: Path, **changes: Any) -> dict[str, Tensor]:
    run = start(config(data, **changes), out)
    run.train()
    return tensors(run)


def gradients(data: Path, out: Path, accumulate: int, objective: dict[str, Any]) -> dict[str, Tensor]:
    """Return the gradients of the first update. Adam's first moment is a tenth of them."""
    found = trained(data, out, objective=objective, machine={"accumulate": accumulate}, length="1 step")
    return {name: 10 * x for name, x in found.items() if ".exp_avg." in name}


PARTS = {"logged_share": 0.5, "hidden_dims": 0.5}


@pytest.mark.parametrize("objective", [{"method": "bc"}, {"temperature": 0.1}, {"temperature": 0.1, **PARTS}])
def test_accumulation_gives_the_same_update(data: Path, tmp_path: Path, objective: dict[str, Any]) -> None:
    """Only a temperature that is chosen for each batch makes a difference."""
    whole, *parts = (gradients(data, tmp_path / str(n), n, objective) for n in (1, 2, 3))
    assert sum(float(x.abs().sum()) for x in whole.values()) > 1
    for name in whole:
        torch.testing.assert_close(parts[0][name], whole[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(parts[1][name], whole[name], rtol=1e-5, atol=1e-6)
    losses = [read_metrics(tmp_path / str(n))[-1]["loss/total"] for n in (1, 2, 3)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_recomputing_changes_nothing(data: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"length": "6 steps"}
    kept, again = (trained(data, tmp_path / str(on), **given, machine={"recompute": on}) for on in (False, True))
    assert_same(again, kept)


def test_data_threads_change_nothing(data: Path, tmp_path: Path) -> None:
    found = [trained(data, tmp_path / str(n), machine={"workers": n}) for n in (0, 3)]
    assert_same(found[1], found[0])


def test_lengths(data: Path, tmp_path: Path) -> None:
    run = Trainer(config(data, length="3 epochs"), tmp_path / "a")
    assert run.steps == 3 * run.plan.epoch_steps
    longer = Trainer(config(data, length=f"{7.4 * run.update_flops:.6e} flops"), tmp_path / "b")
    assert longer.steps == 7
    assert longer.describe()["update_flops"] == run.update_flops > 0


def test_proprio_noise_differs_between_steps(data: Path, tmp_path: Path) -> None:
    plain, noisy, again = (
        trained(data, tmp_path / name, length="3 steps", proprio_noise=noise)
        for name, noise in (("a", 0.0), ("b", 0.5), ("c", 0.5))
    )
    assert_same(again, noisy)
    assert not torch.equal(plain["model.latents"], noisy["model.latents"])


# ------------------------------------------------------------------------------------------------------- fine-tuning


def test_fine_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PAC from a checkpoint of BC, with other data, a constant rate and a new critic."""
    write_dataset(tmp_path / "old" / "arm", cameras=2, goals=True)
    write_dataset(tmp_path / "new" / "leg", cameras=1, dims=2, low=(-1.0,), high=(0.5,), goals=True, seed=1)
    first = dump(recipe(tmp_path / "old", objective={"method": "bc"}), tmp_path / "first.toml")
    assert main(["train", str(first), "--out", str(tmp_path / "first")]) == 0
    table = recipe(tmp_path / "new", optimiser={"decay": "constant", "peak_rate": 1e-9, "warmup": "1 step"})
    del table["model"]
    table["mixture"]["defaults"] = {"keep_goal": 0.5, "keep_text": 0.0, "imitation_weight": 0.25}
    second = dump(table, tmp_path / "second.toml")
    capsys.readouterr()
    command = ["train", str(second), "--start", str(tmp_path / "first")]
    assert main([*command, "--out", str(tmp_path / "second")]) == 0
    assert f"{tmp_path / 'first'} has no q head: it starts afresh." in capsys.readouterr().err
    settings = json.loads((tmp_path / "second" / "config.json").read_text())
    assert settings["start"] == settings["config"]["start"] == str(tmp_path / "first")
    assert json.loads((tmp_path / "second" / "summary.json").read_text())["start"] == str(tmp_path / "first")
    old, new = (PAC.from_pretrained(tmp_path / name) for name in ("first", "second"))
    assert new.config.q_head
    assert (new.config.num_proprio, new.config.num_cameras) == (3, 2)
    for name, weights in old.state_dict().items():
        torch.testing.assert_close(new.state_dict()[name], weights, rtol=0, atol=1e-6)  # so low a learning rate
    rates = {row["optim/learning_rate"] for row in read_metrics(tmp_path / "second")}
    assert rates == {1e-9}
    assert main([*command, "--out", str(tmp_path / "second"), "--resume", "length=13 steps"]) == 0


WRONG_STARTS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "more cameras": (lambda p: write_dataset(p, cameras=3), {}, "num_cameras of at least the data's 3, found 2"),
    "more numbers": (lambda p: write_dataset(p, dims=4), {}, "num_proprio of at least the data's 4, found 3"),
    "more actions": (lambda p: write_dataset(p, low=(-1.0,) * 3, high=(1.0,) * 3), {}, "num_actions"),
    "another model": (write_dataset, {"model": {"latent_width": 32}}, "model.latent_width"),
    "other images": (
        lambda p: write_dataset(p, cameras=1),
        {"mixture": {"image_size": [8, 8]}},
        "Set mixture.image_size=[12,10] to resize them",
    ),
    "negative rewards": (lambda p: write_dataset(p, reward=-1.0), {}, "found negative ones"),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    write_dataset(folder / "data" / "arm", cameras=2)
    start(config(folder / "data", length="1 step"), folder / "run").train()
    return folder / "run"


@pytest.mark.parametrize("case", WRONG_STARTS)
def test_checkpoints_that_do_not_fit(tmp_path: Path, pretrained: Path, case: str) -> None:
    write, changes, expected = WRONG_STARTS[case]
    write(tmp_path / "data" / "new")
    table = recipe(tmp_path / "data", start=str(pretrained))
    del table["model"]
    for name, value in changes.items():
        table[name] = table.get(name, {}) | value
    with pytest.raises(ValueError, match=expected.replace("[", r"\[")):
        Trainer(parse_recipe(table), tmp_path / "run")


def test_unknown_cameras_and_damaged_starts(tmp_path: Path, pretrained: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "start", symlinks=True)
    write_dataset(tmp_path / "data" / "new", cameras=1)
    file = tmp_path / "start" / "checkpoints" / "last" / "pretrained_model" / "config.json"
    content = json.loads(file.read_text()) | {"cameras": {"wrist": 0, "front": 1}}
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="Expected cameras that the model knows"):
        Trainer(config(tmp_path / "data", start=str(tmp_path / "start")), tmp_path / "run")
    (tmp_path / "start" / "checkpoints" / "last").unlink()
    with pytest.raises(ValueError, match="found none of them"):
        Trainer(config(tmp_path / "data", start=str(tmp_path / "start")), tmp_path / "run")


def test_reusing_an_ended_run_equals_a_fresh_one(data: Path, tmp_path: Path) -> None:
    """Also if the checkpoint lacks a head: nothing of the ended run is left."""
    start(config(data, objective={"method": "bc"}), tmp_path / "clone").train()
    settings = config(data, start=str(tmp_path / "clone"))
    first = start(settings, tmp_path / "first")
    first.train()
    again = Trainer(settings, tmp_path / "again", reuse=first)
    assert again.state is first.state
    assert_same(tensors(again), tensors(start(settings, tmp_path / "fresh")))
