"""`pac report`: runs, evaluations and improvements -> one page that needs nothing else.

With --refresh, the numbers of a Markdown page are made anew from the JSON files it names (docs/report.md).
"""

import argparse
import math
from pathlib import Path

from pac.report.page import MEGABYTES, write_report
from pac.report.refresh import refresh

TITLE = "PAC report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "path", nargs="*", metavar="PATH", help="folder of a run or an improvement, or JSON of an evaluation; LABEL=RUN"
    )
    add("--out", type=Path, metavar="FILE", help="the page")
    add("--title", help=f"over the page (default: {TITLE})")
    add("--video-megabytes", type=float, default=MEGABYTES, metavar="N", help=f"of videos (default: {MEGABYTES:g})")
    add("--refresh", type=Path, metavar="PAGE", help="make the blocks of this Markdown page anew, and nothing else")


def run(args: argparse.Namespace) -> None:
    if args.refresh is not None:
        if args.path or args.out is not None or args.title is not None:
            raise ValueError(
                "--refresh PAGE: expected no PATH, --out or --title beside it, found some. The page itself names its "
                "files, and is written in place."
            )
        written = refresh(args.refresh)
        print("\n".join(f"{path}: written." for path in written) or f"{args.refresh}: nothing has changed.")
        return
    if not args.path or args.out is None:
        raise ValueError("expected PATH... and --out FILE, or --refresh PAGE.")
    if not (math.isfinite(args.video_megabytes) and args.video_megabytes >= 0):
        raise ValueError(f"--video-megabytes: expected 0 or more, found {args.video_megabytes}.")
    title = TITLE if args.title is None else args.title
    out = write_report(args.path, args.out, title=title, video_megabytes=args.video_megabytes)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB.")
