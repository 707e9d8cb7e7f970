"""Result files: documents come back equal from Parquet, and others can read the episodes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from results_made import DOOR, episodes, write_evaluation

from pac.files import write_json
from tools.archive import Folder, main, read_columns, read_document

RESULTS = Path(__file__).parents[2] / "results"
MOST_BYTES = 4_000_000


def write_study(path: Path) -> dict[str, Any]:
    """Write a study in which some values are None and some keys are missing. Return its document."""
    records = [dataclasses.replace(episodes("PAC, seed 1", DOOR, 0, 1)[0], success=None)]
    records += episodes("PAC, seed 0", DOOR, 3, 200) + episodes("BC, seed 0", DOOR, 1, 5, achieved=0.5)
    document = json.loads(write_evaluation(path, records, seed=0).read_text())
    base = {"a": {"b": [1, 2.0, {"c": True}]}, "model": {"size": "nano"}}
    document["rows"] = {"PAC": base, "BC": {**base, "a": {"b": [1, 2.5, {"c": 1}]}}, "CQL": {"other": 1}}
    write_json(path, {**document, "summary": {"PAC": 1.0}})
    return document


def test_a_document_comes_back_equal(tmp_path: Path) -> None:
    source, out = tmp_path / "a.json", tmp_path / "a.parquet"
    document = write_study(source)
    main([str(source), str(out)])
    back = read_document(out)
    assert back == document
    assert [list(row) for row in back["episodes"]] == [list(row) for row in document["episodes"]]
    assert type(back["rows"]["BC"]["a"]["b"][2]["c"]) is int
    assert out.stat().st_size < source.stat().st_size / 5
    main([str(out), str(tmp_path / "b.json")])
    assert json.loads((tmp_path / "b.json").read_text()) == document


def test_a_folder_becomes_one_file(tmp_path: Path) -> None:
    (tmp_path / "run/rounds").mkdir(parents=True)
    document = write_study(tmp_path / "run/rounds/0.json")
    write_json(tmp_path / "run/improve.json", {"status": "mastered"})
    main([str(tmp_path / "run"), str(tmp_path / "run.parquet")])
    folder = Folder(tmp_path / "run.parquet")
    assert folder.read("improve.json") == {"status": "mastered"}
    assert folder.read("rounds/0.json") == document
    with pytest.raises(ValueError, match=r"expected x.json in it, found improve.json, rounds/0.json"):
        folder.read("x.json")


def test_others_see_a_plain_table() -> None:
    path = RESULTS / "study/vision.parquet"
    table = parquet.read_table(path)
    assert table.column_names[:4] == ["actor", "task", "seed", "index"]
    assert table["success"].to_pylist() == [
        e["success"] for e in read_document(RESULTS / "study/vision.parquet")["episodes"]
    ]


def test_all_result_files_are_small_and_can_be_read() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < MOST_BYTES
    for path in RESULTS.rglob("*.parquet"):
        key = "curves" if path.stem == "curves" else "episodes"
        found = read_columns(path, key)
        assert sum(len(document.get(key, [])) for document in found.values()) == parquet.read_metadata(path).num_rows


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((RESULTS / "scripted.parquet").read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"expected a Parquet file of tools\.archive"):
        read_document(path)
    path.unlink()
    with pytest.raises(ValueError, match=r"expected the file .*a\.parquet, found none"):
        read_document(path)
