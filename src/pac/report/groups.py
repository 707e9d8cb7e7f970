"""Who belongs together: runs that differ in nothing but the seed are one method, and their trials are pooled.

What must not be pooled is kept apart: runs with other settings, several checkpoints of one run, and trials that ended
by other rules.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pac.evaluation import experts
from pac.evaluation.compare import Difference, compare, warnings
from pac.evaluation.plan import fingerprint
from pac.evaluation.records import EpisodeRecord, by_actor
from pac.evaluation.summary import Row, Summary, summarise
from pac.model.pretrained import pretrained_folder
from pac.report.sources import Evaluation, LoadedRun, table

# Settings in which the seeds of one method may differ: where things lie, and what does not change what is learned.
IGNORED = ("seed", "start", "checkpoint", "evaluation", "machine", "collect.workers", "collect.seed")
_SEED = re.compile(r"(.+?)[\s,_.-]+seed[\s_=-]*(\d+)$", re.IGNORECASE)
ENDED = "ended at success"  # of episodes, among the rules
FEW_KEYS = 2  # that name a method apart from its siblings; beyond, its folder does


def split_seed(label: str) -> tuple[str, int | None]:
    """`PAC, seed 3` is (PAC, 3)."""
    found = _SEED.fullmatch(label)
    return (found[1], int(found[2])) if found else (label, None)


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Settings that shape what is learned, dotted."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        items = enumerate(value)
    else:
        return {name: value}
    merged: dict[str, Any] = {}
    for key, item in items:
        path = f"{name}.{key}".lstrip(".")
        if key != "path" and path not in IGNORED:
            merged |= flatten(item, path)
    return merged


def name_runs(runs: Sequence[LoadedRun]) -> dict[int, str]:
    """id of a run -> name of its group: its label, else its method, told apart by the settings that differ."""
    names = {id(run): run.label for run in runs if run.label}
    for method in dict.fromkeys(run.method for run in runs if not run.label):
        members = [run for run in runs if run.method == method and not run.label]
        variants: dict[str, list[LoadedRun]] = {}
        for run in members:
            key = json.dumps(flatten(run.settings), sort_keys=True, default=str) if run.settings else run.name
            variants.setdefault(key, []).append(run)
        for group, name in zip(variants.values(), _variant_names(method, list(variants.values())), strict=True):
            names |= {id(run): name for run in group}
    return names


def _variant_names(method: str, variants: Sequence[Sequence[LoadedRun]]) -> list[str]:
    if len(variants) == 1:
        return [method]
    settings = [flatten(group[0].settings) for group in variants]
    keys = dict.fromkeys(key for one in settings for key in one)
    differ = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in settings}) > 1]
    if len(differ) <= FEW_KEYS and all(settings):
        return [", ".join([method, *(f"{key}={one.get(key)}" for key in differ)]) for one in settings]
    return [f"{method}, {Path(group[0].name).name or group[0].name}" for group in variants]


# ---------------------------------------------------------------------------------------------------------- contests


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One actor of one evaluation."""

    evaluation: Evaluation
    actor: str
    group: str
    seed: int | None
    identity: str  # of what acted: the same one may be in several files
    run: LoadedRun | None
    records: list[EpisodeRecord]


@dataclass(frozen=True, kw_only=True)
class ComparisonGroup:
    """Trials that ended by the same rules: their numbers compare."""

    rules: str  # in words; empty: whole episodes
    members: dict[str, dict[str, list[EpisodeRecord]]]  # group -> seed or folder -> trials
    experts: dict[str, float]
    notes: list[str]
    relabelled: set[str] = field(default_factory=set)  # groups whose critic learned another reward than the world's

    @functools.cached_property
    def pooled(self) -> dict[str, Summary]:
        """Of each group, all its members together."""
        every = {name: [entry for part in parts.values() for entry in part] for name, parts in self.members.items()}
        return {name: summary_of(records, self.experts) for name, records in every.items()}

    @functools.cached_property
    def single(self) -> dict[str, dict[str, Summary]]:
        """Of each member. One alone is its group."""
        return {
            name: {member: summary_of(part, self.experts) for member, part in parts.items()}
            if len(parts) > 1
            else dict.fromkeys(parts, self.pooled[name])
            for name, parts in self.members.items()
        }

    def differences(self) -> tuple[list[Difference], list[str]]:
        """Paired by initial state; and, where a method has several seeds, by the training's seed too."""
        several = any(len(parts) > 1 for parts in self.members.values())
        order = sorted({member for parts in self.members.values() for member in parts})
        records = []
        for name, parts in self.members.items():
            for member, part in parts.items():
                shift = order.index(member) << 40 if several else 0  # trials of another training are other trials
                records += [dataclasses.replace(entry, actor=name, seed=entry.seed + shift) for entry in part]
        try:
            return compare(records, experts=self.experts), []
        except ValueError as error:
            return [], [str(error)]

    def warnings(self, differences: Sequence[Difference]) -> list[str]:
        return [*self.notes, *warnings(self.pooled, differences)]


def summary_of(records: Sequence[EpisodeRecord], known: Mapping[str, float]) -> Summary:
    """Of one method's trials, whoever of its seeds they are of: Wilson for success, bootstrap for returns.

    Percent of expert is bootstrapped for a task; pooled it has the paper's interval, over tasks.
    """
    same = [dataclasses.replace(entry, actor="") for entry in records]
    plain, drawn = (summarise(same, experts=known, bootstrap=bootstrap) for bootstrap in (False, True))

    def merge(one: Row, other: Row) -> Row:
        percent = other.percent if one.tasks == 1 else one.percent
        return dataclasses.replace(one, returns=other.returns, percent=percent)

    return Summary(
        tasks={task: merge(row, drawn.tasks[task]) for task, row in plain.tasks.items()},
        pooled={name: merge(row, drawn.pooled[name]) for name, row in plain.pooled.items()},
    )


def contests(
    evaluations: Sequence[Evaluation], runs: Sequence[LoadedRun]
) -> tuple[list[ComparisonGroup], dict[int, str]]:
    """The trials by rules, group and seed; and the name of each run's group, as `name_runs` gives it."""
    origins: dict[str, LoadedRun] = {str(run.path.resolve()): run for run in runs if run.path is not None}
    prints: dict[str, str | None] = {}
    found = [(evaluation, label) for evaluation in evaluations for label in by_actor(evaluation.records)]
    sources: dict[tuple[int, str], LoadedRun | None] = {}
    for evaluation, label in found:
        sources[id(evaluation), label] = _origin(evaluation.actor(label), origins, prints)
    labels = _given_labels(found, sources)
    everyone = [*runs, *(run for run in origins.values() if not any(run is one for one in runs))]
    relabelled = [dataclasses.replace(run, label=run.label or labels.get(id(run))) for run in everyone]
    given = name_runs(relabelled)
    names = {id(run): given[id(again)] for run, again in zip(everyone, relabelled, strict=True)}
    made: dict[str, list[Entry]] = {}
    for evaluation, label in found:
        entry = _entry(evaluation, label, sources[id(evaluation), label], names)
        made.setdefault(rules_of(evaluation), []).append(entry)
    return [_contest(rules, entries) for rules, entries in made.items()], names


def rules_of(evaluation: Evaluation) -> str:
    settings = evaluation.settings
    limit = settings.get("max_steps")
    parts = [f"at most {limit} steps"] if limit is not None else []
    return ", ".join([*parts, *([ENDED] if settings.get("stop_at_success") else [])])


def _origin(actor: Mapping[str, Any], origins: dict[str, LoadedRun], prints: dict[str, str | None]) -> LoadedRun | None:
    """The run that an actor is of, if it was given or can be read; read ones join the others.

    A run that was moved since, or named from another folder, is known by the weights of its last checkpoint.
    """
    checkpoint = str(actor.get("checkpoint") or "")
    if not checkpoint:
        return None
    place = Path(checkpoint).resolve()
    for folder in (place, *place.parents[:3]):  # RUN, RUN/checkpoints/000400/pretrained_model
        if str(folder) in origins:
            return origins[str(folder)]
    for name, run in origins.items():
        if name not in prints:
            prints[name] = _fingerprint(run)
        if prints[name] is not None and prints[name] == actor.get("fingerprint"):
            return run
    try:
        config = json.loads((pretrained_folder(checkpoint) / "train_config.json").read_text())
    except (OSError, ValueError):
        return None
    origins[str(place)] = LoadedRun(name=checkpoint, config=table(config))
    return origins[str(place)]


def _fingerprint(run: LoadedRun) -> str | None:
    try:
        return fingerprint(run.path) if run.path is not None else None
    except (OSError, ValueError):  # no checkpoint yet
        return None


def _is_given(label: str, checkpoint: str) -> bool:
    """Whether a person chose the label: it is not the checkpoint's folder."""
    return not label.startswith(checkpoint)


def _given_labels(
    found: Sequence[tuple[Evaluation, str]], sources: Mapping[tuple[int, str], LoadedRun | None]
) -> dict[int, str]:
    """A run that evaluations call by one name is called so elsewhere too."""
    labels: dict[int, set[str]] = {}
    for evaluation, label in found:
        run, checkpoint = sources[id(evaluation), label], str(evaluation.actor(label).get("checkpoint") or "")
        if run is not None and _is_given(label, checkpoint):
            labels.setdefault(id(run), set()).add(split_seed(label)[0])
    return {key: next(iter(some)) for key, some in labels.items() if len(some) == 1}


def _entry(evaluation: Evaluation, label: str, run: LoadedRun | None, names: Mapping[int, str]) -> Entry:
    about = evaluation.actor(label)
    checkpoint = str(about.get("checkpoint") or "")
    who = about.get("fingerprint") or about.get("behaviour") or f"{evaluation.name} {label}"
    group, seed = split_seed(label)
    if run is not None:
        seed = run.seed if run.seed is not None else seed
        group = group if _is_given(label, checkpoint) else names[id(run)] + label.removeprefix(checkpoint)
        group = run.label or group
    return Entry(
        evaluation=evaluation,
        actor=label,
        group=group,
        seed=seed,
        identity=json.dumps([who, about.get("sampling"), about.get("best_of")], default=str),
        run=run,
        records=[entry for entry in evaluation.records if entry.actor == label],
    )


def _contest(rules: str, entries: Sequence[Entry]) -> ComparisonGroup:
    members: dict[str, dict[str, dict[tuple[str, int, int], EpisodeRecord]]] = {}
    seen: dict[tuple[str, str], Entry] = {}
    relabelled = set()
    for entry in entries:
        group, member = _place(entry, entries, seen)
        relabelled |= {group} if entry.run is not None and _is_relabelled(entry.run) else set()
        kept = members.setdefault(group, {}).setdefault(member, {})
        kept |= {record.start: record for record in entry.records if record.start not in kept}
    lists = {name: {member: list(kept.values()) for member, kept in parts.items()} for name, parts in members.items()}
    known = _experts(entries) if not rules else {}
    return ComparisonGroup(rules=rules, members=lists, experts=known, notes=_mixed(entries), relabelled=relabelled)


def _is_relabelled(run: LoadedRun) -> bool:
    return any(dataset.get("reward") is not None for _, dataset in datasets_of(run))


def datasets_of(run: LoadedRun) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each dataset of the mixture, as the recipe has it, with its group."""
    groups = table(run.settings.get("mixture")).get("groups")
    tables = [table(group) for group in groups] if isinstance(groups, list) else []
    return [(group, table(dataset)) for group in tables for dataset in group.get("datasets") or []]


def _place(entry: Entry, entries: Sequence[Entry], seen: dict[tuple[str, str], Entry]) -> tuple[str, str]:
    """Group and member. One member holds trials of one actor only, and one group no two actors of the same run."""
    group, member, stem = entry.group, _member(entry), Path(entry.evaluation.name).stem
    siblings = [other for other in entries if other.run is entry.run is not None and other.group == group]
    if len({other.identity for other in siblings}) > 1:  # several checkpoints of one run, or ways to act
        checkpoint = str(entry.evaluation.actor(entry.actor).get("checkpoint"))
        given = _is_given(entry.actor, checkpoint)
        group += f", {entry.actor if given else Path(checkpoint).name + entry.actor.removeprefix(checkpoint)}"
    holder = seen.get((group, member))
    choices = [(group, member)]
    if entry.run is not None and holder is not None and holder.run is not entry.run:
        choices.append((group, f"{member} ({Path(entry.run.name).name})".strip()))
    choices.append((f"{group} ({stem})", member))
    numbered = ((f"{group} ({stem}, {number})", member) for number in itertools.count(2))
    return next(
        place
        for place in itertools.chain(choices, numbered)
        if seen.setdefault(place, entry).identity == entry.identity
    )


def _member(entry: Entry) -> str:
    return f"seed {entry.seed}" if entry.seed is not None else ""


def _experts(entries: Sequence[Entry]) -> dict[str, float]:
    """Those the evaluations were measured against, else those that ship with PAC."""
    known = {task: expert.mean for task, expert in experts.load().items()}
    for entry in entries:
        for task, about in table(entry.evaluation.document.get("experts")).items():
            known[task] = float(about["mean"])
    tasks = {record.task for entry in entries for record in entry.records}
    return {task: value for task, value in known.items() if task in tasks}


def _mixed(entries: Sequence[Entry]) -> list[str]:
    """A label may pool what differs in more than the seed: then that is said."""
    notes = []
    for group in dict.fromkeys(entry.group for entry in entries):
        runs = [entry.run for entry in entries if entry.group == group and entry.run is not None and entry.run.settings]
        flat = [flatten(run.settings) for run in runs]
        differ = sorted({key for one in flat for key in one if any(one[key] != other.get(key) for other in flat)})
        if differ:
            notes.append(f"{group}: its runs differ in more than the seed ({', '.join(differ[:4])}).")
    return notes
