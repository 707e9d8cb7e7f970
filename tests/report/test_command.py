"""`pac report` refuses what it cannot make a page of."""

import pytest

from pac.cli import main


@pytest.mark.parametrize("words", [["a.json"], [], ["--out", "x"]])
def test_sources_and_a_page_are_expected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) == 2
    assert "expected" in capsys.readouterr().err


def test_the_option_that_moved_names_its_new_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--refresh", "results/README.md"]) == 2
    assert "python -m tools.refresh results/README.md" in capsys.readouterr().err
