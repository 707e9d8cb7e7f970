"""The rows of a report. The user's labels decide what is pooled.

Runs of one label are seeds of one method. What has no label is a row of its own. Episodes that ended by other rules
are another table.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pac.evaluation import experts
from pac.evaluation.compare import Difference, compare
from pac.evaluation.records import EpisodeRecord, by_actor
from pac.evaluation.samplings import SamplingPair, sampling_pairs
from pac.evaluation.summary import Row, Summary, summarise
from pac.model.pretrained import TRAIN_CONFIG, pretrained_folder
from pac.old_names import rename_run_config
from pac.report.sources import LoadedEvaluation, LoadedRun
from pac.training.run import differences

# Settings in which runs of one label may differ in silence: they do not change what is learned.
IGNORED = ("seed.", "start.", "checkpoint.", "evaluation.", "machine.", "collect.workers.", "collect.seed.")
ENDED_AT_SUCCESS = "ended at success"  # of episodes, among the rules


def plain_names(tasks: Iterable[str]) -> dict[str, str]:
    """Return the names of tasks without their suite, if all are of one suite that ships with PAC."""
    names = list(tasks)
    suites = {name.partition("/")[0] for name in names if "/" in name}
    plain = len(suites) == 1 and suites <= {"metaworld", "control", "gym"}
    return {name: name.partition("/")[2] or name if plain else name for name in names}


def split_seed(label: str) -> tuple[str, int | None]:
    """Return (PAC, 3) of `PAC, seed 3`."""
    found = re.fullmatch(r"(.+), seed (\d+)", label)
    return (found[1], int(found[2])) if found else (label, None)


def group_runs(runs: Sequence[LoadedRun]) -> dict[str, list[LoadedRun]]:
    """Return the runs of each row by seed."""
    by_seed = sorted(runs, key=lambda run: run.seed or 0)
    return {row: [run for run in by_seed if run.row == row] for row in dict.fromkeys(run.row for run in runs)}


def pooling_notes(rows: Mapping[str, Sequence[LoadedRun]]) -> list[str]:
    """Return a note on each row whose runs differ in more than the seed."""
    notes = []
    for row, (first, *others) in rows.items():
        names = sorted({name for run in others for name, _, _ in differences(first.recipe, run.recipe)})
        names = [name for name in names if not f"{name}.".startswith(IGNORED)]
        if names:
            notes.append(f"{row}: its runs differ in more than the seed ({', '.join(names[:4])}).")
    return notes


@dataclass(frozen=True, kw_only=True)
class ComparisonGroup:
    """Rows whose episodes ended by the same rules, so that their numbers compare."""

    rules: str = ""  # in words; empty: whole episodes
    members: dict[str, dict[str, list[EpisodeRecord]]] = field(default_factory=dict)  # row -> seed or actor -> episodes
    experts: dict[str, float] = field(default_factory=dict)
    relabelled: set[str] = field(default_factory=set)  # rows whose critic learned another reward than the environment's
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)  # row -> policy and way to act, if it has several

    @functools.cached_property
    def pooled(self) -> dict[str, Summary]:
        """The summary of each row over all its members."""
        every = {row: [entry for part in parts.values() for entry in part] for row, parts in self.members.items()}
        return {row: summarise_row(records, self.experts) for row, records in every.items()}

    @functools.cached_property
    def by_member(self) -> dict[str, dict[str, Summary]]:
        """The summary of each member of rows with several."""
        return {
            row: {member: summarise_row(part, self.experts) for member, part in parts.items()}
            for row, parts in self.members.items()
            if len(parts) > 1
        }

    @functools.cached_property
    def sampling_pairs(self) -> list[SamplingPair]:
        """The rows that are one policy, which acts in two ways."""
        return sampling_pairs(self.policies)

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for summary in self.pooled.values() for task in summary.tasks))

    def differences(self) -> tuple[list[Difference], list[str]]:
        """Return the paired differences, or what stands in their way.

        Episodes are paired by initial state; where a row has several members, by the seed of the training too.
        """
        several = any(len(parts) > 1 for parts in self.members.values())
        order = sorted({member for parts in self.members.values() for member in parts})
        records = []
        for row, parts in self.members.items():
            for member, part in parts.items():
                shift = order.index(member) << 40 if several else 0  # keeps seeds of the training apart
                records += [dataclasses.replace(entry, actor=row, seed=entry.seed + shift) for entry in part]
        try:
            return compare(records, experts=self.experts), []
        except ValueError as error:
            return [], [str(error)]


def summarise_row(records: Sequence[EpisodeRecord], known: Mapping[str, float]) -> Summary:
    """Return the summary of a row's episodes: Wilson for success, stratified bootstrap for returns.

    Percent of expert is bootstrapped per task. Pooled it has the paper's interval, over tasks.
    """
    same = [dataclasses.replace(entry, actor="") for entry in records]
    plain, resampled = (summarise(same, experts=known, bootstrap=bootstrap) for bootstrap in (False, True))

    def merge(rows: Mapping[str, Row], others: Mapping[str, Row]) -> dict[str, Row]:
        return {
            name: dataclasses.replace(
                row, returns=others[name].returns, percent=(others[name] if row.tasks == 1 else row).percent
            )
            for name, row in rows.items()
        }

    return Summary(tasks=merge(plain.tasks, resampled.tasks), pooled=merge(plain.pooled, resampled.pooled))


def compare_evaluations(evaluations: Iterable[LoadedEvaluation], runs: Sequence[LoadedRun]) -> list[ComparisonGroup]:
    """Return the rows of all evaluations, with a group per set of rules.

    An actor takes the label of its file, or of the run in `runs` whose checkpoint it is. Else it keeps its own label.
    """
    known_experts = {task: expert.mean for task, expert in experts.load().items()}
    groups: dict[str, ComparisonGroup] = {}
    holders: dict[tuple[str, str, str], str] = {}
    for evaluation in evaluations:
        rules = _rules(evaluation)
        group = groups.setdefault(rules, ComparisonGroup(rules=rules))
        if not rules:
            group.experts.update({**known_experts, **evaluation.experts})
        ways = _ways(evaluation)
        for actor, records in by_actor(evaluation.records).items():
            run = _run_of(evaluation.describe_actor(actor), runs)
            way = ways.get(actor, "")
            row, member = _row(evaluation, actor, run, way), _member(evaluation, actor, run, runs, way)
            own = f"{actor} ({evaluation.name})"
            identity = _identity(evaluation, actor)
            if holders.setdefault((rules, row, member), identity) != identity:  # another actor is there
                row, member = (row, own) if evaluation.label else (own, member)
            if run is not None and any(dataset.get("reward") is not None for dataset, _ in run.datasets.values()):
                group.relabelled.add(row)
            if way:
                about = evaluation.describe_actor(actor)
                kept = {name: about.get(name) for name in ("sampling", "best_of", "show")}
                group.policies[row] = kept | {"policy": row.removesuffix(way)}
            part = group.members.setdefault(row, {}).setdefault(member, [])
            known = {entry.start for entry in part}
            part += [entry for entry in records if entry.start not in known]
    return list(groups.values())


def _rules(evaluation: LoadedEvaluation) -> str:
    """Return the rules by which episodes end, in words."""
    limit = evaluation.settings.get("max_steps")
    parts = [f"at most {limit} steps"] if limit is not None else []
    return ", ".join([*parts, *([ENDED_AT_SUCCESS] if evaluation.settings.get("stop_at_success") else [])])


def _run_of(about: Mapping[str, Any], runs: Sequence[LoadedRun]) -> LoadedRun | None:
    """Return the run that a checkpoint lies in. If it is none of `runs`, return what the checkpoint knows of it."""
    if "checkpoint" not in about:
        return None
    place = Path(about["checkpoint"]).resolve()
    for run in runs:
        if run.path is not None and place.is_relative_to(run.path.resolve()):
            return run
    try:
        settings = json.loads((pretrained_folder(place) / TRAIN_CONFIG).read_text())
    except (OSError, ValueError):
        return None
    return LoadedRun(name=about["checkpoint"], settings=rename_run_config(settings))


def _ways(evaluation: LoadedEvaluation) -> dict[str, str]:
    """Return the end of the label, such as ` (mode)`, of each actor that is one policy with several ways to act."""
    pairs = sampling_pairs(evaluation.settings.get("actors", {}))
    actors = [(one.name, actor) for one in pairs for actor in (one.first, one.second)]
    return {actor: actor.removeprefix(name) for name, actor in actors if actor.startswith(f"{name} (")}


def _row(evaluation: LoadedEvaluation, actor: str, run: LoadedRun | None, way: str) -> str:
    if evaluation.label:
        return f"{evaluation.label}{way}"
    checkpoint = evaluation.describe_actor(actor).get("checkpoint", "")
    named_by_path = checkpoint and actor.startswith(checkpoint)
    if run is None or run.path is None or not (run.label or named_by_path):
        return f"{split_seed(actor.removesuffix(way))[0]}{way}"
    step = "" if Path(checkpoint).resolve() == run.path.resolve() else f", {Path(checkpoint).name}"
    way = actor.removeprefix(checkpoint) if named_by_path else way
    return f"{run.row}{step}{way}"


def _member(
    evaluation: LoadedEvaluation, actor: str, run: LoadedRun | None, runs: Sequence[LoadedRun], way: str
) -> str:
    """Return the seed of the training. It pairs the members of different rows."""
    seed = split_seed(actor.removesuffix(way))[1] if run is None else run.seed
    if run is not None and sum((other.row, other.seed) == (run.row, seed) for other in runs) > 1:
        return run.name
    if seed is not None:
        return f"seed {seed}"
    return actor.removesuffix(way) if evaluation.label else ""


def _identity(evaluation: LoadedEvaluation, actor: str) -> str:
    """Return what acted, as text. The same actor may have episodes in several files."""
    about = {name: value for name, value in evaluation.describe_actor(actor).items() if name != "checkpoint"}
    known = "fingerprint" in about or "behaviour" in about
    return json.dumps(about if known else [evaluation.name, actor], sort_keys=True)
