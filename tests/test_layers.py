"""Imports point downward: a module may import from its own layer or from those below it."""

import ast
from pathlib import Path

import pac

LAYERS = [
    {"bins", "config", "intervals", "look", "resources", "sections", "types"},
    {"behaviours", "envs", "model"},
    {"objectives", "data"},
    {"distributed", "policy", "recipe", "rollout", "run"},
    {"collect", "evaluate", "logs", "optim", "report", "scaling"},
    {"ingredients", "update"},
    {"blame"},
    {"train"},
    {"launch"},
    {"demo", "improve", "study"},
    {"cli"},
]
ROOT = Path(pac.__file__).parent


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pac":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pac.")}
    return names


def test_every_module_has_a_layer_and_imports_only_downward() -> None:
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    checked = 0
    for path in sorted(ROOT.rglob("*.py")):
        top = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if top in ("__init__", "__main__"):
            continue
        assert top in level, f"{path}: add {top!r} to LAYERS"
        for name in imported(path):
            assert level[name] <= level[top], f"{path} imports pac.{name}, which lies above it"
        checked += 1
    assert checked > 10
