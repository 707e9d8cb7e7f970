"""The `pac` command. One file a command, imported only when that command is asked for.

A mistake of the user is one line on stderr and exit code 2.
"""

import argparse
import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pac
from pac.files import PlainWarning
from pac.old_names import OldNameWarning, rename_options

Command = Callable[[argparse.Namespace], int | None]

ABOUT = "Offline RL on robots: bring in or collect episodes, train a policy and a critic, evaluate and compare."

# Each command, the module that has its `add_arguments` and its `run`, and one line of help.
COMMANDS = {
    "info": ("info", "parameters, tokens, FLOPs and memory of each model size"),
    "tasks": ("tasks", "list the tasks: sizes, cameras, success, time limit"),
    "import": ("import_", "bring datasets of other formats into an episode store"),
    "export": ("export", "write an episode store in another format"),
    "relabel": ("relabel", "add a reward column to an episode store"),
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
    """Run one command; return its exit code.

    It finds modules in the current folder, as `python -m` does. They come last, so that none hides an installed one.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    with warnings.catch_warnings():
        warnings.simplefilter("always", OldNameWarning)
        warnings.simplefilter("always", PlainWarning)
        warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
        return _run(*parse(sys.argv[1:] if arguments is None else arguments))


def _run(run: Command, args: argparse.Namespace) -> int:
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


def _show_warning(others: Callable[..., None], message: Warning | str, kind: type[Warning], *place: Any) -> None:
    """Print a warning for users as one line. Under torchrun the main process alone prints it."""
    if not issubclass(kind, OldNameWarning | PlainWarning):
        others(message, kind, *place)
    elif os.environ.get("RANK", "0") == "0":
        print(f"pac: {message}", file=sys.stderr)


def parse(words: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """Import the command in `words`. Return its `run` function and the arguments to call it with."""
    parser = argparse.ArgumentParser(prog="pac", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"pac {pac.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in words if not word.startswith("-")), None)
    if asked is not None and asked not in COMMANDS:
        from pac.config import suggest  # imports torch, which only this error pays for

        parser.error(f"unknown command {asked!r}.{suggest(asked, COMMANDS)}")
    chosen: Any = None
    for name, (module, text) in COMMANDS.items():
        command = subparsers.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == asked:
            chosen = importlib.import_module(f"pac.cli.{module}")
            command.description = chosen.__doc__
            chosen.add_arguments(command)
            if "--trials" not in command._option_string_actions:
                words = rename_options(words)
    args, others = parser.parse_known_args(words)
    overrides = [text for text in others if "=" in text and not text.startswith("-")]
    if others and (len(overrides) < len(others) or not hasattr(args, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if overrides:  # argparse takes positional arguments in one place only; settings may stand anywhere
        args.overrides = [*args.overrides, *overrides]
    return chosen.run, args
