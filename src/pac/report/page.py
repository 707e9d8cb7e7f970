"""The page of `pac report`: one HTML file of runs, evaluations and improvements. Sections without data are left out."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

import pac
from pac.files import problem, write_atomically
from pac.report import charts, html
from pac.report.groups import compare_evaluations, group_runs, pooling_notes
from pac.report.headline import headline
from pac.report.improvement import improvements_section
from pac.report.results import calibration_section, results_section
from pac.report.sources import LoadedEvaluation, LoadedImprovement, LoadedRun, Source, read_sources
from pac.report.training import curves_section, data_section, runs_section
from pac.report.videos import choose_video, videos_section, watch_section

TITLE = "PAC report"
VIDEO_MEGABYTES = 20.0


def write_report(
    sources: Sequence[str | Path | Source],
    out: str | Path,
    *,
    title: str = TITLE,
    intro_html: str = "",
    notes: Sequence[str] = (),
    video_megabytes: float = VIDEO_MEGABYTES,
    command: str = "",
) -> Path:
    """Write the page and return its path.

    `sources` are paths, with or without a label (`sources.read_sources`), or sources made in memory. `intro_html` is
    not escaped. It stands under the title, before the `notes`. `command` made the page.
    """
    if not sources:
        raise ValueError("A report: expected at least one run, evaluation or improvement, found none.")
    found = _read_all(sources)
    runs = [source for source in found if isinstance(source, LoadedRun)]
    evaluations = [source for source in found if isinstance(source, LoadedEvaluation) and source.records]
    improvements = [source for source in found if isinstance(source, LoadedImprovement)]
    if not (runs or evaluations or improvements):
        where = ", ".join(source.name for source in found)
        fix = "Repeat the command that began the evaluation: it continues."
        raise problem(where, expected="finished episodes", found="none: no episode has finished", fix=fix)
    rows, comparisons = group_runs(runs), compare_evaluations(evaluations, runs)
    names = dict.fromkeys([*rows, *(row for comparison in comparisons for row in comparison.members)])
    colours = {name: index for index, name in enumerate(names)}
    warnings = [note for source in found for note in source.notes] + pooling_notes(rows)
    videos = {path: text for one in evaluations for path, text in one.videos.items()}
    chosen = choose_video(videos, video_megabytes)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        headline(comparisons, rows, improvements, colours),
        intro_html,
        *map(html.warning, warnings),
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        html.soft(f"From {', '.join(source.name for source in found)}. Made {now} by pac {pac.__version__}."),
        *(results_section(comparison, colours) for comparison in comparisons),
        watch_section(evaluations, chosen),
        curves_section(rows, colours),
        calibration_section(comparisons, colours),
        improvements_section(improvements),
        runs_section(rows),
        data_section(runs),
        videos_section(videos, chosen, video_megabytes),
        html.section("Settings", [_settings(source) for source in found]),
        html.section("Commands", [_commands(found, command)]),
    ]
    out = Path(out)
    try:
        write_atomically(out, html.document(title, parts, script=charts.SCRIPT))
    except OSError as error:
        raise problem(out, expected="a file to write to", found=error, fix="Name another --out.") from error
    return out


def _read_all(sources: Sequence[str | Path | Source]) -> list[Source]:
    """Return all sources. A path that is named twice is read once."""
    found: dict[object, Source] = {}
    for source in sources:
        for one in [source] if isinstance(source, Source) else read_sources(source):
            found.setdefault(one.path.resolve() if one.path is not None else id(one), one)
    return list(found.values())


def _settings(source: Source) -> str:
    if not source.settings:
        return ""
    return html.folded(source.name, f"<pre>{html.escape(json.dumps(source.settings, indent=2, default=str))}</pre>")


def _commands(sources: Sequence[Source], command: str) -> str:
    """Return the commands that made the sources, and this page."""
    commands = [source.command for source in sources if source.command]
    unknown = [source.name for source in sources if source.path is not None and not source.command]
    parts = ["<pre>" + html.escape("\n".join(commands)) + "</pre>"] if commands else []
    parts += [html.soft(f"No command was recorded in {', '.join(unknown)}.")] if unknown else []
    parts += [f"<p>This page:</p><pre>{html.escape(command)}</pre>"] if command else []
    return "\n".join(parts)
