"""The `pac` command imports little before it knows which command is asked for."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pac
from pac.cli import COMMANDS, main

HEAVY = {"torch", "numpy", "rich", "gymnasium", "mujoco", "pyarrow"}


def imported_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has imported after `code`."""
    tell = "import sys, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    shown = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], check=True, capture_output=True, text=True)
    return set(json.loads(shown.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import pac",
        "from pac.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass",
        "from pac.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_imported_before_a_command_is_chosen(code: str) -> None:
    assert imported_by(code) & HEAVY == set()


def test_each_command_is_one_file() -> None:
    files = {path.stem for path in Path(pac.cli.__file__).parent.glob("*.py")} - {"__init__", "tables", "next_step"}
    assert {module for module, _ in COMMANDS.values()} == files
    for module, _ in COMMANDS.values():
        command = importlib.import_module(f"pac.cli.{module}")
        assert command.__doc__
        assert callable(command.add_arguments)
        assert callable(command.run)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"usage: pac {name}" in capsys.readouterr().out


def test_a_mistyped_command_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["evaluat", "random"])
    assert "unknown command 'evaluat'. Did you mean 'evaluate'?" in capsys.readouterr().err


def test_help_begins_with_a_sentence_and_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    about = " ".join(capsys.readouterr().out.partition("positional")[0].split())
    assert about.partition("Offline")[2].count(".") == 1
    assert "import pac" not in about
