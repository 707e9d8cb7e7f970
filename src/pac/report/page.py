"""One self-contained page from runs, evaluations and improvements. What there is no data for is left out."""

import base64
import datetime
import html
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pac
from pac.files import write_atomically as write_text
from pac.report import charts, improvement, results, training
from pac.report import html as look
from pac.report.groups import contests
from pac.report.sources import FILMS, Evaluation, Film, Improvement, LoadedRun, Source, read

MEGABYTES = 20.0  # of videos on a page


def write_report(
    sources: Sequence[str | Path | Source],
    out: str | Path,
    *,
    title: str = "PAC report",
    intro_html: str = "",
    notes: Mapping[str, str] | Sequence[str] = (),
    video_megabytes: float = MEGABYTES,
    command: str | None = None,
) -> Path:
    """Write the page and return its path.

    `sources` are paths (`sources.read`) or things read or made already. `intro_html` is trusted: it stands under the
    title as it is. `notes` are remarks: on methods, by their name in the tables, or on all of it.
    """
    out = Path(out)
    page = make_page(
        sources,
        title=title,
        intro_html=intro_html,
        notes=notes,
        video_megabytes=video_megabytes,
        command=command or _command(sources, out, title, video_megabytes),
    )
    try:
        write_text(out, page)
    except OSError as error:
        raise ValueError(f"{out}: expected a file to write to, found {error}. Name another --out.") from error
    return out


def make_page(
    sources: Sequence[str | Path | Source],
    *,
    title: str = "PAC report",
    intro_html: str = "",
    notes: Mapping[str, str] | Sequence[str] = (),
    video_megabytes: float = MEGABYTES,
    command: str = "",
) -> str:
    if not sources:
        raise ValueError("A report: expected at least one run, evaluation or improvement, found none.")
    found = _once(sources)
    runs = [source for source in found if isinstance(source, LoadedRun)]
    evaluations = [source for source in found if isinstance(source, Evaluation)]
    improvements = [source for source in found if isinstance(source, Improvement)]
    made, names = contests(evaluations, runs)
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(names[id(run)], []).append(run)
    for members in groups.values():
        members.sort(key=lambda run: (run.seed is None, run.seed or 0))
    everyone = dict.fromkeys([*groups, *(name for contest in made for name in contest.members)])
    colours = {name: index for index, name in enumerate(everyone)}
    about = dict(notes) if isinstance(notes, Mapping) else {}
    remarks = [] if isinstance(notes, Mapping) else list(notes)
    remarks += [f"{name}: {text}" for name, text in about.items() if name not in {n for c in made for n in c.members}]
    told = [note for source in found for note in source.notes]
    body = [
        f"<header><h1>{html.escape(title)}</h1>{_made_from(found)}</header>",
        intro_html,
        *map(look.warning, told),
        *(f"<p>{html.escape(text)}</p>" for text in remarks),
        *(results.section(contest, colours, about) for contest in made),
        training.curves(groups, colours),
        results.calibration(made, colours),
        improvement.section(improvements),
        f"<h2>Runs</h2>{training.runs_table(groups)}" if runs else "",
        training.mixtures(runs),
        films([film for evaluation in evaluations for film in evaluation.films], video_megabytes),
        _details(runs, evaluations, improvements),
        _commands(runs, evaluations, improvements, command),
    ]
    return look.document(title, "\n".join(part for part in body if part), script=charts.SCRIPT)


def _once(sources: Sequence[str | Path | Source]) -> list[Source]:
    """Each path once, however often it was named."""
    found: dict[object, Source] = {}
    for source in sources:
        one = source if isinstance(source, LoadedRun | Evaluation | Improvement) else read(source)
        found.setdefault(one.path.resolve() if one.path is not None else id(one), one)
    return list(found.values())


def _made_from(sources: Sequence[Source]) -> str:
    kinds = (("run", LoadedRun), ("evaluation", Evaluation), ("improvement", Improvement))
    counts = [(sum(isinstance(source, kind) for source in sources), name) for name, kind in kinds]
    text = ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    items = ", ".join(f"<code>{html.escape(source.name)}</code>" for source in sources)
    return f'<p class="soft">From {text}: {items}. Made {now} by pac {html.escape(pac.__version__)}.</p>'


# --------------------------------------------------------------------------------------------------------------- videos


def films(found: Sequence[Film], megabytes: float) -> str:
    """In the page itself, the first that fit; the others are named."""
    room, shown, left_out = megabytes * 1e6, [], []
    for film in found:
        size = film.path.stat().st_size * 4 / 3  # base64
        if size > room:
            left_out.append(film)
            continue
        room -= size
        shown.append(_film(film))
    if not found:
        return ""
    note = ""
    if left_out:
        names = ", ".join(str(film.path) for film in left_out)
        note = look.warning(f"Left out, to keep the page's videos under {megabytes:g} MB: {names}.")
    return f'<h2>Videos</h2><div class="grid">{"".join(shown)}</div>{note}'


def _film(film: Film) -> str:
    content = film.path.read_bytes()
    source = f"data:{FILMS[film.path.suffix]};base64,{base64.b64encode(content).decode()}"
    if film.path.suffix == ".mp4":
        shown = f'<video controls muted loop playsinline preload="metadata" src="{source}"></video>'
    else:
        shown = f'<img class="film" alt="{html.escape(film.caption)}" src="{source}">'
    odd = film.path.suffix == ".mp4" and b"avc1" not in content
    note = "<br>Not H.264: your browser may not play it." if odd else ""
    return f"<figure>{shown}<figcaption>{html.escape(film.caption)}{note}</figcaption></figure>"


# ------------------------------------------------------------------------------------------------- how it all was made


def _details(runs: Sequence[LoadedRun], evaluations: Sequence[Evaluation], improvements: Sequence[Improvement]) -> str:
    """Everything resolved, folded up."""
    found: list[tuple[str, object]] = [(run.name, run.config) for run in runs if run.config]
    found += [(one.name, one.settings) for one in evaluations if one.settings]
    found += [(one.name, one.content["config"]) for one in improvements if one.content.get("config")]
    parts = [
        f"<details><summary><code>{html.escape(name)}</code></summary>"
        f"<pre>{html.escape(json.dumps(content, indent=2, default=str))}</pre></details>"
        for name, content in found
    ]
    return "<h2>Settings</h2>" + "\n".join(parts) if parts else ""


def _commands(
    runs: Sequence[LoadedRun], evaluations: Sequence[Evaluation], improvements: Sequence[Improvement], command: str
) -> str:
    lines = [(run.name, run.config.get("command")) for run in runs]
    lines += [(one.name, one.document.get("command")) for one in evaluations]
    lines += [(one.name, one.content.get("command")) for one in improvements]
    told = "\n".join(str(text) for _, text in lines if text)
    silent = [name for name, text in lines if not text]
    parts = [f"<pre>{html.escape(told)}</pre>"] if told else []
    if silent and (runs or improvements):
        parts.append(f'<p class="soft">No command was recorded in {html.escape(", ".join(silent))}.</p>')
    if command:
        parts.append(f"<p>This page:</p><pre>{html.escape(command)}</pre>")
    return "<h2>Commands</h2>" + "\n".join(parts) if parts else ""


def _command(sources: Sequence[str | Path | Source], out: Path, title: str, megabytes: float) -> str:
    """None for what was made in memory."""
    if any(isinstance(source, LoadedRun | Evaluation | Improvement) and source.path is None for source in sources):
        return ""
    names = [
        source.name if isinstance(source, LoadedRun | Evaluation | Improvement) else str(source) for source in sources
    ]
    words = ["pac", "report", *names, "--out", str(out)]
    words += ["--title", title] if title != "PAC report" else []
    words += ["--video-megabytes", f"{megabytes:g}"] if megabytes != MEGABYTES else []
    return shlex.join(words)
