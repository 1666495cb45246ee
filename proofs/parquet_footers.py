"""Flips bits in the footers of Parquet files, and reads them: does a reader end its process?

``python -m proofs.parquet_footers [COUNT]`` lets `read_parquet` read so many files, in child
processes. Each must be read, or raise `DataLossError` or `InvalidArgumentError`.

``python -m proofs.parquet_footers --accessors [COUNT]`` calls each accessor of pyarrow's metadata
instead, and lists those that raised, those that ended the process, and those that did neither. C++
may throw where pyarrow does not expect it: then nothing in Python can stop the end of the process.

A footer has no checksum, so a flipped bit may turn up in any number, type or name.

With pyarrow 26.0.1 and 20,000 files, these ended the process:

- `RowGroupMetaData.column` (21 times), and ``compression`` (93) and ``statistics`` (33) of what it
  returns;
- `ParquetFileFragment.subset` with a filter (115), which looks at the statistics.

These never did, and raised at most: `ParquetFile`, with and without ``metadata=`` and
``coerce_int96_timestamp_unit=``, its ``schema_arrow`` and ``iter_batches``; all of `FileMetaData`
(``num_rows``, ``num_row_groups``, ``num_columns``, ``created_by``, ``format_version``,
``serialized_size``, ``metadata``, ``schema``, ``row_group``), `ParquetSchema` and `ColumnSchema`;
``num_rows``, ``num_columns``, ``total_byte_size`` and ``sorting_columns`` of `RowGroupMetaData`.
The other fields of a column chunk never did either, but no one reaches them without ``column``.
"""

from __future__ import annotations

import argparse
import io
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MOST_BYTES = 2 << 30
"""The memory of a child process: a flipped bit may ask for any amount."""
LONGEST = 120.0
"""Seconds for one file, at most: far more than any needs."""


def whole_files() -> dict[str, bytes]:
    """Return sound files, by what they hold: each has a footer of another kind."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    numbers = np.arange(60)
    flat = pa.table(
        {
            "number": numbers,
            "text": [f"row {number % 7}" for number in numbers],
            "part": pa.array(numbers / 3, mask=numbers % 5 == 0),
        }
    )
    nested = pa.table(
        {
            "list": [[number] * (number % 3) for number in range(60)],
            "struct": [{"a": number, "b": {"c": str(number)}} for number in range(60)],
            "time": pa.array(numbers, pa.timestamp("us", "UTC")),
            "binary": pa.array([bytes([number]) for number in range(60)], pa.binary(1)),
        }
    )
    times = pa.table({"old": pa.array(numbers * 10**9, pa.timestamp("ns")), "number": numbers})
    options: dict[str, tuple[Any, dict[str, Any]]] = {
        "flat": (flat, {}),
        "indexed": (
            flat,
            {"write_page_index": True, "sorting_columns": [parquet.SortingColumn(0)]},
        ),
        "bare": (flat, {"write_statistics": False, "use_dictionary": False, "store_schema": False}),
        "nested": (nested, {}),
        "old times": (times, {"use_deprecated_int96_timestamps": True}),
    }
    found = {}
    for name, (table, option) in options.items():
        out = io.BytesIO()
        parquet.write_table(table, out, row_group_size=25, **option)
        found[name] = out.getvalue()
    return found


def flipped(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield files with one flipped bit in their footers, and their descriptions, without end."""
    words = random.Random(seed)
    files = list(whole_files().items())
    while True:
        name, whole = words.choice(files)
        length = int.from_bytes(whole[-8:-4], "little")
        begin = len(whole) - 8 - length
        bit = words.randrange(8 * length)
        damaged = bytearray(whole)
        damaged[begin + bit // 8] ^= 1 << bit % 8
        yield f"{name}, bit {bit} of the footer", bytes(damaged)


# What a child process does with a file.


class Calls:
    """Calls of one file, each under a name that survives the end of the process.

    Args:
        current: where the name stands while the call lasts.
    """

    def __init__(self, current: mmap.mmap) -> None:
        self._current = current
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        self._current[:] = name.encode().ljust(len(self._current), b"\0")
        try:
            value = call()
        except Exception as error:
            self.outcomes[name, type(error).__name__] += 1
            return None
        self.outcomes[name, "fine"] += 1
        return value


def call_accessors(data: bytes, calls: Calls) -> None:
    """Call all accessors that pyarrow has for a footer, from the whole to its parts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import dataset, parquet

    file = calls("ParquetFile()", lambda: parquet.ParquetFile(io.BytesIO(data)))
    if file is None:
        return
    calls("ParquetFile.schema_arrow", lambda: file.schema_arrow)
    calls("ParquetFile.iter_batches", lambda: list(file.iter_batches(7)))
    calls(
        "ParquetFile.iter_batches(row_groups=)",
        lambda: list(file.iter_batches(7, row_groups=[file.metadata.num_row_groups - 1])),
    )
    calls(
        "ParquetFile(metadata=, coerce_int96_timestamp_unit=).schema_arrow",
        lambda: (
            parquet.ParquetFile(
                io.BytesIO(data), metadata=file.metadata, coerce_int96_timestamp_unit="us"
            ).schema_arrow
        ),
    )

    def subset(condition: Any) -> list[int]:
        fragment = dataset.ParquetFileFormat().make_fragment(io.BytesIO(data))
        names = list(file.schema_arrow)
        found = fragment.subset(filter=condition, schema=pa.schema(names))
        return [group.id for group in found.row_groups]

    for name in ("number", "part", "text"):
        value = "row 3" if name == "text" else 40
        calls("ParquetFileFragment.subset", lambda n=name, v=value: subset(pc.field(n) > v))  # type: ignore[misc]
    metadata = calls("ParquetFile.metadata", lambda: file.metadata)
    for name in ("num_rows", "num_row_groups", "num_columns", "created_by", "format_version"):
        calls(f"FileMetaData.{name}", lambda n=name: getattr(metadata, n))  # type: ignore[misc]
    for name in ("serialized_size", "metadata", "schema"):
        calls(f"FileMetaData.{name}", lambda n=name: getattr(metadata, n))  # type: ignore[misc]
    schema = metadata.schema
    calls("ParquetSchema.names", lambda: schema.names)
    calls("ParquetSchema.to_arrow_schema", lambda: schema.to_arrow_schema())
    for at in range(min(len(schema.names), 20)):
        column = calls("ParquetSchema.column", lambda a=at: schema.column(a))  # type: ignore[misc]
        for name in ("name", "path", "max_definition_level", "physical_type", "logical_type"):
            calls(f"ColumnSchema.{name}", lambda n=name, c=column: getattr(c, n))  # type: ignore[misc]
        for name in ("converted_type", "length", "precision", "scale", "max_repetition_level"):
            calls(f"ColumnSchema.{name}", lambda n=name, c=column: getattr(c, n))  # type: ignore[misc]
    for number in range(min(metadata.num_row_groups, 20)):
        group = calls("FileMetaData.row_group", lambda n=number: metadata.row_group(n))  # type: ignore[misc]
        if group is None:
            continue
        for name in ("num_rows", "num_columns", "total_byte_size", "sorting_columns"):
            calls(f"RowGroupMetaData.{name}", lambda n=name, g=group: getattr(g, n))  # type: ignore[misc]
        for at in range(min(group.num_columns, 20)):
            column = calls("RowGroupMetaData.column", lambda a=at, g=group: g.column(a))  # type: ignore[misc]
            if column is None:
                continue
            for name in (
                "file_offset", "file_path", "physical_type", "num_values", "path_in_schema",
                "is_stats_set", "statistics", "compression", "encodings",
                "has_dictionary_page", "dictionary_page_offset", "data_page_offset",
                "has_index_page", "index_page_offset", "total_compressed_size",
                "total_uncompressed_size", "has_offset_index", "has_column_index", "metadata",
                "geo_statistics", "size_statistics", "is_geo_stats_set",
            ):  # fmt: skip
                if hasattr(type(column), name):
                    found = calls(
                        f"ColumnChunkMetaData.{name}",
                        lambda n=name, c=column: getattr(c, n),  # type: ignore[misc]
                    )
                    if name == "statistics" and found is not None:
                        for one in ("min", "max", "null_count", "distinct_count", "num_values"):
                            calls(f"Statistics.{one}", lambda o=one, s=found: getattr(s, o))  # type: ignore[misc]


def read(data: bytes, calls: Calls, folder: Path) -> None:
    """Read the rows, single and in batches, with and without a filter."""
    from aioqueue import DataLossError, InvalidArgumentError
    from aioqueue.inputs import read_parquet

    path = folder / "flipped.parquet"
    path.write_bytes(data)

    def rows(**options: Any) -> str:
        try:
            for _ in islice(read_parquet(path, **options), 1000):
                pass
        except (DataLossError, InvalidArgumentError) as error:
            return type(error).__name__
        return "read"

    for name, options in (
        ("rows", {}),
        ("batches", {"batch_size": 7}),
        ("a filter", {"filters": [("number", ">", 40)]}),
        ("a union", {"schema": "union"}),
    ):
        found = calls(name, lambda o=options: rows(**o))  # type: ignore[misc]
        if found is not None:
            calls.outcomes[name, "fine"] -= 1
            calls.outcomes[name, found] += 1


def child(mode: str, seed: int, begin: int, end: int, place: str) -> None:
    """Go through files, and keep how far that has come in a file that survives this process."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, -1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(int(LONGEST) * (1 + (end - begin) // 20))
    folder = Path(place)
    with open(folder / "current", "r+b") as file:
        current = mmap.mmap(file.fileno(), 100)
    with open(folder / "progress", "r+b") as file:
        progress = mmap.mmap(file.fileno(), 8)
    calls = Calls(current)
    for number, (_, data) in islice(enumerate(flipped(seed)), begin, end):
        progress[:] = number.to_bytes(8, "little")
        calls.outcomes.clear()
        if mode == "accessors":
            call_accessors(data, calls)
        elif mode == "ends":  # for the test of this file
            calls("os.abort", os.abort)
        else:
            read(data, calls, folder)
        with open(folder / "outcomes", "a", encoding="utf-8") as file:
            for (name, outcome), count in calls.outcomes.items():
                print(name, outcome, count, sep="\t", file=file)


def outcomes(mode: str, count: int, seed: int = 0) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Go through so many files in child processes.

    Returns:
        How often each call had which outcome, and descriptions of the files that ended a process.
    """
    found: Counter[tuple[str, str]] = Counter()
    ends = []
    begin = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.joinpath("current").write_bytes(bytes(100))
        folder.joinpath("progress").write_bytes(bytes(8))
        folder.joinpath("outcomes").touch()
        while begin < count:
            command = [sys.executable, "-m", "proofs.parquet_footers", "--child", mode]
            ran = subprocess.run(
                [*command, str(seed), str(begin), str(count), place],
                check=False,
                stderr=subprocess.PIPE,
                text=True,
            )
            if ran.returncode == 0:
                break
            reached = int.from_bytes(folder.joinpath("progress").read_bytes(), "little")
            if ran.returncode > 0 or reached < begin:
                raise RuntimeError(ran.stderr)
            name = folder.joinpath("current").read_bytes().rstrip(b"\0").decode()
            found[name, signal.Signals(-ran.returncode).name] += 1
            (what, _data) = next(islice(flipped(seed), reached, None))
            why = ran.stderr.strip().splitlines()[-1:]
            ends.append(f"{reached}: {what}: {name}: {' '.join(why)}")
            begin = reached + 1
        for line in folder.joinpath("outcomes").read_text("utf-8").splitlines():
            name, outcome, times = line.split("\t")
            found[name, outcome] += int(times)
    return found, ends


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accessors", action="store_true")
    arguments = parser.parse_args()
    mode = "accessors" if arguments.accessors else "rows"
    found, ends = outcomes(mode, arguments.count, arguments.seed)
    for name in dict.fromkeys(name for name, _ in sorted(found)):
        shown = {how: times for (one, how), times in sorted(found.items()) if one == name and times}
        print(f"{name}: {', '.join(f'{how} {times}' for how, times in shown.items())}")
    print(f"{arguments.count} files; {len(ends)} ended the process")
    if not arguments.accessors:
        for line in ends[:20]:
            print(f"  {line}")
    return 0 if arguments.accessors or not ends else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        mode, seed, begin, end, place = sys.argv[2:]
        child(mode, int(seed), int(begin), int(end), place)
    else:
        sys.exit(main())
