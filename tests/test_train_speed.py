"""The benchmark of training: its checks pass and can fail, its parts run, and its arithmetic is right."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import train_speed
from train_speed import Bench, Case, cases, category, covered


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(
        device=torch.device("cpu"), folder=tmp_path, compile=False, quick=True, peak=1e11, json=tmp_path / "found.json"
    )


@pytest.fixture
def case() -> Case:
    return Case(name="small", size="nano", windows=4, datasets=("control/reacher.easy", "control/walker.walk"))


def test_the_checks_pass(bench: Bench, case: Case) -> None:
    train_speed.check_loss(bench, case)
    train_speed.check_resident(bench, case)
    train_speed.check_capture(bench, case)
    assert "errors" not in bench.found
    rows = bench.found["checks"]
    assert len(rows) == 5 + 2 * 3 + 4
    assert all(row["passed"] for row in rows), rows


def test_a_check_can_fail(bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    pad = train_speed.plain.pad
    monkeypatch.setattr(
        train_speed.plain, "pad", lambda batch, config: pad(dataclasses.replace(batch, action=-batch.action), config)
    )
    train_speed.check_loss(bench, case)
    rows = bench.found["checks"]
    assert not any(row["passed"] for row in rows if "gradient" in row["what"] or "float32" in row["what"])
    train_speed.check(bench, "no number", float("nan"), 1.0)
    assert not bench.found["checks"][-1]["passed"]


def test_an_error_costs_its_part_only(bench: Bench) -> None:
    bench.report("small", {"ms": 1.0})
    with bench.guarded("broken"):
        raise ValueError("no luck")
    assert bench.json is not None
    written = json.loads(bench.json.read_text())
    assert written["small"] == [{"ms": 1.0}]
    assert [(row["what"], row["error"]) for row in written["errors"]] == [("broken", "ValueError: no luck")]


@pytest.mark.slow
def test_the_parts_run(bench: Bench, case: Case) -> None:
    run = train_speed.measure(bench, "small", case)
    warm = train_speed.look_closer(bench, case, ["data", "profile"], run)
    assert warm is not None
    seen = train_speed.profiled(warm.call, bench.device, warm.ms)
    assert "errors" not in bench.found
    plain, ours = bench.found["small"]
    assert plain["kind"].startswith("plain")
    assert ours["times faster"] == plain["ms"] / ours["ms"]
    (data,) = bench.found["data"]
    assert 0 <= data["wait share"] < 1
    assert data["refused"] == ours["refused"] == 0
    assert seen["matmul ms"] > 0
    assert sum(value for key, value in seen.items() if key.split(" ms")[0] in (*train_speed.CATEGORIES, "other")) > 0


def test_a_case_that_no_longer_fits_is_named(bench: Bench) -> None:
    bench.quick, bench.budget = False, 10.0
    assert bench.fits("small", "first", 5)
    assert not bench.fits("small", "second", 20)
    assert [row["what"] for row in bench.found["left out"]] == ["second"]


def test_what_is_measured_again_goes() -> None:
    found = {
        "data": [{"case": "small", "ms": 1}, {"case": "large", "ms": 2}],
        "scaling": [{"size": "micro"}],
        "straight": [{"size": "micro"}],
        "left out": [{"section": "data", "what": "small"}, {"section": "small", "what": "compiled"}],
    }
    train_speed.drop(found, ["data", "scaling"], ["small"])
    assert found == {
        "data": [{"case": "large", "ms": 2}],
        "scaling": [],
        "left out": [{"section": "small", "what": "compiled"}],
    }


def test_useful_work_follows_what_a_batch_holds(bench: Bench, case: Case) -> None:
    run = train_speed.make_run(bench, case)
    assert train_speed.real_tokens(run) == pytest.approx(4 * 5 * (4 * (6 + 24) + _words(run)) / 2)
    assert 0 < train_speed.useful_flops(run) < run.update_flops  # which counts 50 words in every window


def _words(run: train_speed.Trainer) -> int:
    return sum(source.num_text for source in run.sampler.sources)


def test_the_control_mixture_is_the_papers() -> None:
    (control,) = cases(None, quick=False)["control"]
    assert len(control.datasets) == 32
    assert control.windows == 512


def test_kinds_of_kernels() -> None:
    names = {
        "triton_poi_fused__to_copy_add_3": "fused elementwise",
        "triton_per_fused_native_layer_norm_backward_7": "fused reductions",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT": "matmul",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>": "matmul",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>": "attention",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimiser",
        "Memcpy DtoD (Device -> Device)": "copies",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDA>": "elementwise and reductions",
        "something new": "other",
    }
    assert {name: category(name) for name in names} == names


def test_overlapping_kernels_count_once() -> None:
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
