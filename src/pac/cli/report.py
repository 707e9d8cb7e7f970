"""Make one HTML page of runs, evaluations and improvements. The page needs no other file and no network."""

import argparse
import math
from pathlib import Path

from pac.report.page import MEGABYTES, write_report

TITLE = "PAC report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="*", metavar="[LABEL=]PATH", help="folder of a run or an improvement, or JSON of an evaluation")
    add("--out", type=Path, metavar="FILE", help="the page to write")
    add("--title", default=TITLE, help=f"heading of the page (default: {TITLE})")
    add("--video-megabytes", type=float, default=MEGABYTES, metavar="N", help=f"most videos (default: {MEGABYTES:g})")
    add("--refresh", type=Path, help=argparse.SUPPRESS)  # its old name and place


def run(args: argparse.Namespace) -> None:
    if args.refresh is not None:
        raise ValueError(f"--refresh is `python -m tools.refresh {args.refresh}` now, in a clone of the repository.")
    if not args.path or args.out is None:
        raise ValueError("expected [LABEL=]PATH... and --out FILE, found only one of them or none.")
    if not (math.isfinite(args.video_megabytes) and args.video_megabytes >= 0):
        raise ValueError(f"--video-megabytes: expected 0 or more, found {args.video_megabytes}.")
    out = write_report(args.path, args.out, title=args.title, video_megabytes=args.video_megabytes)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB.")
