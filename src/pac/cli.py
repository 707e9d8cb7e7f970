"""The `pac` command: one verb a subcommand. A mistake of the user's is one line on stderr and exit code 2."""

import argparse
import os
import sys
from collections.abc import Sequence

import pac
from pac import collect, launch
from pac.data import inspect, mixture, transfer
from pac.demo import cli as demo
from pac.envs import listing
from pac.evaluate import cli as evaluate
from pac.improve import cli as improve
from pac.report import cli as report
from pac.scaling import info
from pac.study import cli as study


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pac", description=pac.__doc__)
    parser.add_argument("--version", action="version", version=f"pac {pac.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (info, listing, transfer, inspect, mixture, collect, launch, evaluate, improve, study, report, demo):
        module.add_parser(subparsers)
    args, rest = parser.parse_known_args(arguments)
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if rest and (len(overrides) < len(rest) or not hasattr(args, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if overrides:  # argparse takes positional arguments in one place only; settings may stand anywhere
        args.overrides = [*args.overrides, *overrides]
    try:
        return args.run(args) or 0
    except ValueError as error:
        print(f"pac {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
