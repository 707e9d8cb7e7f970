"""The `pac` command. One file a command, imported only when that command is asked for.

A mistake of the user is one line on stderr and exit code 2.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pac

# Each command, the module that has its `add_arguments` and its `run`, and one line of help.
COMMANDS = {
    "info": ("info", "parameters, tokens, FLOPs and memory of each model size"),
    "tasks": ("tasks", "list the tasks: sizes, cameras, success, time limit"),
    "import": ("import_", "bring datasets of other formats into an episode store"),
    "export": ("export", "write an episode store in another format"),
    "inspect": ("inspect", "show a dataset and warn of likely mistakes in it"),
    "mixture": ("mixture", "show how often a mixture draws each dataset"),
    "collect": ("collect", "collect episodes with a behaviour or a policy"),
    "train": ("train", "train a policy and a critic on a mixture"),
    "evaluate": ("evaluate", "evaluate policies and behaviours, with intervals and comparisons"),
    "improve": ("improve", "repeat rounds of collecting, training and evaluating"),
    "study": ("study", "train rows of settings over several seeds and compare them"),
    "report": ("report", "make one HTML page of runs and evaluations"),
    "demo": ("demo", "train on poor data and compare offline RL with cloning, on any CPU"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    run, args = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return run(args) or 0
    except ValueError as error:
        print(f"pac {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(words: Sequence[str]) -> tuple[Callable[[argparse.Namespace], int | None], argparse.Namespace]:
    """Import the command that is asked for; return its `run`, and what to call it with."""
    parser = argparse.ArgumentParser(prog="pac", description=pac.__doc__)
    parser.add_argument("--version", action="version", version=f"pac {pac.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in words if not word.startswith("-")), None)
    chosen: Any = None
    for name, (module, text) in COMMANDS.items():
        command = subparsers.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == asked:
            chosen = importlib.import_module(f"pac.cli.{module}")
            command.description = chosen.__doc__
            chosen.add_arguments(command)
    args, rest = parser.parse_known_args(words)
    overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if rest and (len(overrides) < len(rest) or not hasattr(args, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if overrides:  # argparse takes positional arguments in one place only; settings may stand anywhere
        args.overrides = [*args.overrides, *overrides]
    return chosen.run, args
