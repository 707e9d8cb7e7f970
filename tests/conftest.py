"""Every test runs with jaxtyping's shapes checked by beartype; production pays nothing for them."""

import importlib.util
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers on two cores

from jaxtyping import install_import_hook

# Settings check their own types, in words meant for people: they are not hooked.
CHECKED = ["bins", "intervals", "types", "model", "objectives", "scaling", "data", "demo", "behaviours", "evaluate"]
CHECKED += ["collect", "rollout", "policy", "optim", "update", "blame", "ingredients", "train", "run", "report", "look"]
CHECKED += ["improve.acting", "improve.data", "improve.gate", "improve.loop", "improve.record"]
if importlib.util.find_spec("beartype"):  # always in `make test`; a bare GPU machine may lack it
    install_import_hook([f"pac.{module}" for module in CHECKED], "beartype.beartype")

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
