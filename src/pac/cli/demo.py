"""`pac demo`: offline RL against cloning on poor demonstrations, on two CPU cores in minutes.

    collect -> train four methods, two at a time -> evaluate all from the same initial states -> a table and a page

The demo is a study (recipes/demo.toml), so its folder is a study's folder. `pac evaluate` and `pac report` read what
it writes. A second run uses what is there. A run that was killed continues.
"""

import argparse
import shlex
import time
from pathlib import Path

from rich.console import Console

from pac import demo
from pac.cli.next_step import print_next
from pac.cli.study import watch
from pac.cli.tables import print_grids
from pac.files import write_json
from pac.recipe import read_recipe
from pac.report import write_report
from pac.study.folder import StudyFolder
from pac.study.plan import Study, parse_study
from pac.study.results import make_results
from pac.study.runner import make_data, perform_all

PROCESSES = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and of training (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one task per suite, wider intervals: two minutes")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder for everything (default: runs/demo)"
    )


def run(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise ValueError(f"--seed: expected a whole number of 0 or more, found {args.seed}.")
    path = args.out / f"seed-{args.seed}{'-quick' * args.quick}"
    folder = StudyFolder(path, load("demo_quick" if args.quick else "demo", args.seed, path))
    console = Console() if Console().is_terminal else Console(width=200)
    command = shlex.join(["pac", "demo", "--seed", str(args.seed), *["--quick"] * args.quick])
    return make(folder, console, command)


def load(recipe: str, seed: int, path: Path) -> Study:
    """Return the demo's study, with one seed for the data and for training."""
    table, root = read_recipe(recipe)
    table["study"]["seeds"] = [seed]
    for collection in table["study"]["data"]:
        collection["seed"] = seed
    return parse_study(table, root, path, name=recipe)


def make(folder: StudyFolder, console: Console, command: str) -> int:
    """Make everything that is missing in the folder. Print the table and write the page."""
    began = time.perf_counter()
    folder.check_settings()
    make_data(folder, PROCESSES, console)
    seconds = {"data": time.perf_counter() - began}
    if failed := perform_all(folder, PROCESSES, console):
        raise ValueError(f"{folder.path}: {', '.join(failed)} failed, see above. The same command continues.")
    results = make_results(folder, command)
    for part, fact in (("training", "seconds"), ("evaluation", "evaluation_seconds")):
        seconds[part] = sum(facts[fact] for facts in results.document["runs"]) / PROCESSES
    write_json(folder.path / "results.json", results.document, indent=1)
    scores = {demo.DATA: demo.data_scores(folder), **demo.method_scores(folder.study, results.records)}
    print_grids([demo.grid(scores, folder.study.config.episodes)], console)
    for line in demo.findings(scores):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    write_json(folder.path / "demo.json", demo.document(folder.study, scores, command, seconds))
    page = write_report(
        [folder.path / "results.json", *(f"{run.row}={folder.run_path(run)}" for run in folder.study.runs)],
        folder.path / "page.html",
        title="Learning from poor data",
        intro_html=demo.intro(folder.study, scores),
        command=command,
    )
    times = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    made = f"{times}. The page: {page}. Open it in a browser."
    print_next(console, made, watch(folder, next(run for run in folder.study.runs if run.row == "PAC")))
    return 0
