"""`pac inspect`: show a dataset, and warn of likely mistakes in it before a run learns from it.

Histograms and images on the page come from a sample of episodes. All else is of the whole dataset.
"""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pac.cli.next_step import Step, print_next, report_command, train_command
from pac.data.store import REWARD, SPEC, Dataset
from pac.files import problem
from pac.formats import fitting_formats
from pac.report.dataset_page import html_page
from pac.report.dataset_summary import describe_dataset, format_results
from pac.report.sources import LoadedEvaluation, LoadedImprovement, LoadedRun, Source, read_sources

ROWS = 40  # of a printed table
KINDS: dict[type[Source], str] = {
    LoadedRun: "a run of `pac train`",
    LoadedEvaluation: "an evaluation of `pac evaluate`",
    LoadedImprovement: "an improvement of `pac improve`",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="folder of a dataset")
    parser.add_argument("--reward", help="describe under a rule (sparse-success, time-to-go) or a stored column")
    parser.add_argument("--verify", action="store_true", help="read every byte and compare checksums")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one page with histograms and images")


def run(args: argparse.Namespace) -> int:
    """Print the report. Return 1 if files are damaged."""
    _check_place(args.path)
    report = describe_dataset(args.path, reward=args.reward, check_files=args.verify)
    if args.html:
        args.html.write_text(html_page(report))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report, Console())
        made = f"{args.html}: {args.html.stat().st_size / 1e6:.1f} MB. Open it in a browser." if args.html else ""
        print_next(Console(), made, *next_steps(args.path, report))
    return int(report["verified"] is False)


def _check_place(path: Path) -> None:
    """Raise if `path` holds data of another format, or something that `pac report` shows."""
    if (path / SPEC).is_file() or not path.exists():
        return
    expected = "a dataset of `pac import` or `pac collect`"
    if formats := fitting_formats(path):
        fix = f"Import it first: {shlex.join(['pac', 'import', str(path), '--out', f'data/{path.resolve().stem}'])}"
        raise problem(path, expected=expected, found=f"data of the format {' or '.join(formats)}", fix=fix)
    try:
        (source,) = read_sources(path)
    except ValueError:
        return  # the error of a dataset says more
    fix = f"To see it: {shlex.join(map(str, report_command([path], Path('report.html'))))}"
    raise problem(path, expected=expected, found=KINDS[type(source)], fix=fix)


def next_steps(path: Path, report: dict[str, Any]) -> list[Step]:
    """Return the command that trains on a dataset. Without differing rewards there is nothing to learn but cloning."""
    if not report["episodes"] or report["verified"] is False:
        return []
    settings = [] if report["reward"] is None else [f"reward={report['reward']}"]
    stored = Dataset(path).statistics(REWARD)
    if not settings and stored["min"] == stored["max"]:
        settings = ["objective.method=bc"]
    return [("", train_command(path, *settings))]


def print_report(report: dict[str, Any], console: Console) -> None:
    rate = report["control_rate"] or "unknown"
    sizes = f"{report['episodes']:,} episodes, {report['steps']:,} steps, {report['bytes'] / 1e6:,.1f} MB"
    console.print(f"[bold]{escape(report['path'])}[/]  {sizes}, control rate {rate}")
    cameras = ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in report["cameras"].items()) or "none"
    console.print(f"Cameras: {cameras}. Rewards: {', '.join(report['rewards'])}.")
    if report["reward"] is not None:
        console.print(f"Returns, ends and warnings are those under the reward {report['reward']!r}.", markup=False)
    console.print("Ends: " + ", ".join(f"{count:,} {name}" for name, count in report["ends"].items() if count) + ".")
    tasks = Table("task", "episodes", "return, mean [95%]", "success [95%]", box=SIMPLE, pad_edge=False)
    for row in [*report["tasks"][:ROWS], {"instruction": "all", "episodes": report["episodes"], **report}]:
        tasks.add_row(escape(row["instruction"]) or "(no instruction)", f"{row['episodes']:,}", *format_results(row))
    _print_table(tasks, len(report["tasks"]), "tasks", console)
    for kind in ("state", "action"):
        table = Table(kind, "min", "max", "mean", "std", box=SIMPLE, pad_edge=False)
        for row in report[kind][:ROWS]:
            table.add_row(escape(row["name"]), *(f"{row[key]:.4g}" for key in ("min", "max", "mean", "std")))
        _print_table(table, len(report[kind]), f"{kind} dimensions", console)
    if report["verified"] is not None:
        console.print("Checksums: " + ("all files are as written." if report["verified"] else "[red]damaged[/]."))
    for warning in report["warnings"]:
        console.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False)


def _print_table(table: Table, count: int, name: str, console: Console) -> None:
    """Print a table that shows at most `ROWS` of `count` things."""
    console.print(table)
    if count > ROWS:
        console.print(f"... and {count - ROWS} {name} more; --json lists all.")
