"""Every test runs with jaxtyping's shapes checked by beartype; production pays nothing for them."""

import contextlib
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers on two cores

from jaxtyping import install_import_hook

MODEL = Path(__file__).parents[1] / "src" / "pac" / "model"
# Settings check their own types, in words meant for people: they are not hooked.
CHECKED = [
    "bins",
    "types",
    "objectives",
    "data",
    "training",
    "policy",
    "observations",
    "embodiments",
    "behaviours",
    "evaluation",
    "collection",
]
CHECKED += ["demo", "formats", "improve.acting", "improve.data", "improve.gate", "improve.loop", "improve.folder"]
CHECKED += ["report", "rollout", "scaling"]
CHECKED += [f"model.{path.stem}" for path in MODEL.glob("*.py") if path.stem not in ("__init__", "config")]
CHECKED += ["model.kernels"]
if importlib.util.find_spec("beartype"):  # always in `make test`; a bare GPU machine may lack it
    install_import_hook([f"pac.{module}" for module in CHECKED], "beartype.beartype")

# A warning that Triton's extension gives while it loads must not become an error there: that crashes Python 3.12.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

import pytest
import torch
from hypothesis import settings

settings.register_profile("pac", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("pac")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def gl() -> str:
    """For tests that draw: skipped, with the cause, where no GL works."""
    from pac.envs import rendering

    try:
        return rendering.find_gl()
    except ValueError as error:
        pytest.skip(str(error))
