"""`pac import` and `pac export`: several sources, options, summaries, and no half-written datasets."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import foreign
import numpy as np
import pytest
from foreign import IMAGES, STATE, assert_same, change, tricky, without_last

from pac.cli import parse
from pac.data.relabel import label_episode
from pac.data.store import Dataset, DatasetSpec, verify
from pac.data.writer import DatasetWriter
from pac.formats import FORMATS
from pac.formats.options import ImportOptions
from pac.formats.transfer import import_dataset


def command(*arguments: object) -> None:
    run, args = parse([str(argument) for argument in arguments])
    run(args)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_import_of_every_format_through_the_command(tmp_path: Path) -> None:
    episodes = tricky()
    plain = change(episodes, instruction="go", success=None)
    path = foreign.write_d4rl(tmp_path / "set.hdf5", episodes)
    command("import", path, "--out", tmp_path / "a", "--instruction", "go", "--fps", 50)
    found = Dataset(tmp_path / "a")
    assert_same(list(found), plain, source=str(path))
    assert found.bounds_are_measured
    assert found.spec.control_rate == 50
    path = foreign.write_lerobot(tmp_path / "lerobot", episodes, version="v3.0")
    command("import", path, "--out", tmp_path / "b", "--format", "lerobot")
    assert_same(list(Dataset(tmp_path / "b")), change(without_last(episodes), success=None))
    assert Dataset(tmp_path / "b").spec.control_rate == 10
    assert verify(tmp_path / "b") == []


def test_several_sources_append_to_one_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = foreign.write_minari(tmp_path / "1", tricky(), "hdf5")
    two = foreign.write_minari(tmp_path / "2", tricky(), "arrow")
    out = tmp_path / "out"
    command("import", one, two, "--out", out)
    command("import", two, "--out", out, "--json")
    assert_same(list(Dataset(out)), tricky() * 3)
    np.testing.assert_array_equal(Dataset(out).action_low, [-1, -1])
    printed = capsys.readouterr().out
    summary = json.loads(printed[printed.index("[\n") :])
    assert (summary[0]["format"], summary[0]["episodes"], summary[0]["steps"]) == ("minari", 6, 16)
    assert (summary[0]["terminated"], summary[0]["truncated"]) == (4, 3)
    assert "6 episodes, 16 steps" in printed
    assert "4 terminal, 3 time limits" in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2", "out"], "nothing is left beside the dataset"


def test_source_without_bounds_takes_those_of_the_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    import_dataset([foreign.write_minari(tmp_path / "1", tricky(), "hdf5")], out)
    path = foreign.write_d4rl(tmp_path / "set.hdf5", tricky())
    import_dataset([path], out)
    assert len(Dataset(out)) == 12
    before = files(out)
    beyond = [dataclasses.replace(episode, action=episode.action * 9) for episode in tricky()]
    with pytest.raises(ValueError, match=r"set2\.hdf5.*key 'action'.*expected a value in \[-1, 1\]"):
        import_dataset([foreign.write_d4rl(tmp_path / "set2.hdf5", beyond)], out)
    assert files(out) == before


@pytest.mark.parametrize("existing", [True, False])
def test_failed_import_adds_nothing(tmp_path: Path, existing: bool) -> None:
    good = foreign.write_robomimic(tmp_path / "good.hdf5", tricky(sparse=True))
    damaged = tricky(sparse=True)
    damaged[4].observation[STATE][0, 0] = np.nan
    bad = foreign.write_robomimic(tmp_path / "bad.hdf5", damaged)
    out = tmp_path / "place" / "out"
    if existing:
        import_dataset([good], out)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"bad\.hdf5.*demo_4.*observation\.state.*finite"):
        import_dataset([good, bad], out)
    assert files(tmp_path) == before
    assert out.exists() == existing
    if existing:
        assert verify(out) == []
        assert len(Dataset(out)) == 6


def test_import_to_a_full_disk_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = foreign.write_d4rl(tmp_path / "set.hdf5", tricky())
    before, write, calls = files(tmp_path), os.pwrite, iter(range(12))

    def full(*arguments: object) -> int:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ValueError, match="No space left"):
        import_dataset([path], tmp_path / "out")
    assert files(tmp_path) == before


def test_sources_with_different_features_are_refused(tmp_path: Path) -> None:
    one = foreign.write_robomimic(tmp_path / "one.hdf5", tricky(("left",), sparse=True))
    two = foreign.write_robomimic(tmp_path / "two.hdf5", tricky(("left", "right"), sparse=True))
    with pytest.raises(ValueError, match=r"two\.hdf5: expected cameras .*left.*found cameras .*right.*another folder"):
        import_dataset([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    import_dataset([one], tmp_path / "out")
    import_dataset([two], tmp_path / "out", options=ImportOptions(keys={IMAGES + "left": ("left",)}))
    assert len(Dataset(tmp_path / "out")) == 12
    with pytest.raises(ValueError, match="a dataset or a new folder"):
        import_dataset([one], tmp_path)


def test_keys_choose_state_and_cameras(tmp_path: Path) -> None:
    path = foreign.write_robomimic(tmp_path / "demo.hdf5", tricky(("left", "right"), sparse=True))
    out = tmp_path / "out"
    command("import", path, "--out", out, "--keys", f"{IMAGES}front=right", f"{STATE}={STATE}", "--split", "even")
    found = list(Dataset(out))
    expected = [
        dataclasses.replace(
            e,
            observation={STATE: e.observation[STATE], IMAGES + "front": e.observation[IMAGES + "right"]},
            instruction="walk",
            success=False,
            terminated=False,
            truncated=True,
        )
        for e in tricky(("left", "right"), sparse=True)[::2]
    ]
    assert_same(found, expected)
    with pytest.raises(ValueError, match="FEATURE=KEY"):
        command("import", path, "--out", tmp_path / "b", "--keys", "right")
    with pytest.raises(ValueError, match="Did you mean 'right'"):
        command("import", path, "--out", tmp_path / "b", "--keys", f"{IMAGES}front=rigt")


def test_summary_notes_that_ends_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Formats that cannot tell a terminal from a time limit say so."""
    equal = [foreign.make_episode(np.random.default_rng(i), steps=4) for i in range(3)]
    sources = [
        foreign.write_robomimic(tmp_path / "demo.hdf5", tricky(sparse=True)),
        foreign.write_ogbench(tmp_path / "maze.npz", tricky()),
        foreign.write_lerobot(tmp_path / "lerobot", tricky(), version="v2.1", flags=("next.done",)),
        foreign.write_tdmpc2(tmp_path / "chunk_0.pt", equal, [0, 1, 2]),
    ]
    for number, source in enumerate(sources):
        command("import", source, "--out", tmp_path / str(number))
        printed = capsys.readouterr().out
        assert "0 terminal" in printed
        assert "note: " in printed
        assert "time limit" in printed.split("note: ", 1)[1]


@pytest.mark.parametrize(("rule", "made"), [("sparse-success", 2), ("time-to-go", 2)])
def test_rewards_of_demonstrations_at_import(
    rule: str, made: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule's rewards and ends are stored, and the summary says how many ends it has changed."""
    path, out = foreign.write_lerobot(tmp_path / "lerobot", tricky(), version="v2.1"), tmp_path / "out"
    command("import", path, "--out", tmp_path / "plain")
    assert f"Rewards are {rule!r}" not in capsys.readouterr().out
    command("import", path, "--out", out, "--reward", rule)
    printed = capsys.readouterr().out
    assert f"note: Rewards are {rule!r}: {made} ends became terminal." in printed
    assert "6 terminal, 0 time limits" in printed
    assert_same(list(Dataset(out)), [label_episode(episode, rule) for episode in Dataset(tmp_path / "plain")])
    assert verify(out) == []


def test_labelled_failures_keep_their_end_at_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = [dataclasses.replace(e, success=i % 2 == 0) for i, e in enumerate(tricky())]
    path, out = foreign.write_minari(tmp_path / "1", episodes, "hdf5"), tmp_path / "out"
    command("import", path, "--out", out, "--reward", "time-to-go")
    found, before = list(Dataset(out)), tricky()
    for i, (now, was) in enumerate(zip(found, before, strict=True)):
        assert now.success is (i % 2 == 0)
        assert now.reward[-1] == (0 if now.success else -1)
        assert (now.reward[:-1] == -1).all()
        assert now.terminated == (was.terminated or now.success)
    assert "3 failures keep their end" in capsys.readouterr().out


def test_a_further_reward_becomes_the_reward(tmp_path: Path) -> None:
    further = [
        dataclasses.replace(e, extra_rewards={"lift": np.arange(len(e.action), dtype=np.float32)}) for e in tricky()
    ]
    with DatasetWriter(tmp_path / "store", DatasetSpec.of(further[0], control_rate=10.0)) as writer:
        for episode in further:
            writer.append(episode)
    path = tmp_path / "minari-v0"
    command("export", tmp_path / "store", "--format", "minari", "--out", path)
    command("import", path, "--out", tmp_path / "out", "--reward", "lift")
    for episode, expected in zip(Dataset(tmp_path / "out"), further, strict=True):
        np.testing.assert_array_equal(episode.reward, expected.extra_rewards["lift"])
        assert (episode.terminated, episode.truncated) == (expected.terminated, expected.truncated)
    with pytest.raises(ValueError, match=r"reward 'lfit': expected 'sparse-success' or .*found these: lift"):
        command("import", path, "--out", tmp_path / "bad", "--reward", "lfit")
    assert not (tmp_path / "bad").exists()


def test_formats_option_states_time_alignment_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("import", "--formats")
    printed = capsys.readouterr().out
    for name, module in FORMATS.items():
        assert module.__doc__ is not None
        assert "Time alignment: " in module.__doc__
        assert "Ends: " in module.__doc__
        assert f"--format {name}: {module.__doc__.strip()}" in printed


def test_export_through_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign.write_minari(tmp_path / "1", tricky(("top",)), "hdf5")
    command("import", path, "--out", tmp_path / "store")
    command("export", tmp_path / "store", "--format", "lerobot", "--fps", 30, "--out", tmp_path / "lerobot")
    command("export", tmp_path / "store", "--format", "minari", "--out", tmp_path / "minari-v0")
    assert "left out in 6 episodes" in capsys.readouterr().out
    command("import", tmp_path / "lerobot", "--out", tmp_path / "again")
    command("import", tmp_path / "minari-v0", "--out", tmp_path / "again-too")
    assert_same(list(Dataset(tmp_path / "again")), without_last(tricky(("top",))))
    assert_same(list(Dataset(tmp_path / "again-too")), tricky(("top",)))
    with pytest.raises(ValueError, match="a new folder"):
        command("export", tmp_path / "store", "--format", "minari", "--out", tmp_path / "minari-v0")
