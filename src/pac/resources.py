"""Files that ship with the package: the tokenizer, expert returns, learner networks and recipes."""

from pathlib import Path

from pac.old_names import rename_recipe_name

PACKAGE = Path(__file__).parent
ASSETS = PACKAGE / "assets"
# In a wheel the recipes lie inside the package; in a clone, beside `src`.
RECIPES = next((path for path in (PACKAGE / "recipes", PACKAGE.parents[1] / "recipes") if path.is_dir()), PACKAGE)


def find_recipe(name: str | Path) -> Path:
    """Return a user's file, or a recipe that ships with PAC: "paper/scaling" or "recipes/paper/scaling.toml"."""
    if Path(name).is_file():
        return Path(name)
    short = str(name).removeprefix("recipes/").removesuffix(".toml")
    if not (RECIPES / f"{short}.toml").is_file():
        short = rename_recipe_name(short)
    if (RECIPES / f"{short}.toml").is_file():
        return RECIPES / f"{short}.toml"
    known = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.toml"))
    raise ValueError(f"Expected a file, or a recipe that ships with PAC ({', '.join(known)}), found neither at {name}.")
