"""Rows 48 and 50: Parquet files, and cached epochs, beside pyarrow alone with the same files.

Row 51: what a cache compares, beside hashing the same bytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from aioqueue.inputs import arrays, items, numbers, read_parquet, to_parquet
from benchmarks.harness import Comparison, Mode, Row, compare, installed

__all__ = ("measure",)

ROWS: Final = 2_000_000
DICTS: Final = 100_000
BATCH: Final = 16_384
FILES: Final = 4
IMAGES: Final = 1_000
SHAPE: Final = (224, 224, 3)
TABLE: Final = 2**26
CACHED: Final = 64
"""Images in a batch."""


def columns_of(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "id": np.arange(rows),
        "score": rng.random(rows),
        "weight": rng.random(rows, dtype=np.float32),
        "label": rng.integers(0, 1000, rows),
    }


def batches(folder: Path, mode: Mode) -> Comparison:
    """Columns that are read in batches, and written into files of as many rows."""
    import pyarrow as pa
    import pyarrow.parquet

    rows = mode.scaled(ROWS)
    each = rows // FILES
    given = folder / "given.parquet"
    pa.parquet.write_table(pa.table(columns_of(rows)), given)
    reader = read_parquet(str(given), batch_size=BATCH)

    def ours() -> None:
        reader.write(to_parquet(folder / "ours", rows_per_file=each), existing="replace")

    def theirs() -> None:
        file = pa.parquet.ParquetFile(given)
        writer: Any = None
        number = missing = 0
        for batch in file.iter_batches(BATCH):
            rest = batch
            while rest.num_rows:
                if not missing:
                    path = folder / f"theirs-{number}.parquet"
                    writer = pa.parquet.ParquetWriter(path, rest.schema)
                    number, missing = number + 1, each
                part = rest.slice(0, missing)
                writer.write_batch(part)
                missing -= part.num_rows
                rest = rest.slice(part.num_rows)
                if not missing:
                    writer.close()
        if missing:
            writer.close()

    what = (
        "Parquet is read in batches, and written again in files of as many rows, which are"
        " committed (seconds per row)"
    )
    peer = "pyarrow alone, which flushes nothing to the disk"
    return compared("48", what, peer, ours, theirs, rows, mode)


def dicts(folder: Path, mode: Mode) -> Comparison:
    """Rows that are Python's dicts in memory."""
    import pyarrow as pa
    import pyarrow.parquet

    count = mode.scaled(DICTS)
    columns = [column.tolist() for column in columns_of(count).values()]
    names = list(columns_of(1))
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    source = items(rows)
    each = count // FILES

    def ours() -> None:
        source.write(to_parquet(folder / "dicts", rows_per_file=each), existing="replace")

    def theirs() -> None:
        for begin in range(0, count, each):
            table = pa.Table.from_pylist(rows[begin : begin + each])
            pa.parquet.write_table(table, folder / f"dicts-{begin}.parquet")

    what = "the same for dicts in memory, one row each: the source hands out copies of them"
    peer = "`pyarrow.Table.from_pylist`, and its writer"
    return compared("48", what, peer, ours, theirs, count, mode)


def cached(folder: Path, mode: Mode) -> Comparison:
    """Read a later epoch from the cache, and copy each batch, as a transfer to a device does."""
    import pyarrow as pa

    count = mode.scaled(IMAGES)
    images = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), np.uint8)
    pipeline = arrays({"image": images, "label": np.arange(count)}).batch(CACHED).cache(folder)
    epochs = pipeline.epochs(None)
    for _ in next(epochs):
        pass  # the first one fills it
    own = np.empty((CACHED, *SHAPE), np.uint8)

    def ours() -> None:
        for batch in next(epochs):
            image = batch["image"]
            own[: len(image)] = image

    def theirs() -> None:
        for path in sorted(folder.glob("*.arrow")):
            with pa.memory_map(str(path)) as memory:
                file = pa.ipc.open_file(memory)
                for number in range(file.num_record_batches):
                    values, shapes, *_ = file.get_batch(number).columns
                    offsets, flat = values.offsets.to_numpy(), values.values.to_numpy()
                    for at, shape in enumerate(shapes.to_pylist()):
                        image = flat[offsets[at] : offsets[at + 1]].reshape(shape)
                        own[: len(image)] = image

    what = (
        f"a later epoch of {CACHED} images of {'x'.join(map(str, SHAPE))} a batch, which are cached"
        " in files, and each copied (seconds per image)"
    )
    peer = "pyarrow, which maps the same files"
    with epochs:
        return compared("50", what, peer, ours, theirs, count, mode)


def keyed(mode: Mode) -> Comparison:
    """Make a cache whose function uses a large table; every byte of it is compared."""
    count = mode.scaled(TABLE)
    table = np.random.default_rng(0).integers(0, 256, count, np.uint8)

    def size_of(number: int) -> int:
        return int(table[number])

    def ours() -> float:
        began = perf_counter()
        numbers(3, seed=0).prepare(size_of).cache("not-made")
        return (perf_counter() - began) / count

    def theirs() -> float:
        began = perf_counter()
        blake2b(table.data).digest()
        return (perf_counter() - began) / count

    what = (
        f"what a cache compares, of a function that uses an array of {TABLE // 2**20} MiB (seconds"
        " per byte)"
    )
    return compare(
        Row("51", what, "hashlib, which hashes the same bytes", 0.9),
        ours,
        theirs,
        mode,
        names=("aioqueue", "hashlib"),
        show=lambda each: f"{each * 1e9:.2f} ns",
    )


def compared(
    number: str,
    what: str,
    peer: str,
    ours: Callable[[], None],
    theirs: Callable[[], None],
    count: int,
    mode: Mode,
) -> Comparison:
    """Compare by the seconds for each of so many rows or images."""

    def seconds(function: Callable[[], None]) -> Callable[[], float]:
        def timed() -> float:
            began = perf_counter()
            function()
            return (perf_counter() - began) / count

        return timed

    return compare(
        Row(number, what, peer, 0.9),
        seconds(ours),
        seconds(theirs),
        mode,
        names=("aioqueue", "pyarrow"),
        show=lambda each: f"{each * 1e9:.0f} ns",
    )


def measure(mode: Mode) -> Iterator[Comparison]:
    """All rows of this part."""
    if not installed("pyarrow"):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield batches(folder, mode)
        yield dicts(folder, mode)
        yield cached(folder / "cache", mode)
    if installed("cloudpickle"):
        yield keyed(mode)
