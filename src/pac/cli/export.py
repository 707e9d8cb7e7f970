"""`pac export`: write an episode store in another format."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pac.cli.next_step import print_next
from pac.data.store import Dataset
from pac.formats.transfer import EXPORTS, export_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", type=Path, help="folder of a dataset")
    parser.add_argument("--format", required=True, choices=EXPORTS, help="format to write")
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--fps", type=float, help="control rate in Hz, instead of the dataset's")


def run(args: argparse.Namespace) -> None:
    notes = export_dataset(args.dataset, args.out, args.format, fps=args.fps, console=Console(stderr=True))
    console = Console()
    for note in notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
    print_next(console, f"{args.out}: {len(Dataset(args.dataset)):,} episodes in {args.format} format.")
