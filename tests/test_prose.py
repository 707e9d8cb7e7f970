"""Pages are short and plain: tools/prose.py has the limits."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_tool() -> ModuleType:
    """Import tools/prose.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("prose_tool", ROOT / "tools/prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


prose = load_tool()


@pytest.mark.parametrize("page", prose.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_easy_to_read(page: Path) -> None:
    found = prose.measure(page.read_text())
    assert not found.over(prose.max_words(page)), found


def test_what_is_measured() -> None:
    text = "# Heading, comma\n\nOne two, three four. Five six `a, b` seven eight.\n\n| a, b | c |\n- Yes: no\n"
    assert prose.sentences(text) == ["One two, three four.", "Five six x seven eight."]
    found = prose.measure(text)
    assert (found.num_sentences, found.marks, found.words) == (2, 0.5, 4.5)


def test_log_entries_may_be_longer() -> None:
    assert prose.max_words(ROOT / "docs/log/2026-11-15-goals.md") == 18
    assert prose.max_words(ROOT / "docs/log/README.md") == prose.max_words(ROOT / "README.md") == 16
