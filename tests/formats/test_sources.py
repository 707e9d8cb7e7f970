"""A source is found by its path, its Minari id or its Hugging Face id. Its imported copy has a place of its own."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import foreign
import pytest
from foreign import assert_same, change, tricky, without_last

from pac.cli import parse
from pac.data.store import Dataset
from pac.formats.options import ImportOptions
from pac.formats.sources import cache_place, locate


def hub_cache(root: Path, name: str, source: Path, commit: str = "1" * 40) -> Path:
    """Put a folder into a cache as huggingface_hub lays it out: blobs, and links to them in a snapshot."""
    place = root / f"datasets--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "blobs").mkdir()
    for number, file in enumerate(sorted(path for path in source.rglob("*") if path.is_file())):
        blob, link = place / "blobs" / f"{number:040x}", snapshot / file.relative_to(source)
        blob.write_bytes(file.read_bytes())
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_paths_and_minari_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    path = foreign.write_minari(tmp_path / "made", tricky(), "hdf5")
    place = tmp_path / "minari/mujoco/pendulum/expert-v0"
    place.parent.mkdir(parents=True)
    path.rename(place)
    assert locate("mujoco/pendulum/expert-v0") == place
    assert locate(place) == place
    monkeypatch.chdir(place.parent)
    assert locate("expert-v0") == Path("expert-v0"), "a path that exists wins"
    run, args = parse(["import", "mujoco/pendulum/expert-v0", "--out", str(tmp_path / "out")])
    run(args)
    assert_same(list(Dataset(tmp_path / "out")), tricky(), source=str(place))


@pytest.mark.parametrize("name", ["nowhere", "/no/where", "./no/where", "data/aloha", "a/b/c/d-v3", "~/nowhere/at-all"])
def test_what_is_not_there_is_said_without_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match=r"expected a file or folder, found nothing there.*hf://OWNER/NAME\."):
        locate(name)
    with pytest.raises(ValueError, match=r"expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION"):
        locate("hf://lerobot")


def test_hub_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"huggingface_hub.*pip install 'perceiver-actor-critic\[hub\]'"):
        locate("lerobot/aloha_sim")


def test_the_cache_is_asked_before_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NotCachedError(FileNotFoundError):
        pass

    calls: list[dict[str, object]] = []
    cached = {"lerobot/here"}

    def snapshot_download(**request: object) -> str:
        calls.append(request)
        if request.get("local_files_only") and request["repo_id"] not in cached:
            raise NotCachedError
        if request["repo_id"] == "lerobot/nowhere":
            raise ConnectionError("no network.\nmore lines")
        return str(tmp_path)

    hub, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    hub.snapshot_download, errors.LocalEntryNotFoundError = snapshot_download, NotCachedError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    request = {"repo_id": "lerobot/here", "repo_type": "dataset", "revision": None}
    assert locate("lerobot/here") == tmp_path
    assert calls == [request | {"local_files_only": True}]
    calls.clear()
    assert locate("hf://lerobot/there@v2.0") == tmp_path
    request = {"repo_id": "lerobot/there", "repo_type": "dataset", "revision": "v2.0"}
    assert calls == [request | {"local_files_only": True}, request]
    with pytest.raises(ValueError, match=r"hf://lerobot/nowhere: expected .*found ConnectionError: no network\. Check"):
        locate("lerobot/nowhere")


FIND = "import sys; from pac.formats.sources import locate; print(locate(sys.argv[1]))"


def found_in_cache(cache: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Locate a source in a process of its own, since the hub reads its settings at import."""
    settings = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", FIND, name], env=os.environ | settings, capture_output=True, text=True)


def test_hub_from_its_cache(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    source = foreign.write_lerobot(tmp_path / "made", tricky(), version="v3.0")
    snapshot = hub_cache(tmp_path / "hub", "lerobot/tricky", source)
    for name in ("lerobot/tricky", "hf://lerobot/tricky", "hf://lerobot/tricky@main"):
        found = found_in_cache(tmp_path / "hub", name)
        assert found.stdout.strip() == str(snapshot), found.stderr
    missing = found_in_cache(tmp_path / "hub", "hf://lerobot/other")
    assert missing.returncode
    assert "hf://lerobot/other: expected a dataset on Hugging Face, found " in missing.stderr


def test_import_from_a_snapshot_of_links(tmp_path: Path) -> None:
    source = foreign.write_lerobot(tmp_path / "made", tricky(("top",)), version="v3.0")
    snapshot = hub_cache(tmp_path / "hub", "lerobot/tricky", source)
    run, args = parse(["import", str(snapshot), "--out", str(tmp_path / "out")])
    run(args)
    assert_same(list(Dataset(tmp_path / "out")), change(without_last(tricky(("top",))), success=None))


def test_place_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAC_CACHE", str(tmp_path / "cache"))
    source = foreign.write_lerobot(tmp_path / "my set", tricky(), version="v3.0")
    place = cache_place(source, ImportOptions())
    assert place.parent == tmp_path / "cache/datasets"
    assert place.name.startswith("my_set-")
    assert len(place.name) == len("my_set-") + 12
    monkeypatch.chdir(tmp_path)
    assert cache_place(Path("my set"), ImportOptions()) == place
    other = {cache_place(source, options) for options in (ImportOptions(episodes="0"), ImportOptions(cameras=()), None)}
    info = source / "meta/info.json"
    info.write_text(info.read_text() + " ")
    other.add(cache_place(source, ImportOptions()))
    assert len(other | {place}) == 5
    file = foreign.write_d4rl(tmp_path / "set.hdf5", tricky())
    assert cache_place(file, ImportOptions()).name.startswith("set-")
    monkeypatch.delenv("PAC_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_place(file, ImportOptions()).parent == tmp_path / ".cache/pac/datasets"
