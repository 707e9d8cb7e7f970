"""Episodes as a Parquet table beside the JSON: smaller, equal when read back, readable by others."""

from pathlib import Path
from typing import Any

import pytest
from made import make

from pac.evaluation import columns, read_document, read_evaluation
from pac.files import write_json

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def document(num_episodes: int) -> dict[str, Any]:
    """Return a document in which some values are None and some keys are missing."""
    rows = [make(index=i, total=0.1 * i, success=[None, True, False][i % 3]) for i in range(num_episodes)]
    rows += [make("metaworld/push", i, 1 / 3, actor="théirs", predicted=0.5 * i, achieved=2.0) for i in range(3)]
    return {"format": 2, "settings": {"seed": 0}, "notes": [], "episodes": [entry.as_json() for entry in rows]}


def test_a_document_is_the_same_when_read_back(tmp_path: Path) -> None:
    path, expected = tmp_path / "a.json", document(500)
    write_json(path, expected)
    size, records = path.stat().st_size, read_evaluation(path)
    table = columns.write_columns(path, expected)
    assert table == tmp_path / "a.parquet"
    assert read_document(path) == expected
    assert [list(row) for row in read_document(path)["episodes"]] == [list(row) for row in expected["episodes"]]
    assert read_evaluation(path) == records
    assert path.stat().st_size + table.stat().st_size < size / 8


def test_no_episodes(tmp_path: Path) -> None:
    columns.write_columns(tmp_path / "a.json", document(0) | {"episodes": []})
    assert read_document(tmp_path / "a.json")["episodes"] == []


def test_others_see_a_plain_table(tmp_path: Path) -> None:
    table = parquet.read_table(columns.write_columns(tmp_path / "a.json", document(5)))
    assert table.column_names[:4] == ["actor", "task", "seed", "index"]
    assert table["return"].to_pylist()[:3] == [0.0, 0.1, 0.2]
    actors = parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    assert "RLE_DICTIONARY" in actors.encodings
    assert actors.compression == "ZSTD"


def test_a_table_that_is_damaged_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    table = columns.write_columns(path, document(5))
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(ValueError, match="expected the episodes of an evaluation as a Parquet table"):
        read_evaluation(path)
    table.unlink()
    with pytest.raises(ValueError, match="restore both"):
        read_evaluation(path)
    parquet.write_table(arrow.table({"x": [1]}), table)
    with pytest.raises(ValueError, match="Parquet table"):
        read_evaluation(path)
