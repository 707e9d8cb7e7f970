"""The built wheel carries what it needs, and the code in README runs."""

import re
import runpy
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


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_python_in_readme_is_an_example_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    (block,) = python_blocks("README.md")
    example = runpy.run_path(str(ROOT / "examples/arrays.py"))
    lines = {
        line.strip().replace("steps=steps", "steps=1_000")
        for line in (ROOT / "examples/arrays.py").read_text().splitlines()
    }
    assert [line for line in block.splitlines() if line.strip() not in lines] == []
    monkeypatch.chdir(tmp_path)
    env = example["Reach"]()
    arrays = dict(zip("oartu", example["record"](env, 4), strict=True))
    exec(block.replace("steps=1_000", "steps=2").replace("episodes=50", "episodes=2"), arrays | {"env": env})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "my-policy", "runs"]


def test_the_model_in_the_docs_runs() -> None:
    exec(python_blocks("docs/python.md")[-1], {})


def test_examples_are_short() -> None:
    for example in (ROOT / "examples").glob("*.py"):
        assert len(example.read_text().splitlines()) <= 60, example


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "numbers"), [("arrays", "4 4"), ("gymnasium_env", "6 4"), ("poor_data", "4 4"), ("several_gpus", "3")]
)
def test_examples_run(example: str, numbers: str, tmp_path: Path) -> None:
    if example == "several_gpus":
        collect = "collect metaworld/drawer-close --behaviour scripted --episodes 2 --max-steps 50 --out data/several"
        subprocess.run([sys.executable, "-m", "pac", *collect.split()], check=True, cwd=tmp_path)
    start = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if example == "several_gpus" else []
    file = str(ROOT / "examples" / f"{example}.py")
    subprocess.run([sys.executable, *start, file, *numbers.split()], check=True, cwd=tmp_path)


def test_the_sizes_in_readme_are_those_of_pac_info() -> None:
    from pac.cli.info import report
    from pac.model.config import SIZES

    rows = report(list(SIZES), {})["sizes"]
    cells = " | ".join(f"{row['parameters'] / 1e6:.2f}M" for row in rows.values())
    assert f"| parameters | {cells} |" in (ROOT / "README.md").read_text()
