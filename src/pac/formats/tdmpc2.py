"""TD-MPC2's multi-task data (mt30, mt80): `chunk_N.pt`, a TensorDict of [episodes, T + 1] rows.

Time alignment: row t of `action` and `reward` is the action that led *to* row t of `obs`, and its reward; row 0 of
both is a placeholder (NaN). So `Episode.action[t]` is row t + 1 of `action`, and there are T + 1 observations.

Ends: every episode runs to its time limit; the format holds no terminals, and every end counts as a time limit.

Observations and actions are padded with zeros to the widest task. With --task only that task is read and the
padding is cut; without, it is kept.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pac.config import suggest
from pac.files import problem
from pac.formats.common import ForeignDataset, ImportOptions, build_episode, choose_keys, key_of, require
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


def read(path: Path, options: ImportOptions) -> ForeignDataset:
    files = [path] if path.is_file() else sorted(path.glob("*.pt"), key=lambda file: (len(file.name), file.name))
    if not files:
        raise problem(path, expected="chunk_0.pt, chunk_1.pt, ...", found="none", fix="Check the path.")
    if options.task is not None and options.task not in TASKS:
        raise problem(
            "--task", expected="a task of mt80", found=repr(options.task), fix=suggest(options.task, TASKS).strip()
        )
    names = {"obs": "obs", "action": key_of("action", "action", options), "reward": key_of("reward", "reward", options)}
    names["task"] = "task"
    chunks = [_chunk(file, names) for file in files]
    rows = [_chosen(chunk, options) for chunk in chunks]
    if not any(len(chosen) for chosen in rows):
        raise problem(path, expected=f"episodes of task {options.task!r}", found="none", fix="Read another chunk.")
    keys = choose_keys(["obs"], [], options, path)
    notes = ["TD-MPC2's format has no terminals: every end counts as a time limit."]
    width = {name: max(chunk[name].shape[2] for chunk in chunks) for name in ("obs", "action")}
    if options.task is None:
        notes.append("Observations and actions keep their zero padding; --task imports one task and cuts it.")
    else:
        width = {name: _used(chunks, rows, name) for name in ("obs", "action")}

    def episodes() -> Iterator[Episode]:
        for file, chunk, chosen in zip(files, chunks, rows, strict=True):
            for index in chosen.tolist():
                task = int(chunk["task"][index].flat[0])
                name = TASKS[task] if 0 <= task < len(TASKS) else f"task {task}"
                yield build_episode(
                    f"{file}, episode {index}",
                    source=file,
                    keys=keys,
                    raw={"obs": chunk["obs"][index, :, : width["obs"]]},
                    action=chunk["action"][index, 1:, : width["action"]],
                    reward=chunk["reward"][index, 1:],
                    terminated=False,
                    truncated=True,
                    instruction=options.instruction if options.instruction is not None else name,
                )

    return ForeignDataset(
        format="tdmpc2",
        path=path,
        keys=keys,
        episodes=episodes(),
        num_episodes=sum(map(len, rows)),
        fps=options.fps,
        action_low=-np.ones(width["action"], np.float32),
        action_high=np.ones(width["action"], np.float32),
        notes=notes,
    )


def _chunk(file: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """The four arrays of a file, with matching shapes."""
    tensors = read_tensors(file)
    chunk = {name: require(tensors, key, file) for name, key in names.items()}
    lengths = {name: array.shape[:2] for name, array in chunk.items()}
    if (
        len(set(lengths.values())) > 1
        or chunk["obs"].ndim != 3
        or chunk["action"].ndim != 3
        or chunk["reward"].ndim < 2
    ):
        shapes = {name: array.shape for name, array in chunk.items()}
        raise problem(
            file,
            expected="obs and action (episode, time, width), and the rest alike",
            found=shapes,
            fix="Check the file.",
        )
    if chunk["task"].dtype.kind not in "iu":
        raise problem(f"{file}, key 'task'", expected="integers", found=chunk["task"].dtype, fix="Check the file.")
    return chunk


def _chosen(chunk: dict[str, np.ndarray], options: ImportOptions) -> np.ndarray:
    """Indices of the episodes to read."""
    task = chunk["task"].reshape(len(chunk["task"]), -1)[:, 0]
    return np.arange(len(task)) if options.task is None else np.flatnonzero(task == TASKS.index(options.task))


def _used(chunks: list[dict[str, np.ndarray]], rows: list[np.ndarray], name: str) -> int:
    """Width up to the last column that is not zero everywhere; at least 1."""
    widest = 1
    for chunk, chosen in zip(chunks, rows, strict=True):
        for index in chosen.tolist():
            used: Any = np.flatnonzero(np.nan_to_num(chunk[name][index]).any(0))
            widest = max(widest, int(used[-1]) + 1 if len(used) else 1)
    return widest
