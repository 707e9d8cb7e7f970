"""The words of earlier versions stay out of code and docs. tests/old_words.txt lists them with their replacements."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXEMPT = {"src/pac/old_names.py", "docs/glossary.md"}


def old_words(kind: str) -> dict[str, str]:
    """Return the forbidden words of one kind, and what replaces each."""
    lines = (ROOT / "tests/old_words.txt").read_text().splitlines()
    rows = [re.split(r"\s{2,}", line, maxsplit=2) for line in lines if line and not line.startswith("#")]
    return {word: new for found, word, new in rows if found == kind}


def texts() -> list[Path]:
    """Return the files that a user reads."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.toml")]
    found += list((ROOT / "src").rglob("*.py"))
    return [path for path in sorted(found) if str(path.relative_to(ROOT)) not in EXEMPT]


def defined_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each name that a file defines: modules, functions, classes, arguments, variables and attributes."""
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_old_words_stay_out() -> None:
    phrases, names, found = old_words("phrase"), old_words("name"), []
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, phrases))})(?![\w])", re.IGNORECASE)
    for path in texts():
        place = path.relative_to(ROOT)
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            found += [f"{place}:{number}: {m[1]!r}" for m in pattern.finditer(line)]
            if path.suffix != ".py":
                found += [f"{place}:{number}: `{m[1]}`" for m in re.finditer(r"`(\w+)`", line) if m[1] in names]
        if path.suffix == ".py":
            found += [f"{place}:{line}: name {name!r}" for line, name in defined_names(path) if name in names]
    assert not found, f"{len(found)} old words; tests/old_words.txt has the new ones:\n" + "\n".join(found[:200])


def test_the_list_is_read() -> None:
    assert old_words("phrase")["trial"] == "evaluation episode"
    assert old_words("name")["World"] == "Environment, or ProcessGroup"
