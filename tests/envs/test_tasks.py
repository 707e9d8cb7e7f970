import json
import subprocess
import sys

import pytest

from pac import envs
from pac.cli import main
from pac.envs.tasks import instruction


def test_the_papers_suite_tasks_and_all_of_metaworld_are_known() -> None:
    assert sum(name.startswith("control/") for name in envs.TASKS) == 32
    assert sum(name.startswith("metaworld/") for name in envs.TASKS) == 50
    assert len(set(envs.TASKS)) == 82


def test_importing_the_package_and_asking_for_specs_loads_no_simulator() -> None:
    code = (
        "import sys, pac.envs; [pac.envs.spec(task) for task in pac.envs.TASKS]; "
        "sys.exit(any(name in sys.modules for name in ('mujoco', 'dm_control', 'metaworld', 'gymnasium')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_episodes_seed_is_the_same_on_every_machine_and_fits_63_bits() -> None:
    assert envs.episode_seed("control/walker.walk", 0, 0) == 4975437125581165433
    assert envs.episode_seed("metaworld/push", 7, 123456) == 6302765799868984402
    many = {envs.episode_seed(task, seed, i) for task in envs.TASKS for seed in range(3) for i in range(50)}
    assert len(many) == 82 * 3 * 50
    assert 0 <= min(many) < 2**60
    assert 2**62 < max(many) < 2**63


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("control/ball_in_cup.catch", "ball in cup catch"),
        ("metaworld/drawer-open", "drawer open"),
        ("gym/Pendulum-v1", "Pendulum"),
        ("gym/module:space/Ant-v5", "Ant"),
    ],
)
def test_an_instruction_is_the_words_of_the_name(task: str, text: str) -> None:
    assert instruction(task) == text


@pytest.mark.parametrize(
    ("task", "meant"),
    [
        ("walker.walk", "control/walker.walk"),
        ("control/walker-walk", "control/walker.walk"),
        ("drawer-opn", "metaworld/drawer-open"),
        ("metaworld/drawer-open-v3", "metaworld/drawer-open"),
        ("control/drawer-open", None),
        ("gym/", None),
        ("Pendulum-v1", "gym/Pendulum-v1"),
        ("robot:Cart-v0", "gym/robot:Cart-v0"),
    ],
)
def test_an_unknown_task_names_the_nearest(task: str, meant: str | None) -> None:
    with pytest.raises(ValueError, match="Unknown task") as error:
        envs.make(task)
    assert meant is None or str(error.value).endswith(f"Did you mean {meant!r}?")


def test_an_unknown_camera_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'front'.*walker.walk has side, back"):
        envs.spec("control/walker.walk", cameras=["front"])
    for wrong in (["side", "side"], "side"):
        with pytest.raises(ValueError, match="different names"):
            envs.spec("control/walker.walk", cameras=wrong)


@pytest.mark.parametrize("package", ["gymnasium", "dm_control", "metaworld"])
def test_a_missing_extra_gives_the_line_that_installs_it(package: str) -> None:
    task = "metaworld/push" if package == "metaworld" else "control/walker.walk"
    code = f"import sys; sys.modules[{package!r}] = None; import pac.envs; pac.envs.make({task!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError")
    assert package in last
    assert last.endswith("pip install 'perceiver-actor-critic[sim]'")


def test_pac_tasks_lists_sizes_limits_and_cameras(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "quadruped.esc", "gym/Pendulum-v1", "--json"]) == 0
    escape, pendulum = json.loads(capsys.readouterr().out)
    assert escape["name"] == "control/quadruped.escape"
    assert escape["cameras"] == ["global", "x", "y", "egocentric"]
    assert (escape["state_dim"], len(escape["action_low"]), escape["max_steps"]) == (101, 12, 1000)
    assert (pendulum["state_dim"], pendulum["action_high"], pendulum["max_steps"]) == (3, [2.0], 200)
    assert main(["tasks"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in envs.TASKS)
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["tasks", "nothing-like-it"]) == 2
