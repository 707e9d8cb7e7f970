"""`pac study`: train every row of a study with every seed, evaluate all from the same initial states, compare them.

The same command continues after a stop. Several runs share a GPU well: with NVIDIA's MPS daemon
(`nvidia-cuda-mps-control -d`) their kernels overlap.
"""

import argparse
import dataclasses
import os
import shlex
from pathlib import Path

from rich.console import Console

from pac.cli.next_step import Step, evaluate_command, print_next
from pac.cli.tables import print_grids
from pac.evaluation import tables
from pac.files import write_atomically, write_json
from pac.report import write_report
from pac.study.folder import StudyFolder
from pac.study.plan import StudyRun, load_study
from pac.study.results import make_results
from pac.study.runner import run_study
from pac.training.logging import make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", help="study in TOML, or the name of one that ships with PAC, such as study/poor")
    add("overrides", nargs="*", metavar="key=value", help="settings that replace those of the file, with dots")
    add("--out", type=Path, required=True, help="folder for data, runs, evaluations and results")
    add("--only", action="append", metavar="ROW", help="train and evaluate this row only; may be repeated")
    add("--domain", action="append", metavar="NAME", help="evaluate in this domain only; may be repeated")
    add(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="runs at a time (default: number of cores); 0: results alone",
    )


def run(args: argparse.Namespace) -> int:
    study, console = load_study(args.file, args.overrides, args.out, domains=args.domain or ()), make_console()
    if unknown := sorted(set(args.only or ()) - set(study.rows)):
        raise ValueError(f"--only: expected rows of the study, found {unknown[0]!r}. Rows: {', '.join(study.rows)}.")
    study = dataclasses.replace(study, runs=[run for run in study.runs if not args.only or run.row in args.only])
    console.print(f"{study.name}: {len(study.rows)} rows, {len(study.runs)} runs -> {args.out}")
    folder = StudyFolder(args.out, study)
    failed = run_study(folder, args.processes, console)
    again = ("to try the failed runs again", shlex.split(command(args)))
    if not folder.evaluated_runs:
        print_next(console, "", again)
        return 1
    results = make_results(folder, command(args))
    write_json(args.out / "results.json", results.document, indent=1)
    print_grids(results.grids, console if console.is_terminal else Console(width=200))
    text = tables.markdown(results.grids, results.document["notes"], results.document["command"])
    write_atomically(args.out / "results.md", text)
    folders = [f"{run.row}={path}" for run in folder.evaluated_runs if (path := folder.run_path(run)).exists()]
    notes = [study.config.about] if study.config.about else []
    page = args.out / "page.html"
    write_report([args.out / "results.json", *folders], page, title=f"Study: {study.name}", notes=notes)
    made = f"{args.out}: results.json, results.md and page.html. Open the page in a browser."
    print_next(console, made, again if failed else watch(folder, folder.evaluated_runs[-1]))
    return 1 if failed else 0


def watch(folder: StudyFolder, run: StudyRun) -> Step:
    """Return the step that films two episodes of a run."""
    domain, out = next(iter(run.domains.values())), folder.path
    options = ("--episodes", "2", "--json", out / "films.json", "--videos", out / "films", "--video-episodes", "0", "1")
    return "to watch a policy", evaluate_command(folder.run_path(run), domain, *options)


def command(args: argparse.Namespace) -> str:
    """Return the command line that gives the same results. The number of processes does not change them."""
    only = [word for row in args.only or () for word in ("--only", row)]
    only += [word for name in args.domain or () for word in ("--domain", name)]
    return shlex.join(["pac", "study", args.file, *args.overrides, "--out", str(args.out), *only])
