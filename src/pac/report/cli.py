"""`pac report`: runs, evaluations and improvements -> one page that needs nothing else."""

import argparse
import math
from pathlib import Path
from typing import Any

from pac.report.page import MEGABYTES, write_report


def add_parser(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report", help="one self-contained HTML page of runs, evaluations and improvements", description=__doc__
    )
    add = parser.add_argument
    add(
        "path", nargs="+", metavar="PATH", help="folder of a run or an improvement, or JSON of an evaluation; LABEL=RUN"
    )
    add("--out", type=Path, required=True, metavar="FILE", help="the page")
    add("--title", default="PAC report", help="over the page")
    add("--video-megabytes", type=float, default=MEGABYTES, metavar="N", help=f"of videos (default: {MEGABYTES:g})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if not (math.isfinite(args.video_megabytes) and args.video_megabytes >= 0):
        raise ValueError(f"--video-megabytes: expected 0 or more, found {args.video_megabytes}.")
    out = write_report(args.path, args.out, title=args.title, video_megabytes=args.video_megabytes)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB.")
