"""The files of a cache: what writes examples into them, and what reads them again.

They are Arrow files (IPC), of one layout each (`arrow_rows`). A file is read by mapping it into
memory, privately: examples are made of the mapped memory, and who writes into them changes only
that mapping.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.extras import required
from aioqueue.inputs.core.arrow_rows import RowLayout, RowReader
from aioqueue.inputs.core.sink import RowWriter, Sink

__all__ = ("CacheSink", "rows_of_file")

_PURPOSE: Final = "a cache in files"
_FIRST_ROWS: Final = 64
_MOST_ROWS: Final = 1024
_BATCH_BYTES: Final = 2**23
_FIRST_BYTES: Final = 2**22
_MOST_BYTES: Final = 2**28
"""Of a file. The first ones are small: readers wait until a file is whole, and a stop costs it."""
_UNBOUNDED: Final = 2**62


class CacheSink(Sink):
    """Where a cache puts the examples.

    Args:
        path: the folder.

    Raises:
        InvalidArgumentError: it is no local folder.
        ModuleNotFoundError: pyarrow is not installed.
    """

    _function = "cache"
    _format = "cache 1"
    _suffix = ".arrow"
    _ends_by_itself = True
    _anew = "on_stale='rebuild'"

    def __init__(self, path: Any) -> None:
        super().__init__(path, _UNBOUNDED, False)
        self._pa = required("pyarrow", "parquet", _PURPOSE)

    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        return _CacheWriter(self._pa, carried.get("files", 0))


class _CacheWriter(RowWriter):
    """Writes record batches. A file ends when it is large, or when examples need another layout.

    Args:
        pa: the module pyarrow.
        files: how many files earlier runs have written.
    """

    rows_at_once = _FIRST_ROWS

    def __init__(self, pa: Any, files: int) -> None:
        self._pa = pa
        self._files = files
        self._path: Path | None = None
        self._layout: RowLayout | None = None
        self._file: Any = None
        self._bytes = 0

    def open(self, path: Path) -> None:
        self._path, self._layout, self._bytes, self.is_full = path, None, 0, False

    def accepts(self, rows: Sequence[Any]) -> bool:
        return self._layout is None or self._layout.has(rows)

    def write(self, rows: Sequence[Any], first: int) -> None:
        if self._layout is None:
            self._layout = RowLayout.of(rows, first)
        batch = self._layout.batch_of(self._pa, rows)
        if self._file is None:
            self._file = self._pa.ipc.new_file(str(self._path), batch.schema)
        self._file.write_batch(batch)
        self._bytes += batch.nbytes
        self.is_full = self._bytes >= min(_MOST_BYTES, _FIRST_BYTES << min(self._files, 32))
        each = max(1, batch.nbytes // len(rows))
        self.rows_at_once = max(1, min(_MOST_ROWS, _BATCH_BYTES // each, 2 * self.rows_at_once))

    def finish(self) -> None:
        file, self._file = self._file, None
        file.close()
        self._files += 1

    def carried(self) -> dict[str, Any]:
        return {"files": self._files}

    def abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):
                file.close()


def rows_of_file(path: Path, begin: int) -> Iterator[list[Any]]:
    """The examples of a file, some at a time.

    Args:
        path: the file.
        begin: the number of the first one, in this file.

    Raises:
        DataLossError: the file is damaged.
        OSError: it cannot be read.
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = required("pyarrow", "parquet", _PURPOSE)
    with path.open("rb") as file:
        # A mapping of its own for each reading: what a user has written into is in no later one.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        buffer = pa.py_buffer(memory)
        arrow = pa.ipc.open_file(buffer)
        reader = RowReader(pa, RowLayout.in_schema(arrow.schema), memory, buffer.address)
        batches = [arrow.get_batch(number) for number in range(arrow.num_record_batches)]
        ends = list(accumulate(batch.num_rows for batch in batches))
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise DataLossError(path=str(path), offset=0, fault=f"no cache file ({error})") from error
    for number, (batch, end) in enumerate(zip(batches, ends, strict=True)):
        if end > begin:
            try:
                batch.validate()
                rows = reader.rows(batch.slice(max(0, begin - end + batch.num_rows)))
            except InvalidArgumentError:
                raise
            except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
                fault = f"damaged record batch {number} ({error})"
                raise DataLossError(path=str(path), offset=0, fault=fault) from error
            yield rows
