"""The built wheel carries what it needs, and the code in README runs."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pac
from pac.cli import main
from pac.resources import ASSETS, find_recipe

ROOT = Path(__file__).parents[1]


def test_the_wheel_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"perceiver_actor_critic-{pac.__version__}-")
    assert wheel.stat().st_size < 2.5e6
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"pac/py.typed", "pac/assets/tokenizer.model", "pac/recipes/paper/scaling.toml"}
    assert expected | {"pac/recipes/paper/pretraining.toml", "pac/recipes/smoke.toml"} <= names
    sources = {f"pac/{path.relative_to(ROOT / 'src' / 'pac')}" for path in (ROOT / "src" / "pac").rglob("*.py")}
    assert sources <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    code = (
        "from pac.resources import *; print(find_recipe('paper/scaling'), (ASSETS / 'tokenizer.model').stat().st_size)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked)},
    ).stdout
    assert shown.startswith(str(unpacked))


def test_recipes_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_recipe("paper/scaling").samefile(ROOT / "recipes" / "paper" / "scaling.toml")
    assert find_recipe("recipes/paper/scaling.toml").is_file()
    assert (ASSETS / "tokenizer.model").is_file()
    assert main(["mixture", "paper/scalin"]) == 2
    assert "paper/pretraining, paper/scaling" in capsys.readouterr().err


def test_the_python_in_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_the_sizes_in_readme_are_those_of_pac_info() -> None:
    from pac.cli.info import report
    from pac.model.config import SIZES

    rows = report(list(SIZES), {})["sizes"]
    cells = " | ".join(f"{row['parameters'] / 1e6:.2f}M" for row in rows.values())
    assert f"| parameters | {cells} |" in (ROOT / "README.md").read_text()
