"""TD-MPC2's multi-task data (mt30, mt80): `chunk_N.pt`, a TensorDict of [episodes, T + 1] rows.

Time alignment: row t of `action` and `reward` is the action that led *to* row t of `obs`, and its reward. Row 0 of both
is a placeholder (NaN). So `Episode.action[t]` is row t + 1 of `action`, and there are T + 1 observations.

Ends: every episode runs to its time limit. The format holds no terminals, so every end counts as a time limit.

Observations and actions are padded with zeros to the widest task. With --task only that task is read and its padding is
cut. Without --task the padding is kept.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pac.config import suggest
from pac.formats.checks import CHECK_PATH, check, require
from pac.formats.common import ForeignDataset, build_episode
from pac.formats.options import ImportOptions, choose_keys, key_of
from pac.formats.tensorfile import read_tensors
from pac.types import Episode

# Tasks by their index in `task`: mt30 is the first 30, mt80 all.
_TASKS = (
    "walker-stand walker-walk walker-run cheetah-run reacher-easy reacher-hard acrobot-swingup pendulum-swingup "
    "cartpole-balance cartpole-balance-sparse cartpole-swingup cartpole-swingup-sparse cup-catch finger-spin "
    "finger-turn-easy finger-turn-hard fish-swim hopper-stand hopper-hop walker-walk-backwards "
    "walker-run-backwards cheetah-run-backwards cheetah-run-front cheetah-run-back cheetah-jump "
    "hopper-hop-backwards reacher-three-easy reacher-three-hard cup-spin pendulum-spin mw-assembly mw-basketball "
    "mw-button-press-topdown mw-button-press-topdown-wall mw-button-press mw-button-press-wall mw-coffee-button "
    "mw-coffee-pull mw-coffee-push mw-dial-turn mw-disassemble mw-door-open mw-door-close "
    "mw-drawer-close mw-drawer-open mw-faucet-open mw-faucet-close mw-hammer mw-handle-press-side mw-handle-press "
    "mw-handle-pull-side mw-handle-pull mw-lever-pull mw-peg-insert-side mw-peg-unplug-side mw-pick-out-of-hole "
    "mw-pick-place mw-pick-place-wall mw-plate-slide mw-plate-slide-side mw-plate-slide-back "
    "mw-plate-slide-back-side mw-push-back mw-push mw-push-wall mw-reach mw-reach-wall mw-shelf-place mw-soccer "
    "mw-stick-push mw-stick-pull mw-sweep-into mw-sweep mw-window-open mw-window-close mw-bin-picking "
    "mw-box-close mw-door-lock mw-door-unlock mw-hand-insert"
)
TASKS = _TASKS.split()


def detect(path: Path) -> bool:
    return path.suffix == ".pt" or (path.is_dir() and any(path.glob("chunk_*.pt")))


def read_dataset(path: Path, options: ImportOptions) -> ForeignDataset:
    files = [path] if path.is_file() else sorted(path.glob("*.pt"), key=lambda file: (len(file.name), file.name))
    check(files, path, "chunk_0.pt, chunk_1.pt, ...", "none", CHECK_PATH)
    task = options.task
    known = task is None or task in TASKS
    check(known, "--task", "a task of mt80", repr(task), "" if known else suggest(str(task), TASKS).strip())
    names = {"obs": "obs", "action": key_of("action", "action", options), "reward": key_of("reward", "reward", options)}
    chunks = [_read_chunk(file, names | {"task": "task"}) for file in files]
    rows = [_rows_of(chunk["task"], task) for chunk in chunks]
    check(any(map(len, rows)), path, f"episodes of task {task!r}", "none", "Read another chunk.")
    keys = choose_keys(["obs"], [], options, path)
    notes = ["TD-MPC2's format has no terminals: every end counts as a time limit."]
    total = sum(map(len, rows))
    selected = set(options.ranges.choose(range(total), path, notes))
    if task is None:
        width = {name: max(chunk[name].shape[2] for chunk in chunks) for name in ("obs", "action")}
        notes.append("Observations and actions keep their zero padding; --task imports one task and cuts it.")
    else:
        width = {name: _used_width(chunks, rows, name) for name in ("obs", "action")}

    def episodes() -> Iterator[Episode]:
        position = -1
        for file, chunk, chosen in zip(files, chunks, rows, strict=True):
            for index in chosen.tolist():
                position += 1
                if position not in selected:
                    continue
                number = int(chunk["task"][index].flat[0])
                yield build_episode(
                    f"{file}, episode {index}",
                    source=str(file),
                    keys=keys,
                    raw={"obs": chunk["obs"][index, :, : width["obs"]]},
                    action=chunk["action"][index, 1:, : width["action"]],
                    reward=chunk["reward"][index, 1:],
                    terminated=False,
                    instruction=TASKS[number] if 0 <= number < len(TASKS) else f"task {number}",
                )

    return ForeignDataset(
        keys=keys,
        episodes=episodes(),
        num_episodes=len(selected),
        action_low=-np.ones(width["action"], np.float32),
        action_high=np.ones(width["action"], np.float32),
        notes=notes,
    )


def _read_chunk(file: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Read the four arrays of a file. Raise unless their shapes match."""
    tensors = read_tensors(file)
    chunk = {name: require(tensors, key, file) for name, key in names.items()}
    shapes = {name: array.shape for name, array in chunk.items()}
    good = len({shape[:2] for shape in shapes.values()}) == 1
    good = good and len(shapes["obs"]) == 3 and len(shapes["action"]) == 3 and len(shapes["reward"]) >= 2
    check(good, file, "obs and action (episode, time, width), and the others alike", shapes, "Check the file.")
    dtype = chunk["task"].dtype
    check(dtype.kind in "iu", f"{file}, key 'task'", "integers", dtype, "Check the file.")
    return chunk


def _rows_of(numbers: np.ndarray, task: str | None) -> np.ndarray:
    """Return the indices of the episodes to read, from the task numbers of all rows."""
    first = numbers.reshape(len(numbers), -1)[:, 0]
    return np.arange(len(first)) if task is None else np.flatnonzero(first == TASKS.index(task))


def _used_width(chunks: list[dict[str, np.ndarray]], rows: list[np.ndarray], name: str) -> int:
    """Return the width up to the last column that is not zero everywhere, at least 1."""
    widest = 1
    for chunk, chosen in zip(chunks, rows, strict=True):
        for index in chosen.tolist():
            used = np.flatnonzero(np.nan_to_num(chunk[name][index]).any(0))
            widest = max(widest, *(used + 1).tolist())
    return widest
