"""Blocks of a page that are made from `pac improve`: rounds, improvements beside each other, curves.

Scores are computed from the episodes of each round's evaluation. The gate's reasons are quoted from the record.
`final.json`, where there is one, is the `pac evaluate` of the promoted policy on other initial states.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pac.evaluation import Estimate, Summary
from pac.evaluation.compare import FEW_EPISODES
from pac.evaluation.tables import METRICS, Cell, Grid, markdown, show
from pac.report import charts
from tools.archive import Document, Folder
from tools.drawings import sheet
from tools.episode_blocks import UNITS, PageBlock
from tools.results import Results, read_results

IMPROVE, FINAL = "improve.json", "final.json"
ENDS = {
    "mastered": "Ended when every target had reached mastery, by the episodes of its rounds.",
    "budget": "Ended with its rounds.",
    "waiting": "Waits for data.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Improvement:
    name: str
    document: Document  # improve.json
    tasks: list[str]  # targets, then tasks that must not get worse
    rounds: list[Summary]
    final: Summary | None  # the promoted policy on other initial states

    @property
    def entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["rounds"]
        return found

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["config"]["improve"]
        return found

    @property
    def mastery(self) -> float:
        """The success or the percent of expert at which a task is mastered, in percent."""
        return 100 * float(self.settings["mastery"])

    def metric(self, task: str) -> str:
        """Return the metric of the gate: success where the task defines it, else percent of expert, else return."""
        row = self.rounds[0].tasks[task]
        return "success" if row.success else "percent" if row.percent else "return"

    def score(self, summary: Summary, task: str) -> Estimate:
        _, pick, scale = METRICS[self.metric(task)]
        found = pick(summary.tasks[task])
        if found is None:
            raise ValueError(
                f"{self.name}: expected every evaluation of {task} to have {self.metric(task)}, found none."
            )
        ends = scale * found.mean, scale * found.low, scale * found.high
        return Estimate(mean=ends[0], low=ends[1], high=ends[2], n=found.n, method=found.method)

    def best(self, task: str) -> Estimate:
        """Return the best score of a promoted round."""
        kept = [s for s, entry in zip(self.rounds, self.entries, strict=True) if entry["promoted"]]
        return max((self.score(summary, task) for summary in kept), key=lambda estimate: estimate.mean)

    def seconds(self) -> float:
        return sum(sum(entry["seconds"].values()) for entry in self.entries)


def read_improvement(path: Path) -> Improvement:
    """Read an improvement from the folder of `pac improve`, or from the Parquet file that holds its documents."""
    folder = Folder(path)
    where = path / IMPROVE
    document = folder.read(IMPROVE)
    try:
        tasks = [*document["tasks"], *document["others"]]
        entries = document["rounds"]
        evaluations = [entry["evaluation"] for entry in entries]
        labels = [f"round {entry['round']}" for entry in entries]
        promoted = [entry["promoted"] for entry in entries]
        for entry in entries:
            _ = entry["start"], entry["episodes"], entry["steps"], entry["reason"], entry["seconds"]
        _ = document["config"]["improve"]["mastery"], document["config"]["recipe"]["model"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}: expected the improve.json of `pac improve`, found {error!r}.") from error
    if not any(promoted):
        raise ValueError(f"{where}: expected a promoted round, found none in {len(entries)} rounds.")
    found = read_results({path / name: folder.read(name) for name in evaluations})
    summaries = found.summaries()
    for label, name in zip(labels, evaluations, strict=True):
        if label not in summaries or (lacking := set(tasks) - set(summaries[label].tasks)):
            what = "none" if label not in summaries else f"none of {min(lacking)}"
            raise ValueError(f"{path / name}: expected episodes of {label!r}, found {what}.")
    last = max(i for i, kept in enumerate(promoted) if kept)
    final = _final(folder, found, labels[last], last, tasks) if folder.has(FINAL) else None
    rounds = [summaries[label] for label in labels]
    return Improvement(name=folder.name, document=document, tasks=tasks, rounds=rounds, final=final)


def _final(folder: Folder, rounds: Results, label: str, last: int, tasks: Sequence[str]) -> Summary:
    """Return the final evaluation. It must have the promoted policy, the rules of the rounds and other states."""
    path = folder.path / FINAL
    found = read_results({path: folder.read(FINAL)})
    summaries = found.summaries()
    if len(summaries) != 1 or (lacking := set(tasks) - set(next(iter(summaries.values())).tasks)):
        what = f"{len(summaries)} actors" if len(summaries) != 1 else f"no episodes of {min(lacking)}"
        raise ValueError(f"{path}: expected episodes of the promoted policy in every task, found {what}.")
    old, new = rounds.documents[last]["settings"], found.documents[0]["settings"]
    if new["seed"] == old["seed"]:
        raise ValueError(f"{path}: expected another seed than the rounds' {old['seed']}, found the same.")
    if wrong := [name for name in ("max_steps", "stop_at_success") if new[name] != old[name]]:
        raise ValueError(f"{path}: expected {wrong[0]} of the rounds, {old[wrong[0]]}, found {new[wrong[0]]}.")
    expected = old["actors"].get(label, {}).get("fingerprint")
    fingerprints = [actor.get("fingerprint") for actor in new["actors"].values()]
    if fingerprints != [expected]:
        raise ValueError(
            f"{path}: expected the promoted policy of {label}, fingerprint {expected}, found {fingerprints}."
        )
    if found.experts != rounds.experts:
        raise ValueError(f"{path}: expected the experts of the rounds, {rounds.experts}, found {found.experts}.")
    return next(iter(summaries.values()))


# ------------------------------------------------------------------------------------------------------------- rounds


def rounds(found: Sequence[Improvement]) -> str:
    """Return a table for each improvement, with a line a round."""
    return "\n".join(_rounds(one) for one in found)


def _rounds(one: Improvement) -> str:
    scored = [f"{task}, {UNITS[one.metric(task)]}" for task in one.tasks]
    times = list(dict.fromkeys(name for entry in one.entries for name in entry["seconds"]))
    header = ["round", "from", "episodes", "updates", *scored, "gate", "points to the promoted"]
    lines: list[list[Cell]] = []
    for entry, summary in zip(one.entries, one.rounds, strict=True):
        cells = [str(entry["round"]), _start(entry["start"]), f"{sum(entry['episodes'].values()):,}"]
        cells += [f"{entry['steps']:,}", *(show(one.score(summary, task)) for task in one.tasks)]
        cells += ["promoted" if entry["promoted"] else "**refused**", _reason(entry["reason"])]
        cells += [" / ".join(f"{entry['seconds'].get(name, 0.0):.0f}" for name in times)]
        lines.append([(cell, False) for cell in cells])
    if one.final is not None:
        head = [f"other initial states, {_counts(one.final)}", "", "", ""]
        cells = [*head, *(show(one.score(one.final, task)) for task in one.tasks), "", "", ""]
        lines.append([(cell, False) for cell in cells])
    title = f"{one.name} (95%: {'; '.join(dict.fromkeys(one.score(one.rounds[0], t).method for t in one.tasks))})"
    return markdown([Grid(title, [*header, f"seconds: {' / '.join(times)}"], lines)], list(_notes(one)))


def _start(start: str) -> str:
    """Return `round 7` for rounds/007/train/checkpoints/024000."""
    found = re.match(r"rounds/(\d+)/", start)
    return f"round {int(found[1])}" if found else start


def _reason(reason: str) -> str:
    """Return the numbers of the gate's reason. The column beside them says what was decided."""
    parts = re.findall(r"(\w+) [^:;]*: ([^;]*?) points", reason)
    if not parts:
        return "" if reason.startswith("the first") else reason
    return "; ".join(text if len(parts) == 1 else f"{scope} {text}" for scope, text in parts)


def _counts(summary: Summary) -> str:
    counts = sorted({row.episodes for row in summary.tasks.values()})
    return f"{'/'.join(f'{count:,}' for count in counts)} episodes{' a task' * (len(summary.tasks) > 1)}"


def _notes(one: Improvement) -> Iterator[str]:
    status, done, most = one.document.get("status"), len(one.entries), one.settings.get("rounds")
    yield ENDS.get(str(status), f"Stopped from outside: {done} of at most {most} rounds were done.")
    weak = [
        str(entry["round"])
        for entry, summary in zip(one.entries, one.rounds, strict=True)
        if any(_weak(one, summary, task) for task in one.tasks)
    ]
    if weak:
        where = f"round{'s' * (len(weak) > 1)} {', '.join(weak)}"
        yield f"Most returns are equal in {where}: the interval there is too short."


def _weak(one: Improvement, summary: Summary, task: str) -> bool:
    row = summary.tasks[task]
    return one.metric(task) != "success" and row.unusual < min(FEW_EPISODES, row.episodes / 2)


# ------------------------------------------------------------------------------------------------------- improvements


def improvements(found: Sequence[Improvement]) -> str:
    """Return a table with a line a task (start, best, final, cost), and a table of settings."""
    header = ["task", "of", "round 0", "best promoted", "other initial states", "final episodes", "reached"]
    header += ["rounds", "refused", "updates", "episodes in rounds", "minutes"]
    names = [task for one in found for task in one.tasks]
    lines: list[list[Cell]] = []
    for one in found:
        for task in one.tasks:
            first, final = one.score(one.rounds[0], task), one.score(one.final, task) if one.final else None
            yes = final is not None and one.metric(task) != "return" and final.mean >= one.mastery
            refused = sum(not entry["promoted"] for entry in one.entries)
            cells = [
                task if names.count(task) == 1 else f"{task}, {one.name}",
                UNITS[one.metric(task)],
                show(first),
                show(one.best(task)),
                show(final),
                f"{one.final.tasks[task].episodes:,}" if one.final else "-",
                "-" if final is None else "yes" if yes else "no",
                f"{len(one.entries):,}",
                f"{refused:,}",
                f"{one.entries[-1]['steps']:,}",
                f"{sum(entry['episodes'].get(task, 0) for entry in one.entries):,}",
                f"{one.seconds() / 60:.1f}",
            ]
            lines.append([(cell, yes and place == 4) for place, cell in enumerate(cells)])
    levels = " or ".join(f"{level:g}%" for level in sorted({one.mastery for one in found}))
    title = f"Reached: {levels} on other initial states, by the mean (95%: Wilson; standard error over episodes)"
    notes = ["Updates and minutes are of the whole improvement, which its tasks share. Minutes are of finished rounds."]
    return markdown([Grid(title, header, lines), _how(found)], notes)


def _how(found: Sequence[Improvement]) -> Grid:
    """Return a table of settings. Improvements with equal settings share a line."""
    header = ["", "size", "data before", "updates of round 0", "then a round", "episodes a round and task"]
    header += ["evaluation episodes a task", "rounds at most", "tolerance, points", "discount"]
    shared: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        settings, recipe = one.settings, one.document["config"]["recipe"]
        evaluated = settings.get("evaluation_episodes", settings.get("trials"))
        numbers = (settings.get("episodes"), evaluated, settings.get("rounds"))
        key = (
            str(recipe["model"].get("size", "-")),
            _before(settings, recipe.get("collect")),
            *(str(settings.get(name) or settings["steps"]).removesuffix(" steps") for name in ("first_steps", "steps")),
            *map(str, numbers),
            f"{100 * float(settings.get('tolerance') or 0.0):g}",
            f"{recipe['objective']['discount']:g}",
        )
        shared.setdefault(key, []).append(one.name)
    lines: list[list[Cell]] = [[(text, False) for text in (", ".join(names), *key)] for key, names in shared.items()]
    return Grid("How they were run", header, lines)


def _before(settings: Mapping[str, Any], collect: Mapping[str, Any] | None) -> str:
    """Return the data that round 0 learns from."""
    parts = [f"{collect['episodes']} episodes a task, {collect['behaviour']}"] if collect else []
    if settings.get("first"):
        parts.append(f"{settings.get('first_episodes') or settings['episodes']} episodes a task, {settings['first']}")
    return "; ".join(parts) or "-"


# ------------------------------------------------------------------------------------------------------------- curves


def curves(found: Sequence[Improvement], path: str) -> PageBlock:
    """Draw one panel a task. All percentages share an axis, so that panels compare."""
    every = [(one, task, _series(one, task)) for one in found for task in one.tasks]
    shares = [end for one, task, series in every if one.metric(task) != "return" for end in _ends(series)]
    axis = charts.span(np.concatenate([*shares, np.array([0.0, 100.0])])) if shares else None
    tasks, panels = [task for _, task, _ in every], list[charts.Drawing]()
    for one, task, series in every:
        metric = one.metric(task)
        where = task if tasks.count(task) == 1 else f"{task}, {one.name}"
        title, line = f"{where}: {UNITS[metric]}", (f"{one.mastery:g}%", one.mastery)
        given = {"y_range": axis, "line": line} if metric != "return" else {"y_range": None, "line": None}
        panels.append(charts.lines(title, series, x_name="round", **given))
    words = "Scores by round with 95% intervals: " + ", ".join(panel.title for panel in panels)
    key = (
        "Filled: promoted. Hollow: refused. The line follows the promoted policy. The last mark, of another colour, is "
        "the promoted policy on other initial states."
    )
    image = f'<img src="{path}" alt="{html.escape(words)}">'
    return PageBlock(text=f"{image}\n\n{key}\n", files={path: sheet(words, panels)})


def _series(one: Improvement, task: str) -> list[charts.Series]:
    scores = [one.score(summary, task) for summary in one.rounds]
    kept = np.array([bool(entry["promoted"]) for entry in one.entries])
    numbers = np.array([entry["round"] for entry in one.entries], dtype=float)
    made = [_marks("rounds", 0, numbers, scores, ~kept)]
    if one.final is not None:
        after = numbers[-1:] + 0.5
        made.append(_marks("other initial states", 1, after, [one.score(one.final, task)], np.zeros(1, dtype=bool)))
    return made


def _marks(name: str, index: int, x: np.ndarray, scores: Sequence[Estimate], hollow: np.ndarray) -> charts.Series:
    y, low, high = (np.array([getattr(entry, end) for entry in scores]) for end in ("mean", "low", "high"))
    return charts.Series(name=name, index=index, x=x, y=y, low=low, high=high, marks=True, hollow=hollow)


def _ends(series: Sequence[charts.Series]) -> list[np.ndarray]:
    return [end for entry in series for end in (entry.y, entry.low, entry.high) if end is not None]
