"""Print the size and the weight of a tree of PAC: files, lines, functions, imports, and what `pac --version` costs.

python tools/tree_numbers.py [TREE ...]        # default: this tree; several stand side by side
"""

import ast
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CORE = {"types", "config", "recipe", "bins", "objectives", "files", "old_names", "resources", "model", "data"}
CORE |= {"training", "policy", "policy_metadata"}
REPEATS = 5
CODE = "import json, sys, pac; print(json.dumps([m for m in sys.modules]))"
VERSION = "import sys; from pac.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
VERSION += "import json; print(json.dumps([m for m in sys.modules]))"


def run(tree: Path, code: str) -> tuple[str, float, float]:
    """Run Python on a tree; return what it printed, and the least CPU and wall seconds of several times."""
    cpu, wall, printed = [], [], ""
    for _ in range(REPEATS):
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        before, began = os.times(), os.times().elapsed
        printed = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout
        after = os.times()
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
        wall.append(after.elapsed - began)
    return printed, min(cpu), min(wall)


def numbers(tree: Path) -> dict[str, str]:
    """Measure one tree."""
    root = tree / "src" / "pac"
    files = {path: path.read_text() for path in sorted(root.rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in files.items()}
    parts = {path: path.relative_to(root).parts[0].removesuffix(".py") for path in files}
    lengths, between = [], set()
    for path, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pac."):
                between.add((parts[path], (node.module or "").split(".")[1]))
            elif isinstance(node, ast.ImportFrom) and node.module == "pac":
                between |= {(parts[path], alias.name) for alias in node.names}
    core = [path for path in files if parts[path] in CORE]
    nothing, nothing_cpu, nothing_wall = run(tree, "import sys, json; print(json.dumps([m for m in sys.modules]))")
    _, _, import_wall = run(tree, CODE)
    version, version_cpu, _ = run(tree, VERSION)
    modules = len(json.loads(version.splitlines()[-1])) - len(json.loads(nothing))
    return {
        "files": f"{len(files)}",
        "lines": f"{sum(lines.values()):,}",
        "files of the core": f"{len(core)}" if (root / "files.py").exists() else "-",
        "lines of the core": f"{sum(lines[path] for path in core):,}" if (root / "files.py").exists() else "-",
        "longest file, lines": f"{max(lines.values())}",
        "median function, lines": f"{statistics.median(lengths):g}",
        "imports between packages": f"{len({(a, b) for a, b in between if a != b})}",
        "modules imported by pac --version": f"{modules:,}",
        "CPU seconds of pac --version, above Python's own": f"{version_cpu - nothing_cpu:.2f}",
        "seconds of import pac, above Python's own": f"{import_wall - nothing_wall:.2f}",
    }


def main() -> None:
    trees = [Path(name) for name in sys.argv[1:]] or [Path(__file__).parents[1]]
    found = [numbers(tree) for tree in trees]
    for name in found[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in found) + " |")


if __name__ == "__main__":
    main()
