"""Names that earlier versions used, and the names that replace them. All reading of old names goes through this file.

Recipes, command lines, run directories and checkpoints of earlier versions keep working. A warning names the new word.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

# Keys of a recipe, dotted. They hold in the rows of a study, too: [study.rows."NAME"] joins the recipe.
RECIPE_KEYS = {
    "objective.logged_returns": "objective.monte_carlo_weight",
    "evaluation.trials": "evaluation.episodes",
    "study.trials": "study.episodes",
    "improve.trials": "improve.evaluation_episodes",
}
SAMPLING = {"middle": "interquartile"}
# Values of a recipe's keys; * is any name.
RECIPE_VALUES = {
    "machine.data": {"resident": "gpu"},
    "evaluation.sampling": SAMPLING,
    "improve.sampling": SAMPLING,
    "study.domains.*.sampling": SAMPLING,
}
RECIPE_NAMES = {
    "study/sight": "study/vision",
    "study/turning": "study/bc_to_rl",
    "study/turning_poor": "study/bc_to_rl_poor",
    "study/together": "study/multitask",
    "study/single": "study/per_task",
    "study/lives": "study/replay",
    "improve/lifetimes": "improve/replay",
}
# Options of behaviours.
BEHAVIOUR_OPTIONS = {("learner", "life"): "stage"}
# Options of commands.
OPTIONS = {"--trials": "--episodes", "--video-trials": "--video-episodes"}
OPTION_VALUES = {"--sampling": SAMPLING}
# Keys of the mixture, in its file and in config.json of a run's folder.
MIXTURE_KEYS = {"trajectories": "windows"}
# Keys of the JSON document of an evaluation.
EVALUATION_KEYS = {"trials": "episodes", "trials_per_task": "episodes_per_task"}
# Keys of the file that holds the evaluation of one run of a study.
STUDY_KEYS = {"trials": "episodes", "trial_seconds": "evaluation_seconds"}
STUDY_EVALUATIONS = "trials"  # the folder of these files
# Rows of studies that ship with PAC. They name folders and actors, too.
STUDY_ROWS = {
    "PAC+V, the critic's word": "PAC+V, bootstrap value",
    "PAC+V, logged returns": "PAC+V, Monte Carlo return",
    "PAC+V, logged returns, a model a task": "PAC+V, Monte Carlo return, one model per task",
    "PAC+V, a model a task": "PAC+V, one model per task",
    "PAC, a model a task": "PAC, one model per task",
    "filtered BC, a model a task": "filtered BC, one model per task",
    "PAC+V, windows of five": "PAC+V, windows of 5",
    "BC+Q, windows of five": "BC+Q, windows of 5",
    "PAC+V, blind": "PAC+V, no camera",
}
# Keys of config.json in a checkpoint, and of the entry of one dataset there.
METADATA_KEYS = {"robots": "embodiments"}
EMBODIMENT_KEYS = {"told": "language_conditioned"}
# Keys whose default today is not what runs did before the key existed, with what those did: {"objective.KEY": VALUE}.
MEANING_BEFORE: dict[str, Any] = {}
# Modules of the model, as the names of weights and of their optimiser state have them.
MODULES = {"read": "input_attention", "sections": "stages"}


class OldNameWarning(FutureWarning):
    """An old name was used. `pac` prints it as one plain line."""


def rename_recipe(table: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Return a copy of a recipe's tables under the present names."""
    found: dict[str, str] = {}
    renamed = _rename_table(table, (), found)
    for old, new in found.items() if warn else ():
        _warn(old, new)
    return renamed


def _rename_table(table: Mapping[str, Any], path: tuple[str, ...], found: dict[str, str]) -> dict[str, Any]:
    """Return a table under the present names, and note each old name in `found`."""
    renamed: dict[str, Any] = {}
    for key, value in table.items():
        place = _place((*path, key))
        new = RECIPE_KEYS.get(place, place)
        if new != place:
            key = new.rpartition(".")[2]
            if key in table:
                raise ValueError(f"Expected {new}, found {place} beside it. {place} is its old name: leave it out.")
            found[place] = new
        if isinstance(value, Mapping):
            value = _rename_table(value, (*path, key), found)
        elif isinstance(value, str) and value in RECIPE_VALUES.get(new, {}):
            found[f"{new}={value}"] = f"{new}={RECIPE_VALUES[new][value]}"
            value = RECIPE_VALUES[new][value]
        renamed[key] = value
    return renamed


def _place(path: tuple[str, ...]) -> str:
    """Return a dotted key as the tables above have it."""
    if path[:2] == ("study", "rows"):
        path = path[3:]
    elif path[:2] == ("study", "domains"):
        path = (*path[:2], "*", *path[3:])
    return ".".join(path)


def rename_override(key: str, value: Any) -> tuple[str, Any]:
    """Return a dotted recipe key and its value under the present names."""
    names = key.split(".")
    for name in reversed(names):
        value = {name: value}
    value = rename_recipe(value)
    for i in range(len(names)):
        ((names[i], value),) = value.items()
    return ".".join(names), value


def rename_recipe_name(name: str) -> str:
    """Return the present name of a recipe that ships with PAC."""
    return _rename_word(name, RECIPE_NAMES)


def rename_behaviour_option(behaviour: str, option: str) -> str:
    """Return the present name of an option of a behaviour, such as `stage` in `learner:stage=1`."""
    new = BEHAVIOUR_OPTIONS.get((behaviour, option), option)
    if new != option:
        _warn(f"{behaviour}:{option}", f"{behaviour}:{new}")
    return new


def rename_behaviour(text: str) -> str:
    """Return the text of a behaviour under the present names. There is no warning, since it comes from a file."""
    for (behaviour, old), new in BEHAVIOUR_OPTIONS.items():
        text = re.sub(rf"(\b{behaviour}:[^+()]*?\b){old}=", rf"\g<1>{new}=", text)
    return text


def rename_options(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the present options and values."""
    renamed, option = list[str](), ""
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            option = _rename_word(name, OPTIONS)
            word = f"{option}{equals}{_rename_word(value, OPTION_VALUES.get(option, {}))}"
        else:
            word = _rename_word(word, OPTION_VALUES.get(option, {}))
        renamed.append(word)
    return renamed


def rename_keys(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return `table` with the keys in `names` renamed. There is no warning, since nobody typed these keys."""
    return {names.get(key, key): value for key, value in table.items()}


def rename_counts(table: Any) -> Any:
    """Return the `counts` of a dataset in a mixture file under the present names."""
    if isinstance(table, Mapping) and "trajectories" in table:
        _warn("counts.trajectories", "counts.windows")
        return rename_keys(table, MIXTURE_KEYS)
    return table


def rename_run_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of a run's folder, its recipe and its mixture, under the present names."""
    renamed = dict(content)
    if isinstance(recipe := content.get("config"), Mapping):
        renamed["config"] = _rename_everywhere(rename_recipe(recipe, warn=False), MIXTURE_KEYS)
    if isinstance(plan := content.get("mixture"), Mapping):
        renamed["mixture"] = _rename_everywhere(plan, MIXTURE_KEYS)
    return renamed


def _rename_everywhere(value: Any, names: Mapping[str, str]) -> Any:
    """Return nested tables and lists with keys renamed at every depth."""
    if isinstance(value, Mapping):
        return {names.get(key, key): _rename_everywhere(item, names) for key, item in value.items()}
    return [_rename_everywhere(item, names) for item in value] if isinstance(value, list) else value


def rename_weight(name: str) -> str:
    """Return the present name of a weight, or of a tensor of the training state that belongs to it."""
    return ".".join(MODULES.get(part, part) for part in name.split("."))


def _rename_word(word: str, names: Mapping[str, str]) -> str:
    """Return the present name of a word. Warn if it is an old name."""
    new = names.get(word, word)
    if new != word:
        _warn(word, new)
    return new


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is called {new} now. The old name still works.", OldNameWarning, stacklevel=3)
