"""Readers of files: what their records are, and the batches of these."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, assert_type

from aioqueue import DataLossError, inputs
from aioqueue.core.elements.spec import Array

folder = Path(tempfile.mkdtemp())
table = folder / "pets.csv"
table.write_text("kind,size\ncat,0.5\ndog,1.5\n")

sizes = inputs.read_csv(table, "float32", columns=["size"], skip_header_lines=1)
assert_type(sizes, inputs.Reader[Array])
assert_type(sizes.batch(2), inputs.Pipeline[Array])
assert [float(batch.sum()) for batch in sizes.batch(2)] == [2.0]

rows = inputs.read_csv(table, [str, "float64"], skip_header_lines=1)
assert_type(rows, inputs.Reader[tuple[Any, ...]])
for kinds, numbers in rows.batch(2):
    assert kinds.tolist() == ["cat", "dog"]
    assert numbers.shape == (2,)
assert_type(rows.batch(2), inputs.Pipeline[tuple[Array, ...]])

records = inputs.read_csv(table, {"size": "float64"}, skip_header_lines=1)
assert_type(records, inputs.Reader[dict[str, Any]])
assert_type(records.shuffle(2).batch(2), inputs.Pipeline[dict[str, Array]])

lines = inputs.read_lines(table, max_line_bytes=100)
assert_type(lines, inputs.Reader[str])
assert_type(inputs.read_lines(table, encoding=None), inputs.Reader[bytes])
assert_type(lines.prepare(len).batch(3), inputs.Pipeline[Array])
assert_type(lines.with_keys(), inputs.Reader[tuple[str, str]])
assert_type(inputs.read_tar(table, grouped=False), inputs.Reader[tuple[str, bytes]])
assert_type(inputs.read_whole_files(table), inputs.Reader[bytes])

(folder / "values.jsonl").write_text('{"a": 1}\nx\n{"a": 2}\n')
values = inputs.read_json_lines(folder / "values.jsonl", on_error="skip")
assert_type(values, inputs.Reader[Any])
assert list(values) == [{"a": 1}]
assert_type(values.quarantine, list[inputs.Quarantined])
assert [record.offset for record in values.quarantine] == [9]
nullable = inputs.read_csv(table, {"size": float}, skip_header_lines=1, null_values=["0.5"])
assert_type(nullable, inputs.Reader[dict[str, Any]])
assert [row["size"] for row in nullable] == [None, 1.5]

try:
    list(inputs.read_lines(table, max_line_bytes=3))
except DataLossError as error:
    assert_type(error.offset, int)
