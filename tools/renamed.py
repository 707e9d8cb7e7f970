"""Names in result files that earlier versions wrote, and the plain names that our pages use for them."""

import re
from collections.abc import Mapping
from typing import Any

ROWS = {  # rows of a study, and actors of an evaluation
    "PAC+V, the critic's word": "PAC+V, bootstrap value",
    "PAC+V, logged returns": "PAC+V, Monte Carlo return",
    "PAC+V, logged returns, a model a task": "PAC+V, Monte Carlo return, one model per task",
    "PAC+V, a model a task": "PAC+V, one model per task",
    "PAC, a model a task": "PAC, one model per task",
    "filtered BC, a model a task": "filtered BC, one model per task",
    "PAC+V, windows of five": "PAC+V, windows of 5",
    "BC+Q, windows of five": "BC+Q, windows of 5",
    "PAC+V, blind": "PAC+V, no camera",
    "what it became": "trained learner",
    "the learners": "learners",
}
KEYS = {  # of documents, of a run in them, of seconds
    "trials": "episodes",
    "trials_per_task": "episodes_per_task",
    "trial_seconds": "evaluation_seconds",
    "trial_seed": "evaluation_seed",
}
STUDIES = {
    "sight": "vision",
    "turning": "bc_to_rl",
    "turning_poor": "bc_to_rl_poor",
    "together": "multitask",
    "single": "per_task",
    "single_returns": "per_task_returns",
    "lives": "replay",
    "lives_draws": "replay_sampled",
    "lives_experts": "replay_experts",
    "lifetimes": "replay",
}
_COMMAND = [
    (re.compile(rf"\b(study|improve|runs|learners)/({'|'.join(STUDIES)})\b"), lambda m: f"{m[1]}/{STUDIES[m[2]]}"),
    (re.compile(r"--trials\b"), lambda m: "--episodes"),
    (re.compile(r"(--chosen \S+)\.json\b"), lambda m: f"{m[1]}.parquet"),
    (re.compile(r"\bstudy\.trials="), lambda m: "study.episodes="),
    (re.compile(r"\bimprove\.trials="), lambda m: "improve.evaluation_episodes="),
    (re.compile("|".join(sorted(map(re.escape, ROWS), key=len, reverse=True))), lambda m: ROWS[m[0]]),
]


def rename_row(name: str) -> str:
    """Return the plain name of a row, or of an actor that is one seed of it."""
    row, comma, seed = name.rpartition(", seed ")
    return f"{ROWS.get(row, row)}{comma}{seed}" if comma else ROWS.get(name, name)


def rename_text(text: str) -> str:
    """Return a command, a path or a note with present names."""
    for pattern, replacement in _COMMAND:
        text = pattern.sub(replacement, text)
    return text


def rename(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document, its rows, its runs and its episodes under present names."""
    return {KEYS.get(key, key): _rename_value(KEYS.get(key, key), value) for key, value in document.items()}


def _rename_value(key: str, value: Any) -> Any:
    if key == "command":
        return rename_text(value)
    if key == "notes":
        return [rename_text(note) for note in value]
    if key == "episodes" and isinstance(value, list):
        return [row | {"actor": rename_row(row["actor"])} if "actor" in row else row for row in value]
    if key in ("rows", "summary", "actors"):
        return {rename_row(name): about for name, about in value.items()}
    if key == "settings":
        return value | ({"actors": _rename_value("actors", value["actors"])} if "actors" in value else {})
    if key == "runs":
        return [{KEYS.get(k, k): rename_row(v) if k == "row" else v for k, v in run.items()} for run in value]
    if key == "differences" and isinstance(value, list):
        return [{k: rename_row(v) if k in ("first", "second") else v for k, v in one.items()} for one in value]
    return value
