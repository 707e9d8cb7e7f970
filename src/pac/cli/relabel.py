"""`pac relabel`: add a reward that you computed to a dataset. Nothing else is copied or changed.

FILE is a .npy array with one number per step, episode after episode. One number per row of the dataset's arrays works,
too. A recipe then chooses the column with `reward = "NAME"` in its mixture. The rules "sparse-success" and "time-to-go"
need no column. In Python, `pac.data.relabel.add_reward` takes a function of an episode.
"""

import argparse
from pathlib import Path

import numpy as np

from pac.data.relabel import add_reward, episode_returns
from pac.data.store import Dataset
from pac.files import problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="folder of a dataset")
    parser.add_argument("--name", required=True, help="name of the new reward, such as lift")
    parser.add_argument("--from", type=Path, required=True, metavar="FILE", dest="file", help=".npy file of rewards")


def run(args: argparse.Namespace) -> None:
    dataset = Dataset(args.path)
    parts = iter(split_rewards(read_rewards(args.file), dataset, args.file))
    add_reward(args.path, args.name, lambda episode: next(parts))
    returns = episode_returns(Dataset(args.path), args.name)
    print(
        f"{args.path}: added the reward {args.name!r} of {len(dataset):,} episodes, {dataset.num_steps:,} steps. "
        f"Returns lie between {returns.min():.4g} and {returns.max():.4g}."
    )
    print(f"Train on it: set `reward` of the dataset in the mixture, or mixture.defaults.reward={args.name}")


def read_rewards(file: Path) -> np.ndarray:
    """Read an array of numbers from a .npy file. Nothing is unpickled."""
    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        fix = "Write it with numpy.save."
        raise problem(file, expected="a .npy array of numbers", found=error, fix=fix) from error
    if not isinstance(values, np.ndarray):
        raise problem(file, expected="one array", found="an archive of arrays", fix="Write one with numpy.save.")
    return values


def split_rewards(values: np.ndarray, dataset: Dataset, where: object) -> list[np.ndarray]:
    """Return the rewards of each episode, from one number per step or per row."""
    rows, per_row = np.asarray(dataset.index["row"]), values.shape == (dataset.num_rows,)
    if not per_row and values.shape != (dataset.num_steps,):
        expected = f"{dataset.num_steps:,} numbers (one per step) or {dataset.num_rows:,} (one per row)"
        fix = "Write the rewards of all steps, episode after episode."
        raise problem(where, expected=expected, found=f"shape {values.shape}", fix=fix)
    first = rows if per_row else rows - np.arange(len(rows))  # each episode before has a row that is no step
    return [values[i : i + n] for i, n in zip(first.tolist(), dataset.index["length"].tolist(), strict=True)]
