"""Make one HTML page of runs, evaluations and improvements. The page needs no other file and no network.

    pac report "PAC=runs/pac-*" "BC=runs/bc-*" evaluation.json --out page.html

Runs of one label are seeds of one method, and are pooled. What has no label is a row of its own.
"""

import argparse
import math
import shlex
from pathlib import Path

from rich.console import Console

from pac.cli.next_step import print_next
from pac.report.page import TITLE, VIDEO_MEGABYTES, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="*", metavar="[LABEL=]PATH", help="folder of a run or an improvement, or JSON of an evaluation")
    add("--out", type=Path, metavar="FILE", help="the page to write")
    add("--title", default=TITLE, help=f"heading of the page (default: {TITLE})")
    add(
        "--video-megabytes",
        type=float,
        default=VIDEO_MEGABYTES,
        metavar="N",
        help=f"megabytes of videos at most (default: {VIDEO_MEGABYTES:g})",
    )
    add("--refresh", type=Path, help=argparse.SUPPRESS)  # its old name and place


def run(args: argparse.Namespace) -> None:
    if args.refresh is not None:
        raise ValueError(f"--refresh is `python -m tools.refresh {args.refresh}` now, in a clone of the repository.")
    if not args.path or args.out is None:
        raise ValueError("expected [LABEL=]PATH... and --out FILE, found only one of them or none.")
    if not (math.isfinite(args.video_megabytes) and args.video_megabytes >= 0):
        raise ValueError(f"--video-megabytes: expected 0 or more, found {args.video_megabytes}.")
    out = write_report(
        args.path, args.out, title=args.title, video_megabytes=args.video_megabytes, command=command(args)
    )
    print_next(Console(), f"{out}: {out.stat().st_size / 1e6:.1f} MB. Open it in a browser.")


def command(args: argparse.Namespace) -> str:
    """Return the command line that makes the page again."""
    words = ["pac", "report", *args.path, "--out", str(args.out)]
    words += ["--title", args.title] if args.title != TITLE else []
    words += ["--video-megabytes", f"{args.video_megabytes:g}"] if args.video_megabytes != VIDEO_MEGABYTES else []
    return shlex.join(words)
