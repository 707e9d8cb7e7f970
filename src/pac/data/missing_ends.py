"""Jumps of the state inside episodes. They are a sign that the end of an episode was not marked.

A step that glues two episodes differs from motion in three ways. It is far above usual steps, it stands alone between
small ones, and it moves several dimensions. A fast motion takes several steps, and hitting a wall stops one dimension.
"""

from collections.abc import Sequence

import numpy as np

from pac.data.array_checks import Rows

USUAL, TIMES = 0.9, 3.0  # a jump is over three times the step that nine in ten steps do not exceed
ALONE = 2.0  # and over twice the step before it and the one after it
MOST_VALUES, BLOCKS = 1 << 21, 64  # of a sample; smaller data is read whole


def note_jumps(state: Sequence[Rows], ends: np.ndarray) -> list[str]:
    """Return a note if the state jumps inside episodes. `ends` are the rows after the last one of each episode.

    Large data is sampled in blocks of rows, read forward.
    """
    num_rows = int(ends[-1])
    dims = sum(int(np.prod(rows.shape[1:])) for rows in state)
    if not dims:
        return []
    most = max(4 * BLOCKS, MOST_VALUES // dims)
    starts, size = np.array([0]), num_rows
    if num_rows > most:
        size = most // BLOCKS
        starts = np.linspace(0, num_rows - size, BLOCKS).astype(int)
    parts = [np.concatenate([_numbers(rows[a : a + size]) for rows in state], axis=1) for a in starts]
    found = find_jumps(parts, starts, ends)
    if not len(found):
        return []
    seen = f"In a sample of {size * len(starts):,} rows, " if num_rows > most else ""
    return [
        f"{seen}{len(found)} steps jump far more than others (first at row {found[0]}): is an end of an episode "
        "missing? Give timeouts."
    ]


def find_jumps(parts: Sequence[np.ndarray], starts: Sequence[int] | np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the rows inside episodes after which the state jumps. `starts` has the first row of each part."""
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are refused elsewhere
        steps = [np.abs(np.diff(part, axis=0)) for part in parts]
        scale = np.concatenate(steps).std(0)
        moving = np.isfinite(scale) & (scale > 0)
        steps = [step[:, moving] / scale[moving] for step in steps]
    lengths = [np.sqrt((step**2).mean(1)) if moving.any() else np.zeros(len(step)) for step in steps]
    usual = np.quantile(np.concatenate(lengths), USUAL) if sum(map(len, lengths)) else 0.0
    needed = max(1, round(int(moving.sum()) / 5), min(2, int(moving.sum())))  # dimensions that jump together
    found = []
    for step, length, start in zip(steps, lengths, starts, strict=True):
        inside = length[1:-1]
        around = np.maximum(length[:-2], length[2:])
        far = np.flatnonzero((inside > TIMES * usual) & (inside > ALONE * around)) + 1
        several = (step[far] > ALONE * np.maximum(step[far - 1], step[far + 1])).sum(1) >= needed
        found.append(far[several] + start)
    rows = np.concatenate(found)
    return rows[~np.isin(rows + 1, ends)]


def _numbers(rows: np.ndarray) -> np.ndarray:
    """Return rows as float32 (rows, dimensions)."""
    with np.errstate(over="ignore"):
        return np.asarray(rows).reshape(len(rows), -1).astype(np.float32)
