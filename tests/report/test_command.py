"""`pac report` refuses what it cannot make a page of."""

from pathlib import Path

import pytest

from pac.cli import main


@pytest.mark.parametrize("words", [["a.json"], [], ["--out", "x"]])
def test_sources_and_a_page_are_expected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) == 2
    assert "expected" in capsys.readouterr().err


def test_the_option_that_moved_names_its_new_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--refresh", "results/README.md"]) == 2
    assert "python -m tools.refresh results/README.md" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", '{"format": 2, "settings": {"seed": 0}}\n'])
def test_an_evaluation_without_episodes_is_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was an IndexError."""
    (tmp_path / "y.json.partial.jsonl").write_text(content)
    assert main(["report", str(tmp_path / "y.json"), "--out", str(tmp_path / "page.html")]) == 2
    assert "no episode has finished" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
