"""The folder of a study: where its parts lie, and which runs are finished.

data/NAME/              collected datasets
runs/NAME/              ordinary run folders
evaluations/NAME.json   evaluation episodes of a run, with its cost and the settings that decided them
logs/NAME.txt           output of a run
experts.json            returns that count as 100%, where the data decides them
results.json            all episodes; without the rest of the folder it says which runs are finished
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pac.evaluation.records import EpisodeRecord
from pac.files import problem, write_json
from pac.old_names import STUDY_EVALUATIONS, STUDY_KEYS, STUDY_ROWS, rename_keys, rename_recipe, rename_run_config
from pac.recipe import continued
from pac.study.plan import Study, StudyRun
from pac.training.run import differences
from pac.training.run_dir import CONFIG, SUMMARY


@dataclass(frozen=True, kw_only=True)
class RunEvaluation:
    """The evaluation of one run, as its file holds it."""

    facts: dict[str, Any]  # name, row and seed of the run; its size, seconds and versions
    settings: dict[str, Any]  # everything that decides the episodes
    records: list[EpisodeRecord]

    def means(self) -> str:
        """Return the successes of each task, or its mean return where the environment does not define success."""
        groups: dict[str, list[EpisodeRecord]] = {}
        for entry in self.records:
            groups.setdefault(entry.task, []).append(entry)
        words = list[str]()
        for task, group in groups.items():
            if group[0].success is None:
                words.append(f"{task} {sum(entry.total for entry in group) / len(group):.4g}")
            else:
                words.append(f"{task} {sum(bool(entry.success) for entry in group)} of {len(group)}")
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        return self.facts | {"settings": self.settings, "episodes": [entry.as_json() for entry in self.records]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "RunEvaluation":
        """Return the evaluation in a file, which an earlier version may have written."""
        facts = rename_keys(content, STUDY_KEYS)
        settings = rename_keys(rename_recipe(facts.pop("settings"), warn=False), STUDY_KEYS)
        for name, domain in settings.get("domains", {}).items():
            settings["domains"][name] = rename_recipe({"evaluation": domain}, warn=False)["evaluation"]
        records = [EpisodeRecord.from_json(entry) for entry in facts.pop("episodes")]
        return cls(facts=facts, settings=settings, records=records)


RESULTS = "results.json"
UNIMPORTANT = {"machine", "checkpoint"}  # sections that decide no episode


class StudyFolder:
    """A study and the folder of its data, runs and evaluations."""

    def __init__(self, path: Path, study: Study) -> None:
        self.path, self.study = path, study
        self.data, self.experts = path / "data", path / "experts.json"
        self.evaluations = STUDY_EVALUATIONS if (path / STUDY_EVALUATIONS).is_dir() else "evaluations"

    def make(self) -> None:
        for name in ("runs", self.evaluations, "logs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    def run_path(self, run: StudyRun) -> Path:
        return self._find("runs", run, "")

    def evaluation_path(self, run: StudyRun) -> Path:
        return self._find(self.evaluations, run, ".json")

    def log_path(self, run: StudyRun) -> Path:
        return self.path / "logs" / f"{run.name}.txt"

    def _find(self, kind: str, run: StudyRun, ending: str) -> Path:
        """Return a run's path. A file of an earlier version may have the row's old name."""
        old_rows = [old for old, new in STUDY_ROWS.items() if new == run.row]
        names = [run.name, *(dataclasses.replace(run, row=old).name for old in old_rows)]
        paths = [self.path / kind / f"{name}{ending}" for name in names]
        return next((path for path in paths if path.exists()), paths[0])

    @property
    def evaluated_runs(self) -> list[StudyRun]:
        """The runs that have an evaluation, perhaps of fewer episodes than the study now asks for."""
        return [run for run in self.study.runs if self.evaluation_path(run).exists()]

    @property
    def needs_data(self) -> bool:
        """Whether any run is still to be trained."""
        return not all(self.is_evaluated(run) or self.is_trained(run) for run in self.study.runs)

    def is_evaluated(self, run: StudyRun) -> bool:
        """Return whether the evaluation has as many episodes as the study asks for."""
        found = self.evaluation_path(run).exists()
        return found and bool(self.read_evaluation(run).settings["episodes"] >= self.study.config.episodes)

    def is_trained(self, run: StudyRun) -> bool:
        """Return whether the run is trained to its end with these settings, on this machine or another."""
        path = self.run_path(run)
        try:
            before = rename_run_config(json.loads((path / CONFIG).read_text()))["config"]
            now = json.loads(json.dumps(continued(run.config, before).as_json()))
        except (OSError, ValueError, KeyError):
            return False
        changed = {name.split(".")[0] for name, _, _ in differences(before, now)}
        return (path / SUMMARY).exists() and changed <= UNIMPORTANT | {"evaluation"}

    def read_evaluation(self, run: StudyRun) -> RunEvaluation:
        text = self.evaluation_path(run).read_text()
        for old in sorted(STUDY_ROWS.keys() - set(self.study.rows), key=len, reverse=True):  # some begin with others
            text = text.replace(f'"{old}', f'"{STUDY_ROWS[old]}')
        return RunEvaluation.from_json(json.loads(text))

    def write_evaluation(self, run: StudyRun, evaluation: RunEvaluation) -> None:
        write_json(self.evaluation_path(run), evaluation.to_json(), indent=1)

    def settings(self, run: StudyRun) -> dict[str, Any]:
        """Return everything that decides the episodes of a run, as JSON has it. The machine decides none of it."""
        config = {name: x for name, x in run.config.as_json().items() if name not in UNIMPORTANT}
        config["episodes"] = self.study.config.episodes
        if set(run.domains) != {""}:
            config["domains"] = {name: dataclasses.asdict(domain) for name, domain in run.domains.items()}
        if run.shows:
            config["shows"] = run.shows
        plain: dict[str, Any] = json.loads(json.dumps(config, default=str))
        return plain

    def restore(self) -> int:
        """Write the evaluations of results.json into a folder that has none. Return their number.

        So a study goes on where only its results were kept.
        """
        if not (self.path / RESULTS).exists() or any((self.path / self.evaluations).glob("*.json")):
            return 0
        document = json.loads((self.path / RESULTS).read_text())
        facts = {about["run"]: about | {"versions": document["settings"]["versions"]} for about in document["runs"]}
        finished = [run for run in self.study.runs if run.name in facts]
        for row in dict.fromkeys(run.row for run in finished):
            self._check_row(row, document["rows"][row])
        records = [EpisodeRecord.from_json(entry) for entry in document["episodes"]]
        self.make()
        for run in finished:
            labels, tasks = {label for _, label in run.labels.values()}, set(run.config.evaluation.tasks)
            own = [entry for entry in records if entry.actor in labels and entry.task in tasks]
            settings = self.settings(run) | {"episodes": document["episodes_per_task"]}
            self.write_evaluation(run, RunEvaluation(facts=facts[run.name], settings=settings, records=own))
        return len(finished)

    def _check_row(self, row: str, before: dict[str, Any]) -> None:
        """Raise unless a run of the row has these settings. Results hold the settings of one run per row."""
        before = rename_run_config({"config": before})["config"]
        nearest: list[tuple[str, Any, Any]] | None = None
        for run in (run for run in self.study.runs if run.row == row):
            now = json.loads(json.dumps(run.config.as_json(), default=str))
            found = [x for x in differences(before, now) if x[0].split(".")[0] not in UNIMPORTANT]
            nearest = found if nearest is None or len(found) < len(nearest) else nearest
        for name, old, new in nearest or []:
            raise problem(
                self.path / RESULTS,
                expected=f"row {row!r} with the settings of the study",
                found=f"{name} {json.dumps(old)}, not {json.dumps(new)}",
                fix="Repeat the study as it was begun, or name another --out.",
            )

    def check_settings(self) -> None:
        """Raise if an evaluation was made with other settings. Only the number of episodes may have been smaller."""
        for run in self.evaluated_runs:
            before = self.read_evaluation(run).settings
            now = self.settings(dataclasses.replace(run, config=continued(run.config, before)))
            before["episodes"] = max(before["episodes"], now["episodes"])
            for name, old, new in differences(before, now):
                raise problem(
                    self.evaluation_path(run),
                    expected="an evaluation with the settings of the study",
                    found=f"{name} {json.dumps(old)}, not {json.dumps(new)}",
                    fix="Repeat the study as it was begun, or name another --out.",
                )
