"""Names that earlier versions used, and the names that replace them. All reading of old names goes through this file.

Recipes, command lines, run directories and checkpoints of earlier versions keep working. A warning names the new word.
"""

import warnings
from typing import Any

# Keys of a recipe, dotted. A last part that was renamed inside a list of tables is given as `section[].key`.
RECIPE_KEYS = {
    "objective.logged_returns": "objective.monte_carlo_weight",
}
# Keys of the JSON document of an evaluation.
EVALUATION_KEYS = {"trials": "episodes", "trials_per_task": "episodes_per_task"}
# Keys of what a checkpoint says of one dataset of its training.
EMBODIMENT_KEYS = {"told": "language_conditioned"}


def rename_override(key: str) -> str:
    """Return the present name of a dotted recipe key."""
    new = RECIPE_KEYS.get(key, key)
    if new != key:
        _warn(key, new)
    return new


def rename_recipe(table: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a recipe's tables with old keys renamed."""
    table = {name: dict(value) if isinstance(value, dict) else value for name, value in table.items()}
    for old, new in RECIPE_KEYS.items():
        section, _, key = old.partition(".")
        values = table.get(section)
        if isinstance(values, dict) and key in values:
            target = new.partition(".")[2]
            if target in values:
                raise ValueError(f"Expected {new}, found {old} beside it. {old} is its old name: leave it out.")
            values[target] = values.pop(key)
            _warn(old, new)
    return table


def rename_keys(table: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return `table` with the keys in `names` renamed, without a warning: nobody typed these."""
    return {names.get(key, key): value for key, value in table.items()}


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is called {new} now. The old name still works.", FutureWarning, stacklevel=3)
