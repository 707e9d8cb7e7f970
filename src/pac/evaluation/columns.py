"""Episodes of an evaluation as a Parquet table beside its JSON: a twentieth of the size, and one line opens it.

    write_columns(Path("results/vision.json"), document)      # vision.json, and vision.parquet with the episodes
    pandas.read_parquet("results/vision.parquet")

`records.read_document` reads such a pair as it reads a JSON that holds its episodes itself.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pac.files import problem, write_atomically, write_json
from pac.formats.common import need

EXTRA = "formats"
METADATA = b"pac"  # key of the schema's metadata


def write_columns(path: Path, document: Mapping[str, Any]) -> Path:
    """Write `document` as JSON, and its episodes as a table beside it. Return the path of the table."""
    table = path.with_suffix(".parquet")
    write_atomically(table, encode_columns(document["episodes"]))
    write_json(path, {**document, "episodes": table.name})
    return table


def encode_columns(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a Parquet file with one row per episode and one column per key, compressed by zstd."""
    arrow, parquet = need("pyarrow", EXTRA), need("pyarrow.parquet", EXTRA)
    names = list(dict.fromkeys(name for row in rows for name in row))
    optional = [name for name in names if not all(name in row for row in rows)]
    table = arrow.table({name: [row.get(name) for row in rows] for name in names})
    table = table.replace_schema_metadata({METADATA: json.dumps({"format": 1, "optional": optional})})
    stream = arrow.BufferOutputStream()
    numbers = [name for name in names if arrow.types.is_floating(table.schema.field(name).type)]
    parquet.write_table(
        table,
        stream,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in names if name not in numbers],
        use_byte_stream_split=numbers,  # a third smaller than dictionaries of floats
    )
    content: bytes = stream.getvalue().to_pybytes()
    return content


def read_columns(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table that `encode_columns` made. Keys that a row did not have are absent again."""
    arrow, parquet = need("pyarrow", EXTRA), need("pyarrow.parquet", EXTRA)
    try:
        table = parquet.read_table(path)
        optional = json.loads(table.schema.metadata[METADATA])["optional"]
    except (OSError, arrow.ArrowException, KeyError, TypeError, ValueError) as error:
        raise problem(
            path,
            expected="the episodes of an evaluation as a Parquet table",
            found=f"{type(error).__name__}: {error}",
            fix="The JSON beside it names this file: restore both.",
        ) from error
    rows: list[dict[str, Any]] = table.to_pylist()
    for name in optional:
        for row in rows:
            if row[name] is None:
                del row[name]
    return rows
