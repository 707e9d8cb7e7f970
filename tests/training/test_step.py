"""Which shapes of batches are compiled. test_trainer.py has the other tests of updates, as parts of a run."""

from pathlib import Path
from typing import Any

from runs import config, start, write_dataset

from pac.objectives import loss
from pac.training.step import MOST_COMPILED


def test_shapes_past_the_compilers_limit_run_eagerly(tmp_path: Path) -> None:
    """Hours into a run a mixture may have drawn more shapes than the compiler takes."""
    write_dataset(tmp_path / "data" / "one")
    most = MOST_COMPILED + 4
    run = start(config(tmp_path / "data", mixture={"batch_size": most}), tmp_path / "run")
    seen: list[int] = []

    def compiled(*args: Any) -> Any:
        seen.append(len(args[2].mask))
        return loss(*args)

    run.update.loss = compiled
    batch = next(run.batches())
    for rows in (*range(1, most + 1), 2, most):
        run.update(batch[:rows], run.schedule_values(run.state.step))
    assert seen == [*range(1, MOST_COMPILED + 1), 2], "the first shapes are compiled, and stay so"
    assert (int(run.update.refused), run.state.step) == (0, most + 2)
