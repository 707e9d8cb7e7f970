"""The pages' look: colours that can be read in either scheme, and tables that stay in their box."""

import re

import pytest

from pac.evaluation.tables import Grid
from pac.report import html


def schemes() -> list[dict[str, str]]:
    """Variables of the light and the dark scheme."""
    blocks = re.findall(r":root \{(.*?)\}", html.STYLE, re.DOTALL)
    return [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks]


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("number", [0, 1])
def test_series_and_text_stand_out_from_their_ground(number: int) -> None:
    colours = schemes()[number]
    assert contrast("#fff", "#000") == pytest.approx(21)
    for i in range(html.SERIES):
        assert contrast(colours[f"s{i}"], colours["paper"]) >= 3, i
    for name, ground in (("ink", "paper"), ("soft", "paper"), ("ink", "warn"), ("ink", "faint")):
        assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def test_paper_is_light_whatever_the_screen() -> None:
    light, dark, printed = schemes()
    assert printed == light != dark


def test_a_page_escapes_its_title_and_its_warnings() -> None:
    assert "<title>&lt;b&gt;</title>" in html.document("<b>", [])
    assert html.warning("<b>") == '<p class="warning">&lt;b&gt;</p>'


def test_pooled_rows_are_set_apart() -> None:
    rows = [[(text, False)] for text in "123"]
    made = html.grid_table(Grid("t", ["a"], rows, 1))
    assert made.index(">2</td>") < made.index('<tr class="pooled">') < made.index(">3</td>")
    assert "pooled" not in html.grid_table(Grid("t", ["a"], rows))
