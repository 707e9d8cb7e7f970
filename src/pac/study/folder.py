"""The folder of a study: where its parts lie, and which runs are finished.

data/NAME/              collected datasets
runs/NAME/              ordinary run folders
evaluations/NAME.json   evaluation episodes of a run, with its cost and the settings that decided them
logs/NAME.txt           output of a run
experts.json            returns that count as 100%, where the data decides them
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pac.evaluation.records import EpisodeRecord
from pac.files import problem, write_json
from pac.old_names import STUDY_KEYS, STUDY_ROWS, rename_keys, rename_recipe
from pac.study.plan import Study, StudyRun
from pac.training.run import differences
from pac.training.run_dir import CONFIG, SUMMARY

OLD_ROWS = {new: old for old, new in STUDY_ROWS.items()}


@dataclass(frozen=True, kw_only=True)
class RunEvaluation:
    """The evaluation of one run, as its file holds it."""

    facts: dict[str, Any]  # name, row and seed of the run; its size, seconds and versions
    settings: dict[str, Any]  # everything that decides the episodes
    records: list[EpisodeRecord]

    @property
    def means(self) -> dict[str, str]:
        """Task -> successes, or the mean return where the environment does not define success."""
        groups: dict[str, list[EpisodeRecord]] = {}
        for entry in self.records:
            groups.setdefault(entry.task, []).append(entry)
        return {
            task: f"{sum(map(bool, (entry.success for entry in group)))} of {len(group)}"
            if group[0].success is not None
            else f"{sum(entry.total for entry in group) / len(group):.4g}"
            for task, group in groups.items()
        }

    def to_json(self) -> dict[str, Any]:
        return self.facts | {"settings": self.settings, "episodes": [entry.as_json() for entry in self.records]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "RunEvaluation":
        facts = rename_keys(content, STUDY_KEYS)
        settings, episodes = _rename_settings(facts.pop("settings")), facts.pop("episodes")
        return cls(facts=facts, settings=settings, records=[EpisodeRecord.from_json(entry) for entry in episodes])


def _rename_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that an earlier version wrote under their present names."""
    found = rename_keys(rename_recipe(settings, warn=False), STUDY_KEYS)
    for name, domain in found.get("domains", {}).items():
        found["domains"][name] = rename_recipe({"evaluation": domain}, warn=False)["evaluation"]
    return found


class StudyFolder:
    """A study and the folder of its data, runs and evaluations."""

    def __init__(self, path: Path, study: Study) -> None:
        self.path, self.study = path, study
        self.data, self.experts = path / "data", path / "experts.json"

    def make(self) -> None:
        for name in ("runs", self._evaluations, "logs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    def run_path(self, run: StudyRun) -> Path:
        return self._find("runs", run, "")

    def evaluation_path(self, run: StudyRun) -> Path:
        return self._find(self._evaluations, run, ".json")

    def log_path(self, run: StudyRun) -> Path:
        return self.path / "logs" / f"{run.name}.txt"

    @property
    def _evaluations(self) -> str:
        """The folder of evaluations, `trials` in folders of earlier versions."""
        return "trials" if (self.path / "trials").is_dir() else "evaluations"

    def _find(self, kind: str, run: StudyRun, ending: str) -> Path:
        """Return a run's path. A file of an earlier version may have the row's old name."""
        path, old = self.path / kind / f"{run.name}{ending}", OLD_ROWS.get(run.row)
        if old is not None and not path.exists():
            before = self.path / kind / f"{dataclasses.replace(run, row=old).name}{ending}"
            return before if before.exists() else path
        return path

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
        path, now = self.run_path(run), json.loads(json.dumps(run.config.as_json()))
        try:
            before = rename_recipe(json.loads((path / CONFIG).read_text())["config"], warn=False)
        except (OSError, ValueError, KeyError):
            return False
        changed = {name.split(".")[0] for name, _, _ in differences(before, now)}
        return (path / SUMMARY).exists() and changed <= {"machine", "checkpoint", "evaluation"}

    def read_evaluation(self, run: StudyRun) -> RunEvaluation:
        text = self.evaluation_path(run).read_text()
        for old, new in STUDY_ROWS.items():
            text = text.replace(f'"{old}', f'"{new}')
        return RunEvaluation.from_json(json.loads(text))

    def write_evaluation(self, run: StudyRun, evaluation: RunEvaluation) -> None:
        write_json(self.evaluation_path(run), evaluation.to_json(), indent=1)

    def settings(self, run: StudyRun) -> dict[str, Any]:
        """Return everything that decides the episodes of a run, as JSON has it. The machine decides none of it."""
        config = {name: x for name, x in run.config.as_json().items() if name not in ("machine", "checkpoint")}
        config["episodes"] = self.study.config.episodes
        if set(run.domains) != {""}:
            config["domains"] = {name: dataclasses.asdict(domain) for name, domain in run.domains.items()}
        if run.shows:
            config["shows"] = run.shows
        plain: dict[str, Any] = json.loads(json.dumps(config, default=str))
        return plain

    def check_settings(self) -> None:
        """Raise if an evaluation was made with other settings. Only the number of episodes may have been smaller."""
        for run in self.evaluated_runs:
            before, now = self.read_evaluation(run).settings, self.settings(run)
            before["episodes"] = max(before["episodes"], now["episodes"])
            for name, old, new in differences(before, now):
                raise problem(
                    self.evaluation_path(run),
                    expected="an evaluation with the settings of the study",
                    found=f"{name} {json.dumps(old)}, not {json.dumps(new)}",
                    fix="Repeat the study as it was begun, or name another --out.",
                )
