"""The core imports nothing from the satellites. Nothing but the command line imports a command."""

import ast
from pathlib import Path

import pac

# What the paper needs: data to gradient to policy. All else in src/pac is a satellite, whatever its name.
CORE = {"types", "config", "recipe", "recipe_keys", "bins", "objectives", "files", "old_names", "resources"}
CORE |= {"model", "data", "training", "policy", "observations", "embodiments", "loss_checks"}
ROOT = Path(pac.__file__).parent


def imported(path: Path) -> set[str]:
    """Return the parts of pac that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pac":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pac.")}
    return names


def test_the_core_imports_no_satellite() -> None:
    checked = 0
    for path in sorted(ROOT.rglob("*.py")):
        top = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if top in CORE:
            assert imported(path) <= CORE, f"{path} of the core imports {sorted(imported(path) - CORE)}"
            checked += 1
    assert checked > 30


def test_nothing_imports_a_command() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] not in ("cli", "__main__.py"):
            assert "cli" not in imported(path), f"{path} imports a command"


def test_only_commands_parse_arguments_and_draw_tables() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] != "cli":
            text = path.read_text()
            assert "argparse" not in text, f"{path} parses arguments"
            assert "rich.table import Table" not in text, f"{path} draws a table"
